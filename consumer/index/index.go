// Package index answers a router's question: how much of this prompt does each
// worker hold, and where. It is fed with the events of a consumer.Consumer.
//
// Blocks are found by what they stand for, not by engines' own hashes: the
// chain of tokens hashes from the beginning of a prompt. Workers that hold the
// same prefix share its nodes, so Match takes one look-up per block of the
// prompt, however many workers there are, plus work where the set of workers changes.
//
// Memory, measured by BenchmarkMemory: 150 bytes for a block that one
// worker holds, 95 for each further worker that holds it too.
package index

import (
	"sync"

	"github.com/kvrelay/kvrelay/consumer"
)

// Options are an Index's measures.
type Options struct {
	// BlockSize is in tokens, as the engines have it. Needed by Match and
	// Hashes only; MatchHashes works without.
	BlockSize int
	// Eagle: the engines hash block_size + 1 tokens a block (token pairs).
	Eagle bool
	// MaxBlocks bounds the entries of all workers together. When it is reached
	// further blocks are not indexed (Stats.Refused counts them) until others
	// are removed: a worker is then credited with less than it holds, never
	// with more. 0: 64 Mi (about 10 GB).
	MaxBlocks int
}

// Match is what one rank holds of a prompt.
type Match struct {
	Rank consumer.Rank
	// Blocks[t] counts the prompt's leading blocks that the rank holds in tier t
	// or a faster one: Blocks[consumer.Device] can be used at once, the last
	// entry counts all that need not be computed.
	Blocks [consumer.NumTiers]int
}

// Stats are an Index's counters.
type Stats struct {
	Ranks   int
	Blocks  int    // present, each once per rank
	Ghosts  int    // parents that are remembered for their children only
	Nodes   int    // distinct prefixes held by anyone
	Refused uint64 // blocks not indexed because of MaxBlocks
}

// Index is a prefix index. Apply may be called by one goroutine at a time, or
// by several (it locks); Match and the rest by any number at the same time.
type Index struct {
	o Options

	write sync.Mutex // held by Apply; taken before mu

	// mu guards all below. Writers hold it for at most lockChunk blocks, but
	// for an engine that gives a hash another meaning while blocks hang on it:
	// then for all of those.
	mu      sync.RWMutex
	slab    slab
	nodes   map[uint64]node
	slots   []slot // slots[0] is unused
	byRank  map[consumer.Rank]uint32
	free    []uint32 // slots that can be used again
	blocks  int
	ghosts  int
	refused uint64
	todo    []uint32 // rechain's stack

	scratch sync.Pool // *scratch of Match
}

// lockChunk is how many blocks a writer handles before it lets readers in.
const lockChunk = 1024

// slot is one life of a rank: a `cleared` begins another, so that readers see
// the rank empty at once, and the old one is taken apart in chunks.
type slot struct {
	rank   consumer.Rank
	dead   bool
	blocks map[uint64]uint32 // engine's hash → entry
}

// node is a prefix that somebody holds.
type node struct {
	first uint32 // entries that stand for it, linked by entry.peer
	// sum adds up mix(slot, tiers) of the entries: neighbours on a path with
	// equal sums are held by the same ranks in the same tiers.
	sum uint64
}

// New makes an empty Index.
func New(o Options) *Index {
	if o.MaxBlocks <= 0 {
		o.MaxBlocks = 64 << 20
	}
	o.MaxBlocks = min(o.MaxBlocks, 1<<32-2) // entries have 32-bit numbers
	return &Index{
		o: o, nodes: make(map[uint64]node), slots: make([]slot, 1),
		byRank:  make(map[consumer.Rank]uint32),
		scratch: sync.Pool{New: func() any { return new(scratch) }},
	}
}

// Apply takes one event: a Consumer's OnEvent.
func (x *Index) Apply(e *consumer.Event) {
	x.write.Lock()
	defer x.write.Unlock()
	x.mu.Lock()
	defer x.mu.Unlock()
	switch e.Kind {
	case consumer.Stored:
		x.store(e)
	case consumer.Removed:
		x.remove(e)
	case consumer.Cleared:
		x.clear(e.Rank)
	}
}

// breathe lets readers in between two chunks of n.
func (x *Index) breathe(n int) {
	if n%lockChunk == lockChunk-1 {
		x.mu.Unlock()
		x.mu.Lock()
	}
}

// slotOf is the rank's slot; a new one when create is set, else 0.
func (x *Index) slotOf(r consumer.Rank, create bool) uint32 {
	s := x.byRank[r]
	if s != 0 || !create {
		return s
	}
	one := slot{rank: r, blocks: make(map[uint64]uint32)}
	if n := len(x.free); n > 0 {
		s = x.free[n-1]
		x.free = x.free[:n-1]
		x.slots[s] = one
	} else {
		s = uint32(len(x.slots))
		x.slots = append(x.slots, one)
	}
	x.byRank[r] = s
	return s
}

func (x *Index) store(e *consumer.Event) {
	s := x.slotOf(e.Rank, true)
	if x.blocks+x.ghosts+len(e.Blocks)+1 > x.o.MaxBlocks {
		x.refused += uint64(len(e.Blocks))
		return
	}
	bit := uint8(1) << e.Tier
	parent := uint32(0)
	if e.HasParent && len(e.Blocks) > 0 {
		parent = x.entryOf(s, e.Parent)
	}
	for i := range e.Blocks {
		x.breathe(i)
		b := &e.Blocks[i]
		at := x.entryOf(s, b.Hash)
		x.place(at, parent, b.TokensHash)
		x.setTiers(at, x.slab.at(at).tiers|bit)
		parent = at
	}
}

func (x *Index) remove(e *consumer.Event) {
	s := x.slotOf(e.Rank, false)
	if s == 0 {
		return
	}
	for i, h := range e.Hashes {
		x.breathe(i)
		if at := x.slots[s].blocks[h]; at != 0 {
			x.setTiers(at, x.slab.at(at).tiers&^(1<<e.Tier))
		}
	}
}

func (x *Index) clear(r consumer.Rank) {
	s := x.slotOf(r, false)
	if s == 0 {
		return
	}
	delete(x.byRank, r)
	x.slots[s].dead = true
	n := 0
	for _, at := range x.slots[s].blocks { // nobody else writes it
		x.breathe(n)
		n++
		if e := x.slab.at(at); e.tiers != 0 {
			x.leave(at)
			x.blocks--
		} else {
			x.ghosts--
		}
		x.slab.release(at)
	}
	x.slots[s] = slot{}
	x.free = append(x.free, s)
}

// Stats counts what is indexed.
func (x *Index) Stats() Stats {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return Stats{Ranks: len(x.byRank), Blocks: x.blocks, Ghosts: x.ghosts, Nodes: len(x.nodes), Refused: x.refused}
}
