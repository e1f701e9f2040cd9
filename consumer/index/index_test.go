package index

import (
	"cmp"
	"flag"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/kvrelay/kvrelay/consumer"
)

var seeds = flag.Int("seeds", 300, "random streams of TestAgreesWithNaiveModel")

// naive is what an Index must answer: it follows engines' hashes block by block.
type naive map[consumer.Rank]map[uint64]*naiveBlock

type naiveBlock struct {
	tokens, parent uint64
	root           bool
	tiers          [consumer.NumTiers]bool
}

func (n naive) apply(e *consumer.Event) {
	if n[e.Rank] == nil || e.Kind == consumer.Cleared {
		n[e.Rank] = map[uint64]*naiveBlock{}
	}
	r := n[e.Rank]
	parent, root := e.Parent, !e.HasParent
	for _, b := range e.Blocks {
		one := r[b.Hash]
		if one == nil {
			one = &naiveBlock{}
			r[b.Hash] = one
		}
		one.tokens, one.parent, one.root = b.TokensHash, parent, root
		one.tiers[e.Tier] = true
		parent, root = b.Hash, false
	}
	for _, h := range e.Hashes {
		if b := r[h]; b != nil {
			b.tiers[e.Tier] = false
			if b.tiers == [consumer.NumTiers]bool{} {
				delete(r, h)
			}
		}
	}
}

// match walks down from the beginning of the prompt, along every block that
// fits (several hashes may stand for the same tokens behind the same parent).
func (n naive) match(hashes []uint64) []Match {
	var out []Match
	for rank, blocks := range n {
		m := Match{Rank: rank}
		for t := range consumer.NumTiers {
			at := map[uint64]bool{}
			for depth, tokens := range hashes {
				next := map[uint64]bool{}
				for h, b := range blocks {
					if b.tokens != tokens || b.root != (depth == 0) || depth > 0 && !at[b.parent] {
						continue
					}
					for tt := range t + 1 {
						if b.tiers[tt] {
							next[h] = true
						}
					}
				}
				if len(next) == 0 {
					break
				}
				at = next
				m.Blocks[t] = depth + 1
			}
		}
		if m.Blocks[consumer.NumTiers-1] > 0 {
			out = append(out, m)
		}
	}
	return sorted(out)
}

func sorted(ms []Match) []Match {
	slices.SortFunc(ms, func(a, b Match) int {
		return cmp.Or(cmp.Compare(a.Rank.Worker, b.Rank.Worker), cmp.Compare(a.Rank.DP, b.Rank.DP))
	})
	return ms
}

// stream makes random events over a small tree of prompts. Hashes of ranks
// differ, tokens do not. With odd engines a hash may come back with another
// meaning, also as its own ancestor.
type stream struct {
	r     *rand.Rand
	nodes int // of the tree; node n hangs on (n-1)/branch, node 0 is a root
	span  int
	odd   bool
	fresh uint64
}

func (s *stream) parent(n int) (int, bool) { return (n - 1) / s.span, n%7 != 0 && n > 0 }

func (s *stream) tokens(n int) uint64 { return uint64(n)*0x9e3779b97f4a7c15 | 1 }

// path is the prompt that ends in node n.
func (s *stream) path(n int) []uint64 {
	out := []uint64{s.tokens(n)}
	for {
		p, ok := s.parent(n)
		if !ok {
			slices.Reverse(out)
			return out
		}
		n = p
		out = append(out, s.tokens(n))
	}
}

func (s *stream) event() *consumer.Event {
	r := s.r
	rank := consumer.Rank{Worker: uint64(r.IntN(4)), DP: uint32(r.IntN(2))}
	hash := func(n int) uint64 { return uint64(n)<<8 + rank.Worker*2 + uint64(rank.DP) + 1 }
	e := &consumer.Event{Rank: rank, Tier: consumer.Tier(r.IntN(2) * r.IntN(consumer.NumTiers))}
	switch k := r.IntN(100); {
	case k < 1:
		e.Kind = consumer.Cleared
	case k < 35:
		e.Kind = consumer.Removed
		for range 1 + r.IntN(4) {
			e.Hashes = append(e.Hashes, hash(r.IntN(s.nodes)))
		}
	default:
		e.Kind = consumer.Stored
		n := r.IntN(s.nodes)
		if p, ok := s.parent(n); ok {
			e.Parent, e.HasParent = hash(p), true
		}
		for range 1 + r.IntN(4) {
			b := consumer.Block{Hash: hash(n), TokensHash: s.tokens(n)}
			if s.odd && r.IntN(8) == 0 { // another meaning, which nothing else has
				s.fresh++
				b.TokensHash = ^s.fresh
				if r.IntN(2) == 0 && len(e.Blocks) == 0 {
					e.Parent, e.HasParent = hash(r.IntN(s.nodes)), r.IntN(3) > 0
				}
			}
			e.Blocks = append(e.Blocks, b)
			n = n*s.span + 1 + r.IntN(s.span)
			if n >= s.nodes || n%7 == 0 {
				break
			}
		}
	}
	return e
}

