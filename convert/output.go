package convert

import "bytes"

// runLimit is where coalescing stops: a run that holds this many hashes after a
// merge is closed, so one of 127 may still take two more.
const runLimit = 128

// keepBlocks bounds what an Output keeps between batches: arenas above it, left
// by one giant batch, are given back on Reset.
const keepBlocks = 1 << 16

// Output collects router events. The zero value is ready; Reset and use it
// again and it stops allocating. Event, block and hash slices belong to it and
// are valid until Reset.
//
// The place of a router event, which a resumed stream needs (position headers),
// is its index in Events since the Reset before its batch, and the index of a
// block in it: both are the same for the same batches and settings, however
// sinks split events.
type Output struct {
	Events  []RouterEvent
	Notices []Notice

	spans   []span // where in the arenas the event of the same index lies
	settled int    // events that have their slices
	blocks  []Block
	hashes  []uint64
	objects []MMObject
	offsets [][2]uint64
	text    []byte
	run     run
}

// span is a range of blocks or hashes. Slices are cut at the end (settle),
// because the arenas move while they grow.
type span struct{ from, to int }

// run is the event that may still be merged with. Counting and ending follow
// the engine's events, whether or not anything of them was published.
type run struct {
	kind    Kind // 0: none
	tier    Tier
	session []byte
	last    uint64 // Stored: hash of the last block
	n       int    // hashes, before copies were taken out
	event   int    // index in Events; −1: nothing of it is published yet
}

// Reset empties o and keeps its memory.
func (o *Output) Reset() {
	if cap(o.blocks) > keepBlocks || cap(o.hashes) > keepBlocks || cap(o.Events) > keepBlocks ||
		cap(o.objects) > keepBlocks || cap(o.offsets) > keepBlocks || cap(o.text) > keepBlocks {
		*o = Output{}
		return
	}
	clear(o.Notices)
	o.Events, o.Notices, o.spans, o.settled = o.Events[:0], o.Notices[:0], o.spans[:0], 0
	o.blocks, o.hashes = o.blocks[:0], o.hashes[:0]
	o.objects, o.offsets, o.text = o.objects[:0], o.offsets[:0], o.text[:0]
	o.run = run{}
}

// endRun ends the run: what comes next is an event of its own.
func (o *Output) endRun() { o.run = run{} }

// beginStore opens a store of n blocks, each of which the caller adds with
// addBlock. It continues the run where parent is the run's last block.
func (o *Output) beginStore(tier Tier, session []byte, hasParent bool, parent uint64, n int) {
	r := &o.run
	if r.kind == Stored && r.tier == tier && hasParent && parent == r.last && bytes.Equal(r.session, session) {
		r.n += n
		return
	}
	e := o.addEvent(Stored, tier)
	e.HasParent, e.Parent = hasParent, parent
	if session != nil {
		at := len(o.text)
		o.text = append(o.text, session...)
		e.SessionID = o.text[at:len(o.text):len(o.text)]
	}
	r.kind, r.tier, r.session, r.last, r.n, r.event = Stored, tier, e.SessionID, 0, n, len(o.Events)-1
	o.spans = append(o.spans, span{len(o.blocks), len(o.blocks)})
}

// addEvent adds an event of which the rest is empty. It holds until the next.
func (o *Output) addEvent(kind Kind, tier Tier) *RouterEvent {
	n := len(o.Events)
	if n < cap(o.Events) {
		o.Events = o.Events[:n+1]
		o.Events[n] = RouterEvent{}
	} else {
		o.Events = append(o.Events, RouterEvent{})
	}
	e := &o.Events[n]
	e.Kind, e.Tier = kind, tier
	return e
}

// addBlock adds a block and returns it, to be filled in. It holds until the next.
func (o *Output) addBlock(hash uint64) *Block {
	n := len(o.blocks)
	if n < cap(o.blocks) {
		o.blocks = o.blocks[:n+1]
	} else {
		o.blocks = append(o.blocks, Block{})
	}
	b := &o.blocks[n]
	b.Hash, b.TokensHash, b.MM = hash, 0, nil
	return b
}

func (o *Output) endStore() {
	o.run.last = o.blocks[len(o.blocks)-1].Hash
	o.spans[o.run.event].to = len(o.blocks)
	o.closeFull()
}

// beginRemove opens a remove of n hashes, some of which addHash may follow for.
func (o *Output) beginRemove(tier Tier, n int) {
	if o.run.kind != Removed || o.run.tier != tier {
		o.run = run{kind: Removed, tier: tier, event: -1}
	}
	o.run.n += n
}

func (o *Output) addHash(h uint64) {
	if o.run.event < 0 {
		o.run.event = len(o.Events)
		o.addEvent(Removed, o.run.tier)
		o.spans = append(o.spans, span{from: len(o.hashes)})
	}
	o.hashes = append(o.hashes, h)
	o.spans[o.run.event].to = len(o.hashes)
}

func (o *Output) closeFull() {
	if o.run.n >= runLimit {
		o.endRun()
	}
}

func (o *Output) addCleared(noDomain bool) {
	o.endRun()
	o.addEvent(Cleared, Device).NoDomain = noDomain
	o.spans = append(o.spans, span{})
}

// settle gives the events since the last settle their slices.
func (o *Output) settle() {
	for ; o.settled < len(o.Events); o.settled++ {
		e, s := &o.Events[o.settled], o.spans[o.settled]
		switch e.Kind {
		case Stored:
			e.Blocks = o.blocks[s.from:s.to:s.to]
		case Removed:
			e.Hashes = o.hashes[s.from:s.to:s.to]
		}
	}
	o.endRun()
}
