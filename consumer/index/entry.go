package index

import "github.com/zeebo/xxh3"

// entry is one block of one rank, in any number of tiers: 56 bytes. Links are
// numbers of entries in the slab; 0 is none.
type entry struct {
	hash   uint64 // the engine's
	tokens uint64 // tokens hash
	// chain names the block's prefix; 0 while it is unknown, because an
	// ancestor has not been seen.
	chain uint64

	// The family, within the rank. A block hangs on its parent while it is
	// present itself; a parent that is not present and has children is a ghost.
	parent, child, next, prev uint32
	// The other entries of the same chain, of any rank.
	peer, peerPrev uint32

	slot  uint32
	tiers uint8 // bit per tier; 0: a ghost
}

const (
	segBits = 12
	segSize = 1 << segBits
)

// slab holds entries in segments, which never move.
type slab struct {
	segs [][]entry
	used uint32 // entries handed out so far, with number 0, which nobody gets
	free uint32 // released entries, linked by next
}

func (s *slab) at(i uint32) *entry { return &s.segs[i>>segBits][i&(segSize-1)] }

func (s *slab) alloc() uint32 {
	if i := s.free; i != 0 {
		e := s.at(i)
		s.free = e.next
		*e = entry{}
		return i
	}
	if s.used == 0 {
		s.used = 1
	}
	if int(s.used>>segBits) == len(s.segs) {
		s.segs = append(s.segs, make([]entry, segSize))
	}
	s.used++
	return s.used - 1
}

func (s *slab) release(i uint32) {
	*s.at(i) = entry{next: s.free}
	s.free = i
}

// chainSeed is the seed of Dynamo's own sequence hashes, which chains are.
const chainSeed = 1337

// extend is the chain of a block behind the prefix parent.
func extend(parent, tokens uint64) uint64 {
	var b [16]byte
	for i := range 8 {
		b[i], b[8+i] = byte(parent>>(8*i)), byte(tokens>>(8*i))
	}
	return named(xxh3.HashSeed(b[:], chainSeed))
}

// named keeps 0 free for "unknown".
func named(h uint64) uint64 {
	if h == 0 {
		return 1
	}
	return h
}

// weight is an entry's share in its node's sum.
func weight(slot uint32, tiers uint8) uint64 {
	h := (uint64(slot)<<8 | uint64(tiers)) * 0x9e3779b97f4a7c15
	h ^= h >> 32
	h *= 0xd6e8feb86659fd93
	return h ^ h>>29
}

// entryOf is the slot's entry of a hash; a ghost is made when there is none.
func (x *Index) entryOf(s uint32, hash uint64) uint32 {
	if at := x.slots[s].blocks[hash]; at != 0 {
		return at
	}
	at := x.slab.alloc()
	e := x.slab.at(at)
	e.hash, e.slot = hash, s
	x.slots[s].blocks[hash] = at
	x.ghosts++
	return at
}

// place gives an entry its meaning: tokens, behind parent or, where that is 0,
// at the beginning of a prompt.
func (x *Index) place(at, parent uint32, tokens uint64) {
	e := x.slab.at(at)
	if e.parent == parent && e.tokens == tokens && e.tiers != 0 {
		return // as it stands already
	}
	e.tokens = tokens
	if e.parent != parent {
		x.unlink(at)
		x.link(at, parent)
	}
	chain := uint64(0)
	switch {
	case parent == 0:
		chain = named(tokens)
	case x.circular(at):
		// It would be its own ancestor: no prompt leads there.
	default:
		chain = x.behind(at)
	}
	x.rechain(at, chain)
}

// circular says whether an entry is its own ancestor.
func (x *Index) circular(at uint32) bool {
	if x.slab.at(at).child == 0 {
		return false
	}
	up := x.slab.at(at).parent
	for left := len(x.slots[x.slab.at(at).slot].blocks); up != 0 && left > 0; left-- {
		if up == at {
			return true
		}
		up = x.slab.at(up).parent
	}
	return false
}