func TestAgreesWithNaiveModel(t *testing.T) {
	for seed := range uint64(*seeds) {
		r := rand.New(rand.NewPCG(seed, 9))
		s := &stream{r: r, nodes: 5 + r.IntN(60), span: 1 + r.IntN(3), odd: seed%2 == 1}
		x, n := New(Options{}), naive{}
		for step := range 150 {
			e := s.event()
			x.Apply(e)
			n.apply(e)
			prompt := s.path(r.IntN(s.nodes))
			if r.IntN(3) == 0 {
				prompt = append(prompt, 12345)
			}
			if got, want := sorted(x.MatchHashes(nil, prompt)), n.match(prompt); !slices.Equal(got, want) {
				t.Fatalf("seed %d, step %d, prompt of %d:\n got %+v\nwant %+v", seed, step, len(prompt), got, want)
			}
		}
		x.check(t, n)
		for rank := range n {
			x.Apply(&consumer.Event{Rank: rank, Kind: consumer.Cleared})
		}
		if st := x.Stats(); st != (Stats{}) {
			t.Fatalf("seed %d: left after clears: %+v", seed, st)
		}
	}
}

// check holds the books to what is there: every entry counted once, ghosts only
// where they have children, no node without entries.
func (x *Index) check(t *testing.T, n naive) {
	t.Helper()
	blocks, ghosts, want := 0, 0, 0
	for _, s := range x.slots {
		for h, at := range s.blocks {
			e := x.slab.at(at)
			if e.hash != h {
				t.Fatal("entry of another hash")
			}
			if e.tiers != 0 {
				blocks++
				continue
			}
			ghosts++
			if e.child == 0 || e.parent != 0 {
				t.Fatalf("a ghost without children or with a parent: %+v", e)
			}
		}
	}
	for _, r := range n {
		want += len(r)
	}
	if blocks != want || x.blocks != blocks || x.ghosts != ghosts {
		t.Fatalf("%d blocks and %d ghosts counted as %d and %d, want %d blocks", blocks, ghosts, x.blocks, x.ghosts, want)
	}
	for chain, nd := range x.nodes {
		sum := uint64(0)
		for at := nd.first; at != 0; at = x.slab.at(at).peer {
			e := x.slab.at(at)
			if e.chain != chain || e.tiers == 0 {
				t.Fatal("a node lists an entry that is not its own")
			}
			sum += weight(e.slot, e.tiers)
		}
		if nd.first == 0 || sum != nd.sum {
			t.Fatal("a node's books are wrong")
		}
	}
}

// The published golden prompt: a router's hashes of it, and a match.
func TestGoldenPrompt(t *testing.T) {
	tokens := []uint32{11, 22, 33, 44, 55, 66, 77, 88}
	want := []uint64{4117275816416024698, 6081346995852963768}
	if got := TokensHashes(nil, 4, false, Prompt{Tokens: append(tokens, 99)}); !slices.Equal(got, want) {
		t.Fatalf("hashes %d, want %d", got, want)
	}
	x := New(Options{BlockSize: 4})
	rank := consumer.Rank{Worker: 1}
	x.Apply(&consumer.Event{Rank: rank, Kind: consumer.Stored, Blocks: []consumer.Block{
		{Hash: 4117275816416024698, TokensHash: want[0]}, {Hash: 5947898228081096063, TokensHash: want[1]}}})
	if got := x.Match(Prompt{Tokens: tokens}); len(got) != 1 || got[0] != (Match{rank, [4]int{2, 2, 2, 2}}) {
		t.Errorf("match %+v", got)
	}
	for _, other := range []Prompt{{Tokens: tokens, Salt: "s"}, {Tokens: tokens, LoRA: "a"}, {Tokens: tokens, MM: [][]uint64{{1}}}, {Tokens: tokens[1:]}} {
		if got := x.Match(other); len(got) != 0 {
			t.Errorf("%+v matches %+v", other, got)
		}
	}
}

func TestTokensHashes(t *testing.T) {
	p := Prompt{Tokens: []uint32{1, 2, 3, 4, 5}}
	if got := len(TokensHashes(nil, 2, false, p)); got != 2 {
		t.Errorf("%d blocks of 5 tokens, want 2", got)
	}
	if got := len(TokensHashes(nil, 2, true, p)); got != 2 { // (1 2 3) (3 4 5)
		t.Errorf("%d EAGLE blocks, want 2", got)
	}
	if got := len(TokensHashes(nil, 2, true, Prompt{Tokens: p.Tokens[:4]})); got != 1 {
		t.Errorf("%d EAGLE blocks of 4 tokens, want 1", got)
	}
	if got := TokensHashes(nil, 0, false, p); got != nil {
		t.Error("block size 0")
	}
	a := TokensHashes(nil, 2, false, Prompt{Tokens: p.Tokens, MM: [][]uint64{{7, 3}}})
	b := TokensHashes(nil, 2, false, Prompt{Tokens: p.Tokens, MM: [][]uint64{{3, 7}}})
	if !slices.Equal(a, b) || a[1] != TokensHashes(nil, 2, false, p)[1] {
		t.Error("multimodal hashes are not sorted, or leak into other blocks")
	}
}

