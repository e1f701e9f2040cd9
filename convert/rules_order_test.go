package convert

import (
	"strings"
	"testing"

	"github.com/kvrelay/kvrelay/decode"
)

func TestSessions(t *testing.T) {
	session := func(s string) func(*decode.Event) {
		return func(ev *decode.Event) { ev.SessionID = []byte(s) }
	}
	x := newTester(t, Config{})
	x.want("S device ->1,2; S device 2>3; S device 3>4", stored(0, []uint64{1}, session("a")), stored(1, []uint64{2}, session("a")),
		stored(2, []uint64{3}, session("b")), stored(3, []uint64{4}))
	for i, want := range []string{"a", "b", ""} {
		e := x.out.Events[i]
		if string(e.SessionID) != want || (e.SessionID == nil) != (want == "") {
			t.Errorf("event %d: session %q, want %q", i, e.SessionID, want)
		}
	}
	x.want("S device 4>5,6", stored(4, []uint64{5}, session("")), stored(5, []uint64{6}))
}

// TestRuns: what ends a run and what does not.
func TestRuns(t *testing.T) {
	x := newTester(t, Config{})
	x.batch(stored(0, []uint64{100}), stored(0, []uint64{100}))
	x.want("S device ->1; S device 1>2", stored(0, []uint64{1}), removed(100), stored(1, []uint64{2}))                                                               // a suppressed remove
	x.want("S device 2>3; S device 3>4", stored(2, []uint64{3}), removed(), stored(3, []uint64{4}))                                                                  // an empty one
	x.want("S device 4>5,6; short_tokens 1; orphan 1", stored(4, []uint64{5}), stored(0, []uint64{90}, tokens(1)), stored(90, []uint64{91}), stored(5, []uint64{6})) // drops
	x.want("S device 6>7; S device 7>8; self_reference 1", stored(6, []uint64{7}), stored(7, []uint64{92, 92}), stored(7, []uint64{8}))
	x.want("R device 201; R device 202; self_reference 1", removed(201), stored(7, []uint64{92, 92}), removed(202))
	x.want("R device 1,2; R host_pinned 3; R device 4", removed(1), removed(2), apply(removed(3), on("CPU")), removed(4))
	// 128 hashes close a run, suppressed ones too.
	many := make([]uint64, 127)
	for i := range many {
		many[i] = uint64(1000 + i)
	}
	x.batch(stored(0, many), stored(0, many))
	x.want("R device 300,301; R device 302", removed(many...), removed(300, 301), removed(302))
	x.want("S device ->2000; S device 2000>2001", stored(0, []uint64{2000}), stored(2000, []uint64{2001}, func(ev *decode.Event) { ev.Medium = []byte("gpu") }, in(0, "full_attention"), salted("x"), func(ev *decode.Event) { ev.SessionID = []byte("s") }))
}

// TestBatchesApart: batches converted into one Output do not merge.
func TestBatchesApart(t *testing.T) {
	var out Output
	r := New(Config{})
	for h := range uint64(3) {
		r.Convert(&decode.Batch{Events: []decode.Event{stored(h, []uint64{h + 1})}}, &out)
	}
	if len(out.Events) != 3 {
		t.Fatalf("%d events", len(out.Events))
	}
	for i, e := range out.Events {
		if len(e.Blocks) != 1 || e.Blocks[0].Hash != uint64(i+1) {
			t.Errorf("event %d: %+v", i, e)
		}
	}
	out.Reset()
	if len(out.Events) != 0 || len(out.Notices) != 0 {
		t.Error("Reset leaves something")
	}
}

// TestCleared: whose clears count.
func TestCleared(t *testing.T) {
	for _, c := range []struct {
		ev   decode.Event
		want string
	}{
		{decode.Event{}, "C"},
		{decode.Event{Medium: []byte("cpu_tier2")}, "C"},
		{decode.Event{Medium: []byte("")}, "C"},
		{decode.Event{Medium: []byte("framework")}, "C"},
		{decode.Event{Medium: []byte("lmcache")}, "foreign_owner 1"},
		{decode.Event{IsMap: true, Medium: []byte("GPU"), Ownership: []byte("framework")}, "C"},
		{decode.Event{IsMap: true, Ownership: []byte("lmcache")}, "foreign_owner 1"},
		{decode.Event{IsMap: true, Medium: []byte("lmcache")}, "unknown_medium 1"},
		{decode.Event{IsMap: true, OtherLocality: true}, "non_local 1"},
	} {
		c.ev.Type = decode.Cleared
		newTester(t, Config{}).want(c.want, c.ev)
	}
}

