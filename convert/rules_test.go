package convert

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/kvrelay/kvrelay/decode"
)

// stored is a store of blocks of four tokens each; options change it.
func stored(parent uint64, hashes []uint64, change ...func(*decode.Event)) decode.Event {
	ev := decode.Event{Type: decode.Stored, Hashes: hashes, HasParent: parent != 0, Parent: parent,
		HasTokens: true, BlockSize: testBlock, HasBlockSz: true}
	for i := range len(hashes) * testBlock {
		ev.Tokens = binary.LittleEndian.AppendUint32(ev.Tokens, uint32(i+1))
	}
	for _, c := range change {
		c(&ev)
	}
	return ev
}

func removed(hashes ...uint64) decode.Event {
	return decode.Event{Type: decode.Removed, Hashes: hashes}
}

func on(medium string) func(*decode.Event) {
	return func(ev *decode.Event) { ev.Medium = []byte(medium) }
}

func in(group uint32, kind string) func(*decode.Event) {
	return func(ev *decode.Event) {
		ev.HasGroup, ev.Group = true, group
		if kind != "" {
			ev.HasKind, ev.Kind = true, []byte(kind)
		}
	}
}

func salted(salt string) func(*decode.Event) {
	return func(ev *decode.Event) { ev.CacheSalt, ev.HasSalt = []byte(salt), true }
}

func tokens(n int) func(*decode.Event) {
	return func(ev *decode.Event) {
		for len(ev.Tokens) < 4*n {
			ev.Tokens = binary.LittleEndian.AppendUint32(ev.Tokens, 9)
		}
		ev.Tokens = ev.Tokens[:4*n]
		ev.HasTokens = n > 0
	}
}

func sized(size uint64) func(*decode.Event) {
	return func(ev *decode.Event) { ev.BlockSize = size }
}

func hashOnly(ev *decode.Event) { tokens(0)(ev) }

func reused(ev *decode.Event) { ev.Reused = true }

// apply changes an event that is no store.
func apply(ev decode.Event, change ...func(*decode.Event)) decode.Event {
	for _, c := range change {
		c(&ev)
	}
	return ev
}

// tester converts batches and writes down, shortly, what came of them:
// "S device 1>2,3" is a store of 2 and 3 under 1 (- for none), "R device 2", "C".
type tester struct {
	t    *testing.T
	r    *Rank
	fold picture
	out  Output
}

func newTester(t *testing.T, c Config) *tester {
	return &tester{t: t, r: New(c), fold: picture{}}
}

func (x *tester) batch(evs ...decode.Event) string {
	x.t.Helper()
	before := x.r.Stats()
	x.out.Reset()
	x.r.Convert(&decode.Batch{Events: evs}, &x.out)
	after := x.r.Stats()
	text := x.text()
	for reason := range NumReasons {
		if n := after.Drops(reason) - before.Drops(reason); n > 0 {
			text = append(text, fmt.Sprintf("%s %d", reason, n))
		}
	}
	accounted(x.t, after)
	checkLedger(x.t, &x.r.ledger)
	return strings.Join(text, "; ")
}

// text is the Output, folded too.
func (x *tester) text() (text []string) {
	x.t.Helper()
	for _, e := range x.out.Events {
		switch e.Kind {
		case Stored:
			parent := "-"
			if e.HasParent {
				parent = fmt.Sprint(e.Parent)
			}
			var blocks []string
			for _, b := range e.Blocks {
				blocks = append(blocks, fmt.Sprint(b.Hash))
			}
			text = append(text, fmt.Sprintf("S %v %s>%s", e.Tier, parent, strings.Join(blocks, ",")))
		case Removed:
			text = append(text, fmt.Sprintf("R %v %s", e.Tier, strings.Trim(strings.Join(strings.Fields(fmt.Sprint(e.Hashes)), ","), "[]")))
		case Cleared:
			text = append(text, "C")
		}
	}
	x.fold.apply(x.out.Events)
	samePicture(x.t, x.r, x.fold)
	return text
}

func (x *tester) want(want string, evs ...decode.Event) {
	x.t.Helper()
	if got := x.batch(evs...); got != want {
		x.t.Errorf("got  %s\nwant %s", got, want)
	}
}

func (x *tester) notices() (kinds []NoticeKind) {
	for _, n := range x.out.Notices {
		kinds = append(kinds, n.Kind)
	}
	return kinds
}

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

