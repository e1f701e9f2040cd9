package convert

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// memory forgets the oldest, keeps the age of what comes again, and forgets
// nothing else: as a list does.
func TestMemoryIsAList(t *testing.T) {
	for _, limit := range []int{1, 2, 3, 7} {
		rng := rand.New(rand.NewPCG(uint64(limit), 1))
		m := memory{limit: limit}
		var list []uint64
		for step := range 5000 {
			h := rng.Uint64N(uint64(2*limit + 1))
			at := slices.Index(list, h)
			if m.has(h) != (at >= 0) {
				t.Fatalf("limit %d, step %d: has %d: %t, list %v", limit, step, h, at < 0, list)
			}
			switch rng.IntN(8) {
			case 0, 1:
				if m.drop(h); at >= 0 {
					list = slices.Delete(list, at, at+1)
				}
			case 2:
				if rng.IntN(30) == 0 {
					m.clear()
					list = nil
				}
			default:
				forgot := m.add(h)
				want := at < 0 && len(list) == limit
				if want {
					list = list[1:]
				}
				if at < 0 {
					list = append(list, h)
				}
				if forgot != want {
					t.Fatalf("limit %d, step %d: forgot %t", limit, step, forgot)
				}
			}
			if len(m.where) != len(list) || len(m.items) > limit || m.limit != limit {
				t.Fatalf("limit %d, step %d: %d remembered in %d items, list %v", limit, step, len(m.where), len(m.items), list)
			}
		}
	}
}

// Repeats are found whatever their number, their places, and how they are
// looked for.
func TestRepeatsOfEverySize(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 2))
	var r repeats
	for _, n := range []int{0, 1, 2, 7, 8, 9, 10, 31, 32, 33, 500, 2047, 2048, 2049, 5000} {
		hashes := make([]uint64, n)
		for i := range hashes {
			hashes[i] = rng.Uint64()
		}
		other := rng.Uint64()
		if r.in(hashes, false, 0) || r.in(hashes, true, other) {
			t.Errorf("%d different hashes repeat", n)
		}
		if n == 0 {
			continue
		}
		for range 20 {
			i, k := rng.IntN(n), rng.IntN(n)
			if !r.in(hashes, true, hashes[i]) {
				t.Errorf("%d hashes: the parent is hash %d, and does not repeat", n, i)
			}
			if r.in(hashes, false, hashes[i]) {
				t.Errorf("%d hashes: a parent that is not there repeats", n)
			}
			if i != k {
				twice := slices.Clone(hashes)
				twice[i] = twice[k]
				if !r.in(twice, false, 0) || !r.in(twice, true, other) {
					t.Errorf("%d hashes: %d and %d are the same, and do not repeat", n, i, k)
				}
			}
		}
		if n > manyHashes && cap(r.sorted) < n || cap(r.sorted) > keepBlocks {
			t.Errorf("%d hashes: a copy of %d", n, cap(r.sorted))
		}
	}
	r.in(make([]uint64, keepBlocks+1), false, 0)
	if r.sorted != nil {
		t.Error("a giant copy is kept")
	}
}

// A set is empty after each reset, also when its rounds begin anew, and has room
// for twice what it was asked for.
func TestSetRounds(t *testing.T) {
	var s set
	if s.has(5, 0) {
		t.Error("a new set has something")
	}
	for _, c := range []struct{ n, slots int }{{1, 32}, {16, 32}, {17, 64}, {32, 64}, {33, 128}, {5, 128}, {64, 128}, {65, 256}} {
		s.reset(c.n)
		if len(s.slots) != c.slots || s.n != 0 || s.has(1, 0) {
			t.Errorf("for %d: %d slots, %d in it", c.n, len(s.slots), s.n)
		}
		for h := range uint64(c.n) {
			place := uint32(h % 3)
			if s.has(h/3, place) || !s.add(h/3, place) || s.add(h/3, place) || !s.has(h/3, place) {
				t.Fatalf("for %d: %d", c.n, h)
			}
		}
		if s.n != c.n {
			t.Errorf("for %d: %d in it", c.n, s.n)
		}
	}
	s.round = math.MaxUint32
	s.slots[7].round = 1 // left by the first round of long ago
	s.reset(3)
	if s.round != 1 || len(s.slots) != 256 || s.k1&1 != 1 {
		t.Errorf("round %d, %d slots", s.round, len(s.slots))
	}
	for i, slot := range s.slots {
		if slot != (setSlot{}) {
			t.Errorf("slot %d is left", i)
		}
	}
}

