package integration

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/kvrelay/kvrelay/relay"
)

var (
	faultSeeds = flag.Int("seeds", 1, "seeds of each kind of fault, and of each kind in a pair with a random other")
	faultFirst = flag.Int("first-seed", 0, "the first of the seeds")
	faultOnly  = flag.String("kind", "", "kinds of fault to test, by name or number, comma separated; a pair as a+b; empty: all, and pairs")
)

// Every kind of fault alone and in random pairs, with random workloads: the
// router ends with what the engine holds, every event id once and in order.
// docs/reliability.md says what each kind's outcome is.
func TestFaults(t *testing.T) {
	for seed := *faultFirst; seed < *faultFirst+*faultSeeds; seed++ {
		for _, xs := range chosenKinds(t, uint64(seed)) {
			var names []string
			for _, x := range xs {
				names = append(names, x.name)
			}
			t.Run(fmt.Sprintf("%s/%d", strings.Join(names, "+"), seed), func(t *testing.T) {
				t.Parallel()
				runScenario(t, uint64(seed), xs)
			})
		}
	}
}

// chosenKinds are the scenarios of a seed: each kind alone, and each with a
// random other one, unless the flag says which.
func chosenKinds(t *testing.T, seed uint64) [][]faultKind {
	t.Helper()
	var out [][]faultKind
	if *faultOnly != "" {
		for names := range strings.SplitSeq(*faultOnly, ",") {
			var xs []faultKind
			for name := range strings.SplitSeq(names, "+") {
				x, err := kindNamed(name)
				if err != nil {
					t.Fatal(err)
				}
				xs = append(xs, x)
			}
			out = append(out, xs)
		}
		return out
	}
	r := rand.New(rand.NewPCG(seed, 6))
	for i, x := range faultKinds {
		out = append(out, []faultKind{x}, []faultKind{x, faultKinds[(i+1+r.IntN(len(faultKinds)-1))%len(faultKinds)]})
	}
	return out
}

// runScenario is traffic, the faults – in a pair the second strikes before the
// first has ended –, traffic, and the end of the relay.
func runScenario(t *testing.T, seed uint64, xs []faultKind) {
	name := ""
	b := &bed{t: t}
	var o bedOptions
	loses, burned, replaced := false, false, false
	slices.SortStableFunc(xs, func(x, y faultKind) int { return boolInt(x.silent) - boolInt(y.silent) })
	for _, x := range xs {
		name += x.name
		o.binary = o.binary || x.binary
		loses, burned, replaced = loses || x.loses, burned || x.name == "burned", replaced || x.replaces
	}
	// A new process that burned the very number of the last batch applied cannot
	// be told from lost history.
	loses = loses || burned && replaced
	b.r = rand.New(rand.NewPCG(seed, hashOf(name)))
	for _, x := range xs {
		if x.set != nil {
			x.set(b, &o)
		}
	}
	o.relay.DrainFor = settleTime // TestFaultsEndInAnyState is about the time that the end takes
	b = newBed(t, b.r, o)
	b.alone = len(xs) == 1
	k := b.ranks[b.r.IntN(len(b.ranks))]
	for _, x := range xs {
		if x.before != nil {
			x.before(k)
		}
	}
	b.start()
	for _, j := range b.ranks {
		if j.marks == 0 {
			j.publish(20, 0)
			j.mark(false)
		}
		j.settled() // of a slow joiner nothing more was said
	}
	var ends []func()
	heal := func() {
		b.r.Shuffle(len(ends), func(i, j int) { ends[i], ends[j] = ends[j], ends[i] })
		for _, end := range ends {
			end()
		}
		ends = nil
	}
	for _, x := range xs {
		if x.silent {
			heal() // a mark must not go with a process that ends
		}
		if end := x.begin(k); end != nil {
			ends = append(ends, end)
		}
	}
	heal()
	if !slices.ContainsFunc(xs, func(x faultKind) bool { return x.silent }) {
		k.publish(5, .1)
		k.mark(false)
	}
	k.settled()
	if s := k.source(); s != nil {
		if x := xs[0]; b.alone && x.struck != nil && !x.struck(k, s) {
			t.Errorf("%s did not strike: %+v", x.name, s)
		}
		// After a loss everything that the replay still has must be known.
		if _, oldest := k.Buffered(); s.Cursor.Base > oldest && s.Cursor.Exhausted == 0 {
			t.Errorf("the replay has batches from %d on, but they are known from %d on only", oldest, s.Cursor.Base)
		}
		if !loses && s.Cursor.Losses > 0 {
			t.Errorf("history was declared lost though the engine had it: %+v", s.Cursor)
		}
	}
	for _, j := range b.ranks {
		j.settle()
		j.lives()
	}
	b.end()
}

// lives waits until the relay says that all is well.
func (k *bedRank) lives() {
	if k.b.relay == nil {
		return
	}
	if !eventually(settleTime, func() bool {
		s := k.source()
		return s.Ready && (s.Ranks[0].State == relay.StateLive || s.Ranks[0].State == relay.StateSuspect && s.Undecodable > 0)
	}) {
		k.b.t.Errorf("rank %d is not live in the end: %+v", k.id.DP, k.source())
	}
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// hashOf keeps the randomness of kinds apart.
func hashOf(name string) uint64 {
	h := uint64(14695981039346656037)
	for _, c := range []byte(name) {
		h = (h ^ uint64(c)) * 1099511628211
	}
	return h
}

// end stops the relay and looks at what it did all along.
func (b *bed) end() {
	b.t.Helper()
	if b.program != nil {
		if code := b.program.stop(); code != 0 {
			b.t.Errorf("exit code %d", code)
		}
	} else if err := b.stop(); err != nil {
		b.t.Errorf("the relay ended with: %v", err)
	}
	b.router.sound(b.t)
	if b.relay == nil {
		return
	}
	hold, out := b.watched()
	if most := b.o.relay.HoldBytes; hold > most {
		b.t.Errorf("%d bytes were held, the bound is %d", hold, most)
	}
	// Each rank may use a quarter of an equal share beyond the bound, and two
	// portions of what was held become unconfirmed before there is credit for them
	// or beyond it; as JSON router events are up to three times as large.
	if most := b.o.relay.OutBytes + b.o.relay.OutBytes/4 + 6*(b.o.relay.OutBytes/8) + 32<<10; out > most {
		b.t.Errorf("%d bytes were unconfirmed, the bound is %d", out, b.o.relay.OutBytes)
	}
}