// TestSaltSpread: who inherits which salt, and when it is not known.
func TestSaltSpread(t *testing.T) {
	x := newTester(t, Config{})
	hash := func(h uint64) uint64 { return x.fold[placed{Device, h}].tokens }
	x.batch(stored(0, []uint64{1, 2}, salted("a")), stored(2, []uint64{3}), stored(0, []uint64{8}), stored(8, []uint64{9}))
	if hash(3) == hash(9) {
		t.Error("a child of a salted block has the hash of an unsalted one")
	}
	x.batch(stored(0, []uint64{11, 12}, salted("b")), stored(12, []uint64{13}))
	if hash(13) == hash(3) || hash(13) == hash(9) {
		t.Error("two salts give the same hash")
	}
	x.want("S device 3>4", stored(3, []uint64{4}, salted("b"))) // a salt of its own wins
	x.batch(stored(3, []uint64{5}))
	if hash(5) != hash(3) || hash(4) != hash(13) {
		t.Error("salt inherited through a chain differs")
	}
	// Seen under two salts: its unsalted children cannot be hashed. This stays
	// beyond its removal, until a clear.
	x.want("S device 11>2; ambiguous_salt 1", stored(11, []uint64{2}), stored(2, []uint64{20}))
	x.want("S device 2>20", stored(2, []uint64{20}, salted("a")))
	x.batch(removed(2), removed(2))
	x.want("ambiguous_salt 1", stored(2, []uint64{21}))
	x.want("C; S device 2>21", decode.Event{Type: decode.Cleared}, stored(2, []uint64{21}))
	// Salted, and as a plain root, in both orders and on two tiers.
	x.want("S device ->30; S host_pinned ->30; ambiguous_salt 1", stored(0, []uint64{30}, salted("a")), stored(0, []uint64{30}, on("CPU")), stored(30, []uint64{31}))
	x.want("S device ->40; S device ->40; ambiguous_salt 1", stored(0, []uint64{40}), stored(0, []uint64{40}, salted("a")), stored(40, []uint64{41}))
	// Forgotten with the last copy.
	x.batch(stored(0, []uint64{50}, salted("a")), stored(0, []uint64{50}, on("CPU"), salted("a")))
	x.batch(removed(50), stored(50, []uint64{51}))
	x.batch(apply(removed(50), on("CPU")), stored(50, []uint64{52}))
	x.batch(stored(0, []uint64{60}))
	if hash(51) == hash(52) || hash(52) != hash(60) {
		t.Error("a salt lives as long as a copy on any tier, and no longer")
	}
	// Dropped events spread none.
	x.want("R device 70; S device 70>71; surplus_tokens 1", stored(0, []uint64{70}, salted("a"), tokens(5)), apply(removed(70)), stored(70, []uint64{71}))
}

// TestSaltNotKept: what is kept of a salt is its seed.
func TestSaltNotKept(t *testing.T) {
	x := newTester(t, Config{})
	x.batch(stored(0, []uint64{1}, salted("tenant-secret")))
	if got := fmt.Sprintf("%+v", *x.r); strings.Contains(got, "tenant-secret") {
		t.Error("the salt itself is kept")
	}
}

// TestGroups: kinds are learned from local stores, per group; a clear keeps
// them, a restart does not.
func TestGroups(t *testing.T) {
	x := newTester(t, Config{})
	x.want("unlearned_group 1", stored(0, []uint64{1}, in(3, "")))
	x.want("S disk ->1", stored(0, []uint64{1}, in(3, ""), on("DISK")))
	x.want("unlearned_group 1", stored(0, []uint64{1}, in(3, "")))
	x.want("non_local 1", stored(0, []uint64{1}, in(3, "full_attention"), func(ev *decode.Event) { ev.Locality = []byte("REMOTE") }))
	x.want("unlearned_group 1", stored(0, []uint64{1}, in(3, "")))
	x.want("R device 1", apply(removed(1), in(3, "full_attention"))) // not from removes
	x.want("unlearned_group 1", stored(0, []uint64{1}, in(3, "")))
	x.want("S device ->1; S device ->2", stored(0, []uint64{1}, in(3, "full_attention")), stored(0, []uint64{2}, in(3, "")))
	x.want("non_main_attention_kind 1; non_main_attention_group 1", stored(0, []uint64{4}, in(0, "mamba")), stored(0, []uint64{4}, in(0, "")))
	x.want("S device ->4", stored(0, []uint64{4})) // names neither
	x.want("C; S device ->5; non_main_attention_group 1", decode.Event{Type: decode.Cleared}, stored(0, []uint64{5}, in(3, "")), stored(0, []uint64{4}, in(0, "")))
	x.want("unknown_kind 2", stored(0, []uint64{6}, in(3, "odd")), apply(removed(5), in(3, "")))
	x.want("S device ->6", stored(0, []uint64{6}, in(3, "sink_full_attention")))
	x.r.Restart()
	x.fold = picture{}
	x.want("S device ->4; unlearned_group 1", stored(0, []uint64{7}, in(3, "")), stored(0, []uint64{4}, in(0, "")))
}

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
}

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