// TestFilterOrder: the first rule that stands against an event is its reason.
func TestFilterOrder(t *testing.T) {
	x := newTester(t, Config{BlockSize: testBlock})
	ev := stored(1, []uint64{1, 1}, tokens(3), sized(8), in(2, ""), on("TAPE"), func(ev *decode.Event) {
		ev.Ownership, ev.Locality, ev.LoraID = []byte("kvcr"), []byte("REMOTE"), 7
	})
	for _, step := range []struct {
		reason Reason
		mend   func()
	}{
		{ReasonForeignOwner, func() { ev.Ownership = []byte("framework") }},
		{ReasonNonLocal, func() { ev.Locality = []byte("LOCAL") }},
		{ReasonUnknownMedium, func() { ev.Medium = []byte("GPU") }},
		{ReasonUnlearnedGroup, func() { ev.HasKind, ev.Kind = true, []byte("full_attention") }},
		{ReasonUnnamedLora, func() { ev.LoraName = []byte("a") }},
		{ReasonSelfReference, func() { ev.Hashes = []uint64{2, 3} }},
		{ReasonBlockSize, func() { ev.BlockSize = testBlock }},
		{ReasonShortTokens, func() { tokens(9)(&ev) }},
		{ReasonSurplusTokens, func() { tokens(8)(&ev) }},
		{ReasonOrphan, func() { ev.Parent = 99 }}, // 1 was refused as a self reference
	} {
		x.want(step.reason.String()+" 1", ev)
		step.mend()
	}
	x.want("S device 99>2,3", ev)
}

func TestMedia(t *testing.T) {
	for tier, media := range map[Tier]string{
		Device:     ",GPU,DEVICE",
		HostPinned: "CPU,CPU_PINNED,CPU_TIER1",
		Disk:       "CPU_TIER2,DISK,NVME,STORAGE,FS",
		External:   "EXTERNAL,NETWORK,REMOTE,SHARED,OBJ",
	} {
		for _, m := range strings.Split(media, ",") {
			for _, text := range []string{m, strings.ToLower(m), strings.ToLower(m[:len(m)/2]) + m[len(m)/2:]} {
				if got, ok := tierOf([]byte(text)); !ok || got != tier {
					t.Errorf("%q: %v, %t", text, got, ok)
				}
			}
		}
	}
	for _, text := range []string{"TAPE", "GPU ", "CPU_TIER3", "CPU_PINNEDX", "\x00", "GPÜ", strings.Repeat("x", 1000)} {
		if got, ok := tierOf([]byte(text)); ok {
			t.Errorf("%q is %v", text, got)
		}
	}
}

func TestMMHash(t *testing.T) {
	zero48 := strings.Repeat("0", 48)
	for text, want := range map[string]uint64{
		"0123456789abcdef" + zero48: 0x0123456789abcdef,
		"FFFFFFFFFFFFFFFF" + zero48: 1<<64 - 1,
		"0000000000000000" + zero48: 0,
	} {
		if got, ok := mmHash([]byte(text)); !ok || got != want {
			t.Errorf("%s: %x, %t", text, got, ok)
		}
	}
	for _, text := range []string{
		"", zero48, "0123456789abcdeg" + zero48, "0123456789abcde`" + zero48, "0123456789abcdef" + zero48 + "0",
		"0123456789abcdef" + zero48[1:] + "1", "0x23456789abcdef" + zero48, "+123456789abcdef" + zero48, "0123456789abcdeG" + zero48,
	} {
		if got, ok := mmHash([]byte(text)); ok {
			t.Errorf("%s: %x", text, got)
		}
	}
}

// TestMultimodalKept: what a block says of objects is kept as it is, and
// replaced when it is stored again with others.
func TestMultimodalKept(t *testing.T) {
	with := func(objects ...decode.MMObject) func(*decode.Event) {
		return func(ev *decode.Event) { ev.HasMM, ev.MM = true, objects }
	}
	a, b := decode.MMObject{Hash: 1, Offsets: [][2]uint64{{1, 2}, {3, 4}}}, decode.MMObject{Hash: 2}
	x := newTester(t, Config{})
	beyond := decode.MMObject{Block: 5, Hash: 9}
	x.batch(stored(0, []uint64{1}, with(a, b, beyond)))
	for _, again := range [][]decode.MMObject{
		{a, b}, {b, a}, {a}, {{Hash: 1, Offsets: [][2]uint64{{1, 2}, {3, 5}}}}, {{Hash: 1, Offsets: [][2]uint64{{1, 2}}}},
		{{Hash: 1, Offsets: [][2]uint64{{1, 3}}}}, {{Hash: 1, Offsets: [][2]uint64{{2, 3}}}}, {b, b, b}, nil, {b},
	} {
		x.batch(stored(0, []uint64{1}, with(again...))) // and Walk is compared
		if got := len(x.out.Events[0].Blocks[0].MM); got != len(again) {
			t.Errorf("%d objects published, want %d", got, len(again))
		}
	}
	x.batch(stored(0, []uint64{1}, on("CPU"), hashOnly))
	if x.fold[placed{HostPinned, 1}] != x.fold[placed{Device, 1}] {
		t.Error("a hash-only store lacks its objects")
	}
	x.batch(apply(removed(1), on("CPU")))
	for x.r.Stats().Present > 0 { // a copy at a time
		x.batch(removed(1))
	}
	if n := x.r.ledger.mm.numbers; n != 0 {
		t.Errorf("%d numbers kept of no block", n)
	}
	empty, _ := x.r.ledger.mm.put(0, []MMObject{})
	if got := x.r.ledger.mm.objects(empty, &x.out); got == nil || len(got) != 0 {
		t.Errorf("an empty list came back as %v", got)
	}
}
