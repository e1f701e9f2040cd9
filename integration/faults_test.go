//go:build integration

package integration

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/kvrelay/kvrelay/consumer"
)

// fault is one kind of trouble. It strikes a running world, after which the
// router must come to hold what the engine holds (settle says so).
type fault struct {
	name   string
	set    settings
	engine func(*engineConfig)
	ranks  int
	// before runs before kvrelay is started.
	before func(f *faultWorld)
	strike func(f *faultWorld, k *faultRank)
	// says are lines of kvrelay's log that prove, where the fault is alone, that
	// it was struck.
	says []string
}

var faults = []fault{
	{name: "drops", says: []string{"gap healed"}, strike: func(f *faultWorld, k *faultRank) {
		k.publish(60, .3)
	}},
	{name: "burst", says: []string{"gap healed"}, set: settings{"HOLD_BYTES": "64KiB"}, strike: func(f *faultWorld, k *faultRank) {
		k.publish(40, 1)
		k.publish(120, 0) // more than is held
	}},
	{name: "midframe", says: []string{"live connection ended"}, strike: func(f *faultWorld, k *faultRank) {
		for range 3 {
			k.publish(10, .1)
			k.live.Cut(true)
			if f.r.IntN(2) == 0 {
				k.replay.Cut(true)
			}
		}
		if f.r.IntN(2) == 0 { // the process was killed
			k.restart()
			k.publish(10, .1)
		}
	}},
	{name: "restart", says: []string{"the engine was restarted"}, strike: func(f *faultWorld, k *faultRank) {
		k.restart()
		k.publish(1+f.r.IntN(60), .1)
	}},
	{name: "overtaken", says: []string{"the engine was restarted"}, strike: func(f *faultWorld, k *faultRank) {
		before := int(k.w.seq)
		k.cut()
		k.restart()
		k.publish(before+[]int{-1, 0, 1, 25}[f.r.IntN(4)], .1)
		k.uncut()
	}},
	{name: "halfopen", says: []string{"the engine was restarted"}, strike: func(f *faultWorld, k *faultRank) {
		k.live.HalfOpen()
		k.replay.HalfOpen()
		k.engine.kill()
		k.w.restart()
		k.engine = startEngine(f.t, k.cfg)
		k.live.SetTarget(strings.TrimPrefix(k.engine.Pub, "tcp://"))
		k.replay.SetTarget(strings.TrimPrefix(k.engine.Router, "tcp://"))
		k.publish(30, .1)
	}},
	{name: "frozen", strike: func(f *faultWorld, k *faultRank) {
		k.publish(10, .1)
		// Only a peer that has answered a PING can be found silent: by the first
		// poll of a quiet stream, a HEARTBEAT later, it has.
		k.settle()
		k.polled()
		k.engine.stop() // the kernel still acknowledges what is sent to it
		f.kvrelay.says("live connection ended")
		k.engine.cont()
		k.publish(10, .1)
	}},
	{name: "stall", strike: func(f *faultWorld, k *faultRank) {
		k.engine.do("replay", map[string]any{"mode": []string{"stall", "noend"}[f.r.IntN(2)]})
		k.publish(40, .3)
		k.engine.do("replay", map[string]any{"mode": "ok"})
	}},
	{name: "truncated", strike: func(f *faultWorld, k *faultRank) {
		k.engine.do("replay", map[string]any{"mode": "truncate", "arg": 5 + f.r.IntN(20)})
		k.publish(80, .3)
		asked := len(k.engine.do("stats", nil).Requests)
		k.settle()
		if now := len(k.engine.do("stats", nil).Requests); now == asked {
			f.t.Error("truncated did not strike: nothing more was asked for")
		}
		k.engine.do("replay", map[string]any{"mode": "ok"})
	}},
	{name: "burned", strike: func(f *faultWorld, k *faultRank) {
		for range 4 {
			k.publish(f.r.IntN(10), .2)
			k.w.seq += uint64(1 + f.r.IntN(3)) // never existed for anyone
		}
		k.publish(5, .2)
	}},
	{name: "evicted", says: []string{"history is lost"}, engine: func(c *engineConfig) { c.BufferSteps = 20 }, strike: func(f *faultWorld, k *faultRank) {
		k.mayLose = true
		k.replay.Refuse()
		k.replay.Cut(false)
		k.publish(60, 1)
		k.publish(5, 0)
		if err := k.replay.Admit(); err != nil {
			f.t.Fatal(err)
		}
	}},
	{name: "natsgone", says: []string{"no connection to NATS"}, set: settings{"OUT_BYTES": "256KiB"}, strike: func(f *faultWorld, k *faultRank) {
		f.router.allowRepeats()
		f.nats.Refuse()
		f.nats.Cut(true)
		k.publish(400, .1)
		if err := f.nats.Admit(); err != nil {
			f.t.Fatal(err)
		}
	}},
	{name: "natsslow", set: settings{"OUT_BYTES": "256KiB"}, strike: func(f *faultWorld, k *faultRank) {
		f.router.allowRepeats()
		f.nats.Freeze()
		k.publish(400, .1)
		f.nats.Thaw()
	}},
	{name: "killed", strike: func(f *faultWorld, k *faultRank) {
		f.kvrelay.kill()
		f.earlier = append(f.earlier, f.kvrelay.log()...)
		k.publish(20, .1)
		f.start()
	}},
	{name: "garbage", says: []string{"cannot be decoded"}, strike: func(f *faultWorld, k *faultRank) {
		for range 3 {
			k.publish(1+f.r.IntN(5), .2)
			k.garbage()
		}
		k.publish(3, .2)
		k.settle()
		f.kvrelay.says("cannot be decoded", "suspect")
	}},
	{name: "tworanks", ranks: 2, strike: func(f *faultWorld, k *faultRank) {
		broken := f.ranks[1]
		broken.engine.do("replay", map[string]any{"mode": "stall"})
		broken.publish(20, .5)
		k.publish(20, .3)
		k.settle() // not delayed by the other
		broken.engine.do("replay", map[string]any{"mode": "ok"})
		broken.settle()
	}},
	{name: "slowjoiner", before: func(f *faultWorld) {
		for _, k := range f.ranks {
			k.publish(80, 0)
			k.putMark(false)
		}
	}, strike: func(f *faultWorld, k *faultRank) {}},
	{name: "lastlost", says: []string{"gap healed"}, strike: func(f *faultWorld, k *faultRank) {
		k.publish(20, .1)
		k.putMark(true)
		k.settled()
	}},
	{name: "gone", says: []string{"the engine has not been reachable", "the same engine is back", "the engine was restarted"}, set: settings{"DEAD_AFTER": "1s"}, strike: func(f *faultWorld, k *faultRank) {
		for _, other := range []bool{false, true} {
			k.cut()
			f.router.wait(f.t, "a dead engine's blocks are cleared", func(p *consumer.Picture) bool {
				return len(hashes(p, k.id, consumer.Device)) == 0
			})
			if other {
				k.restart()
			}
			k.publish(10, .1)
			k.uncut()
			k.settle()
		}
	}},
}

