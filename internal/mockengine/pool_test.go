package mockengine

import (
	"errors"
	"maps"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// The golden prompt of Dynamo's mock engine, block size 4.
var golden = []uint32{11, 22, 33, 44, 55, 66, 77, 88}

func TestGoldenHashes(t *testing.T) {
	if got := []uint64{TokensHash(golden[:4]), TokensHash(golden[4:])}; !slices.Equal(got, []uint64{4117275816416024698, 6081346995852963768}) {
		t.Errorf("tokens hashes %d", got)
	}
	if got := BlockHashes(golden, 4); !slices.Equal(got, []uint64{4117275816416024698, 5947898228081096063}) {
		t.Errorf("block hashes %d", got)
	}
	if got := BlockHashes(golden[:7], 4); len(got) != 1 {
		t.Errorf("a partial block has a hash: %d", got)
	}
}

// TestGoldenStream makes the requests behind the recorded stream of Dynamo's
// mock engine and expects its events; only that it reports all blocks of one
// eviction in one event, and vLLM one by one.
func TestGoldenStream(t *testing.T) {
	p := NewPool(4, 6, false)
	run := func(tokens []uint32) []Event {
		t.Helper()
		r, _, err := p.Admit(tokens, Incremental)
		if err != nil {
			t.Fatal(err)
		}
		p.Free(r)
		var out []Event
		for _, e := range p.Take() {
			if n := len(out); n > 0 && e.Kind == Removed && out[n-1].Kind == Removed {
				out[n-1].Hashes = append(out[n-1].Hashes, e.Hashes...)
				continue
			}
			out = append(out, e)
		}
		return out
	}
	from := func(n uint32) (out []uint32) {
		for i := range uint32(16) {
			out = append(out, n+i)
		}
		return out
	}
	for i, want := range recorded(t, "live-dynamo-mocker-1.6.1-golden") {
		got := run([][]uint32{golden, from(100), from(200), golden}[i])
		if !reflect.DeepEqual(got, want.events) {
			t.Errorf("batch %d:\n got %v\nwant %v", i, got, want.events)
		}
	}
}

func TestHitNeverWhole(t *testing.T) {
	p := NewPool(4, 8, false)
	r, hit, err := p.Admit(golden, Incremental)
	if err != nil || hit != 0 {
		t.Fatal(hit, err)
	}
	p.Free(r)
	for tokens, want := range map[int]int{0: 0, 3: 0, 4: 0, 5: 4, 7: 4, 8: 4} {
		if got := p.Hit(golden[:tokens]); got != want {
			t.Errorf("Hit of %d cached tokens = %d, want %d", tokens, got, want)
		}
	}
	if got := p.Hit(append(slices.Clone(golden), 1)); got != 8 {
		t.Errorf("Hit with one token more = %d, want 8", got)
	}
}

// TestReportModes: with full reporting a hit is two stores in one step, the
// reused prefix and then what was computed, whose parent is the last reused
// block; incremental reports only the second.
func TestReportModes(t *testing.T) {
	prompt := append(slices.Clone(golden), 1, 2, 3, 4, 5)
	hashes := BlockHashes(prompt, 4)
	computed := Event{Kind: Stored, Hashes: hashes[2:3], Parent: hashes[1], HasParent: true, Tokens: prompt[8:12]}
	announced := Event{Kind: Stored, Hashes: hashes[:2], Tokens: prompt[:8]}
	for mode, want := range map[ReportMode][]Event{Full: {announced, computed}, Incremental: {computed}} {
		p := NewPool(4, 8, false)
		r, _, err := p.Admit(golden, mode)
		if err != nil {
			t.Fatal(err)
		}
		p.Free(r)
		if first := p.Take(); !reflect.DeepEqual(first, []Event{announced}) {
			t.Errorf("%s: a miss is %v", mode, first)
		}
		r, hit, err := p.Admit(prompt, mode)
		if err != nil || hit != 8 {
			t.Fatal(hit, err)
		}
		if got := p.Take(); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %v, want %v", mode, got, want)
		}
		p.Free(r)
		// Nothing new: only full says anything, and nothing is held twice.
		r, _, err = p.Admit(prompt[:12+1], mode)
		if err != nil {
			t.Fatal(err)
		}
		p.Free(r)
		if got := p.Take(); (mode == Full) != (len(got) == 1) || len(got) > 1 {
			t.Errorf("%s: a complete hit is %v", mode, got)
		}
		for h, n := range p.Held() {
			if n != 1 {
				t.Errorf("%s: %d copies of %d", mode, n, h)
			}
		}
	}
}

func TestFullReportWhileWaiting(t *testing.T) {
	p := NewPool(4, 3, false)
	first, _, err := p.Admit(golden, Incremental)
	if err != nil {
		t.Fatal(err)
	}
	p.Take()
	for range 2 {
		if _, _, err := p.Admit(append(slices.Clone(golden), golden...), Full); !errors.Is(err, ErrFull) {
			t.Fatalf("error %v", err)
		}
		if got := p.Take(); len(got) != 1 || got[0].HasParent || len(got[0].Hashes) != 2 {
			t.Errorf("announced %v", got)
		}
	}
	p.Free(first)
	if p.FreeBlocks() != 3 {
		t.Errorf("%d free blocks: the refused request kept some", p.FreeBlocks())
	}
}

func TestDuplicates(t *testing.T) {
	for _, dup := range []bool{false, true} {
		p := NewPool(4, 8, dup)
		for range 2 { // the last block of a prompt of whole blocks is computed again
			r, _, err := p.Admit(golden, Incremental)
			if err != nil {
				t.Fatal(err)
			}
			p.Free(r)
		}
		h := BlockHashes(golden, 4)
		want := map[uint64]int{h[0]: 1, h[1]: 1 + boolInt(dup)}
		if got := p.Held(); !maps.Equal(got, want) {
			t.Errorf("duplicates %v: held %v, want %v", dup, got, want)
		}
		if got := len(p.Take()); got != 1+boolInt(dup) {
			t.Errorf("duplicates %v: %d events", dup, got)
		}
	}
}

func TestClear(t *testing.T) {
	p := NewPool(4, 8, false)
	r, _, err := p.Admit(golden, Incremental)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Clear(); !errors.Is(err, ErrInUse) {
		t.Errorf("Clear while in use: %v", err)
	}
	p.Free(r)
	p.Take()
	if err := p.Clear(); err != nil {
		t.Fatal(err)
	}
	if got := p.Take(); len(got) != 1 || got[0].Kind != Cleared || len(p.Held()) != 0 || p.Hit(append(golden, 1)) != 0 {
		t.Errorf("after Clear: %v, held %v", got, p.Held())
	}
}

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
