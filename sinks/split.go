package sinks

import "github.com/kvrelay/kvrelay/convert"

// add encodes e as the next event, or as several when it is too large for one.
// block is how many blocks of the batch's event are done before e. o.mu is held.
func (o *Outbox) add(e *convert.RouterEvent, event, block int) {
	n := len(e.Blocks) + len(e.Hashes)
	if n <= maxBatchBlocks && o.addWhole(e, n, event, block+n) {
		return
	}
	o.p.split.Add(1)
	// Pieces of equal length: by number of blocks first, which costs nothing,
	// then by the bytes that each piece takes.
	for from := 0; from < n; from += maxBatchBlocks {
		o.addRange(e, from, min(from+maxBatchBlocks, n), event, block)
	}
	if n == 0 { // nothing to split: its session id alone is too long
		o.p.tooLarge.Add(1)
	}
}

// addRange adds the blocks from … to of e, in as many pieces as they need.
func (o *Outbox) addRange(e *convert.RouterEvent, from, to, event, block int) {
	o.piece = convert.Part(e, from, to)
	if o.addWhole(&o.piece, to-from, event, block+to) {
		return
	}
	if to-from == 1 {
		// What hangs below this block keeps its true parent: any other would
		// be a false prefix to a router.
		o.p.tooLarge.Add(1)
		return
	}
	limit := int(o.p.maxEvent.Load())
	pieces := min(max(2, o.tried/limit+1), to-from)
	step := (to - from + pieces - 1) / pieces
	for i := from; i < to; i += step {
		o.addRange(e, i, min(i+step, to), event, block)
	}
}

// addWhole encodes e as the next event unless it is longer than one may be;
// o.tried is its length then.
func (o *Outbox) addWhole(e *convert.RouterEvent, blocks, event, block int) bool {
	s := o.log.room(o.p.sizeBound(e))
	from := len(s.buf)
	s.buf = o.p.encode(s.buf, e, o.workerID, o.rank, o.log.next)
	if n := len(s.buf) - from; int64(n) > o.p.maxEvent.Load() {
		o.tried = n
		s.buf = s.buf[:from]
		return false
	}
	o.log.commit(s, from, eventMeta{blocks: uint32(blocks), event: uint32(event), block: uint32(block)})
	return true
}

// sizeBound is at least the encoded length of e. One that were too low would
// cost an allocation, nothing else.
func (p *Publisher) sizeBound(e *convert.RouterEvent) int {
	n := convert.MaxEventSize(e)
	if p.isJSON() { // a number has up to 20 digits instead of 9 bytes, a character up to 6 instead of 1
		n += n*3/2 + 5*len(e.SessionID)
	}
	return n
}

func (p *Publisher) isJSON() bool { return p.o.Kind == Stdout || p.o.Profile == JSON }