// run is one scenario: traffic, the faults one after the other, traffic.
func runFaults(t *testing.T, seed uint64, fs ...fault) {
	r := rand.New(rand.NewPCG(seed, 5))
	cfg := ownEngine()
	cfg.Shape = []string{"3", "4", "atom"}[r.IntN(3)]
	cfg.Socket = "PUB"
	set, ranks := settings{}, 1
	for _, x := range fs {
		for k, v := range x.set {
			set[k] = v
		}
		if x.engine != nil {
			x.engine(&cfg)
		}
		ranks = max(ranks, x.ranks)
	}
	f := newFaultWorld(t, r, ranks, cfg, set)
	small := slices.ContainsFunc(fs, func(x fault) bool { return x.engine != nil })
	for _, k := range f.ranks {
		k.mayLose = small // a small buffer may have lost what another fault withheld
	}
	joined := false
	for _, x := range fs {
		if x.before != nil {
			x.before(f)
			joined = true
		}
	}
	f.start()
	for _, k := range f.ranks {
		if joined {
			k.settled() // nothing more was said
		} else {
			k.publish(20, 0)
			k.settle()
		}
	}
	for _, x := range fs {
		x.strike(f, f.ranks[0])
		f.ranks[0].publish(5, .1)
		f.ranks[0].settle()
		for _, line := range x.says {
			if len(fs) == 1 && !slices.ContainsFunc(f.logs(), func(l string) bool { return strings.Contains(l, line) }) {
				t.Errorf("%s did not strike: kvrelay never said %q", x.name, line)
			}
		}
	}
	for _, k := range f.ranks {
		k.settle()
	}
	f.router.sound(t)
	if got := f.kvrelay.rss(); !raceEnabled && got > 200<<20 {
		t.Errorf("kvrelay takes %d MiB", got>>20)
	}
	if code := f.kvrelay.stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// The kinds of TestFaults that an engine's side of real libzmq and the built
// program can have, alone and in random pairs.
func TestFaultsLibzmq(t *testing.T) {
	only := func(x fault) bool {
		return *faultOnly != "" && !slices.Contains(strings.Split(*faultOnly, ","), x.name)
	}
	kinds := slices.DeleteFunc(slices.Clone(faults), only)
	for seed := uint64(*faultFirst); seed < uint64(*faultFirst+*faultSeeds); seed++ {
		for _, x := range kinds {
			t.Run(fmt.Sprintf("%s/%d", x.name, seed), func(t *testing.T) {
				t.Parallel()
				runFaults(t, seed, x)
			})
		}
		r := rand.New(rand.NewPCG(seed, 6))
		for i := range 8 {
			a, b := faults[r.IntN(len(faults))], faults[r.IntN(len(faults))]
			if *faultOnly != "" {
				break
			}
			t.Run(fmt.Sprintf("%s+%s/%d", a.name, b.name, seed), func(t *testing.T) {
				t.Parallel()
				runFaults(t, seed*100+uint64(i), a, b)
			})
		}
	}
}
