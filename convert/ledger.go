package convert

import (
	"slices"
	"sort"
)

// ledger holds every (tier, hash) of a rank that is published, with its copies:
// a slab of entries in segments, in the order of their numbers, and an index
// of slots. An entry gets the next number when it becomes present, at the end
// of the slab, and keeps it while it is present; segments that have become
// sparse are packed together with their neighbours. So the slab is the order
// that Walk needs, no operation moves more than three segments, and clear drops
// segments as a whole.
type ledger struct {
	index index
	sides sides
	salts salts
	mm    multimodal

	segs    []*segment        // by id: slot = id<<segShift | place
	slab    []*[segSize]entry // their entries
	freeIDs []uint32
	order   []*segment // published, by base
	tail    *segment   // last of order, with room; nil: none
	spare   []*segment // emptied ones, at most maxSpare, so that churn does not allocate
	next    uint64     // the next number, from 1

	aside   []*segment // of an engine that is away: counted, but not published
	asideAt int        // place in aside[0] where Republish goes on

	tiers uint8 // a bit for each that anything was stored on

	kept    int // entries aside
	doubted int // published entries with flagDoubted

	maxSides int // records in the side table; a few more for multimodal information
}

const (
	segShift = 10
	segSize  = 1 << segShift
	maxSpare = 4

	// maxSegments keeps slots within what the index can tell apart. Where
	// segments are sparse it may be reached before Config.MaxBlocks, and then
	// has the same effect.
	maxSegments = maxPlaces / segSize
)

type segment struct {
	base    uint64 // number of delta 0
	id      uint32
	used    uint32 // places handed out; live ones are in number order
	live    uint32
	doubted uint32
	aside   bool
	entries *[segSize]entry // apart, so that they fill their pages of memory
}

func newLedger(maxBlocks int) ledger {
	return ledger{index: newIndex(), next: 1, maxSides: maxBlocks}
}

func (l *ledger) at(slot uint32) *entry { return &l.slab[slot>>segShift][slot%segSize] }

func (l *ledger) seg(slot uint32) *segment { return l.segs[slot>>segShift] }

// size is the number of entries, published or kept.
func (l *ledger) size() int { return l.index.entries }

func (l *ledger) published(slot uint32) bool { return !l.seg(slot).aside }

// clear forgets every entry, in a time that does not depend on how many there
// are. Numbers go on.
func (l *ledger) clear() {
	spare := l.spare
	if l.tail != nil && len(spare) < maxSpare {
		spare = append(spare, l.tail)
	}
	l.index.clear()
	*l = ledger{index: l.index, spare: spare, next: l.next, maxSides: l.maxSides}
}

// room is how many entries the slab can take at least.
func (l *ledger) room() int {
	n := (maxSegments - len(l.segs) + len(l.freeIDs)) * segSize
	if l.tail != nil {
		n += segSize - int(l.tail.used)
	}
	return n
}

// addAt makes (tier, hash), which is not in the ledger and whose spot is at,
// present under the next number.
func (l *ledger) addAt(tier Tier, hash uint64, at spot) (slot uint32, e *entry) {
	slot, e = l.place()
	// Field by field, in place: this is once a block.
	e.hash, e.tokens, e.parent = hash, 0, 0
	e.side, e.copies, e.salt, e.group = 0, 0, 0, 0
	e.flags = uint8(tier) | flagLive
	l.linkAt(slot, e, at)
	return slot, e
}

// place takes the next place and number at the end of the slab.
func (l *ledger) place() (slot uint32, e *entry) {
	s := l.tail
	if s == nil {
		s = l.newSegment()
		s.base = l.next
		l.order = append(l.order, s)
		l.tail = s
	}
	slot = s.id<<segShift | s.used
	e = &s.entries[s.used]
	e.delta = uint32(l.next - s.base)
	l.next++
	s.live++
	if s.used++; s.used == segSize {
		l.tail = nil
	}
	return slot, e
}

