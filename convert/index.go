package convert

import (
	"math/bits"
	"math/rand/v2"
)

// index finds an entry by tier and hash: extendible hashing. A directory of the
// hash's top bits leads to pages; a full page splits in two, two sparse ones
// join, so no operation ever moves more than a page, and the directory's
// pointers.
//
// A page is open addressing with linear probing. A place holds slot + 1 in its
// upper 24 bits and, in the lower 8, those of where the entry belongs: enough to
// pass over most others without looking at them, and to know how far from home
// each one is.
type index struct {
	dir     []*page
	depth   uint   // bits that the directory looks at
	k0, k1  uint64 // secret: no engine can aim at one place
	entries int
	spare   []*page // at most maxSparePages, so that churn does not allocate
	work    work
	warmed  uint64 // of what warm has seen: otherwise the compiler would not look
}

// work counts what the steps that move many things have moved so far, the
// ledger's too. They are what pauses are made of, and the counts, which are the
// same on any machine, are what TestLedgerWork bounds them by.
type work struct {
	places   int // entries and references gone through, or cleared
	pointers int // of the directory and the lists of segments
}

const (
	pageSize  = 1024
	pageFull  = pageSize * 3 / 4
	pageJoin  = pageSize / 4 // together no more than this after a join
	maxStray  = 256          // places from home; beyond it a page counts as full
	slotBits  = 24
	tagMask   = 1<<(32-slotBits) - 1
	tagBits   = 32 - slotBits
	maxPlaces = 1<<slotBits - 1 // slots that an index can tell apart

	maxSparePages = 16
	warmFrom      = 8 // hashes at once; fewer overlap by themselves
)

type page struct {
	refs  [pageSize]uint32
	used  int32
	depth uint8 // bits that all its entries share
}

func newIndex() index {
	return index{dir: []*page{new(page)}, k0: rand.Uint64(), k1: rand.Uint64() | 1}
}

// clear forgets all entries, and keeps one page.
func (x *index) clear() {
	first := x.dir[0]
	*first = page{}
	*x = index{dir: []*page{first}, k0: x.k0, k1: x.k1, spare: x.spare, work: x.work}
	x.work.places += pageSize
}

func (x *index) newPage(depth uint8) *page {
	n := len(x.spare)
	if n == 0 {
		return &page{depth: depth}
	}
	p := x.spare[n-1]
	x.spare = x.spare[:n-1]
	*p = page{depth: depth}
	return p
}

func (x *index) mix(tier Tier, hash uint64) uint64 {
	hi, lo := bits.Mul64(hash^x.k0+uint64(tier), x.k1)
	return hi ^ lo
}

func (x *index) page(mix uint64) *page { return x.dir[mix>>(64-x.depth)] }

// put stores a reference, unless the page is too full for it.
func (p *page) put(home, slot uint32) bool {
	if p.used >= pageFull {
		return false
	}
	home %= pageSize
	for stray := range uint32(maxStray) {
		at := &p.refs[(home+stray)%pageSize]
		if *at == 0 {
			*at = (slot+1)<<tagBits | home&tagMask
			p.used++
			return true
		}
	}
	return false
}

// stray is how far from home the reference at place i is.
func (p *page) stray(i uint32) uint32 { return (i - p.refs[i]) & tagMask }

// take removes the reference at place i: those behind it move up as far as home.
func (p *page) take(i uint32) {
	for next := i; ; {
		next = (next + 1) % pageSize
		if p.refs[next] == 0 {
			break
		}
		if p.stray(next) >= (next-i)%pageSize {
			p.refs[i] = p.refs[next]
			i = next
		}
	}
	p.refs[i] = 0
	p.used--
}

// spot is where the index has the reference to a (tier, hash), or would put it.
// It holds until the index changes, and saves looking twice.
type spot struct {
	mix   uint64
	place uint32
}

// lookup is the slot of (tier, hash), or false.
func (l *ledger) lookup(tier Tier, hash uint64) (slot uint32, e *entry, ok bool) {
	slot, e, _ = l.seek(tier, hash)
	return slot, e, e != nil
}

// seek is the slot of (tier, hash), with nil where there is none, and its spot.
func (l *ledger) seek(tier Tier, hash uint64) (slot uint32, e *entry, at spot) {
	mix := l.index.mix(tier, hash)
	p := l.index.page(mix)
	tag := uint32(mix) & tagMask
	for i := uint32(mix) % pageSize; ; i = (i + 1) % pageSize {
		ref := p.refs[i]
		if ref == 0 {
			return 0, nil, spot{mix, i}
		}
		if ref&tagMask == tag {
			slot = ref>>tagBits - 1
			if e = l.at(slot); e.hash == hash && e.tier() == tier {
				return slot, e, spot{mix, i}
			}
		}
	}
}

