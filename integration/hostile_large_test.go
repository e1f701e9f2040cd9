package integration

import (
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvrelay/kvrelay/consumer"
	"github.com/kvrelay/kvrelay/internal/mockengine"
	"github.com/kvrelay/kvrelay/relay"
)

// A large batch on a slow link takes much longer than REPLAY_IDLE to arrive. It
// is coming all the while, and is asked for once.
func TestHostileSlowGiant(t *testing.T) {
	t.Parallel()
	const size, piece = 8 << 20, 256 << 10
	w := newHostileWorld(t, hostileOptions{relay: func(o *relay.Options) { o.Replay.Idle = 300 * time.Millisecond }})
	w.settled("at the start")
	mark := markOf(1 << 30)
	payloads := [][]byte{hostileBatch(event("X", string(make([]byte, size)))), batchOf(1_790_000_001, storeEvent(mark))}
	var asked atomic.Int64
	w.live.turn(func(v *villain) { v.shake("PUB"); v.listen() })
	w.replay.turn(func(v *villain) {
		tick := time.NewTicker(60 * time.Millisecond)
		defer tick.Stop()
		for ok := v.shake("ROUTER"); ok; {
			var start uint64
			if start, ok = v.request(); !ok {
				return
			}
			asked.Add(1)
			for i := min(start, 2); ok && i < 2; i++ {
				ok = v.say(zmtpFrame(zmtpMore, nil), zmtpFrame(zmtpMore, seqOf(i)), zmtpHead(0, uint64(len(payloads[i]))))
				for p := payloads[i]; ok && len(p) > 0; p = p[min(piece, len(p)):] {
					ok = v.say(p[:min(piece, len(p))])
					<-tick.C
				}
			}
			ok = ok && v.say(replyEnd)
		}
	})
	start := time.Now()
	w.await(40*time.Second, "the batch behind the giant", func() bool {
		_, has := w.picture.Lookup(consumer.Rank{Worker: 42}, consumer.Device, mark)
		return has
	})
	took := time.Since(start)
	t.Logf("%d MiB in %v, %d requests", size>>20, took.Round(time.Millisecond), asked.Load())
	// From the anchor of the engine that was; then, of the new one, from 0.
	if n := asked.Load(); n > 6 {
		t.Errorf("%d requests for one batch that was coming", n)
	}
	w.live.turn(nil)
	w.replay.turn(nil)
	w.settled("after the giant")
	w.discreet()
}

// Tens of megabytes are held behind a hole. When it closes they do not become
// router events all at once: what is unconfirmed stays within OUT_BYTES, no
// status waits, and the other rank goes on.
func TestHostileHeldAtOnce(t *testing.T) {
	t.Parallel()
	batches, blocks := 400, 1000
	if raceEnabled {
		batches = 60
	}
	o := bedOptions{ranks: 2}
	o.relay.HoldBytes, o.relay.OutBytes, o.relay.Replays = 64<<20, 4<<20, 2
	b := newBed(t, rand.New(rand.NewPCG(64, 11)), o)
	b.start()
	k := b.ranks[0]
	for _, k := range b.ranks {
		k.publish(5, 0)
		k.settle()
	}
	k.Silence(true)
	k.publish(1, 1) // the hole
	for i := range batches {
		k.many(i*blocks, blocks)
	}
	if !eventually(settleTime, func() bool { return k.cursor().Held == batches }) {
		t.Fatalf("%d of %d batches are held", k.cursor().Held, batches)
	}
	held := k.cursor().HeldBytes
	var slowest time.Duration // told, not judged: it is the machine's as well
	k.Silence(false)
	start := time.Now()
	if !eventually(2*settleTime, func() bool {
		began := time.Now()
		left := k.cursor().Held
		slowest = max(slowest, time.Since(began))
		return left == 0
	}) {
		t.Fatalf("%d batches are still held", k.cursor().Held)
	}
	t.Logf("%d MiB held, applied in %v, a status took %v at most", held>>20, time.Since(start).Round(time.Millisecond), slowest.Round(time.Millisecond))
	for _, k := range b.ranks {
		k.settle()
	}
	b.end()
}

// many publishes a store of n blocks that have no parent, numbered from first.
func (k *bedRank) many(first, n int) {
	k.w.pure = false // these are in no pool
	e := mockengine.Event{Kind: mockengine.Stored}
	for i := first; i < first+n; i++ {
		e.Hashes = append(e.Hashes, uint64(1<<41+i))
		for j := range k.w.size {
			e.Tokens = append(e.Tokens, uint32(70_000+i%50_000*k.w.size+j))
		}
	}
	k.w.ts += 0.01
	payload := k.w.enc.Encode(nil, k.w.ts, []mockengine.Event{e})
	k.w.batches = append(k.w.batches, payload)
	k.put(payload, false)
}
