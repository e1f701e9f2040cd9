package index

import (
	"encoding/binary"
	"math/bits"
	"slices"

	"github.com/zeebo/xxh3"

	"github.com/kvrelay/kvrelay/consumer"
)

// Prompt is what a router asks for.
type Prompt struct {
	Tokens []uint32
	LoRA   string // name of the adapter; "" is the base model
	Salt   string // cache_salt of the request; "" is none
	// MM are the mm_hashes of the objects in each block, in any order; it may be
	// shorter than the prompt. Where engines have a routing image token
	// configured, put its replacements into Tokens instead.
	MM [][]uint64
}

// TokensHashes appends the tokens hashes of a prompt's whole blocks to dst:
// XXH3-64 over the little-endian tokens, seeded with 1337 + XXH3-64(LoRA name)
// + XXH3-64(salt, seed 1), multimodal hashes behind the tokens. With eagle a
// block is blockSize + 1 tokens, of which the last is the next one's first.
func TokensHashes(dst []uint64, blockSize int, eagle bool, p Prompt) []uint64 {
	if blockSize <= 0 {
		return dst
	}
	seed := uint64(1337)
	if p.LoRA != "" {
		seed += xxh3.HashString(p.LoRA)
	}
	if p.Salt != "" {
		seed += xxh3.HashStringSeed(p.Salt, 1)
	}
	window := blockSize
	if eagle {
		window++
	}
	var buf []byte
	for i := 0; i*blockSize+window <= len(p.Tokens); i++ {
		buf = buf[:0]
		for _, t := range p.Tokens[i*blockSize : i*blockSize+window] {
			buf = binary.LittleEndian.AppendUint32(buf, t)
		}
		if i < len(p.MM) {
			for _, h := range slices.Sorted(slices.Values(p.MM[i])) {
				buf = binary.LittleEndian.AppendUint64(buf, h)
			}
		}
		dst = append(dst, xxh3.HashSeed(buf, seed))
	}
	return dst
}

// Match says what every rank holds of a prompt, ranks in no order; those that
// hold nothing of it are left out.
func (x *Index) Match(p Prompt) []Match {
	return x.MatchHashes(nil, TokensHashes(nil, x.o.BlockSize, x.o.Eagle, p))
}

// scratch is what one Match needs.
type scratch struct {
	step    uint64  // counts visited nodes; never repeats
	by      []visit // by slot
	active  []uint32
	reached []uint32
}

// visit is a slot on the way down a prompt.
type visit struct {
	step uint64 // of the last node it was found at
	// tier is the fastest it has at that node, as a number of trailing zeroes;
	// slowest is the slowest of these so far.
	tier, slowest uint8
	out           int // index of its Match
}

// MatchHashes is Match for tokens hashes; results are appended to dst.
func (x *Index) MatchHashes(dst []Match, hashes []uint64) []Match {
	sc := x.scratch.Get().(*scratch)
	defer x.scratch.Put(sc)
	x.mu.RLock()
	defer x.mu.RUnlock()
	if n := len(x.slots); len(sc.by) < n {
		sc.by = append(sc.by, make([]visit, n-len(sc.by))...)
	}
	var chain, sum uint64
	depth := 0
	for ; depth < len(hashes); depth++ {
		if depth == 0 {
			chain = named(hashes[0])
		} else {
			chain = extend(chain, hashes[depth])
		}
		n, ok := x.nodes[chain]
		if !ok {
			break
		}
		if depth > 0 && n.sum == sum {
			continue // the same ranks in the same tiers as one block before
		}
		sum = n.sum
		if dst = x.visit(sc, dst, n.first, depth); len(sc.active) == 0 {
			break
		}
	}
	for _, s := range sc.active {
		sc.by[s].end(dst, depth)
	}
	sc.active = sc.active[:0]
	return dst
}

// visit takes a node at depth: the active ranks that it does not hold end here.
func (x *Index) visit(sc *scratch, dst []Match, first uint32, depth int) []Match {
	before := sc.step
	sc.step++
	sc.reached = sc.reached[:0]
	for at := first; at != 0; {
		e := x.slab.at(at)
		at = e.peer
		v := &sc.by[e.slot]
		tier := uint8(bits.TrailingZeros8(e.tiers))
		switch {
		case x.slots[e.slot].dead:
		case v.step == sc.step: // a second hash of the rank for the same tokens
			v.tier = min(v.tier, tier)
		case depth == 0:
			*v = visit{step: sc.step, tier: tier, out: len(dst)}
			dst = append(dst, Match{Rank: x.slots[e.slot].rank})
			sc.reached = append(sc.reached, e.slot)
		case v.step == before:
			v.step, v.tier = sc.step, tier
			sc.reached = append(sc.reached, e.slot)
		}
	}
	for _, s := range sc.active {
		if sc.by[s].step != sc.step {
			sc.by[s].end(dst, depth)
		}
	}
	for _, s := range sc.reached {
		v := &sc.by[s]
		for ; v.slowest < v.tier; v.slowest++ { // from here on only slower tiers count
			dst[v.out].Blocks[v.slowest] = depth
		}
	}
	sc.active, sc.reached = sc.reached, sc.active
	return dst
}

// end closes a rank's Match: depth blocks in its slowest tier and beyond.
func (v *visit) end(dst []Match, depth int) {
	for t := int(v.slowest); t < consumer.NumTiers; t++ {
		dst[v.out].Blocks[t] = depth
	}
}
