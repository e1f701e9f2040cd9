package replay

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

var (
	seeds    = flag.Uint64("seeds", 3000, "how many scenarios to simulate, of the first kind; of the others a part")
	seed0    = flag.Uint64("seed0", 0, "the first one's seed")
	first    = flag.Bool("first", false, "stop at the first violation")
	traceOne = flag.Bool("trace", false, "with -seeds 1: say what happens")
)

func choose[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

func randomParams(r *rand.Rand) *params {
	p := &params{
		buffer: choose(r, 3, 8, 30, 100, 300, 1000), blocks: choose(r, 20, 60, 200), cap: choose(r, 8, 30, 60),
		clear: choose(r, 0, 0, .01, .05), burn: choose(r, 0, 0, .01, .1, .3), undec: choose(r, 0, 0, 0, .02, .3),
		loss: choose(r, 0, .001, .02, .2), mean: choose(r, .005, .02, .1, .1, .1, 1.0, 1.0, 4.0),
		lag: choose(r, 0, 0, 0, .002, .05, -.002, -.05), latL: choose(r, .0005, .0005, .02, .3), latR: choose(r, .0005, .0005, .02, .3),
		stall: choose(r, 0, 0, .1, .5), serve: choose(r, 0, .01, .1), rhwm: choose(r, 30, 100, 1000, 10000), middle: r.IntN(2) == 0,
		rgap: choose(r, 1e-5, 1e-4, .002), late: choose(r, 0, 0, .5), redial: choose(r, .1, 1.0, 3.0), subDelay: choose(r, 0, .05, .3),
		relayStart: choose(r, 0, 0, .5, 3, 10), ring: choose(r, 1024, 1024, 16), hold: choose(r, 20, 100, 100000),
		lost: choose(r, LostClear, LostClear, LostClear, LostClear, LostClear, LostClear, LostKeep, LostExit),
		noTS: r.IntN(10) == 0, noMarker: r.IntN(15) == 0,
	}
	if p.lag > .01 {
		p.ring = 1024 // the ring must be longer than what the engine has not appended yet
	}
	return p
}

var simFaults = []string{"restart", "restart", "restart2", "freeze", "cut", "burst", "credit", "restart_burst"}

// plan schedules random faults of one engine, and returns when the last has passed.
func (st *stream) plan(r *rand.Rand, until float64, kinds []string) (float64, []string) {
	s, e, p := st.s, st.e, st.p
	end := until
	var done []string
	later := func(d float64) float64 { return d - s.seconds() }
	for range choose(r, 0, 1, 1, 2, 3, 6) {
		t := p.relayStart + (until-p.relayStart)*r.Float64()
		k := choose(r, kinds...)
		done = append(done, k)
		switch k {
		case "restart", "restart2", "restart_burst":
			down, eof := choose(r, .001, .05, 1, 5, 40), choose(r, .001, .05, 2, 10)
			var fast *int
			if f := choose(r, 99, 99, -3, -1, 0, 1, 2, 5, 50); f != 99 {
				fast = &f
			}
			off := choose(r, 0, 0, 0, -100.0)
			s.at(later(t), func() { e.kill(eof) })
			s.at(later(t+down), func() {
				e.setBack = e.setBack || off < 0
				e.stepped = e.stepped || e.alive && off != e.clockOff
				e.clockOff = off
				e.revive(fast)
			})
			end = max(end, t+down)
			if k == "restart2" {
				var fast *int
				if f := choose(r, 99, 0, 3); f != 99 {
					fast = &f
				}
				s.at(later(t+down+.3), func() { e.kill(eof) })
				s.at(later(t+down+.35), func() { e.revive(fast) })
			}
			if k == "restart_burst" {
				until := sec(t + choose(r, .1, 1, 3))
				s.at(later(max(0, t-.3)), func() { e.burstUntil = until })
			}
		case "freeze":
			d := choose(r, .5, 3, 15, 45)
			s.at(later(t), func() { e.freeze(d) })
			end = max(end, t+d)
		case "cut":
			d := choose(r, .5, 5, 15, 45)
			s.at(later(t), func() { e.cutNet(d) })
			end = max(end, t+d)
		case "burst":
			d := choose(r, .05, .5, 3)
			s.at(later(t), func() { e.burstUntil = sec(t + d) })
		case "credit":
			d := choose(r, .05, 1, 5, 20)
			s.at(later(t), func() { st.setCredit(false) })
			s.at(later(t+d), func() { st.setCredit(true) })
			end = max(end, t+d)
		case "frame": // the end marker's number as a batch
			s.at(later(t), func() { e.malformed() })
		case "clock": // the wall clock is set back within one incarnation
			s.at(later(t), func() { e.clockOff -= 100; e.setBack, e.stepped = true, true })
		}
	}
	slices.Sort(done)
	return end, done
}

func (e *engine) malformed() {
	b := &simBatch{inc: e.inc, payload: []byte("?")}
	for _, c := range e.conns {
		if e.alive && c.live && c.sub {
			e.send(c, 0, func() { e.to.gotLive(c, noSeq, b) })
		}
	}
}

type outcome struct {
	viol    map[string]int
	what    string
	settled float64 // seconds from silence to the last change
	count   Counters
	trace   string
}

// scenario plays one seed: engines with faults, then without, then silence.
func scenario(seed uint64, kind string, trace bool) outcome {
	s := newSim(seed)
	if trace {
		s.trace = &strings.Builder{}
	}
	r := s.rng
	n := 1
	switch kind {
	case "several":
		n = 2 + r.IntN(3)
		s.slots = 1 + r.IntN(2)
	}
	var streams []*stream
	var until float64
	for range n {
		p := randomParams(r)
		p.noReplay = kind == "alone"
		if p.noReplay {
			p.lag = 0
		}
		if s.hold == nil {
			s.hold = NewBudget(int64(p.hold) * (simPayload + heldCost))
		}
		streams = append(streams, newStream(s, p, newEngine(s, p, false)))
		t := choose(r, 3, 10, 30, 60.0)
		if p.mean < .05 {
			t = min(t, max(4, 500*p.mean))
		}
		until = max(until, t+p.relayStart)
	}
	out := outcome{viol: map[string]int{}}
	end := until
	for _, st := range streams {
		faults := simFaults
		switch x := r.IntN(20); {
		case x < 2:
			faults = append(slices.Clone(faults), "frame")
		case x < 3:
			faults = append(slices.Clone(faults), "clock")
		}
		if kind == "alone" && r.IntN(2) == 0 {
			faults = []string{"burst", "credit", "frame"}
		}
		t, kinds := st.plan(r, until, faults)
		end = max(end, t)
		out.what += fmt.Sprint(kinds, *st.p)
	}
	s.limit = n * 400_000
	ok := s.run(end + .4)
	s.logf("---- faults end")
	mode := choose(r, "silent", "go", "go", "one")
	for _, st := range streams {
		e := st.e
		e.faults, e.burstUntil = false, 0
		if !st.credit {
			st.setCredit(true)
		}
		if !e.alive {
			e.revive(nil)
		}
		e.quiet = mode != "go"
		if mode == "one" {
			s.at(.01, func() {
				if e.alive {
					e.step(nil)
				}
			})
		}
	}
	more := .5
	if mode == "go" {
		more = choose(r, 1, 5, 20.0)
	}
	ok = ok && s.run(s.seconds()+more)
	s.logf("---- silence")
	quiet := s.t
	for _, st := range streams {
		st.e.quiet = true
	}
	ok = ok && s.run(s.seconds()+180)
	for range 4 { // unless some are still at it, for want of slots, at this small a high-water mark
		if slices.ContainsFunc(streams, func(st *stream) bool { return s.t-st.lastChange < sec(60) }) {
			ok = ok && s.run(s.seconds()+120)
		}
	}
	var held int64
	for _, st := range streams {
		for k, v := range st.judge(quiet, ok) {
			out.viol[k] += v
		}
		out.settled = max(out.settled, float64(st.lastChange-quiet)/1e9)
		held += st.c.State().HeldBytes
		out.count = st.count
	}
	if held != s.hold.Used() {
		out.viol["BUDGET"]++
	}
	for _, st := range streams {
		st.c.Stop()
	}
	if s.hold.Used() != 0 {
		out.viol["BUDGET_KEPT"]++
	}
	out.what += " " + mode
	if trace {
		out.trace = s.trace.String()
	}
	return out
}

// TestSim plays random scenarios from -seed0 on; one is said aloud with -seeds 1
// -trace.
func TestSim(t *testing.T) {
	t.Run("one", func(t *testing.T) { simulate(t, "one", *seeds) })           // engine and Cursor
	t.Run("several", func(t *testing.T) { simulate(t, "several", *seeds/8) }) // that share a Budget and replay slots
	t.Run("alone", func(t *testing.T) { simulate(t, "alone", *seeds/2) })     // without replay
}

func simulate(t *testing.T, kind string, seeds uint64) {
	if *traceOne {
		out := scenario(*seed0, kind, true)
		t.Log("\n"+out.trace, out.viol, out.what)
	}
	var mu sync.Mutex
	next, last := *seed0, *seed0+max(1, seeds)
	sum, example := map[string]int{}, map[string][]uint64{}
	var settled []float64
	begin := time.Now()
	var wg sync.WaitGroup
	for range min(2, runtime.GOMAXPROCS(0)) {
		wg.Go(func() {
			for {
				mu.Lock()
				seed := next
				next++
				mu.Unlock()
				if seed >= last {
					return
				}
				out := scenario(seed, kind, false)
				mu.Lock()
				settled = append(settled, out.settled)
				if *first && len(out.viol) > 0 {
					next = last
				}
				for k := range out.viol {
					sum[k]++
					if len(example[k]) < 5 {
						example[k] = append(example[k], seed)
					}
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	slices.Sort(settled)
	t.Logf("%d scenarios in %.1fs; settled after silence: p50 %.2fs p99 %.1fs max %.1fs", len(settled), time.Since(begin).Seconds(),
		settled[len(settled)/2], settled[len(settled)*99/100], settled[len(settled)-1])
	for _, k := range slices.Sorted(maps.Keys(sum)) {
		slices.Sort(example[k])
		t.Errorf("%s in %d scenarios, seeds %v", k, sum[k], example[k])
	}
}
