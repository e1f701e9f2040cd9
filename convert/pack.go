package convert

import (
	"math"
	"slices"
)

// packAround packs the segment at i of order with one or two neighbours, where
// that frees a segment. The tail, which still grows, is left alone.
func (l *ledger) packAround(i int) {
	for n := 2; n <= 3; n++ {
		for from := max(0, i-n+1); from <= i && from+n <= len(l.order); from++ {
			group := l.order[from : from+n]
			last := group[n-1]
			// Numbers too far apart for a delta: 2^32 stores lie between them,
			// so there are few such segments.
			if last == l.tail || last.lastNumber()-group[0].base > math.MaxUint32 {
				continue
			}
			live := 0
			for _, s := range group {
				live += int(s.live)
			}
			if live <= (n-1)*segSize {
				l.pack(from, n)
				return
			}
		}
	}
}

func (s *segment) lastNumber() uint64 { return s.base + uint64(s.entries[s.used-1].delta) }

// pack moves the live entries of n segments, from one on in order, to the
// front, in number order, and recycles the segments that are left empty.
func (l *ledger) pack(from, n int) {
	group := l.order[from : from+n]
	l.index.work.places += n * segSize
	l.index.work.pointers += len(l.order) - from
	var doubted [3]uint32
	k, w := 0, uint32(0) // where the next entry goes
	for _, src := range group {
		for i := range src.used {
			e := &src.entries[i]
			if e.flags&flagLive == 0 {
				continue
			}
			if w == segSize {
				k, w = k+1, 0
			}
			dst := group[k]
			if e.flags&flagDoubted != 0 {
				doubted[k]++
			}
			if to := &dst.entries[w]; to != e {
				l.index.relink(src.id<<segShift|i, dst.id<<segShift|w, e)
				number := src.base + uint64(e.delta)
				*to = *e
				to.delta = uint32(number - dst.base)
				e.flags = 0
			}
			w++
		}
	}
	kept := k
	if w > 0 {
		kept++
	}
	for i, s := range group {
		switch {
		case i < k:
			s.used, s.live, s.doubted = segSize, segSize, doubted[i]
		case i < kept:
			s.used, s.live, s.doubted = w, w, doubted[i]
		default:
			l.recycle(s)
		}
	}
	l.order = slices.Delete(l.order, from+kept, from+n)
}
