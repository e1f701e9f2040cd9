package consumer

import (
	"iter"
	"sync"
)

// Entry is what a picture knows of one block.
type Entry struct {
	TokensHash uint64
	Parent     uint64
	HasParent  bool
}

// blockKey is one block in one tier.
type blockKey struct {
	tier Tier
	hash uint64
}

// rankPicture is the fold of one rank, with the place it has reached.
type rankPicture struct {
	publisher uint64
	last      uint64
	blocks    map[blockKey]Entry
}

// Outcome says what Picture.Fold did with a message.
type Outcome struct {
	Applied  int // events that changed or confirmed the picture
	Repeated int // events whose id had been applied before
	// NewPublisher: the rank's publisher changed; ids count anew with this message.
	NewPublisher bool
	// Missing is how many ids were skipped before events of this message: what
	// they said is lost to this picture until a `cleared` or a recovery.
	Missing uint64
}

// Picture is the fold of router events: per rank and tier, the set of block
// hashes with what is known of each. Safe for concurrent use.
//
// It keeps about 100 bytes a block and is bounded by what workers hold; package
// index is smaller, and answers by tokens.
type Picture struct {
	mu    sync.RWMutex
	ranks map[Rank]*rankPicture
}

// NewPicture is an empty picture.
func NewPicture() *Picture {
	return &Picture{ranks: make(map[Rank]*rankPicture)}
}

// Apply folds one event, whatever its id: the hook of a Consumer, which has
// put events in order before.
func (p *Picture) Apply(e *Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rank(e.Rank).apply(e)
}

// Fold folds a message as it came from NATS: repeated ids are ignored, skipped
// ids are counted, and another publisher's ids begin anew. It is for readers
// of a lossless, ordered source; on NATS core use a Consumer, which gets back
// what is missing.
func (p *Picture) Fold(m *Message) Outcome {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out Outcome
	for i := range m.Events {
		e := &m.Events[i]
		r := p.rank(e.Rank)
		if m.Publisher != r.publisher {
			out.NewPublisher = true
			r.publisher, r.last = m.Publisher, e.ID-1
			if e.ID > 1 && e.Kind != Cleared {
				out.Missing += e.ID - 1
			}
		}
		switch {
		case e.ID <= r.last:
			out.Repeated++
			continue
		case e.ID > r.last+1:
			out.Missing += e.ID - r.last - 1
		}
		r.apply(e)
		r.last = e.ID
		out.Applied++
	}
	return out
}

func (p *Picture) rank(k Rank) *rankPicture {
	r := p.ranks[k]
	if r == nil {
		r = &rankPicture{blocks: make(map[blockKey]Entry)}
		p.ranks[k] = r
	}
	return r
}

func (r *rankPicture) apply(e *Event) {
	switch e.Kind {
	case Cleared:
		r.blocks = make(map[blockKey]Entry)
	case Removed:
		for _, h := range e.Hashes {
			delete(r.blocks, blockKey{e.Tier, h})
		}
	case Stored:
		parent, has := e.Parent, e.HasParent
		for i := range e.Blocks {
			b := &e.Blocks[i]
			r.blocks[blockKey{e.Tier, b.Hash}] = Entry{TokensHash: b.TokensHash, Parent: parent, HasParent: has}
			parent, has = b.Hash, true
		}
	}
}

// Place is the publisher and the last event id that Fold applied for a rank;
// zeroes where nothing was folded.
func (p *Picture) Place(k Rank) (publisher, last uint64) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if r := p.ranks[k]; r != nil {
		return r.publisher, r.last
	}
	return 0, 0
}

// Ranks are the ranks that had an event, in no order.
func (p *Picture) Ranks() []Rank {
	p.mu.RLock()
	defer p.mu.RUnlock()
	ks := make([]Rank, 0, len(p.ranks))
	for k := range p.ranks {
		ks = append(ks, k)
	}
	return ks
}

// Lookup is what is known of a block in a tier.
func (p *Picture) Lookup(k Rank, t Tier, hash uint64) (Entry, bool) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if r := p.ranks[k]; r != nil {
		e, ok := r.blocks[blockKey{t, hash}]
		return e, ok
	}
	return Entry{}, false
}

// Len is how many blocks a rank holds in a tier.
func (p *Picture) Len(k Rank, t Tier) int {
	n := 0
	for range p.Blocks(k, t) {
		n++
	}
	return n
}

// Blocks are a rank's blocks in a tier, in no order. The picture is locked for
// writers while the loop runs.
func (p *Picture) Blocks(k Rank, t Tier) iter.Seq2[uint64, Entry] {
	return func(yield func(uint64, Entry) bool) {
		p.mu.RLock()
		defer p.mu.RUnlock()
		r := p.ranks[k]
		if r == nil {
			return
		}
		for b, e := range r.blocks {
			if b.tier == t && !yield(b.hash, e) {
				return
			}
		}
	}
}

// Forget drops a rank and its place.
func (p *Picture) Forget(k Rank) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.ranks, k)
}
