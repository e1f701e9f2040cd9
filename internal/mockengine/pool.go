package mockengine

import (
	"errors"
	"slices"
)

// ErrFull is returned when a request needs more blocks than are free. What the
// request held stays as it was.
var ErrFull = errors.New("mockengine: no free blocks")

// ErrInUse is returned by Clear while requests hold blocks.
var ErrInUse = errors.New("mockengine: blocks are in use")

// Pool is the block pool of one rank: pure, not safe for concurrent use.
//
// It behaves as vLLM's: a block with a hash stays cached after its request has
// ended and lies in the free list; requests take blocks from the list's front
// and that evicts what they cached; a request gives its blocks back last
// first, so that children are evicted before their parents; a hit takes blocks
// out of the list again.
type Pool struct {
	blockSize  int
	duplicates bool
	blocks     []block            // blocks[len-1] is the free list's head
	free       int                // length of the free list
	cached     map[uint64][]int32 // hash → blocks with it, oldest first
	events     []Event            // since the last Take
}

type block struct {
	hash       uint64
	hashed     bool
	refs       int
	prev, next int32 // in the free list while refs = 0
}

// NewPool makes a pool of empty blocks. With duplicates a hash may have several
// physical blocks, stored and removed once each; without, a request shares the
// block that already has the hash.
func NewPool(blockSize, blocks int, duplicates bool) *Pool {
	p := &Pool{
		blockSize:  blockSize,
		duplicates: duplicates,
		blocks:     make([]block, blocks+1),
		cached:     make(map[uint64][]int32),
	}
	head := p.head()
	p.blocks[head].prev, p.blocks[head].next = head, head
	for i := range int32(blocks) {
		p.pushBack(i)
	}
	return p
}

func (p *Pool) head() int32 { return int32(len(p.blocks) - 1) }

func (p *Pool) pushBack(i int32)  { p.link(p.blocks[p.head()].prev, i) }
func (p *Pool) pushFront(i int32) { p.link(p.head(), i) }

// link puts i into the free list after prev.
func (p *Pool) link(prev, i int32) {
	next := p.blocks[prev].next
	p.blocks[i].prev, p.blocks[i].next = prev, next
	p.blocks[prev].next, p.blocks[next].prev = i, i
	p.free++
}

func (p *Pool) unlink(i int32) {
	b := &p.blocks[i]
	p.blocks[b.prev].next, p.blocks[b.next].prev = b.next, b.prev
	p.free--
}

// Request is a prompt that holds blocks.
type Request struct {
	tokens []uint32
	hashes []uint64 // of the whole blocks
	blocks []int32
	done   int // leading blocks that were cached, or looked at for it
}

// Len is the number of tokens, generated ones included.
func (r *Request) Len() int { return len(r.tokens) }

// Tokens are the tokens so far, generated ones included; not to be changed.
func (r *Request) Tokens() []uint32 { return r.tokens }

// Hit is how many of the prompt's tokens are cached: whole blocks, and never
// the whole prompt, because an engine computes at least the last token.
func (p *Pool) Hit(tokens []uint32) int {
	return len(p.hit(BlockHashes(tokens, p.blockSize), len(tokens))) * p.blockSize
}

// hit is the cached prefix: one block each of the leading hashes.
func (p *Pool) hit(hashes []uint64, tokens int) []int32 {
	var out []int32
	for _, h := range hashes[:min(len(hashes), max(tokens-1, 0)/p.blockSize)] {
		ids := p.cached[h]
		if len(ids) == 0 {
			break
		}
		out = append(out, ids[0])
	}
	return out
}

// Admit takes blocks for a prompt and caches its whole ones. It returns how
// many tokens were a hit. With Full the reused prefix is announced first, also
// when there is no room (ErrFull): the engine announces before it allocates,
// so that a waiting request announces each time it is tried.
func (p *Pool) Admit(tokens []uint32, mode ReportMode) (*Request, int, error) {
	r := &Request{tokens: slices.Clone(tokens), hashes: BlockHashes(tokens, p.blockSize)}
	reused := p.hit(r.hashes, len(tokens))
	hit := len(reused) * p.blockSize
	if mode == Full && hit > 0 {
		p.events = append(p.events, Event{
			Kind:   Stored,
			Hashes: slices.Clone(r.hashes[:len(reused)]),
			Tokens: slices.Clone(tokens[:hit]),
		})
	}
	inFree := 0
	for _, i := range reused {
		if p.blocks[i].refs == 0 {
			inFree++
		}
	}
	need := p.blocksFor(len(tokens)) - len(reused)
	if need > p.free-inFree {
		return nil, 0, ErrFull
	}
	for _, i := range reused {
		if p.blocks[i].refs == 0 {
			p.unlink(i)
		}
		p.blocks[i].refs++
	}
	r.blocks = reused
	r.done = len(reused)
	p.take(r, need)
	p.cache(r)
	return r, hit, nil
}

