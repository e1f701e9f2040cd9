package mockengine

import (
	"maps"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// naive is the same pool written the slow way: lists searched from end to end.
type naive struct {
	size, blockSize int
	dup             bool
	blocks          []*naiveBlock // every block, in the order in which they were named
	free            []*naiveBlock // evicted from the front
	events          []Event
}

type naiveBlock struct {
	hash uint64
	has  bool
	refs int
	born int
}

type naiveRequest struct {
	tokens []uint32
	blocks []*naiveBlock
	done   int
}

func newNaive(blockSize, n int, dup bool) *naive {
	p := &naive{size: n, blockSize: blockSize, dup: dup}
	for range n {
		b := &naiveBlock{}
		p.blocks = append(p.blocks, b)
		p.free = append(p.free, b)
	}
	return p
}

func (p *naive) find(h uint64) *naiveBlock {
	var oldest *naiveBlock
	for _, b := range p.blocks {
		if b.has && b.hash == h && (oldest == nil || b.born < oldest.born) {
			oldest = b
		}
	}
	return oldest
}

func (p *naive) hold(b *naiveBlock) {
	if i := slices.Index(p.free, b); i >= 0 {
		p.free = slices.Delete(p.free, i, i+1)
	}
	b.refs++
}

func (p *naive) admit(tokens []uint32, mode ReportMode) (*naiveRequest, int, bool) {
	hashes := BlockHashes(tokens, p.blockSize)
	r := &naiveRequest{tokens: slices.Clone(tokens)}
	for i, h := range hashes {
		if (i+1)*p.blockSize > len(tokens)-1 {
			break
		}
		b := p.find(h)
		if b == nil {
			break
		}
		r.blocks = append(r.blocks, b)
	}
	hit := len(r.blocks) * p.blockSize
	if hit > 0 && mode == Full {
		p.events = append(p.events, Event{Kind: Stored, Hashes: hashes[:len(r.blocks)], Tokens: tokens[:hit]})
	}
	idle := 0
	for _, b := range r.blocks {
		if b.refs == 0 {
			idle++
		}
	}
	if (len(tokens)+p.blockSize-1)/p.blockSize-len(r.blocks) > len(p.free)-idle {
		return nil, 0, false
	}
	for _, b := range r.blocks {
		p.hold(b)
	}
	r.done = len(r.blocks)
	p.grow(r)
	return r, hit, true
}

func (p *naive) extend(r *naiveRequest, t uint32) bool {
	if len(r.tokens)%p.blockSize == 0 && len(p.free) == 0 {
		return false
	}
	r.tokens = append(r.tokens, t)
	p.grow(r)
	return true
}

var naiveBirths int

func (p *naive) grow(r *naiveRequest) {
	for len(r.blocks)*p.blockSize < len(r.tokens) {
		b := p.free[0]
		p.hold(b)
		if b.has {
			p.events = append(p.events, Event{Kind: Removed, Hashes: []uint64{b.hash}})
			b.has = false
		}
		r.blocks = append(r.blocks, b)
	}
	hashes := BlockHashes(r.tokens, p.blockSize)
	joined := false
	for ; r.done < len(hashes); r.done++ {
		h := hashes[r.done]
		if other := p.find(h); other != nil && !p.dup {
			spare := r.blocks[r.done]
			p.hold(other)
			r.blocks[r.done] = other
			spare.refs = 0
			p.free = slices.Insert(p.free, 0, spare)
			joined = false
			continue
		}
		b := r.blocks[r.done]
		naiveBirths++
		b.hash, b.has, b.born = h, true, naiveBirths
		if !joined {
			e := Event{Kind: Stored}
			if r.done > 0 {
				e.Parent, e.HasParent = hashes[r.done-1], true
			}
			p.events = append(p.events, e)
			joined = true
		}
		e := &p.events[len(p.events)-1]
		e.Hashes = append(e.Hashes, h)
		e.Tokens = append(e.Tokens, r.tokens[r.done*p.blockSize:][:p.blockSize]...)
	}
}

func (p *naive) end(r *naiveRequest) {
	slices.Reverse(r.blocks)
	for _, b := range r.blocks {
		if b.refs--; b.refs == 0 {
			p.free = append(p.free, b)
		}
	}
}

func (p *naive) held() map[uint64]int {
	out := map[uint64]int{}
	for _, b := range p.blocks {
		if b.has {
			out[b.hash]++
		}
	}
	return out
}

// TestPoolAgainstNaive runs random requests through both pools: the same hits,
// the same events, the same content. A third reader knows only the events: it
// must end with the same content, and see children go before their parents.
func TestPoolAgainstNaive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		blockSize := rapid.IntRange(1, 4).Draw(t, "block size")
		size := rapid.IntRange(2, 12).Draw(t, "blocks")
		dup := rapid.Bool().Draw(t, "duplicates")
		p, n := NewPool(blockSize, size, dup), newNaive(blockSize, size, dup)
		type pair struct {
			r *Request
			n *naiveRequest
		}
		var running []pair
		reader := newEventReader()
		check := func() {
			got, want := p.Take(), n.events
			n.events = nil
			if len(got)+len(want) > 0 && !reflect.DeepEqual(got, want) {
				t.Fatalf("events %v, want %v", got, want)
			}
			if !maps.Equal(p.Held(), n.held()) {
				t.Fatalf("held %v, want %v", p.Held(), n.held())
			}
			if p.FreeBlocks() != len(n.free) {
				t.Fatalf("%d free blocks, want %d", p.FreeBlocks(), len(n.free))
			}
			if problem := reader.read(got, blockSize); problem != "" {
				t.Fatal(problem)
			}
			if !maps.Equal(reader.copies, p.Held()) {
				t.Fatalf("a reader of the events holds %v, the pool %v", reader.copies, p.Held())
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"admit": func(t *rapid.T) {
				// Few different tokens make prompts that share prefixes.
				tokens := rapid.SliceOfN(rapid.Uint32Range(0, 1), 1, blockSize*size).Draw(t, "tokens")
				mode := rapid.SampledFrom([]ReportMode{Incremental, Full}).Draw(t, "mode")
				reader.full = mode == Full && p.Hit(tokens) > 0
				r, hit, err := p.Admit(tokens, mode)
				nr, nhit, ok := n.admit(tokens, mode)
				if (err == nil) != ok || hit != nhit {
					t.Fatalf("hit %d, %v; want %d, %v", hit, err, nhit, ok)
				}
				if ok {
					running = append(running, pair{r, nr})
				}
				check()
			},
			"extend": func(t *rapid.T) {
				if len(running) == 0 {
					return
				}
				x := rapid.SampledFrom(running).Draw(t, "request")
				token := rapid.Uint32Range(0, 1).Draw(t, "token")
				if err, ok := p.Extend(x.r, token), n.extend(x.n, token); (err == nil) != ok {
					t.Fatalf("extend: %v, want %v", err, ok)
				}
				check()
			},
			"free": func(t *rapid.T) {
				if len(running) == 0 {
					return
				}
				i := rapid.IntRange(0, len(running)-1).Draw(t, "request")
				p.Free(running[i].r)
				n.end(running[i].n)
				running = slices.Delete(running, i, i+1)
				check()
			},
		})
	})
}

