package convert

import "testing"

// aimed is a ledger whose index looks at the hash itself, which no engine can
// bring about: top bits choose the page, low bits the place in it.
type aimed struct {
	t *testing.T
	l ledger
	n uint64 // hashes made, so that each is another one
}

func newAimed(t *testing.T) *aimed {
	a := &aimed{t: t, l: newLedger(DefaultMaxBlocks)}
	a.l.index.k0, a.l.index.k1 = 0, 1
	return a
}

// add adds a block with these top bits (of so many) that belongs at home.
func (a *aimed) add(top uint64, bits uint, home uint64) uint64 {
	a.n++
	hash := top<<(64-bits)&^(1<<40-1) | a.n<<10 | home%pageSize
	a.l.add(Device, hash)
	return hash
}

func (a *aimed) remove(hash uint64) {
	a.t.Helper()
	slot, e, ok := a.l.lookup(Device, hash)
	if !ok {
		a.t.Fatalf("%x is not there", hash)
	}
	a.l.remove(slot, e)
	a.l.tidy(slot)
}

// pages is the depth of each page and how many entries it has, in order.
func (a *aimed) pages() (all [][2]int) {
	a.t.Helper()
	checkLedger(a.t, &a.l)
	x := &a.l.index
	for i := 0; i < len(x.dir); {
		p := x.dir[i]
		_, n := x.span(p, uint64(i)<<(64-x.depth))
		all = append(all, [2]int{int(p.depth), int(p.used)})
		i += n
	}
	return all
}

func (a *aimed) want(pages ...[2]int) {
	a.t.Helper()
	got := a.pages()
	same := len(got) == len(pages)
	for i := range got {
		same = same && got[i] == pages[i]
	}
	if !same {
		a.t.Errorf("pages (depth, entries) %v, want %v", got, pages)
	}
}

// A page splits with the entry behind three quarters, and two halves join when
// both together have a quarter.
func TestPagesSplitAndJoin(t *testing.T) {
	a := newAimed(t)
	var low, high []uint64
	for i := range uint64(pageFull / 2) {
		low = append(low, a.add(0, 1, i))
		high = append(high, a.add(1, 1, 512+i))
	}
	a.want([2]int{0, pageFull})
	high = append(high, a.add(1, 1, 1000))
	a.want([2]int{1, 384}, [2]int{1, 385})
	// Looked at when a page is a multiple of 32: 160 and 96 are one entry too
	// many at 97, and few enough at 96.
	for len(low) > 160 {
		a.remove(low[len(low)-1])
		low = low[:len(low)-1]
	}
	for len(high) > 97 {
		a.remove(high[0])
		high = high[1:]
	}
	a.want([2]int{1, 160}, [2]int{1, 97})
	a.remove(high[0])
	high = high[1:]
	a.want([2]int{0, 256})
	if n := len(a.l.index.spare); n != 1 {
		t.Errorf("%d spare pages", n)
	}
	for _, h := range append(low, high...) {
		a.remove(h)
	}
	a.want([2]int{0, 0})
}

// The other half may itself have been split: then nothing joins, however sparse
// the part beside is.
func TestPagesJoinOnlyTheirOtherHalf(t *testing.T) {
	a := newAimed(t)
	var low, ten, eleven []uint64
	for i := range uint64(pageFull) {
		eleven = append(eleven, a.add(0b11, 2, i))
	}
	for i := range uint64(40) {
		low = append(low, a.add(0, 1, i))
		ten = append(ten, a.add(0b10, 2, i))
	}
	a.want([2]int{1, 40}, [2]int{2, 40}, [2]int{2, pageFull})
	for len(low) > 0 { // passes 32 and 0
		a.remove(low[0])
		low = low[1:]
	}
	a.want([2]int{1, 0}, [2]int{2, 40}, [2]int{2, pageFull})
	for _, h := range append(ten, eleven...) {
		a.remove(h)
	}
	a.want([2]int{0, 0})
	if got := len(a.l.index.dir); got != 4 {
		t.Errorf("a directory of %d", got)
	}
}

// An entry may lie up to 256 places from home, around the end too; where that is
// not enough the page splits.
func TestPlacesFarFromHome(t *testing.T) {
	a := newAimed(t)
	var all []uint64
	for range maxStray {
		all = append(all, a.add(0, 1, pageSize-3))
	}
	a.want([2]int{0, maxStray})
	p := a.l.index.dir[0]
	for i := range uint32(pageSize) {
		if used := (i-(pageSize-3))%pageSize < maxStray; used != (p.refs[i] != 0) {
			t.Fatalf("place %d used: %t", i, !used)
		}
		if p.refs[i] != 0 && p.stray(i) != (i-(pageSize-3))%pageSize {
			t.Errorf("the entry at %d is %d from home", i, p.stray(i))
		}
	}
	all = append(all, a.add(1, 1, pageSize-3)) // one more: it goes elsewhere, with a page of its own
	a.want([2]int{1, maxStray}, [2]int{1, 1})
	// Taken out from the middle, those behind move up, but not before home.
	others := []uint64{a.add(0, 1, 5), a.add(0, 1, 300)}
	for _, i := range []int{0, 100, 254, 7, 255, 1} {
		a.remove(all[i])
		all[i] = 0
		a.pages()
	}
	for _, h := range append(all, others...) {
		if h != 0 {
			a.remove(h)
			a.pages()
		}
	}
	if a.l.size() != 0 {
		t.Errorf("%d entries left", a.l.size())
	}
}

// Pages that were given back are used again, as new, and no more than 16 wait.
func TestSparePages(t *testing.T) {
	a := newAimed(t)
	for round := range 3 {
		var all []uint64
		for i := range uint64(40 * pageFull) {
			all = append(all, a.add(i, 6, i))
		}
		if n := len(a.pages()); n < 40 {
			t.Fatalf("%d pages", n)
		}
		if n := len(a.l.index.spare); n != 0 {
			t.Errorf("round %d: %d spare pages while more are needed", round, n)
		}
		for _, h := range all {
			a.remove(h)
		}
		if n := len(a.l.index.spare); n != 16 {
			t.Errorf("round %d: %d spare pages", round, n)
		}
		if a.l.size() != 0 {
			t.Fatalf("%d left", a.l.size())
		}
		a.pages()
	}
	a.l.clear()
	a.want([2]int{0, 0})
	if n := len(a.l.index.spare); n != 16 || len(a.l.index.dir) != 1 || a.l.index.depth != 0 {
		t.Errorf("after a clear: %d spare pages, a directory of %d", n, len(a.l.index.dir))
	}
}
