package replay

import "sort"

// heldCost is what a held batch costs beside its payload: its entry, in a list
// that doubles, and the allocation's rounding.
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
	if i, ok := h.live.find(seq); ok {
		return h.live.list[i], false, true
	}
	if i, ok := h.replayed.find(seq); ok {
		return h.replayed.list[i], true, true
	}
	return heldBatch{}, false, false
}

// liveBetween says whether a live batch with lo < seq < hi is held.
func (h *held) liveBetween(lo, hi uint64) bool {
	i, _ := h.live.find(lo + 1) // lo < hi, so it does not overflow
	return i < len(h.live.list) && h.live.list[i].seq < hi
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
	i, ok := list.find(seq)
	if !ok {
		list = &h.replayed
		if i, ok = list.find(seq); !ok {
			return heldBatch{}, false, false
		}
	}
	b = list.list[i]
	list.remove(i)
	h.give(b)
	return b, list == &h.replayed, true
}

// toLive moves a replayed batch to the live ones: now both brought it.
func (h *held) toLive(seq uint64) {
	if i, ok := h.replayed.find(seq); ok {
		b := h.replayed.list[i]
		h.replayed.remove(i)
		h.live.put(b)
	}
}

// dropBelow drops what is below seq and returns how many those were.
func (h *held) dropBelow(seq uint64) (n uint64) {
	for _, l := range []*batchList{&h.live, &h.replayed} {
		for l.len() > 0 && l.first().seq < seq {
			h.give(l.first())
			l.remove(l.head)
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
	for _, b := range l.list[l.head:] {
		h.give(b)
	}
	*l = batchList{}
	return uint64(n)
}

func (h *held) give(b heldBatch) {
	cost := len(b.payload) + heldCost
	h.bytes -= int64(cost)
	h.budget.Give(cost)
}

// batchList is in ascending order of seq. Batches come nearly in order and
// leave from the front, so both are cheap; anything else moves memory.
type batchList struct {
	list []heldBatch
	head int // list[:head] has left
}

func (l *batchList) len() int         { return len(l.list) - l.head }
func (l *batchList) first() heldBatch { return l.list[l.head] }
func (l *batchList) last() heldBatch  { return l.list[len(l.list)-1] }

// find returns where seq is, or belongs.
func (l *batchList) find(seq uint64) (int, bool) {
	i := l.head + sort.Search(l.len(), func(i int) bool { return l.list[l.head+i].seq >= seq })
	return i, i < len(l.list) && l.list[i].seq == seq
}

func (l *batchList) put(b heldBatch) {
	if l.head > 0 && len(l.list) == cap(l.list) { // the place of what has left, before more memory
		n := copy(l.list, l.list[l.head:])
		clear(l.list[n:])
		l.list, l.head = l.list[:n], 0
	}
	i, _ := l.find(b.seq)
	l.list = append(l.list, heldBatch{})
	copy(l.list[i+1:], l.list[i:])
	l.list[i] = b
}

func (l *batchList) remove(i int) {
	switch {
	case i == l.head:
		l.list[i] = heldBatch{}
		l.head++
	default:
		copy(l.list[i:], l.list[i+1:])
		l.list[len(l.list)-1] = heldBatch{}
		l.list = l.list[:len(l.list)-1]
	}
	if l.head == len(l.list) {
		*l = batchList{}
	}
}
