package replay

import "sort"

// seen is one applied batch as the ring remembers it: by number and by the
// XXH3-64 of its payload.
type seen struct{ seq, sum uint64 }

// ring remembers the newest applied batches of an unbroken stretch of
// history: of the numbers between its lowest and its newest, those that are
// missing never existed. When it is full the oldest goes; a repeat of a batch that
// is no longer in it can only be told from a restart by its wall clock.
type ring struct {
	size int
	list []seen // ascending; a circle from head once it has size entries
	head int    // index of the oldest
}

func (r *ring) at(i int) seen { return r.list[(r.head+i)%len(r.list)] }

// add takes a batch newer than all others.
func (r *ring) add(s seen) {
	if len(r.list) < r.size {
		r.list = append(r.list, s)
		return
	}
	r.list[r.head] = s
	r.head = (r.head + 1) % r.size
}

// find returns where seq is, or belongs.
func (r *ring) find(seq uint64) int {
	return sort.Search(len(r.list), func(i int) bool { return r.at(i).seq >= seq })
}

// between says whether a batch with lo < seq < hi is remembered.
func (r *ring) between(lo, hi uint64) bool {
	i := r.find(lo + 1) // lo < hi, so it does not overflow
	return i < len(r.list) && r.at(i).seq < hi
}

// get returns the sum applied at seq.
func (r *ring) get(seq uint64) (uint64, bool) {
	i := r.find(seq)
	if i == len(r.list) || r.at(i).seq != seq {
		return 0, false
	}
	return r.at(i).sum, true
}

// lowest is the oldest number remembered; of an empty ring, 0.
func (r *ring) lowest() uint64 {
	if len(r.list) == 0 {
		return 0
	}
	return r.at(0).seq
}

func (r *ring) empty() bool { return len(r.list) == 0 }

func (r *ring) clear() { r.list, r.head = r.list[:0], 0 }