// warm looks at the places of hashes that are sought next, one right behind the
// other. A large ledger is not in the processor's cache, and looks that do not
// depend on each other wait for memory together instead of in turn.
func (l *ledger) warm(tier Tier, hashes []uint64) {
	if len(hashes) < warmFrom {
		return
	}
	sum := l.index.warmed
	for _, h := range hashes {
		mix := l.index.mix(tier, h)
		p := l.index.page(mix)
		sum += uint64(p.used)
		if ref := p.refs[uint32(mix)%pageSize]; ref != 0 && (ref^uint32(mix))&tagMask == 0 {
			sum += l.at(ref>>tagBits - 1).hash
		}
	}
	l.index.warmed = sum
}

// linkAt is link where at is known.
func (l *ledger) linkAt(slot uint32, e *entry, at spot) {
	p := l.index.page(at.mix)
	home := uint32(at.mix) % pageSize
	if p.used >= pageFull || (at.place-home)%pageSize >= maxStray {
		l.link(slot, e)
		return
	}
	p.refs[at.place%pageSize] = (slot+1)<<tagBits | home&tagMask
	p.used++
	l.index.entries++
}

// link adds an entry that is not in the index.
func (l *ledger) link(slot uint32, e *entry) {
	mix := l.index.mix(e.tier(), e.hash)
	for !l.index.page(mix).put(uint32(mix), slot) {
		l.splitPage(mix)
	}
	l.index.entries++
}

// find is where the reference to an entry's slot stands.
func (x *index) find(slot uint32, e *entry) (p *page, mix uint64, place uint32) {
	mix = x.mix(e.tier(), e.hash)
	p = x.page(mix)
	place = uint32(mix) % pageSize
	for p.refs[place]>>tagBits != slot+1 {
		place = (place + 1) % pageSize
	}
	return p, mix, place
}

// relink notes that an entry has moved from one slot to another.
func (x *index) relink(from, to uint32, e *entry) {
	p, _, place := x.find(from, e)
	p.refs[place] = (to+1)<<tagBits | p.refs[place]&tagMask
}

// unlink takes an entry out of the index.
func (x *index) unlink(at spot) {
	p := x.page(at.mix)
	p.take(at.place)
	x.entries--
	if p.used <= pageJoin && p.used%32 == 0 && p.depth > 0 {
		x.joinPage(p, at.mix)
	}
}

// splitPage gives half of the entries of mix's page to a new one.
func (l *ledger) splitPage(mix uint64) {
	x := &l.index
	p := x.page(mix)
	if uint(p.depth) == x.depth {
		dir := make([]*page, 2*len(x.dir))
		for i, p := range x.dir {
			dir[2*i], dir[2*i+1] = p, p
		}
		x.dir = dir
		x.depth++
		x.work.pointers += len(dir)
	}
	first, n := x.span(p, mix)
	old := p.refs
	*p = page{depth: p.depth + 1}
	q := x.newPage(p.depth)
	x.work.places += 2 * pageSize
	x.work.pointers += n / 2
	for i := first + n/2; i < first+n; i++ {
		x.dir[i] = q
	}
	// The entries are looked at first, one right behind the other, so that they
	// wait for memory together; see warm.
	n = 0
	for _, ref := range old[:] {
		old[n] = ref
		if ref != 0 {
			n++
		}
	}
	var mixes [pageSize]uint64
	for i, ref := range old[:n] {
		e := l.at(ref>>tagBits - 1)
		mixes[i] = x.mix(e.tier(), e.hash)
	}
	for i, m := range mixes[:n] {
		x.page(m).put(uint32(m), old[i]>>tagBits-1)
	}
}

// span is the range of the directory that leads to mix's page p.
func (x *index) span(p *page, mix uint64) (first, n int) {
	n = 1 << (x.depth - uint(p.depth))
	return int(mix>>(64-x.depth)) &^ (n - 1), n
}

// joinPage makes one page of p and the one it was split from, if both are sparse.
func (x *index) joinPage(p *page, mix uint64) {
	first, n := x.span(p, mix)
	q := x.dir[first^n]
	if q.depth != p.depth || p.used+q.used > pageJoin {
		return
	}
	for i, ref := range q.refs {
		if ref != 0 {
			p.put(uint32(i)-q.stray(uint32(i)), ref>>tagBits-1)
		}
	}
	x.work.places += pageSize
	x.work.pointers += n
	p.depth--
	other := first ^ n
	for i := other; i < other+n; i++ {
		x.dir[i] = p
	}
	if len(x.spare) < maxSparePages {
		x.spare = append(x.spare, q)
	}
}
