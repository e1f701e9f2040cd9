package convert

import (
	"slices"
	"strings"
	"testing"

	"github.com/kvrelay/kvrelay/decode"
)

func TestBlockSizeLearned(t *testing.T) {
	x := newTester(t, Config{})
	x.want("non_main_attention_kind 1", stored(0, []uint64{1}, in(1, "mamba"), sized(64)))
	x.want("no_tokens 1", stored(0, []uint64{2}, hashOnly, sized(32)))
	x.want("block_size_mismatch 1", stored(0, []uint64{3}, sized(0)))
	if x.r.Stats().BlockSize != 0 {
		t.Fatal("learned from a store that teaches nothing")
	}
	x.want("S device ->4", stored(0, []uint64{4}))
	if s := x.r.Stats(); s.BlockSize != testBlock || !slices.Equal(x.notices(), []NoticeKind{NoticeBlockSize}) {
		t.Errorf("block size %d, notices %v", s.BlockSize, x.notices())
	}
	x.want("block_size_mismatch 1", stored(0, []uint64{5}, sized(8), tokens(8)))
	x.r.Restart()
	x.out.Reset()
	if x.r.Stats().BlockSize != 0 {
		t.Error("a restart keeps the size of another engine")
	}
}

// TestBlockSizeLoud: a wrong setting is told at the first store; a hybrid
// engine's few stores of another size never, 64 in a row once.
func TestBlockSizeLoud(t *testing.T) {
	x := newTester(t, Config{BlockSize: 16})
	x.batch(stored(0, []uint64{1}), stored(0, []uint64{2}))
	if n := x.out.Notices; len(n) != 1 || n[0].Kind != NoticeMismatch || n[0].Want != 16 || n[0].Got != testBlock || n[0].Learned ||
		!strings.Contains(n[0].String(), "BLOCK_SIZE=4") {
		t.Errorf("notices %v", n)
	}
	x.batch(stored(0, []uint64{3}))
	if s := x.r.Stats(); len(x.out.Notices) > 0 || !s.Mismatched || s.OtherSize != testBlock || s.Events.Dropped[ReasonBlockSize] != 3 {
		t.Errorf("said again: %v, stats %+v", x.out.Notices, s)
	}

	x = newTester(t, Config{})
	x.batch(stored(0, []uint64{1}))
	for i := range uint64(3 * missLimit) {
		x.batch(stored(0, []uint64{10 + i}, sized(2)))
		if said := slices.Contains(x.notices(), NoticeMismatch); said != (i == 2*missLimit-2) {
			t.Errorf("store %d: said %t", i, said)
		}
		if i == missLimit-2 {
			x.batch(stored(0, []uint64{2})) // one of the right size, just in time
		}
	}
}

func TestEagle(t *testing.T) {
	chained := func(ev *decode.Event) { ev.Pairs = decode.ChainedPairs }
	for _, c := range []struct {
		eagle Eagle
		ev    decode.Event
		want  string
		bytes int // that the first block's hash covers
	}{
		{EagleAuto, stored(0, []uint64{1, 2}, tokens(9), chained), "S device ->1,2", 20},
		{EagleAuto, stored(0, []uint64{1, 2}, tokens(8), chained), "S device ->1; short_tokens 1", 20},
		{EagleAuto, stored(0, []uint64{1, 2}, tokens(10), chained), "surplus_tokens 1", 0},
		{EagleAuto, stored(0, []uint64{1, 2}), "S device ->1,2", 16},
		{EagleOff, stored(0, []uint64{1, 2}, tokens(9), chained), "S device ->1,2", 16},
		{EagleOff, stored(0, []uint64{1, 2}, tokens(8), chained), "S device ->1; short_tokens 1", 16},
		{EagleOn, stored(0, []uint64{1, 2}), "S device ->1; short_tokens 1", 20},
		{EagleOn, stored(0, []uint64{1, 2}, tokens(9)), "S device ->1,2", 20},
		{EagleOn, stored(0, []uint64{1}), "short_tokens 1", 0},
	} {
		x := newTester(t, Config{Eagle: c.eagle})
		x.want(c.want, c.ev)
		if c.bytes > 0 {
			if got := x.out.Events[0].Blocks[0].TokensHash; got != hashBytes(c.ev.Tokens[:c.bytes]) {
				t.Errorf("%v of %d tokens: the hash covers other bytes than %d", c.eagle, c.ev.Tokens.Len(), c.bytes)
			}
		}
	}
}

