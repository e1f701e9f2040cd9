package convert

import (
	"math/bits"
	"math/rand/v2"
)

// index finds an entry by tier and hash: linear hashing, whose buckets are
// chains through the entries themselves. It grows and shrinks by one bucket per
// entry, so no operation ever moves the whole table.
type index struct {
	pages   []*[indexPage]uint32 // first slot + 1 of each bucket
	level   uint                 // buckets = 1<<level + split
	split   uint32               // the bucket that is split next
	k0, k1  uint64               // secret: no engine can aim at one bucket
	entries int
}

const (
	indexPage  = 1024
	indexLevel = 10 // smallest level: one page
)

func newIndex() index {
	return index{
		pages: []*[indexPage]uint32{new([indexPage]uint32)},
		level: indexLevel,
		k0:    rand.Uint64(), k1: rand.Uint64() | 1,
	}
}

func (x *index) mix(tier Tier, hash uint64) uint32 {
	hi, lo := bits.Mul64(hash^x.k0+uint64(tier), x.k1)
	return uint32(hi ^ lo)
}

func (x *index) bucket(mix uint32) *uint32 {
	i := mix & (1<<x.level - 1)
	if i < x.split {
		i = mix & (1<<(x.level+1) - 1)
	}
	return x.head(i)
}

func (x *index) head(i uint32) *uint32 { return &x.pages[i/indexPage][i%indexPage] }

// lookup is the slot of (tier, hash), or false.
func (l *ledger) lookup(tier Tier, hash uint64) (slot uint32, e *entry, ok bool) {
	want := half(hash)
	for ref := *l.index.bucket(l.index.mix(tier, hash)); ref != 0; ref = e.chain {
		e = l.at(ref - 1)
		if e.hash == want && e.tier() == tier {
			return ref - 1, e, true
		}
	}
	return 0, nil, false
}

// link adds an entry that is not in the index.
func (l *ledger) link(slot uint32, e *entry) {
	x := &l.index
	head := x.bucket(x.mix(e.tier(), whole(e.hash)))
	e.chain, *head = *head, slot+1
	x.entries++
	if uint32(x.entries) > 1<<x.level+x.split {
		l.splitBucket()
	}
}

// ref is where the reference to an entry's slot stands.
func (l *ledger) ref(slot uint32, e *entry) *uint32 {
	at := l.index.bucket(l.index.mix(e.tier(), whole(e.hash)))
	for *at != slot+1 {
		at = &l.at(*at - 1).chain
	}
	return at
}

// unlink takes an entry out of the index.
func (l *ledger) unlink(slot uint32, e *entry) {
	x := &l.index
	*l.ref(slot, e) = e.chain
	x.entries--
	// Half as many entries as buckets: merging this late keeps a ledger that
	// sways around one size from splitting and merging the same bucket.
	if n := 1<<x.level + x.split; n > 1<<indexLevel && uint32(x.entries) < n/2 {
		l.mergeBucket()
	}
}

func (l *ledger) splitBucket() {
	x := &l.index
	to := x.split + 1<<x.level
	if to%indexPage == 0 {
		x.pages = append(x.pages, new([indexPage]uint32))
	}
	stay, move := x.head(x.split), x.head(to)
	ref := *stay
	*stay, *move = 0, 0
	for ref != 0 {
		e := l.at(ref - 1)
		next := e.chain
		if x.mix(e.tier(), whole(e.hash))&(1<<x.level) != 0 {
			*move, move = ref, &e.chain
		} else {
			*stay, stay = ref, &e.chain
		}
		ref = next
	}
	*stay, *move = 0, 0
	if x.split++; x.split == 1<<x.level {
		x.level++
		x.split = 0
	}
}

func (l *ledger) mergeBucket() {
	x := &l.index
	if x.split == 0 {
		x.level--
		x.split = 1 << x.level
	}
	x.split--
	from := x.split + 1<<x.level
	at := x.head(x.split)
	for *at != 0 {
		at = &l.at(*at - 1).chain
	}
	*at = *x.head(from)
	*x.head(from) = 0
	if from%indexPage == 0 {
		last := len(x.pages) - 1
		x.pages[last] = nil
		x.pages = x.pages[:last]
	}
}
