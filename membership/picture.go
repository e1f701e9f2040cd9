package membership

import (
	"context"
	"slices"
	"strconv"

	"github.com/kvrelay/kvrelay/convert"
)

// tiers is how many there are.
const tiers = int(convert.External) + 1

// maxRun is how many blocks of a chain go into one store.
const maxRun = 256

// none stands for no node.
const none = -1

// picture is everything that a rank has published and not taken back, as of
// one event id. It is a copy: 32 bytes a block, and its index.
type picture struct {
	index [tiers]map[uint64]int32 // the live node of a hash
	nodes []node
	mm    map[int32][]convert.MMObject
	last  uint64 // event id that it is exact as of
}

// node is one (tier, hash).
type node struct {
	hash, tokens, parent uint64
	hasParent, dead      bool
	tier                 convert.Tier
}

func newPicture() *picture {
	p := &picture{}
	p.clear()
	return p
}

func (p *picture) clear() {
	for t := range p.index {
		p.index[t] = map[uint64]int32{}
	}
	p.nodes = p.nodes[:0]
	p.mm = map[int32][]convert.MMObject{}
}

func (p *picture) blocks() int {
	n := 0
	for _, m := range p.index {
		n += len(m)
	}
	return n
}

// take takes a picture of src: it walks the published blocks in chunks, and
// applies what is published meanwhile behind each. So a block that no event is
// about is as the walk found it, every other one as its last event says. It
// returns nil when ctx has ended or the ring could not follow.
func take(ctx context.Context, src Source) *picture {
	p := newPicture()
	top, since := src.Newest()
	var out convert.Output
	for from := uint64(1); ; {
		if ctx.Err() != nil {
			return nil
		}
		if from <= top {
			out.Reset()
			from, _ = src.Walk(from, top, &out)
			for i := range out.Events {
				p.apply(&out.Events[i])
			}
		}
		last, ok := src.Since(since+1, func(_ uint64, e *convert.RouterEvent) { p.apply(e) })
		if !ok {
			return nil
		}
		if since = last; from > top {
			p.last = last
			return p
		}
	}
}

// apply does what an event says.
func (p *picture) apply(e *convert.RouterEvent) {
	switch e.Kind {
	case convert.Cleared:
		p.clear()
	case convert.Removed:
		for _, h := range e.Hashes {
			if i, ok := p.index[e.Tier][h]; ok {
				delete(p.index[e.Tier], h)
				delete(p.mm, i)
				p.nodes[i].dead = true
			}
		}
	case convert.Stored:
		parent, has := e.Parent, e.HasParent
		for i := range e.Blocks {
			b := &e.Blocks[i]
			p.put(node{hash: b.Hash, tokens: b.TokensHash, parent: parent, hasParent: has, tier: e.Tier}, b.MM)
			parent, has = b.Hash, true
		}
	}
}

// put stores a block, or says anew what it is.
func (p *picture) put(n node, mm []convert.MMObject) {
	i, known := p.index[n.tier][n.hash]
	if known {
		p.nodes[i] = n
	} else {
		i = int32(len(p.nodes))
		p.nodes = append(p.nodes, n)
		p.index[n.tier][n.hash] = i
	}
	if mm == nil {
		delete(p.mm, i)
		return
	}
	own := make([]convert.MMObject, len(mm)) // what came is another's memory
	for k, o := range mm {
		own[k] = convert.MMObject{Hash: o.Hash, Offsets: slices.Clone(o.Offsets)}
	}
	p.mm[i] = own
}

// family is who hangs on whom within a tier.
type family struct {
	first, next []int32 // a node's first child; its next sibling
	roots       []int32 // without parent, or with one that is not there
}

func (p *picture) family() family {
	f := family{first: make([]int32, len(p.nodes)), next: make([]int32, len(p.nodes))}
	for i := range p.nodes {
		f.first[i], f.next[i] = none, none
	}
	for i := len(p.nodes) - 1; i >= 0; i-- { // so that siblings are in order
		n := &p.nodes[i]
		if n.dead {
			continue
		}
		at, there := p.index[n.tier][n.parent]
		if !n.hasParent || !there {
			f.roots = append(f.roots, int32(i))
			continue
		}
		f.next[i], f.first[at] = f.first[at], int32(i)
	}
	slices.Reverse(f.roots)
	return f
}

// encode is the answer with the whole picture: stores, parents first. A block
// whose parent is gone still names it. A ring of blocks, which no engine makes,
// is cut anywhere. The picture is used up by it.
func (p *picture) encode(src Source) (body [][]byte, total int) {
	out := newParts(`{"data":{"TreeDump":{"events":[`)
	f := p.family()
	total = p.blocks()
	p.index = [tiers]map[uint64]int32{} // memory for the answer
	seen := make([]bool, len(p.nodes))
	id := uint64(0)
	var stack []int32
	var blocks []convert.Block
	from := func(root int32) {
		stack = append(stack[:0], root)
		for len(stack) > 0 {
			i := stack[len(stack)-1]
			stack = stack[:len(stack)-1]
			if seen[i] {
				continue
			}
			n := &p.nodes[i]
			blocks = blocks[:0]
			for i != none && !seen[i] {
				seen[i] = true
				blocks = append(blocks, convert.Block{Hash: p.nodes[i].hash, TokensHash: p.nodes[i].tokens, MM: p.mm[i]})
				child := f.first[i]
				if child == none {
					break
				}
				at := len(stack)
				for c := f.next[child]; c != none; c = f.next[c] {
					stack = append(stack, c)
				}
				slices.Reverse(stack[at:])
				if len(blocks) == maxRun {
					stack = append(stack, child)
					break
				}
				i = child
			}
			e := convert.RouterEvent{Kind: convert.Stored, Tier: n.tier, HasParent: n.hasParent, Parent: n.parent, Blocks: blocks}
			out.add(src, &e, id)
			id++
		}
	}
	for _, root := range f.roots {
		from(root)
	}
	for i := range p.nodes {
		if !p.nodes[i].dead && !seen[i] {
			from(int32(i))
		}
	}
	return out.end(`],"last_event_id":` + strconv.FormatUint(p.last, 10) + `,"reset_scope":"all"}},"complete_final":false}`), total
}