// TestHashOnly: blocks known on another tier are published with what is known,
// in chains; the rest is refused.
func TestHashOnly(t *testing.T) {
	x := newTester(t, Config{})
	x.want("S device ->1,2,3; S device ->9", stored(0, []uint64{1, 2, 3}), stored(0, []uint64{9}))
	x.want("S host_pinned ->1,2; S host_pinned ->9; no_tokens 1",
		stored(0, []uint64{1, 2, 7, 9}, on("CPU"), hashOnly, sized(0)))
	for _, h := range []uint64{1, 2, 9} {
		if x.fold[placed{HostPinned, h}] != x.fold[placed{Device, h}] {
			t.Errorf("%d: %+v on CPU, %+v on the device", h, x.fold[placed{HostPinned, h}], x.fold[placed{Device, h}])
		}
	}
	x.want("orphan 1", stored(7, []uint64{10}))
	// Known on this tier only, it counts once more.
	x.want("R device 9", removed(9))
	x.want("S host_pinned ->9", stored(0, []uint64{9}, on("CPU"), hashOnly))
	x.want("", apply(removed(9), on("CPU")))
	x.want("R host_pinned 9", apply(removed(9), on("CPU")))
	x.want("no_tokens 1", stored(0, []uint64{9}, on("CPU"), hashOnly))
	// What a refused parent makes of them.
	x.want("short_tokens 1", stored(0, []uint64{2}, tokens(2)))
	x.want("orphan 1", stored(0, []uint64{3}, on("DISK"), hashOnly))
	x.want("orphan 1", stored(2, []uint64{1}, on("DISK"), hashOnly))
	x.want("empty 1", stored(0, nil, hashOnly))
	x.want("surplus_tokens 1", stored(0, nil, tokens(4)))
}

// TestHashOnlyRun: consecutive hash-only stores merge as others do, and one that
// skips an unknown block does not chain across it.
func TestHashOnlyRun(t *testing.T) {
	x := newTester(t, Config{})
	var all []uint64
	for i := range uint64(140) {
		all = append(all, i+1)
	}
	x.batch(stored(0, all))
	x.batch(stored(0, all, on("CPU"), hashOnly), stored(0, []uint64{140}, on("CPU"), hashOnly))
	if len(x.out.Events) != 2 || len(x.out.Events[0].Blocks) != 140 {
		t.Errorf("%d events: one store of 140, then what comes after a full run, is right", len(x.out.Events))
	}
	x.want("R device 2", removed(2))
	x.want("R host_pinned 2", apply(removed(2), on("CPU")))
	// 3 would hang on 2, which was refused just before.
	x.want("S disk ->1; no_tokens 1", stored(0, []uint64{1, 2, 3}, on("DISK"), hashOnly))
}

func TestOrphans(t *testing.T) {
	x := newTester(t, Config{})
	x.want("S device 77>1", stored(77, []uint64{1})) // a parent never seen
	x.want("short_tokens 1", stored(0, []uint64{2}, tokens(3)))
	x.want("orphan 2", stored(2, []uint64{3}), stored(3, []uint64{4}))
	x.want("S device ->3", stored(0, []uint64{3})) // properly, on any tier
	x.want("S device 3>5; orphan 1", stored(3, []uint64{5}), stored(4, []uint64{6}))
	x.want("R device 4", removed(4))
	x.want("S device 4>6", stored(4, []uint64{6}))
	x.want("C; S device 2>7", decode.Event{Type: decode.Cleared}, stored(2, []uint64{7}))
	// Rules before step 5 make no orphans.
	x.want("S device 8>9; unknown_medium 1", stored(0, []uint64{8}, on("TAPE")), stored(8, []uint64{9}))
	x.want("S device 10>11; unnamed_lora 1", stored(0, []uint64{10}, func(ev *decode.Event) { ev.LoraID = 1 }), stored(10, []uint64{11}))
	x.want("malformed_event 1; orphan 1", stored(0, []uint64{12}, func(ev *decode.Event) { ev.Pairs = decode.UnsoundPairs }), stored(12, []uint64{13}))
}
