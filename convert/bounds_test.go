package convert

import (
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/kvrelay/kvrelay/decode"
)

// quiet converts one batch and only folds what comes of it.
func (x *tester) quiet(evs ...decode.Event) {
	x.out.Reset()
	x.r.Convert(&decode.Batch{Events: evs}, &x.out)
	x.fold.apply(x.out.Events)
}

// reached fails the test unless the bound took effect n times, told once.
func (x *tester) reached(b Bound, n uint64, told bool) {
	x.t.Helper()
	if got := x.r.Stats().Bounds[b]; got != n {
		x.t.Errorf("%s: took effect %d times, want %d", b, got, n)
	}
	said := slices.ContainsFunc(x.out.Notices, func(n Notice) bool { return n.Kind == NoticeBound && n.Bound == b })
	if said != told {
		x.t.Errorf("%s: told %t, want %t", b, said, told)
	}
}

func TestBoundBlocks(t *testing.T) {
	x := newTester(t, Config{MaxBlocks: 5})
	x.want("S device ->1,2,3", stored(0, []uint64{1, 2, 3}))
	x.want("S device 3>4,5; ledger_full 1", stored(3, []uint64{4, 5, 6, 7}))
	x.reached(BoundBlocks, 1, true)
	x.want("orphan 1; ledger_full 1", stored(0, []uint64{8}), stored(6, []uint64{9}))
	x.reached(BoundBlocks, 2, false)
	x.want("S device ->1,2,3", stored(0, []uint64{1, 2, 3})) // what is there may come again
	x.want("S device ->1; ledger_full 1", stored(0, []uint64{1, 10}))
	x.want("ledger_full 1", stored(0, []uint64{1}, hashOnly, on("CPU")))
	x.want("R device 5", removed(5))
	x.want("S device 5>6", stored(5, []uint64{6}))
}

// TestBoundPlaces: slots that the index can tell apart are a bound of their own,
// also where blocks are published again.
func TestBoundPlaces(t *testing.T) {
	x := newTester(t, Config{})
	l := &x.r.ledger
	if got := l.room(); got != maxSegments*segSize {
		t.Fatalf("room for %d", got)
	}
	x.want("S device ->1", stored(0, []uint64{1}))
	taken := maxSegments - 2
	for len(l.freeIDs) > 0 || len(l.segs) < taken { // as if sparse segments had them
		l.segs, l.slab = append(l.segs, nil), append(l.slab, nil)
	}
	if got := l.room(); got != 2*segSize+segSize-1 {
		t.Fatalf("room for %d", got)
	}
	g := rand.New(rand.NewPCG(1, 1))
	for range 3 {
		hashes := make([]uint64, segSize)
		for i := range hashes {
			hashes[i] = g.Uint64()
		}
		x.quiet(stored(0, hashes))
	}
	if s := x.r.Stats(); s.Present != 3*segSize || s.Blocks.Dropped[ReasonLedgerFull] != 1 || l.room() != 0 {
		t.Errorf("%d present, %d dropped, room for %d", s.Present, s.Blocks.Dropped[ReasonLedgerFull], l.room())
	}
	x.r.BeginRepublish()
	for more := true; more; {
		x.out.Reset()
		more = x.r.Republish(&x.out, 100)
	}
	// No segment is free until the first one kept has been passed.
	if s := x.r.Stats(); s.Present != 2*segSize || s.Kept != 0 {
		t.Errorf("%d published again, %d kept", s.Present, s.Kept)
	}
	checkLedger(t, l)
}

func TestBoundRefused(t *testing.T) {
	x := newTester(t, Config{BlockSize: testBlock})
	for i := range uint64(maxRefused + 2) {
		x.quiet(stored(0, []uint64{10 + i}, tokens(1)))
	}
	x.reached(BoundRefused, 2, false)
	x.want("S device 11>1; orphan 1", stored(12, []uint64{2}), stored(11, []uint64{1})) // 11 was forgotten, 12 for refusing 2
	x.want("S device 12>3", stored(12, []uint64{3}))
	if n := len(x.r.refused.where); n != maxRefused {
		t.Errorf("%d remembered", n)
	}
}

func TestBoundSalts(t *testing.T) {
	x := newTester(t, Config{})
	for i := range uint64(maxSalts) {
		x.quiet(stored(0, []uint64{10 + i}, salted(fmt.Sprint(i))))
	}
	x.reached(BoundSalts, 0, false)
	x.want("S device ->1; S device ->2; ambiguous_salt 1", stored(0, []uint64{1}, salted("one more")), stored(0, []uint64{2}, salted("7")), stored(1, []uint64{3}))
	x.reached(BoundSalts, 1, true)
	x.want("R device 10", removed(10)) // a salt less
	x.want("S device ->4,5", stored(0, []uint64{4}, salted("another")), stored(4, []uint64{5}))
}