// behind is the chain of an entry as its parent's says; 0 while that is unknown.
func (x *Index) behind(at uint32) uint64 {
	e := x.slab.at(at)
	if p := x.slab.at(e.parent).chain; p != 0 {
		return extend(p, e.tokens)
	}
	return 0
}

// rechain sets an entry's chain and, as far as that changes them, those of all
// that hang on it.
func (x *Index) rechain(top uint32, chain uint64) {
	if !x.setChain(top, chain) {
		return
	}
	todo := append(x.todo[:0], top)
	for len(todo) > 0 {
		at := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		for c := x.slab.at(at).child; c != 0; c = x.slab.at(c).next {
			if c != top && x.setChain(c, x.behind(c)) {
				todo = append(todo, c)
			}
		}
	}
	if cap(todo) <= lockChunk { // a larger one is not worth keeping
		x.todo = todo
	}
}

func (x *Index) setChain(at uint32, chain uint64) (changed bool) {
	e := x.slab.at(at)
	if e.chain == chain {
		return false
	}
	x.leave(at)
	e.chain = chain
	x.join(at)
	return true
}

// join puts a present entry with a known chain into its node.
func (x *Index) join(at uint32) {
	e := x.slab.at(at)
	if e.chain == 0 || e.tiers == 0 {
		return
	}
	n := x.nodes[e.chain]
	e.peer, e.peerPrev = n.first, 0
	if n.first != 0 {
		x.slab.at(n.first).peerPrev = at
	}
	n.first = at
	n.sum += weight(e.slot, e.tiers)
	x.nodes[e.chain] = n
}

// leave takes an entry out of its node, if it is in one.
func (x *Index) leave(at uint32) {
	e := x.slab.at(at)
	if e.chain == 0 || e.tiers == 0 {
		return
	}
	n := x.nodes[e.chain]
	if e.peerPrev == 0 {
		n.first = e.peer
	} else {
		x.slab.at(e.peerPrev).peer = e.peer
	}
	if e.peer != 0 {
		x.slab.at(e.peer).peerPrev = e.peerPrev
	}
	e.peer, e.peerPrev = 0, 0
	if n.first == 0 {
		delete(x.nodes, e.chain)
		return
	}
	n.sum -= weight(e.slot, e.tiers)
	x.nodes[e.chain] = n
}

// setTiers says where an entry's block is now. One that is nowhere any more
// goes, or stays as a ghost while it has children.
func (x *Index) setTiers(at uint32, tiers uint8) {
	e := x.slab.at(at)
	if e.tiers == tiers {
		return
	}
	x.leave(at)
	switch {
	case e.tiers == 0:
		x.ghosts--
		x.blocks++
	case tiers == 0:
		x.blocks--
		x.ghosts++
	}
	e.tiers = tiers
	x.join(at)
	if tiers != 0 {
		return
	}
	// A ghost hangs on nothing, so that chains of them cannot grow; it keeps
	// its chain for its children.
	x.unlink(at)
	if x.slab.at(at).child == 0 {
		x.forget(at)
	}
}

func (x *Index) link(at, parent uint32) {
	if parent == 0 {
		return
	}
	e, p := x.slab.at(at), x.slab.at(parent)
	e.parent, e.next, e.prev = parent, p.child, 0
	if p.child != 0 {
		x.slab.at(p.child).prev = at
	}
	p.child = at
}

// unlink takes an entry from its parent; a ghost that thereby has no child
// left goes.
func (x *Index) unlink(at uint32) {
	e := x.slab.at(at)
	if e.parent == 0 {
		return
	}
	parent := e.parent
	p := x.slab.at(parent)
	if e.prev == 0 {
		p.child = e.next
	} else {
		x.slab.at(e.prev).next = e.next
	}
	if e.next != 0 {
		x.slab.at(e.next).prev = e.prev
	}
	e.parent, e.next, e.prev = 0, 0, 0
	if p.tiers == 0 && p.child == 0 && parent != at {
		x.forget(parent)
	}
}

// forget removes a ghost without children.
func (x *Index) forget(at uint32) {
	e := x.slab.at(at)
	delete(x.slots[e.slot].blocks, e.hash)
	x.ghosts--
	x.slab.release(at)
}
