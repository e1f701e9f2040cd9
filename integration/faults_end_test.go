package integration

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/kvrelay/kvrelay/consumer"
	"github.com/kvrelay/kvrelay/relay"
)

// endStates are states in which the relay may be told to stop.
var endStates = []struct {
	name    string
	before  func(k *bedRank) // before the relay starts
	reach   func(k *bedRank)
	network bool
	left    bool // NATS cannot confirm what was published
	nothing bool // perhaps there is nothing yet to confirm
}{
	{name: "live", reach: func(k *bedRank) { k.settle() }},
	{name: "nobody there", left: true, nothing: true, before: func(k *bedRank) { k.Kill(); k.b.noNATS() }, reach: func(k *bedRank) {
		k.b.strikes("the engine is missed", func() bool { return k.b.said("waiting for the engine") > 0 })
	}},
	{name: "first replay stalls", before: func(k *bedRank) { k.publish(5, 0); k.Silence(true) }, reach: func(k *bedRank) {
		k.b.strikes("a replay stalls", func() bool { return k.cursor().Stalled > 0 })
	}},
	{name: "gap", reach: func(k *bedRank) {
		k.settle()
		k.Silence(true)
		k.publish(3, 1)
		k.publish(3, 0)
		k.b.strikes("a gap is seen", func() bool { return k.cursor().Missing })
	}},
	{name: "no credit", left: true, reach: func(k *bedRank) { k.settle(); k.b.noNATS(); k.fillOut() }},
	{name: "NATS stands still", left: true, reach: func(k *bedRank) { k.settle(); k.b.nats.Freeze(); k.fillOut() }},
	{name: "engine stands still", reach: func(k *bedRank) { k.settle(); k.Freeze(); k.publish(3, 0) }},
	{name: "engine gone", network: true, reach: func(k *bedRank) { k.settle(); k.away() }},
	{name: "engine just back", network: true, reach: func(k *bedRank) { k.settle(); k.away(); k.Silence(true); k.uncut() }},
}

func (b *bed) noNATS() {
	b.nats.Refuse()
	b.nats.Cut(false)
}

// Whatever the relay is at, it ends within 5 s when it is told to, says whether
// something stayed unconfirmed, and leaves nothing behind under CLEAR_ON_EXIT.
func TestFaultsEndInAnyState(t *testing.T) {
	for i, x := range endStates {
		for _, clear := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s,clear=%v", x.name, clear), func(t *testing.T) {
				t.Parallel()
				o := bedOptions{network: x.network}
				smallOut(nil, &o)
				o.relay.ClearOnExit = clear
				if x.network {
					o.relay.Replay.DeadAfter = 500 * time.Millisecond
				}
				b := newBed(t, rand.New(rand.NewPCG(uint64(i), 9)), o)
				b.alone = true
				b.router.allowRepeats()
				k := b.ranks[0]
				if x.before != nil {
					x.before(k)
				}
				b.start()
				x.reach(k)
				start := time.Now()
				err := b.stop()
				if took := time.Since(start); took > 5*time.Second {
					t.Errorf("the end took %v", took)
				}
				var left *relay.UnconfirmedError
				if errors.As(err, &left) != x.left && !x.nothing || err != nil && left == nil {
					t.Errorf("Run: %v, unconfirmed events wanted: %v", err, x.left)
				}
				if clear && !x.left && !eventually(settleTime, func() bool { return len(hashes(b.router.picture, k.id, consumer.Device)) == 0 }) {
					t.Error("blocks are left though CLEAR_ON_EXIT is set")
				}
				b.router.sound(t)
			})
		}
	}
}

// The same of the built program: SIGTERM, exit codes 0 and 4.
func TestFaultsProgramEnds(t *testing.T) {
	for name, want := range map[string]int{"live": 0, "no credit": 4} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := bedOptions{binary: true}
			smallOut(nil, &o)
			b := newBed(t, rand.New(rand.NewPCG(3, 9)), o)
			b.router.allowRepeats()
			b.start()
			k := b.ranks[0]
			k.settle()
			if want != 0 {
				b.noNATS()
				k.publish(300, 0)
				b.program.says("no connection to NATS")
			}
			b.program.want = want
			start := time.Now()
			if code := b.program.stop(); code != want {
				t.Errorf("exit code %d, want %d", code, want)
			}
			if took := time.Since(start); took > 5*time.Second {
				t.Errorf("the end took %v", took)
			}
			b.router.sound(t)
		})
	}
}
