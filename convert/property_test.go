package convert

import (
	"math/rand/v2"
	"testing"

	"github.com/kvrelay/kvrelay/decode"
)

// TestAgainstModel runs random event sequences through Rank and through the
// model: same router events, same reasons, and the ledger is what was published.
func TestAgainstModel(t *testing.T) {
	rounds := 800
	if testing.Short() {
		rounds = 200
	}
	for seed := range uint64(rounds) {
		if runAgainstModel(t, rand.New(rand.NewPCG(seed, 1)), 40); t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// FuzzConvert lets the fuzzer choose what the generator throws dice for.
func FuzzConvert(f *testing.F) {
	f.Add([]byte("\x00"))
	f.Add([]byte("\x07 the quick brown fox jumps over the lazy dog"))
	f.Fuzz(func(t *testing.T, data []byte) {
		runAgainstModel(t, rand.New(&dice{data: data}), min(30, 2+len(data)/16))
	})
}

// dice is a source of randomness that reads the fuzzer's bytes first.
type dice struct {
	data []byte
	rest rand.PCG
}

func (d *dice) Uint64() uint64 {
	if len(d.data) == 0 {
		return d.rest.Uint64()
	}
	// The generator looks at the high bits of what it draws.
	v := uint64(d.data[0])<<56 | uint64(d.data[0])<<24
	d.data = d.data[1:]
	return v
}

func runAgainstModel(t testing.TB, rng *rand.Rand, batches int) {
	g := &generator{Rand: rng, hashes: 6 + rng.Uint64N(30), wild: rng.IntN(3) > 0}
	c := Config{
		WorkerID:   9,
		BlockSize:  pick(g, uint64(0), testBlock),
		Duplicates: pick(g, Auto, Auto, Count, Presence),
		Eagle:      pick(g, EagleAuto, EagleAuto, EagleOn, EagleOff),
	}
	image, video := uint32(7), uint32(8)
	if g.chance(40) {
		c.ImageToken = &image
	}
	if g.chance(40) {
		c.VideoToken = &video
	}
	if g.chance(5) {
		c.VideoToken = c.ImageToken
	}
	run := &modelRun{g: g, r: New(c), m: newModel(c), fold: picture{}}
	for range batches {
		switch {
		case g.chance(1):
			run.restart()
		case g.chance(3):
			run.awayAndBack(t)
		}
		run.batch(t, true)
		if t.Failed() {
			return
		}
	}
}

// modelRun is one Rank beside its model.
type modelRun struct {
	g    *generator
	r    *Rank
	m    *model
	fold picture
	out  Output
}

func (run *modelRun) restart() {
	run.out.Reset()
	run.r.Cleared(&run.out, true)
	run.r.Restart()
	run.m.restart()
	run.fold.apply(run.out.Events)
}

// batch converts one batch. whole: all that the model has is published.
func (run *modelRun) batch(t testing.TB, whole bool) {
	evs := run.g.batch()
	before := run.r.Stats()
	run.out.Reset()
	run.r.Convert(&decode.Batch{Events: evs}, &run.out)
	after := run.r.Stats()
	want := run.m.convert(evs)

	engine := run.out.Events[:len(run.out.Events)-int(after.SelfMadeEvents-before.SelfMadeEvents)]
	if len(engine) != len(want) {
		t.Errorf("%d router events, want %d", len(engine), len(want))
	}
	for i := range min(len(engine), len(want)) {
		if got := string(AppendEventJSON(nil, &engine[i], 0, 0, 0)); got != want[i] {
			t.Errorf("router event %d:\n%s\nwant\n%s", i, got, want[i])
		}
	}
	for reason := range NumReasons {
		n := run.m.drops[reason]
		for _, ev := range evs {
			if reason == reasonOfType(ev.Type) {
				n += int(ev.Folded)
			}
		}
		if got := after.Drops(reason) - before.Drops(reason); got != uint64(n) {
			t.Errorf("%v: %d drops, want %d", reason, got, n)
		}
	}
	run.fold.apply(run.out.Events)
	if whole {
		run.complete(t)
	}
	samePicture(t, run.r, run.fold)
	accounted(t, after)
	checkLedger(t, &run.r.ledger)
	if after.FullReporting != run.m.full {
		t.Errorf("full reporting %t, want %t", after.FullReporting, run.m.full)
	}
}

// complete fails the test when what is published is not what the model has.
func (run *modelRun) complete(t testing.TB) {
	for k, v := range run.m.published {
		if run.fold[k] != v.told {
			t.Errorf("%v: published %+v, want %+v", k, run.fold[k], v.told)
		}
	}
	if len(run.fold) != len(run.m.published) {
		t.Errorf("%d blocks published, want %d", len(run.fold), len(run.m.published))
	}
}

// awayAndBack is a dead engine's return: nothing is published, then all is
// again, while its batches go on.
func (run *modelRun) awayAndBack(t testing.TB) {
	run.out.Reset()
	run.r.Cleared(&run.out, false)
	run.fold.apply(run.out.Events)
	run.r.Away()
	samePicture(t, run.r, run.fold)
	if s := run.r.Stats(); s.Kept != len(run.m.published) || s.Present != 0 {
		t.Errorf("%d blocks kept and %d present, want %d and 0", s.Kept, s.Present, len(run.m.published))
	}
	run.r.BeginRepublish()
	for more := true; more; {
		run.out.Reset()
		more = run.r.Republish(&run.out, 1+run.g.IntN(5))
		run.fold.apply(run.out.Events)
		samePicture(t, run.r, run.fold)
		if run.g.chance(20) {
			run.batch(t, false)
		}
	}
	run.complete(t)
}

func reasonOfType(typ decode.Type) Reason {
	switch typ {
	case decode.Malformed:
		return ReasonMalformed
	case decode.Unknown:
		return ReasonUnknownTag
	case decode.Ignored:
		return ReasonIgnored
	}
	return noReason
}
