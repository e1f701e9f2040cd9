package convert

import (
	"slices"
	"testing"

	"github.com/kvrelay/kvrelay/decode"
)

// TestTwoMainGroups: a hash of two main groups is one block for routers.
func TestTwoMainGroups(t *testing.T) {
	for _, mode := range []Duplicates{Auto, Count, Presence} {
		x := newTester(t, Config{Duplicates: mode})
		x.want("S device ->1; S device ->1", stored(0, []uint64{1}, in(1, "full_attention")), stored(0, []uint64{1}, in(2, "mla_attention")))
		x.want("", apply(removed(1), in(2, "")))
		x.want("", apply(removed(1), in(2, "")), apply(removed(1), in(0, "")))
		x.want("R device 1", apply(removed(1), in(1, "")))
		x.want("R device 1", apply(removed(1), in(1, "")))
	}
}

// TestDuplicates: what a second store means in each mode.
func TestDuplicates(t *testing.T) {
	twice := []decode.Event{stored(0, []uint64{1}), stored(0, []uint64{1})}
	x := newTester(t, Config{Duplicates: Count})
	x.batch(twice...)
	x.want("", removed(1))
	x.want("R device 1", removed(1))

	x = newTester(t, Config{Duplicates: Presence})
	x.batch(twice...)
	x.want("R device 1", removed(1))

	x = newTester(t, Config{})
	x.batch(twice...)
	x.want("", removed(1))
	x.want("R device 1", removed(1))

	for _, mode := range []Duplicates{Auto, Count, Presence} {
		x = newTester(t, Config{Duplicates: mode})
		x.batch(stored(0, []uint64{1}), stored(0, []uint64{1}, reused), stored(0, []uint64{2}, reused))
		x.want("R device 1,2", removed(1, 2))
	}
}

// TestFullReporting is the switch, step by step: two announcements, one remove
// that took from them, then the proof.
func TestFullReporting(t *testing.T) {
	x := newTester(t, Config{})
	x.want("S device ->1,2; S device ->5", stored(0, []uint64{1, 2}), stored(0, []uint64{5}))
	x.want("S device ->1,2; S device ->1,2; S device ->5", stored(0, []uint64{1, 2}), stored(0, []uint64{1, 2}), stored(0, []uint64{5}))
	x.want("", removed(5)) // taken from the announcement: the block is really gone
	// Another batch's announcement proves nothing.
	x.want("S device 2>3", stored(2, []uint64{3}))
	if x.r.Stats().FullReporting {
		t.Fatal("found without a proof")
	}
	x.want("S device ->1,2,4; R device 5", stored(0, []uint64{1, 2}), stored(2, []uint64{4}))
	s := x.r.Stats()
	if !s.FullReporting || s.SelfMadeEvents != 1 || s.SelfMadeBlocks != 1 || !slices.Contains(x.notices(), NoticeFullReporting) {
		t.Errorf("stats %+v, notices %v", s, x.notices())
	}

	// A clear between the two is the end of what was announced.
	x = newTester(t, Config{})
	x.batch(stored(0, []uint64{1}))
	x.want("S device ->1; C; S device 1>2", stored(0, []uint64{1}), decode.Event{Type: decode.Cleared}, stored(1, []uint64{2}))
	if x.r.Stats().FullReporting {
		t.Error("found across a clear")
	}
}

// TestFullReportingIsOfOnePlace: a store on another tier, or of another group,
// does not go on from what was announced, though the hash is the same.
func TestFullReportingIsOfOnePlace(t *testing.T) {
	one, two := in(1, "full_attention"), in(2, "full_attention")
	for name, c := range map[string]struct{ root, child func(*decode.Event) }{
		"tiers":             {on("CPU"), on("GPU")},
		"tiers, other way":  {on("GPU"), on("DISK")},
		"groups":            {one, two},
		"groups, other way": {two, one},
	} {
		x := newTester(t, Config{})
		root, child := stored(0, []uint64{1}, c.root), stored(1, []uint64{2}, c.child)
		x.batch(root, stored(0, []uint64{1}, c.child), stored(0, []uint64{1}, c.child))
		x.batch(root, child)
		if x.r.Stats().FullReporting {
			t.Errorf("%s: found across them", name)
		}
		x.batch(root, stored(0, []uint64{1}, c.child), child)
		if !x.r.Stats().FullReporting {
			t.Errorf("%s: not found where each was announced", name)
		}
	}
	// As it was seen: of two copies on the GPU one was removed, and the other
	// was published as gone.
	x := newTester(t, Config{})
	x.batch(stored(0, []uint64{1}))
	x.batch(stored(0, []uint64{1}))
	x.batch(removed(1))
	x.batch(stored(0, []uint64{1}, on("CPU")))
	x.want("S host_pinned ->1; S device 1>2", stored(0, []uint64{1}, on("CPU")), stored(1, []uint64{2}))
}
