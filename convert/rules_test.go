package convert

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"github.com/kvrelay/kvrelay/decode"
)

// stored is a store of blocks of four tokens each; options change it.
func stored(parent uint64, hashes []uint64, change ...func(*decode.Event)) decode.Event {
	ev := decode.Event{Type: decode.Stored, Hashes: hashes, HasParent: parent != 0, Parent: parent,
		HasTokens: true, BlockSize: testBlock, HasBlockSz: true}
	for i := range len(hashes) * testBlock {
		ev.Tokens = binary.LittleEndian.AppendUint32(ev.Tokens, uint32(i+1))
	}
	for _, c := range change {
		c(&ev)
	}
	return ev
}

func removed(hashes ...uint64) decode.Event {
	return decode.Event{Type: decode.Removed, Hashes: hashes}
}

func on(medium string) func(*decode.Event) {
	return func(ev *decode.Event) { ev.Medium = []byte(medium) }
}

func in(group uint32, kind string) func(*decode.Event) {
	return func(ev *decode.Event) {
		ev.HasGroup, ev.Group = true, group
		if kind != "" {
			ev.HasKind, ev.Kind = true, []byte(kind)
		}
	}
}

func salted(salt string) func(*decode.Event) {
	return func(ev *decode.Event) { ev.CacheSalt, ev.HasSalt = []byte(salt), true }
}

func tokens(n int) func(*decode.Event) {
	return func(ev *decode.Event) {
		for len(ev.Tokens) < 4*n {
			ev.Tokens = binary.LittleEndian.AppendUint32(ev.Tokens, 9)
		}
		ev.Tokens = ev.Tokens[:4*n]
		ev.HasTokens = n > 0
	}
}

func sized(size uint64) func(*decode.Event) {
	return func(ev *decode.Event) { ev.BlockSize = size }
}

func hashOnly(ev *decode.Event) { tokens(0)(ev) }

func reused(ev *decode.Event) { ev.Reused = true }

// apply changes an event that is no store.
func apply(ev decode.Event, change ...func(*decode.Event)) decode.Event {
	for _, c := range change {
		c(&ev)
	}
	return ev
}

// tester converts batches and writes down, shortly, what came of them:
// "S device 1>2,3" is a store of 2 and 3 under 1 (- for none), "R device 2", "C".
type tester struct {
	t    *testing.T
	r    *Rank
	fold picture
	out  Output
}

func newTester(t *testing.T, c Config) *tester {
	return &tester{t: t, r: New(c), fold: picture{}}
}

func (x *tester) batch(evs ...decode.Event) string {
	x.t.Helper()
	before := x.r.Stats()
	x.out.Reset()
	x.r.Convert(&decode.Batch{Events: evs}, &x.out)
	after := x.r.Stats()
	text := x.text()
	for reason := range NumReasons {
		if n := after.Drops(reason) - before.Drops(reason); n > 0 {
			text = append(text, fmt.Sprintf("%s %d", reason, n))
		}
	}
	accounted(x.t, after)
	checkLedger(x.t, &x.r.ledger)
	return strings.Join(text, "; ")
}

// text is the Output, folded too.
func (x *tester) text() (text []string) {
	x.t.Helper()
	for _, e := range x.out.Events {
		switch e.Kind {
		case Stored:
			parent := "-"
			if e.HasParent {
				parent = fmt.Sprint(e.Parent)
			}
			var blocks []string
			for _, b := range e.Blocks {
				blocks = append(blocks, fmt.Sprint(b.Hash))
			}
			text = append(text, fmt.Sprintf("S %v %s>%s", e.Tier, parent, strings.Join(blocks, ",")))
		case Removed:
			text = append(text, fmt.Sprintf("R %v %s", e.Tier, strings.Trim(strings.Join(strings.Fields(fmt.Sprint(e.Hashes)), ","), "[]")))
		case Cleared:
			text = append(text, "C")
		}
	}
	x.fold.apply(x.out.Events)
	samePicture(x.t, x.r, x.fold)
	return text
}

func (x *tester) want(want string, evs ...decode.Event) {
	x.t.Helper()
	if got := x.batch(evs...); got != want {
		x.t.Errorf("got  %s\nwant %s", got, want)
	}
}

func (x *tester) notices() (kinds []NoticeKind) {
	for _, n := range x.out.Notices {
		kinds = append(kinds, n.Kind)
	}
	return kinds
}
