package replay

import (
	"slices"
	"sort"
)

// heldCost is what a held batch costs beside its payload: its entry, in a chunk
// that may be half empty, and the allocation's rounding.
const heldCost = 96

// heldBatch is a copy of a batch that waits for the numbers before it.
type heldBatch struct {
	seq, sum uint64
	payload  []byte
}

// held is what waits, by where it came from: only a live batch can contradict
// what replay shows, and only live batches stay when history is lost by exhaustion.
// A number is in one of the two lists.
//
// It is bounded by the process's Budget; see Cursor.hold for what happens then.
type held struct {
	budget         *Budget
	live, replayed batchList
	bytes          int64
}

func (h *held) len() int { return h.live.len() + h.replayed.len() }

// min is the lowest number held.
func (h *held) min() (uint64, bool) {
	switch l, r := &h.live, &h.replayed; {
	case l.len() == 0 && r.len() == 0:
		return 0, false
	case r.len() == 0 || l.len() > 0 && l.first().seq < r.first().seq:
		return l.first().seq, true
	default:
		return r.first().seq, true
	}
}

// max is the highest number held.
func (h *held) max() (uint64, bool) {
	switch l, r := &h.live, &h.replayed; {
	case l.len() == 0 && r.len() == 0:
		return 0, false
	case r.len() == 0 || l.len() > 0 && l.last().seq > r.last().seq:
		return l.last().seq, true
	default:
		return r.last().seq, true
	}
}

func (h *held) get(seq uint64) (b heldBatch, replayed, ok bool) {
	if at, ok := h.live.find(seq); ok {
		return *h.live.at(at), false, true
	}
	if at, ok := h.replayed.find(seq); ok {
		return *h.replayed.at(at), true, true
	}
	return heldBatch{}, false, false
}

// liveBetween says whether a live batch with lo < seq < hi is held.
func (h *held) liveBetween(lo, hi uint64) bool {
	at, _ := h.live.find(lo + 1) // lo < hi, so it does not overflow
	b := h.live.at(at)
	return b != nil && b.seq < hi
}

// put copies a batch whose number is not held, or reports that the budget has
// no room for it.
func (h *held) put(seq, sum uint64, payload []byte, replayed bool) bool {
	cost := len(payload) + heldCost
	if !h.budget.Take(cost) {
		return false
	}
	h.bytes += int64(cost)
	b := heldBatch{seq, sum, append([]byte(nil), payload...)}
	if replayed {
		h.replayed.put(b)
	} else {
		h.live.put(b)
	}
	return true
}

// take removes a batch and gives its bytes back.
func (h *held) take(seq uint64) (b heldBatch, replayed, ok bool) {
	list := &h.live
	at, ok := list.find(seq)
	if !ok {
		list = &h.replayed
		if at, ok = list.find(seq); !ok {
			return heldBatch{}, false, false
		}
	}
	b = *list.at(at)
	list.remove(at)
	h.give(b)
	return b, list == &h.replayed, true
}

// toLive moves a replayed batch to the live ones: now both brought it.
func (h *held) toLive(seq uint64) {
	if at, ok := h.replayed.find(seq); ok {
		b := *h.replayed.at(at)
		h.replayed.remove(at)
		h.live.put(b)
	}
}

// dropBelow drops what is below seq and returns how many those were.
func (h *held) dropBelow(seq uint64) (n uint64) {
	for _, l := range []*batchList{&h.live, &h.replayed} {
		for l.len() > 0 && l.first().seq < seq {
			h.give(l.first())
			l.remove(place{})
			n++
		}
	}
	return n
}

// dropReplayed drops what only replay has brought.
func (h *held) dropReplayed() uint64 { return h.drop(&h.replayed) }

// clear drops everything.
func (h *held) clear() uint64 { return h.drop(&h.live) + h.drop(&h.replayed) }

func (h *held) drop(l *batchList) uint64 {
	n := l.len()
	for _, c := range l.chunks {
		for _, b := range c {
			h.give(b)
		}
	}
	*l = batchList{}
	return uint64(n)
}

func (h *held) give(b heldBatch) {
	cost := len(b.payload) + heldCost
	h.bytes -= int64(cost)
	h.budget.Give(cost)
}

// batchList is in ascending order of seq, in chunks: whatever order batches come
// in – a hostile engine counts down – each one moves no more than a chunk.
type batchList struct {
	chunks [][]heldBatch // none is empty
	n      int
}

// chunkSize is when a chunk is cut in two.
const chunkSize = 512

// place is where in a batchList a batch is.
type place struct{ chunk, i int }

func (l *batchList) len() int         { return l.n }
func (l *batchList) first() heldBatch { return l.chunks[0][0] }
func (l *batchList) last() heldBatch {
	c := l.chunks[len(l.chunks)-1]
	return c[len(c)-1]
}

// at is the batch at a place; nil behind the last.
func (l *batchList) at(p place) *heldBatch {
	if p.chunk == len(l.chunks) {
		return nil
	}
	return &l.chunks[p.chunk][p.i]
}

// find returns where seq is, or what would follow it.
func (l *batchList) find(seq uint64) (place, bool) {
	k := sort.Search(len(l.chunks), func(k int) bool { c := l.chunks[k]; return c[len(c)-1].seq >= seq })
	if k == len(l.chunks) {
		return place{k, 0}, false
	}
	c := l.chunks[k]
	i := sort.Search(len(c), func(i int) bool { return c[i].seq >= seq })
	return place{k, i}, c[i].seq == seq
}

func (l *batchList) put(b heldBatch) {
	at, _ := l.find(b.seq)
	l.n++
	if at.chunk == len(l.chunks) { // behind the last
		if at.chunk == 0 || len(l.chunks[at.chunk-1]) >= chunkSize {
			l.chunks = append(l.chunks, []heldBatch{b})
			return
		}
		at = place{at.chunk - 1, len(l.chunks[at.chunk-1])}
	}
	c := slices.Insert(l.chunks[at.chunk], at.i, b)
	l.chunks[at.chunk] = c
	if len(c) > chunkSize {
		// Both halves anew, without the room that the whole had to grow.
		l.chunks[at.chunk] = slices.Clone(c[:chunkSize/2])
		l.chunks = slices.Insert(l.chunks, at.chunk+1, slices.Clone(c[chunkSize/2:]))
	}
}

func (l *batchList) remove(at place) {
	l.n--
	c := l.chunks[at.chunk]
	switch {
	case len(c) == 1:
		l.chunks = slices.Delete(l.chunks, at.chunk, at.chunk+1)
	case at.i == 0: // the usual case: batches leave from the front
		c[0] = heldBatch{}
		l.chunks[at.chunk] = c[1:]
	default:
		l.chunks[at.chunk] = slices.Delete(c, at.i, at.i+1)
	}
	if l.n == 0 {
		*l = batchList{}
	}
}