func TestBoundAmbiguous(t *testing.T) {
	x := newTester(t, Config{})
	for i := range uint64(maxAmbiguous + 1) {
		x.quiet(stored(0, []uint64{10 + i}), stored(0, []uint64{10 + i}, salted("a")), removed(10+i), removed(10+i))
	}
	x.reached(BoundAmbiguous, 1, true)
	x.want("S device 10>1; ambiguous_salt 1", stored(10, []uint64{1}), stored(11, []uint64{2}))
}

// TestBoundGroups: groups beyond the bound count as one, are not learned, and
// their blocks are not lost.
func TestBoundGroups(t *testing.T) {
	x := newTester(t, Config{})
	for i := range uint32(maxGroups) {
		x.quiet(stored(0, []uint64{1}, in(100+i, "full_attention")))
	}
	x.reached(BoundGroups, 0, false)
	x.want("S device ->2; unlearned_group 1", stored(0, []uint64{2}, in(5000, "full_attention")), stored(0, []uint64{3}, in(5000, "")))
	x.reached(BoundGroups, 1, true)
	x.want("R device 2", apply(removed(2), in(6000, "full_attention")))
	for i := range uint32(maxGroups) {
		want := ""
		if i == maxGroups-1 {
			want = "R device 1"
		}
		x.want(want, apply(removed(1), in(100+i, "")))
	}
}

func TestBoundMultimodal(t *testing.T) {
	x := newTester(t, Config{})
	withMM := func(hash uint64, offsets int) func(*decode.Event) {
		return func(ev *decode.Event) {
			ev.HasMM = true
			ev.MM = []decode.MMObject{{Hash: hash, Offsets: make([][2]uint64, offsets)}}
		}
	}
	for i := range uint64(maxMMBlocks) {
		x.quiet(stored(0, []uint64{10 + i}, withMM(i, 1)))
	}
	x.reached(BoundMultimodal, 0, false)
	x.quiet(stored(0, []uint64{1}, withMM(5, 1)))
	x.reached(BoundMultimodal, 1, true)
	if got := x.out.Events[0].Blocks[0].MM; len(got) != 1 || got[0].Hash != 5 {
		t.Errorf("published with %v", got)
	}
	if got := ledgerPicture(x.r); got[placed{Device, 1}].mm != "" || got[placed{Device, 10}].mm == "" || got[placed{Device, 1}].tokens == 0 {
		t.Error("a snapshot has what does not fit, or lacks what does")
	}
	x.quiet(stored(0, []uint64{10})) // without: it makes room
	x.quiet(stored(0, []uint64{2}, withMM(6, maxMMNumbers/2)))
	x.reached(BoundMultimodal, 2, false)
	x.quiet(stored(0, []uint64{3}, withMM(6, 2)))
	x.reached(BoundMultimodal, 2, false)
	x.r.Restart()
	if m := x.r.ledger.mm; m.numbers != 0 || len(m.infos) != 0 {
		t.Errorf("%d numbers of %d blocks left", m.numbers, len(m.infos))
	}
}

func TestBoundCopies(t *testing.T) {
	x := newTester(t, Config{Duplicates: Count})
	x.quiet(stored(0, []uint64{1}))
	_, e, _ := x.r.ledger.lookup(Device, 1)
	e.copies = math.MaxUint16 - 1
	x.quiet(stored(0, []uint64{1}))
	x.reached(BoundCopies, 0, false)
	x.quiet(stored(0, []uint64{1}))
	x.reached(BoundCopies, 1, true)
	if e.copies != math.MaxUint16 {
		t.Errorf("%d copies", e.copies)
	}
	x.want("", removed(1))
	// Records of announcements and further groups.
	x = newTester(t, Config{MaxBlocks: 3})
	x.quiet(stored(0, []uint64{1, 2, 3}, in(1, "full_attention")))
	x.quiet(stored(0, []uint64{1}, in(2, "full_attention"))) // two: the first group's and its own
	x.quiet(stored(0, []uint64{2}, in(1, "")), stored(0, []uint64{3}, in(1, "")))
	x.reached(BoundCopies, 1, true) // 2 was announced, 3 was not any more
	x.quiet(stored(0, []uint64{3}, in(2, "")))
	x.reached(BoundCopies, 2, false)
	x.want("", apply(removed(1), in(1, "")), apply(removed(2), in(1, "")))
	x.want("R device 3", apply(removed(3), in(1, "")))
	x.want("R device 1,2", apply(removed(1), in(2, "")), apply(removed(2), in(1, "")))
	x.quiet(stored(0, []uint64{1}, in(1, "")))
	x.want("", apply(removed(1), in(2, ""))) // of a group that has none: nothing to note
	if n := x.r.ledger.sides.live; n != 0 {
		t.Errorf("%d records left", n)
	}
	if addOne(math.MaxUint32) != math.MaxUint32 {
		t.Error("a count wraps")
	}
}