// What random streams meet too rarely.
func TestOddities(t *testing.T) {
	rank := consumer.Rank{Worker: 1}
	store := func(x *Index, n naive, tier consumer.Tier, hash, tokens uint64, parent ...uint64) {
		e := &consumer.Event{Rank: rank, Kind: consumer.Stored, Tier: tier, Blocks: []consumer.Block{{Hash: hash, TokensHash: tokens}}}
		if len(parent) > 0 {
			e.Parent, e.HasParent = parent[0], true
		}
		x.Apply(e)
		n.apply(e)
	}
	agree := func(t *testing.T, x *Index, n naive, prompt ...uint64) {
		t.Helper()
		if got, want := x.MatchHashes(nil, prompt), n.match(prompt); !slices.Equal(got, want) {
			t.Errorf("prompt %d: got %+v, want %+v", prompt, got, want)
		}
		x.check(t, n)
	}
	t.Run("its own ancestor", func(t *testing.T) {
		x, n := New(Options{}), naive{}
		store(x, n, consumer.Device, 1, 10)
		store(x, n, consumer.Device, 2, 20, 1)
		store(x, n, consumer.Device, 101, 10) // the same tokens under other hashes
		store(x, n, consumer.Device, 102, 20, 101)
		store(x, n, consumer.Device, 1, 10, 2) // a circle
		agree(t, x, n, 10, 20, 10)
		store(x, n, consumer.Device, 3, 30, 3) // its own parent
		agree(t, x, n, 30)
		store(x, n, consumer.Device, 1, 10)
		agree(t, x, n, 10, 20)
	})
	t.Run("one prefix under two hashes in two tiers", func(t *testing.T) {
		x, n := New(Options{}), naive{}
		store(x, n, consumer.Disk, 1, 10)
		store(x, n, consumer.Device, 101, 10)
		store(x, n, consumer.Disk, 201, 10)
		agree(t, x, n, 10)
		store(x, n, consumer.HostPinned, 102, 20, 101)
		agree(t, x, n, 10, 20)
	})
	t.Run("a parent that comes later", func(t *testing.T) {
		x, n := New(Options{}), naive{}
		store(x, n, consumer.Device, 3, 30, 2)
		store(x, n, consumer.Device, 2, 20, 1)
		agree(t, x, n, 10, 20, 30)
		store(x, n, consumer.Device, 1, 10)
		agree(t, x, n, 10, 20, 30)
	})
}

func TestFull(t *testing.T) {
	x := New(Options{MaxBlocks: 10})
	rank := consumer.Rank{Worker: 1}
	for h := range uint64(20) {
		x.Apply(&consumer.Event{Rank: rank, Kind: consumer.Stored, Blocks: []consumer.Block{{Hash: h, TokensHash: h + 1}}})
	}
	if st := x.Stats(); st.Blocks > 10 || st.Refused < 10 || st.Blocks+int(st.Refused) != 20 {
		t.Errorf("%+v", st)
	}
	x.Apply(&consumer.Event{Rank: rank, Kind: consumer.Cleared})
	x.Apply(&consumer.Event{Rank: rank, Kind: consumer.Stored, Blocks: []consumer.Block{{Hash: 1, TokensHash: 2}}})
	if got := x.MatchHashes(nil, []uint64{2}); len(got) != 1 {
		t.Errorf("not usable again after a clear: %+v", got)
	}
}

// Readers while ranks are filled, emptied and cleared: run with -race. What
// they see is never more than was ever stored.
func TestConcurrentReaders(t *testing.T) {
	s := &stream{r: rand.New(rand.NewPCG(4, 4)), nodes: 3000, span: 2}
	x := New(Options{})
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(5, 5))
			local := *s
			for {
				select {
				case <-stop:
					return
				default:
				}
				prompt := local.path(r.IntN(s.nodes))
				for _, m := range x.MatchHashes(nil, prompt) {
					for tier, n := range m.Blocks {
						if n > len(prompt) || tier > 0 && n < m.Blocks[tier-1] {
							t.Errorf("%+v of %d blocks", m, len(prompt))
							return
						}
					}
				}
				x.Stats()
			}
		})
	}
	for range 20_000 {
		x.Apply(s.event())
	}
	close(stop)
	wg.Wait()
}
