package convert

import (
	"math/bits"
	"math/rand/v2"
	"slices"
)

const (
	fewHashes  = 8    // up to here each is compared with each
	manyHashes = 2048 // above, a sorted copy instead of a table
)

// repeats finds out whether hashes repeat, in a time that grows with their
// number whatever they are.
type repeats struct {
	table  set
	sorted []uint64
}

// in reports whether any hash of a store, its parent included, occurs twice.
func (r *repeats) in(hashes []uint64, hasParent bool, parent uint64) bool {
	switch n := len(hashes); {
	case n <= fewHashes:
		for i, h := range hashes {
			if hasParent && h == parent || slices.Contains(hashes[:i], h) {
				return true
			}
		}
		return false
	case n <= manyHashes:
		r.table.reset(n + 1)
		if hasParent {
			r.table.add(parent, 0)
		}
		for _, h := range hashes {
			if !r.table.add(h, 0) {
				return true
			}
		}
		return false
	}
	r.sorted = append(r.sorted[:0], hashes...)
	if hasParent {
		r.sorted = append(r.sorted, parent)
	}
	slices.Sort(r.sorted)
	found := false
	for i := 1; i < len(r.sorted) && !found; i++ {
		found = r.sorted[i] == r.sorted[i-1]
	}
	if cap(r.sorted) > keepBlocks {
		r.sorted = nil
	}
	return found
}

// set is a table of hashes, each at some place, that is emptied without touching
// it: a slot counts only when its round is the present one.
type set struct {
	slots  []setSlot
	round  uint32
	n      int
	k0, k1 uint64 // secret: no engine can make hashes collide
}

type setSlot struct {
	hash  uint64
	round uint32
	place uint32 // whatever tells equal hashes apart
}

// reset empties the set and makes room for n hashes.
func (s *set) reset(n int) {
	size := 32
	for size < 2*n {
		size *= 2
	}
	s.n = 0
	if s.round++; s.round == 0 || size > len(s.slots) {
		s.slots, s.round = make([]setSlot, max(size, len(s.slots))), 1
		s.k0, s.k1 = rand.Uint64(), rand.Uint64()|1
	}
}

// at is the slot of (hash, place), or the free one where it belongs.
func (s *set) at(hash uint64, place uint32) *setSlot {
	mask := uint64(len(s.slots) - 1)
	hi, lo := bits.Mul64(hash^s.k0+uint64(place), s.k1)
	for i := hi ^ lo; ; i++ {
		slot := &s.slots[i&mask]
		if slot.round != s.round || slot.hash == hash && slot.place == place {
			return slot
		}
	}
}

// add reports whether (hash, place) is new. The set must not be full.
func (s *set) add(hash uint64, place uint32) bool {
	slot := s.at(hash, place)
	if slot.round == s.round {
		return false
	}
	*slot = setSlot{hash, s.round, place}
	s.n++
	return true
}

func (s *set) has(hash uint64, place uint32) bool {
	return s.n > 0 && s.at(hash, place).round == s.round
}