// publish moves a kept entry to the end of the slab, under a new number.
func (l *ledger) publish(slot uint32, e *entry) (uint32, *entry) {
	to, moved := l.place()
	delta := moved.delta
	l.index.relink(slot, to, e)
	*moved = *e
	moved.delta = delta
	if moved.flags&flagDoubted != 0 {
		l.seg(slot).doubted--
		l.seg(to).doubted++
		l.doubted++
	}
	e.flags = 0
	l.seg(slot).live--
	l.kept--
	return to, moved
}

// remove forgets an entry. The caller calls tidy when it holds no more slots.
func (l *ledger) remove(slot uint32, e *entry) {
	_, mix, place := l.index.find(slot, e)
	l.removeAt(slot, e, spot{mix, place})
}

// removeAt is remove where the entry's spot is known.
func (l *ledger) removeAt(slot uint32, e *entry, at spot) {
	l.setDoubted(slot, e, false)
	l.index.unlink(at)
	for ref := e.side; ref != 0; {
		s := l.sides.at(ref)
		if s.mm != 0 {
			l.mm.drop(s.mm)
		}
		next := s.next
		l.sides.drop(ref)
		ref = next
	}
	l.salts.release(e.salt)
	e.flags = 0
	s := l.seg(slot)
	s.live--
	if s.aside {
		l.kept--
	}
}

// setDoubted marks an entry for the switch to full reporting, or unmarks it.
func (l *ledger) setDoubted(slot uint32, e *entry, on bool) {
	if on == (e.flags&flagDoubted != 0) {
		return
	}
	s := l.seg(slot)
	e.flags ^= flagDoubted
	step := 1
	if on {
		s.doubted++
	} else {
		s.doubted--
		step = -1
	}
	if !s.aside {
		l.doubted += step
	}
}

// setAside keeps all that is published aside.
func (l *ledger) setAside() {
	for _, s := range l.order {
		s.aside = true
		l.kept += int(s.live)
	}
	l.index.work.pointers += 2 * len(l.order)
	l.aside = append(l.aside, l.order...)
	l.order, l.tail, l.doubted = nil, nil, 0
}

func (l *ledger) newSegment() *segment {
	var s *segment
	if n := len(l.spare); n > 0 {
		s = l.spare[n-1]
		l.spare[n-1] = nil
		l.spare = l.spare[:n-1]
		s.used, s.live, s.doubted, s.aside = 0, 0, 0, false
	} else {
		s = &segment{entries: new([segSize]entry)}
		l.index.work.places += segSize
	}
	if n := len(l.freeIDs); n > 0 {
		s.id = l.freeIDs[n-1]
		l.freeIDs = l.freeIDs[:n-1]
		l.segs[s.id], l.slab[s.id] = s, s.entries
		return s
	}
	s.id = uint32(len(l.segs))
	l.segs, l.slab = append(l.segs, s), append(l.slab, s.entries)
	return s
}

// recycle takes an empty segment, which is in no list any more.
func (l *ledger) recycle(s *segment) {
	l.segs[s.id], l.slab[s.id] = nil, nil
	l.freeIDs = append(l.freeIDs, s.id)
	if len(l.spare) < maxSpare {
		l.spare = append(l.spare, s)
	}
}

// position is where a segment stands in order.
func (l *ledger) position(s *segment) int {
	return sort.Search(len(l.order), func(i int) bool { return l.order[i].base >= s.base })
}

// tidy gives back what removals have left empty in the segment of slot: all of
// it, or by packing two or three neighbours into one less. Packing moves at
// most two entries for each one removed.
func (l *ledger) tidy(slot uint32) {
	s := l.seg(slot)
	switch {
	case s.aside: // Republish drops it when it has passed
	case s.live == 0 && s == l.tail:
		s.base, s.used = l.next, 0
	case s.live == 0:
		i := l.position(s)
		l.index.work.pointers += len(l.order) - i
		l.order = slices.Delete(l.order, i, i+1)
		l.recycle(s)
	case s != l.tail && s.live%64 == 0 && s.live <= 2*segSize/3:
		l.packAround(l.position(s))
	}
}
