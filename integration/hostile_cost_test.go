package integration

import (
	"syscall"
	"testing"
	"time"

	"github.com/kvrelay/kvrelay/convert"
	"github.com/kvrelay/kvrelay/decode"
	"github.com/kvrelay/kvrelay/internal/msgpack"
)

// The worst batches that are let in at all cost time in proportion to their
// size: four times as much of the same takes about four times as long, from
// bytes to router events. Time is the processor's, which other programs do not
// make longer; -v tells it.
func TestHostileCost(t *testing.T) {
	large := 60 << 20
	if raceEnabled {
		large = 4 << 20
	}
	rows := func(size int) []payloadRow { return append(giantRows(size), costRows(size)...) }
	small := rows(large / 4)
	for i, row := range rows(large) {
		little, few, _ := cost(t, small[i])
		much, many, routed := cost(t, row)
		t.Logf("%-26s %3d MiB: %5.0f ms, %4.1f ns a byte; a quarter of it: %.0f ms; %d router events", row.name, many>>20,
			much.Seconds()*1e3, float64(much)/float64(many), little.Seconds()*1e3, routed)
		// Below some milliseconds it is allocation and the clock's own steps that count.
		if most := 3 * time.Duration(float64(little)*float64(many)/float64(few)); much > most && much > 300*time.Millisecond {
			t.Errorf("%s: %d bytes take %v, %d take %v: more than in proportion", row.name, few, little, many, much)
		}
	}
}

// costRows are batches of which everything is taken, or much has to be looked at.
func costRows(size int) []payloadRow {
	row := func(name string, batch func() []byte) payloadRow {
		return payloadRow{name, func() [][]byte { return [][]byte{batch()} }}
	}
	return []payloadRow{
		row("stores of 1000 blocks", func() []byte {
			blocks := size / 1000 / 30
			return hostileBatch(series(blocks, func(i int) any {
				return event("BlockStored", series(1000, func(j int) any { return 1<<33 + 1000*i + j }), nil, times(4000, 70_000), 4)
			}))
		}),
		row("one chain of blocks", func() []byte {
			n := size / 30
			return hostileBatch(event("BlockStored", series(n, func(j int) any { return 1<<33 + j }), nil, times(4*n, 70_000), 4))
		}),
		row("one hash again and again", func() []byte {
			n := size / 9
			return hostileBatch(event("BlockStored", times(n, 5), nil, times(4*n, 7), 4))
		}),
		row("one key again and again", func() []byte {
			n := size / 40
			b := msgpack.AppendMapHeader(nil, n+1)
			b = pack(pack(b, "type"), "BlockStored")
			for range n {
				b = pack(pack(b, "block_hashes"), list{1 << 40, 1 << 41, 1 << 42})
			}
			return hostileBatch(packed(b))
		}),
	}
}

// cost is the time of a row's payloads, the less of two, their bytes, and how
// many router events come of them.
func cost(t *testing.T, row payloadRow) (least time.Duration, size, routed int) {
	t.Helper()
	payloads := row.payloads()
	for _, p := range payloads {
		size += len(p)
	}
	for range 2 {
		begin := cpuTime(t)
		routed = work(payloads)
		if d := cpuTime(t) - begin; least == 0 || d < least {
			least = d
		}
	}
	return max(least, time.Millisecond), size, routed
}

// work is what a relay does with payloads, and how many router events come of it.
func work(payloads [][]byte) (events int) {
	conv := convert.New(convert.Config{WorkerID: 42, BlockSize: 4})
	var b decode.Batch
	var out convert.Output
	var wire []byte
	for _, p := range payloads {
		if b.Decode(p) != nil {
			continue
		}
		out.Reset()
		conv.Convert(&b, &out)
		for i := range out.Events {
			events++
			wire = convert.AppendEvent(wire[:0], &out.Events[i], 42, 0, uint64(events))
		}
	}
	return events
}

// cpuTime is what this process has used in user mode, of all its threads.
func cpuTime(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano())
}