// Extend appends generated tokens, and caches the blocks that become whole.
func (p *Pool) Extend(r *Request, tokens ...uint32) error {
	need := p.blocksFor(len(r.tokens)+len(tokens)) - len(r.blocks)
	if need > p.free {
		return ErrFull
	}
	r.tokens = append(r.tokens, tokens...)
	for i := len(r.hashes) * p.blockSize; i+p.blockSize <= len(r.tokens); i += p.blockSize {
		if i == 0 {
			r.hashes = append(r.hashes, RootHash(r.tokens[:p.blockSize]))
		} else {
			r.hashes = append(r.hashes, ChildHash(r.hashes[len(r.hashes)-1], r.tokens[i:i+p.blockSize]))
		}
	}
	p.take(r, need)
	p.cache(r)
	return nil
}

func (p *Pool) blocksFor(tokens int) int { return (tokens + p.blockSize - 1) / p.blockSize }

// take gives r n blocks from the front of the free list and evicts what they held.
func (p *Pool) take(r *Request, n int) {
	for range n {
		i := p.blocks[p.head()].next
		p.unlink(i)
		p.evict(i)
		p.blocks[i].refs = 1
		r.blocks = append(r.blocks, i)
	}
}

func (p *Pool) evict(i int32) {
	b := &p.blocks[i]
	if !b.hashed {
		return
	}
	ids := p.cached[b.hash]
	at := slices.Index(ids, i)
	if ids = slices.Delete(ids, at, at+1); len(ids) == 0 {
		delete(p.cached, b.hash)
	} else {
		p.cached[b.hash] = ids
	}
	p.events = append(p.events, Event{Kind: Removed, Hashes: []uint64{b.hash}})
	b.hashed = false
}

// cache names the whole blocks of r that have no name yet, and announces each
// run of them as one store.
func (p *Pool) cache(r *Request) {
	var run *Event
	for ; r.done < len(r.hashes); r.done++ {
		h, i := r.hashes[r.done], r.blocks[r.done]
		if ids := p.cached[h]; !p.duplicates && len(ids) > 0 {
			p.swap(r, ids[0])
			run = nil
			continue
		}
		p.blocks[i].hash, p.blocks[i].hashed = h, true
		p.cached[h] = append(p.cached[h], i)
		if run == nil {
			e := Event{Kind: Stored}
			if r.done > 0 {
				e.Parent, e.HasParent = r.hashes[r.done-1], true
			}
			p.events = append(p.events, e)
			run = &p.events[len(p.events)-1]
		}
		run.Hashes = append(run.Hashes, h)
		run.Tokens = append(run.Tokens, r.tokens[r.done*p.blockSize:(r.done+1)*p.blockSize]...)
	}
}

// swap puts the block that already has the hash of r's block r.done in its
// place, so that it grows old with its children; the new one was for nothing.
func (p *Pool) swap(r *Request, i int32) {
	if p.blocks[i].refs == 0 {
		p.unlink(i)
	}
	p.blocks[i].refs++
	spare := r.blocks[r.done]
	r.blocks[r.done] = i
	p.blocks[spare].refs = 0
	p.pushFront(spare)
}

// Free ends a request. Its named blocks stay cached until they are evicted,
// the last one first.
func (p *Pool) Free(r *Request) {
	for _, i := range slices.Backward(r.blocks) {
		if p.blocks[i].refs--; p.blocks[i].refs == 0 {
			p.pushBack(i)
		}
	}
	r.blocks = nil
}

// Clear forgets the whole cache and announces it. ErrInUse: requests hold
// blocks, nothing happened.
func (p *Pool) Clear() error {
	if p.free != len(p.blocks)-1 {
		return ErrInUse
	}
	for i := range p.blocks {
		p.blocks[i].hashed = false
	}
	clear(p.cached)
	p.events = append(p.events, Event{Kind: Cleared})
	return nil
}

// Take returns the events since the last Take, in order.
func (p *Pool) Take() []Event {
	out := p.events
	p.events = nil
	return out
}

// Held is the cache's content: block hash → physical blocks.
func (p *Pool) Held() map[uint64]int {
	out := make(map[uint64]int, len(p.cached))
	for h, ids := range p.cached {
		out[h] = len(ids)
	}
	return out
}

// FreeBlocks is how many blocks no request holds; cached ones may be among them.
func (p *Pool) FreeBlocks() int { return p.free }
