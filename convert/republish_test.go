package convert

import (
	"slices"
	"testing"
)

// A call publishes as many kept blocks as it may, one chain or many, and says
// whether more are kept.
func TestRepublishUpToItsBound(t *testing.T) {
	for name, chain := range map[string]bool{"roots": false, "one chain": true} {
		x := newTester(t, Config{})
		var parent uint64
		for i := range uint64(25) {
			x.quiet(stored(parent, []uint64{100 + i}))
			if chain {
				parent = 100 + i
			}
		}
		x.r.BeginRepublish()
		for i, want := range []int{10, 10, 5} {
			var out Output
			more := x.r.Republish(&out, 10)
			n := 0
			for _, e := range out.Events {
				n += len(e.Blocks)
			}
			if s := x.r.Stats(); n != want || more != (i < 2) || s.Kept != 25-10*i-want || s.Present != 10*i+want {
				t.Errorf("%s, call %d: %d published, more %t, %d kept, %d present", name, i, n, more, s.Kept, s.Present)
			}
		}
	}
}

// Full reporting is told once, however many stores go on from announcements.
func TestFullReportingIsToldOnce(t *testing.T) {
	x := newTester(t, Config{})
	told := func() (n int) {
		for _, notice := range x.out.Notices {
			if notice.Kind == NoticeFullReporting {
				n++
			}
		}
		return n
	}
	x.quiet(stored(0, []uint64{1, 2}), stored(0, []uint64{5}))
	x.quiet(stored(0, []uint64{1, 2}), stored(0, []uint64{5}), stored(2, []uint64{3}), stored(2, []uint64{4}), stored(5, []uint64{6}))
	if told() != 1 {
		t.Errorf("told %d times", told())
	}
	x.quiet(stored(0, []uint64{1, 2}), stored(2, []uint64{7}))
	if told() != 0 || !x.r.Stats().FullReporting {
		t.Errorf("told %d times more", told())
	}
	if slices.ContainsFunc(x.out.Events, func(e RouterEvent) bool { return e.Kind == Removed }) {
		t.Error("something is removed")
	}
}

// What announcements took from a block's copies is made good in each of its
// groups, however many hold it.
func TestFullReportingSettlesEveryGroup(t *testing.T) {
	const main = "full_attention"
	for doubted := uint32(1); doubted <= 3; doubted++ {
		x := newTester(t, Config{})
		for g := uint32(1); g <= 3; g++ {
			x.quiet(stored(0, []uint64{1}, in(g, main)))
		}
		x.quiet(stored(0, []uint64{1}, in(doubted, main))) // announced, it seems
		x.quiet(apply(removed(1), in(doubted, main)))      // which took that, it seems
		x.quiet(stored(0, []uint64{8}), stored(0, []uint64{8}), stored(8, []uint64{9}))
		if !x.r.Stats().FullReporting {
			t.Fatal("no full reporting")
		}
		left := 2
		for g := uint32(1); g <= 3; g++ {
			want := ""
			if g == doubted {
				continue // had one copy, which is gone
			}
			if left--; left == 0 {
				want = "R device 1"
			}
			x.want(want, apply(removed(1), in(g, main)))
		}
	}
}

// The switch to full reporting goes on to the last block that it concerns, also
// where that lies in another segment than all others.
func TestSweepReachesTheLastSegment(t *testing.T) {
	x := newTester(t, Config{})
	x.quiet(stored(0, []uint64{8}))
	for i := range uint64(2 * segSize) {
		x.quiet(stored(0, []uint64{100 + i}))
	}
	x.quiet(stored(0, []uint64{1}))
	x.quiet(stored(0, []uint64{1}), removed(1)) // the announcement, it seems
	x.want("S device ->8,9; R device 1", stored(0, []uint64{8}), stored(8, []uint64{9}))
	if n := x.r.ledger.doubted; n != 0 {
		t.Errorf("%d blocks are still in doubt", n)
	}
}

// A kept block that only announcements held is published again as soon as it is
// stored, not left aside.
func TestStoredWhileKeptAndDoubted(t *testing.T) {
	x := newTester(t, Config{})
	x.quiet(stored(0, []uint64{1}))
	x.quiet(stored(0, []uint64{1}), removed(1)) // announced, taken: only a copy too many now
	x.r.BeginRepublish()
	clear(x.fold)
	x.quiet(stored(0, []uint64{8}))
	x.quiet(stored(0, []uint64{8}), stored(8, []uint64{9})) // reports fully
	x.quiet(stored(8, []uint64{1}))
	samePicture(t, x.r, x.fold)
	checkLedger(t, &x.r.ledger)
	if s := x.r.Stats(); !s.FullReporting || s.Present != 3 || s.Kept != 0 {
		t.Errorf("%d present, %d kept", s.Present, s.Kept)
	}
	x.want("R device 1", removed(1))
}
