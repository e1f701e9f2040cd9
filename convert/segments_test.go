package convert

import (
	"testing"

	"github.com/kvrelay/kvrelay/decode"
)

// A segment's last number is that of its last place, also where the entry there
// has gone.
func TestLastNumberOfASegment(t *testing.T) {
	l := newLedger(DefaultMaxBlocks)
	for i := range uint64(3) {
		l.add(Device, 10+i)
	}
	s := l.tail
	if s.base != 1 || s.lastNumber() != 3 {
		t.Fatalf("numbers %d to %d", s.base, s.lastNumber())
	}
	slot, e, _ := l.lookup(Device, 12)
	l.remove(slot, e)
	l.tidy(slot)
	if s.lastNumber() != 3 {
		t.Errorf("last number %d", s.lastNumber())
	}
	checkLedger(t, &l)
}

// filled is a ledger of n full segments and a tail with one entry, and their
// hashes by segment.
func filled(n int) (*ledger, [][]uint64) {
	l := newLedger(DefaultMaxBlocks)
	var hashes [][]uint64
	for s := range n {
		var of []uint64
		for i := range uint64(segSize) {
			h := uint64(s+1)<<32 | i
			l.add(Device, h)
			of = append(of, h)
		}
		hashes = append(hashes, of)
	}
	l.add(Device, 1)
	return &l, hashes
}

// thin removes every second entry, and so on, until a segment's hashes are n.
func thin(t *testing.T, l *ledger, hashes *[]uint64, n int) {
	t.Helper()
	for i := 0; len(*hashes) > n; i++ {
		at := i % len(*hashes)
		slot, e, ok := l.lookup(Device, (*hashes)[at])
		if !ok {
			t.Fatalf("%x is not there", (*hashes)[at])
		}
		l.remove(slot, e)
		l.tidy(slot)
		*hashes = append((*hashes)[:at], (*hashes)[at+1:]...)
	}
}

func segments(t *testing.T, l *ledger, want ...uint32) {
	t.Helper()
	checkLedger(t, l)
	var got []uint32
	for _, s := range l.order {
		got = append(got, s.live)
	}
	if len(got) != len(want) {
		t.Fatalf("segments of %v entries, want %v", got, want)
	}
	for i := range got {
		if got[i] != want[i] {
			t.Fatalf("segments of %v entries, want %v", got, want)
		}
	}
}

// Two neighbours that fit into one become one, three that fit into two become
// two: looked at when one has a multiple of 64 and no more than two thirds.
func TestSparseSegmentsArePacked(t *testing.T) {
	l, h := filled(3)
	thin(t, l, &h[0], 640)
	segments(t, l, 640, 1024, 1024, 1)
	thin(t, l, &h[1], 385)
	segments(t, l, 640, 385, 1024, 1)
	thin(t, l, &h[1], 384)
	segments(t, l, 1024, 1024, 1)
	if len(l.spare) != 1 || len(l.freeIDs) != 1 {
		t.Errorf("%d spare segments, %d free ids", len(l.spare), len(l.freeIDs))
	}

	l, h = filled(3)
	thin(t, l, &h[1], 640)
	thin(t, l, &h[0], 640)
	thin(t, l, &h[2], 768) // these three would fit into two, but this one has more than two thirds
	segments(t, l, 640, 640, 768, 1)
	thin(t, l, &h[2], 641)
	segments(t, l, 640, 640, 641, 1)
	thin(t, l, &h[2], 640)
	segments(t, l, 1024, 896, 1)

	// The tail still grows, and is left alone.
	l, h = filled(1)
	thin(t, l, &h[0], 64)
	segments(t, l, 64, 1)
	thin(t, l, &h[0], 0)
	segments(t, l, 1)
	slot, e, _ := l.lookup(Device, 1)
	l.remove(slot, e)
	l.tidy(slot)
	segments(t, l, 0)
	if next := l.next; l.tail.base != next || l.tail.used != 0 || next != segSize+2 {
		t.Errorf("the empty tail begins at %d, has %d places used, next is %d", l.tail.base, l.tail.used, next)
	}
	if l.add(Device, 7); l.order[0].lastNumber() != segSize+2 {
		t.Error("a number is given twice")
	}
}

// At most four emptied segments wait to be used again, and are as new then.
func TestSpareSegments(t *testing.T) {
	l, h := filled(6)
	for _, of := range h {
		for _, hash := range of {
			slot, e, _ := l.lookup(Device, hash)
			l.setDoubted(slot, e, true)
			l.remove(slot, e)
			l.tidy(slot)
		}
	}
	segments(t, l, 1)
	if len(l.spare) != 4 || len(l.freeIDs) != 6 || len(l.segs) != 7 {
		t.Errorf("%d spare segments, %d free ids of %d", len(l.spare), len(l.freeIDs), len(l.segs))
	}
	for i := range uint64(6 * segSize) {
		l.add(HostPinned, 1<<40|i)
	}
	segments(t, l, 1024, 1024, 1024, 1024, 1024, 1024, 1)
	if len(l.spare) != 0 || len(l.freeIDs) != 0 || len(l.segs) != 7 {
		t.Errorf("%d spare segments, %d free ids of %d", len(l.spare), len(l.freeIDs), len(l.segs))
	}
	// A clear keeps the tail's memory, and numbers go on.
	next := l.next
	l.clear()
	if len(l.spare) != 1 || l.next != next || l.size() != 0 || l.room() != maxSegments*segSize {
		t.Errorf("%d spare segments, next %d, room %d", len(l.spare), l.next, l.room())
	}
	l.add(Device, 3)
	segments(t, l, 1)
}

// Packing finds its neighbours anywhere in the order, not only at its beginning.
func TestSparseSegmentsFarBack(t *testing.T) {
	l, h := filled(8)
	thin(t, l, &h[6], 640)
	thin(t, l, &h[7], 384)
	segments(t, l, 1024, 1024, 1024, 1024, 1024, 1024, 1024, 1)
	thin(t, l, &h[5], 640)
	thin(t, l, &h[4], 384)
	segments(t, l, 1024, 1024, 1024, 1024, 1024, 1024, 1)
}

// A clear keeps no more spare segments than the bound.
func TestClearKeepsTheBoundOnSpares(t *testing.T) {
	l, h := filled(6)
	for i := range h {
		thin(t, l, &h[i], 0)
	}
	if len(l.spare) != 4 || l.tail == nil {
		t.Fatalf("%d spare segments", len(l.spare))
	}
	if l.clear(); len(l.spare) != 4 {
		t.Errorf("%d spare segments after a clear", len(l.spare))
	}
}

// A side record that says nothing any more is given back.
func TestIdleSideRecordsAreGivenBack(t *testing.T) {
	x := newTester(t, Config{Duplicates: Count})
	x.quiet(stored(0, []uint64{1}, func(ev *decode.Event) { ev.HasMM, ev.MM = true, []decode.MMObject{{Hash: 5}} }))
	if n := x.r.ledger.sides.live; n != 1 {
		t.Fatalf("%d records", n)
	}
	x.quiet(stored(0, []uint64{1}))
	if n := x.r.ledger.sides.live; n != 0 {
		t.Errorf("%d records for a block of one group, without objects", n)
	}
}