// An id stands for a salt while any block has it, and then for another one.
func TestSaltsAreCounted(t *testing.T) {
	var s salts
	take := func(seed uint64, want uint16) {
		t.Helper()
		if id, ok := s.acquire(seed); !ok || id != want || s.seed(id) != seed {
			t.Fatalf("salt %d has id %d (%t), want %d", seed, id, ok, want)
		}
	}
	if s.inUse() {
		t.Error("in use")
	}
	take(10, 1)
	take(20, 2)
	take(10, 1)
	if s.share(2) != 2 || s.share(saltPlain) != saltPlain {
		t.Error("share")
	}
	s.release(saltNone)
	s.release(saltPlain)
	s.release(1)
	s.release(2)
	take(30, 3) // 1 and 2 have a block each
	s.release(1)
	take(40, 1)
	take(10, 4)
	s.release(2)
	s.release(3)
	take(50, 3)
	take(60, 2)
	take(70, 5)
	for _, id := range []uint16{1, 2, 3, 4, 5} {
		if !s.inUse() {
			t.Error("not in use")
		}
		s.release(id)
	}
	if s.inUse() || len(s.free) != 5 || len(s.used) != 5 {
		t.Errorf("%+v", s)
	}
}

// Hashes that turn up elsewhere are counted, three are too many; those that are
// stored again where they were are not.
func TestTrustCountsMovedHashes(t *testing.T) {
	at := func(has bool, parent uint64) *entry {
		e := new(entry)
		e.setParent(has, parent)
		return e
	}
	if tr := (&trust{}); !tr.doubts(1, nil, true, 5740354900026072187) || tr.doubts(1, nil, false, 5740354900026072187) || tr.moved != 0 {
		t.Error("SGLang's parent of first blocks")
	}
	for name, c := range map[string]struct {
		was, now *entry
		moved    bool
	}{
		"same parent":      {at(true, 7), at(true, 7), false},
		"same root":        {at(false, 0), at(false, 0), false},
		"another parent":   {at(true, 7), at(true, 8), true},
		"a root now":       {at(true, 7), at(false, 0), true},
		"a root no longer": {at(false, 0), at(true, 7), true},
	} {
		for _, removed := range []bool{false, true} {
			var tr trust
			for i := range uint64(3) {
				was := c.was
				if removed {
					tr.removed(i, c.was)
					was = nil
				}
				if got, want := tr.doubts(i, was, c.now.hasParent(), c.now.parent), c.moved && i == 2; got != want {
					t.Errorf("%s (removed: %t), %d times: doubts %t", name, removed, i+1, got)
				}
			}
			if want := 0; !c.moved && tr.moved != want || c.moved && tr.moved != 3 {
				t.Errorf("%s (removed: %t): %d moved", name, removed, tr.moved)
			}
		}
	}
	// One that fell on the same place has taken it; a hash never seen counts not.
	var tr trust
	tr.removed(5, at(true, 7))
	tr.removed(5+maxParted, at(true, 7))
	tr.doubts(5, nil, true, 8)
	tr.doubts(6, nil, true, 8)
	tr.doubts(0, nil, true, 8) // as an empty place is
	if tr.moved != 0 || len(tr.gone) != maxParted {
		t.Errorf("%d moved, %d places", tr.moved, len(tr.gone))
	}
	tr.doubts(5+maxParted, nil, true, 8)
	if tr.moved != 1 {
		t.Error("the last one on a place is forgotten")
	}
}

// Records of the side table are used again, and are empty then.
func TestSideRecordsAreUsedAgain(t *testing.T) {
	var s sides
	var refs []uint32
	for i := range uint32(2*sideChunk + 5) {
		ref := s.add(side{mm: i + 1})
		if ref != i+1 || s.at(ref).mm != i+1 {
			t.Fatalf("record %d has reference %d", i, ref)
		}
		refs = append(refs, ref)
	}
	if s.live != len(refs) || len(s.chunks) != 3 {
		t.Errorf("%d records in %d chunks", s.live, len(s.chunks))
	}
	for _, ref := range []uint32{3, 300, 512} {
		s.drop(ref)
	}
	if s.live != len(refs)-3 {
		t.Errorf("%d records", s.live)
	}
	for _, want := range []uint32{512, 300, 3, uint32(len(refs)) + 1} {
		if ref := s.add(side{group: 9}); ref != want || *s.at(ref) != (side{group: 9}) {
			t.Errorf("reference %d, want %d: %+v", ref, want, *s.at(ref))
		}
	}
	for i, ref := range refs {
		if want := uint32(i + 1); ref != 3 && ref != 300 && ref != 512 && s.at(ref).mm != want {
			t.Errorf("record %d is another one's: %+v", ref, *s.at(ref))
		}
	}
}
