package replay

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"
)

// The simulation: discrete events on a virtual clock. Engines, their faults and
// the links are modelled after what real engines and libzmq do; the Cursor is
// the real one. Everything follows from the seed.

// sim is the clock and what is due.
type sim struct {
	t      int64 // ns since the beginning
	q      []event
	n      uint64
	events int
	limit  int // events of one run; more is a loop
	rng    *rand.Rand
	trace  *strings.Builder // nil: none
	hold   *Budget
	slots  int // free replay slots
	queue  []func()
	known  []*simBatch // every batch ever published, by its id
}

type event struct {
	at int64
	n  uint64
	do func()
}

func (e event) before(o event) bool { return e.at < o.at || e.at == o.at && e.n < o.n }

var simBegin = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func newSim(seed uint64) *sim {
	return &sim{rng: rand.New(rand.NewPCG(seed, 0x5eed)), slots: 1 << 30, limit: 400_000}
}

func sec(f float64) int64 { return int64(f * 1e9) }

func (s *sim) now() time.Time   { return simBegin.Add(time.Duration(s.t)) }
func (s *sim) seconds() float64 { return float64(s.t) / 1e9 }

func (s *sim) uniform(lo, hi float64) float64 { return lo + (hi-lo)*s.rng.Float64() }

func (s *sim) logf(format string, a ...any) {
	if s.trace != nil {
		fmt.Fprintf(s.trace, "%10.4f "+format+"\n", append([]any{s.seconds()}, a...)...)
	}
}

// at does something in d seconds.
func (s *sim) at(d float64, do func()) { s.atNS(s.t+sec(d), do) }

func (s *sim) atNS(t int64, do func()) {
	s.n++
	s.q = append(s.q, event{max(t, s.t), s.n, do})
	for i := len(s.q) - 1; i > 0; {
		up := (i - 1) / 2
		if !s.q[i].before(s.q[up]) {
			break
		}
		s.q[i], s.q[up] = s.q[up], s.q[i]
		i = up
	}
}

func (s *sim) pop() event {
	top := s.q[0]
	last := len(s.q) - 1
	s.q[0] = s.q[last]
	s.q[last] = event{}
	s.q = s.q[:last]
	for i := 0; ; {
		d := 2*i + 1
		if d >= last {
			break
		}
		if d+1 < last && s.q[d+1].before(s.q[d]) {
			d++
		}
		if !s.q[d].before(s.q[i]) {
			break
		}
		s.q[i], s.q[d] = s.q[d], s.q[i]
		i = d
	}
	return top
}

// run goes on until a time in seconds; false: it loops.
func (s *sim) run(until float64) bool {
	end := sec(until)
	for n := 0; len(s.q) > 0 && s.q[0].at <= end; n++ {
		if n > s.limit {
			return false
		}
		e := s.pop()
		s.t = e.at
		e.do()
		s.events++
	}
	s.t = max(s.t, end)
	return true
}

// slot gives a replay slot, now or later.
func (s *sim) slot(do func()) {
	if s.slots > 0 {
		s.slots--
		do()
		return
	}
	s.queue = append(s.queue, do)
}

func (s *sim) freeSlot() {
	s.slots++
	if len(s.queue) > 0 {
		do := s.queue[0]
		s.queue = s.queue[1:]
		s.slots--
		s.at(0, do)
	}
}