// eventReader follows a pool by its events alone.
type eventReader struct {
	copies map[uint64]int
	parent map[uint64]uint64
	full   bool // the next event is an announcement, not a copy
}

func newEventReader() *eventReader {
	return &eventReader{copies: map[uint64]int{}, parent: map[uint64]uint64{}}
}

// read applies events; it returns what is wrong with them, or "".
func (c *eventReader) read(events []Event, blockSize int) string {
	for _, e := range events {
		switch e.Kind {
		case Stored:
			if len(e.Tokens) != len(e.Hashes)*blockSize {
				return "a store without all its tokens"
			}
			parent, has := e.Parent, e.HasParent
			for i, h := range e.Hashes {
				block := e.Tokens[i*blockSize : (i+1)*blockSize]
				if want := RootHash(block); !has && h != want {
					return "a root's hash is wrong"
				}
				if has && h != ChildHash(parent, block) {
					return "a child's hash is wrong"
				}
				if c.full {
					if c.copies[h] == 0 {
						return "announced a block that is not held"
					}
				} else {
					if c.copies[h]++; has {
						c.parent[h] = parent
					}
				}
				parent, has = h, true
			}
			c.full = false
		case Removed:
			for _, h := range e.Hashes {
				if c.copies[h]--; c.copies[h] > 0 {
					continue
				}
				if c.copies[h] < 0 {
					return "removed a block that is not held"
				}
				delete(c.copies, h)
				delete(c.parent, h)
				for child, parent := range c.parent {
					if parent == h {
						_ = child
						return "a parent went before its child"
					}
				}
			}
		case Cleared:
			clear(c.copies)
			clear(c.parent)
		}
	}
	return ""
}
