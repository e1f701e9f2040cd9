package convert

import "sort"

// from is the index in order of the first segment that may hold numbers from
// first on.
func (l *ledger) from(first uint64) int {
	return max(0, sort.Search(len(l.order), func(i int) bool { return l.order[i].base > first })-1)
}

// each calls f for every published entry with a number from first on, in
// number order, until f returns false. f must not change the ledger.
func (l *ledger) each(first uint64, f func(slot uint32, e *entry) bool) {
	for _, s := range l.order[l.from(first):] {
		for place := range s.used {
			e := &s.entries[place]
			if e.flags&flagLive != 0 && s.base+uint64(e.delta) >= first && !f(s.id<<segShift|place, e) {
				return
			}
		}
	}
}

// walkLimit is how many blocks one Walk appends at most.
const walkLimit = 1024

// Newest is the number that was given last to a (tier, hash) when it became
// present; 0: none yet. It keeps that number while it is present. Numbers grow
// for the whole life of the Rank, over clears and restarts.
func (r *Rank) Newest() uint64 { return r.ledger.next - 1 }

// Walk appends, as stores, the published blocks with numbers from … to, in
// their order and as they were published last: at most 1024 of them. next is
// where to go on; it is above to when nothing is left. Reading [from, next-1]
// again later gives what is still present of them: their numbers do not change.
// Parents may be missing, or come later.
func (r *Rank) Walk(from, to uint64, out *Output) (next uint64) {
	l := &r.ledger
	out.endRun()
	n := 0
	next = to + 1
	l.each(from, func(slot uint32, e *entry) bool {
		number := l.seg(slot).base + uint64(e.delta)
		if number > to {
			return false
		}
		if n == walkLimit {
			next = number
			return false
		}
		n++
		l.emit(e, out)
		return true
	})
	out.settle()
	return next
}

// emit appends an entry as a store, or to the store before it.
func (l *ledger) emit(e *entry, out *Output) {
	out.beginStore(e.tier(), nil, e.hasParent(), e.parent, 1)
	b := out.addBlock(e.hash)
	b.TokensHash = e.tokens
	if e.side != 0 {
		b.MM = l.mm.objects(l.sides.at(e.side).mm, out)
	}
	out.endStore()
}