// TestUnknownTags: tags are counted by name while they are few and look like tags.
func TestUnknownTags(t *testing.T) {
	x := newTester(t, Config{})
	tag := func(name string, folded uint32) decode.Event {
		return decode.Event{Type: decode.Unknown, Name: []byte(name), Folded: folded}
	}
	x.want("unknown_tag 7", tag("BlockTransferred", 0), tag("BlockTransferred", 2), tag("the user's secret prompt", 0), tag("", 0), tag(strings.Repeat("x", 41), 0))
	got := x.r.UnknownTags()
	if len(got) != 2 || got["BlockTransferred"] != 4 || got["other"] != 3 {
		t.Errorf("%v", got)
	}
	for i := range 100 {
		x.quiet(tag(fmt.Sprint("Tag", i), 0))
	}
	if got = x.r.UnknownTags(); len(got) != maxTags+1 && len(got) != maxTags || got["other"] < 60 {
		t.Errorf("%d tags, others %d", len(got), got["other"])
	}
}

// TestHostileTime: no batch costs more than its length allows, whatever is in it.
func TestHostileSizes(t *testing.T) {
	g := rand.New(rand.NewPCG(9, 9))
	many := make([]uint64, 100_000)
	for i := range many {
		many[i] = g.Uint64()
	}
	sorted := make([]uint64, 100_000) // without any randomness
	for i := range sorted {
		sorted[i] = uint64(i) << 32
	}
	x := newTester(t, Config{Duplicates: Auto})
	for _, hashes := range [][]uint64{many, sorted} {
		x.quiet(stored(0, hashes))
		x.quiet(stored(0, hashes))
		if s := x.r.Stats(); s.Present < len(hashes) {
			t.Fatalf("%d present", s.Present)
		}
		twice := append(slices.Clone(hashes), hashes[50_000])
		x.quiet(stored(0, twice, tokens(len(twice)*testBlock)))
		x.quiet(stored(hashes[7], hashes))
		if n := x.r.Stats().Events.Dropped[ReasonSelfReference]; n%2 != 0 || n == 0 {
			t.Errorf("of two repeated hashes, once the parent, %d were seen", n)
		}
		x.quiet(removed(hashes...))
		x.quiet(removed(hashes...))
	}
	if s := x.r.Stats(); s.Present != 0 {
		t.Errorf("%d left", s.Present)
	}
	accounted(t, x.r.Stats())

	// Scratch and arenas of a giant batch are given back.
	x.quiet()
	x.quiet()
	if cap(x.out.blocks) > keepBlocks || cap(x.r.repeats.sorted) > keepBlocks || len(x.r.repeats.table.slots) > 4*manyHashes {
		t.Error("a giant batch's memory is kept")
	}
}

// TestEndlessEngine: an engine that invents everything without end does not grow
// a Rank beyond its bounds.
func TestEndlessEngine(t *testing.T) {
	g := &generator{Rand: rand.New(rand.NewPCG(4, 4)), wild: true}
	const blocks = 20_000
	x := newTester(t, Config{MaxBlocks: blocks})
	grow := func(rounds int) uint64 {
		for range rounds {
			ev := stored(g.Uint64(), []uint64{g.Uint64(), g.Uint64()})
			switch g.IntN(6) {
			case 0:
				ev.HasParent = false
				salted(fmt.Sprint(g.Uint64()))(&ev)
			case 1:
				in(g.Uint32(), "full_attention")(&ev)
			case 2:
				tokens(1)(&ev)
			case 3:
				ev.HasMM, ev.MM = true, []decode.MMObject{{Hash: g.Uint64()}, {Block: 1, Hash: g.Uint64()}, {Block: 2, Empty: true}}
			case 4:
				on(pick(g, "CPU", "DISK", "OBJ"))(&ev)
			}
			x.quiet(ev, decode.Event{Type: decode.Unknown, Name: fmt.Append(nil, g.Uint64())})
		}
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	full := grow(120_000)
	if s := x.r.Stats(); s.Present != blocks {
		t.Fatalf("%d blocks present, want the ledger full", s.Present)
	}
	if more := grow(60_000); more > full+1<<20 {
		t.Errorf("%d bytes grew to %d", full, more)
	}
	accounted(t, x.r.Stats())
	checkLedger(t, &x.r.ledger)
}
