package convert

import (
	"testing"

	"github.com/kvrelay/kvrelay/decode"
)

// Another engine is known nothing of: what the one before it said is told again.
func TestRestartBeginsAnew(t *testing.T) {
	x := newTester(t, Config{})
	notices := func(evs ...decode.Event) (kinds []NoticeKind) {
		x.quiet(evs...)
		for _, n := range x.out.Notices {
			kinds = append(kinds, n.Kind)
		}
		return kinds
	}
	same := func(got []NoticeKind, want ...NoticeKind) {
		t.Helper()
		if len(got) != len(want) {
			t.Fatalf("told %v, want %v", got, want)
		}
		for i := range got {
			if got[i] != want[i] {
				t.Fatalf("told %v, want %v", got, want)
			}
		}
	}
	for range 2 {
		same(notices(stored(0, []uint64{1}, in(3, "mamba"))))
		same(notices(stored(0, []uint64{1})), NoticeBlockSize)
		same(notices(stored(sglangRoot, []uint64{2})), NoticeUntrusted)
		same(notices(stored(sglangRoot, []uint64{3})))
		var told []NoticeKind
		for range missLimit {
			told = append(told, notices(stored(0, []uint64{4}, sized(99)))...)
		}
		same(told, NoticeMismatch)
		same(notices(stored(0, []uint64{5}), stored(0, []uint64{5}), stored(5, []uint64{6})), NoticeFullReporting)
		if s := x.r.Stats(); !s.Mismatched || !s.Untrusted || !s.FullReporting || s.OtherSize != 99 || s.BlockSize != testBlock || s.Present == 0 {
			t.Errorf("%+v", s)
		}
		x.r.Restart()
		clear(x.fold)
		if s := x.r.Stats(); s.Mismatched || s.Untrusted || s.FullReporting || s.OtherSize != 0 || s.BlockSize != 0 || s.Present != 0 {
			t.Errorf("%+v", s)
		}
		// A kind was learned, and is no more; nor is a refused hash one.
		x.want("unlearned_group 1", apply(removed(1), in(3, "")))
		x.want("S device 4>7", stored(4, []uint64{7}))
		x.r.Restart()
		clear(x.fold)
	}
	// A size that was set stays set, and so does what was counted.
	x = newTester(t, Config{BlockSize: 8})
	x.want("block_size_mismatch 1", stored(0, []uint64{1}))
	before := x.r.Stats()
	x.r.Lost()
	if s := x.r.Stats(); s.BlockSize != 8 || s.Events != before.Events || s.Blocks != before.Blocks || s.Batches != before.Batches {
		t.Errorf("%+v", s)
	}
	if x.quiet(stored(0, []uint64{1})); len(x.out.Notices) != 1 || x.out.Notices[0] != (Notice{Kind: NoticeMismatch, Want: 8, Got: testBlock}) {
		t.Errorf("%v", x.out.Notices)
	}
}
