package sinks

import (
	"fmt"

	"github.com/kvrelay/kvrelay/convert"
)

// splitAgain cuts the unconfirmed events that are larger than a new, smaller
// max_payload allows. o.mu is held; nothing is on a link.
//
// A cut event has more ids than before, and all behind it move up. An earlier
// link may have delivered the old numbering up to some id L. The consumer then
// goes on at the new L + 1, which stands at or before the old L + 1: it applies
// a suffix of what it has once more, in order, and then the rest. Stores,
// removes and clears are idempotent per (tier, hash), so it ends at the same
// state. For the same reason numbers must never move down: a block that cannot
// be sent any more is replaced by its removal, not left out. The boundaries of
// frozen envelopes stay where they are; each then ends no later in the stream than it did.
func (o *Outbox) splitAgain() {
	limit := int(o.p.maxEvent.Load())
	first, ok := o.firstAbove(limit)
	if !ok {
		return
	}
	o.splits++
	last := o.log.next - 1
	before := o.log.size(first, last)
	old := o.log.cut(first)
	cur := o.log.cur
	for _, s := range old {
		for i := range s.events {
			m := s.events[i]
			o.log.cur = s.places[m.place]
			if !o.addRenumbered(s.bytes(i), m, limit) {
				o.addPieces(s.bytes(i), m)
			}
		}
		o.log.pool.put(s)
	}
	o.log.cur = cur
	o.extra += o.log.size(first, o.log.next-1) - before
	o.p.unconfirmedEvents.Add(int64(o.log.next-1) - int64(last))
}

// firstAbove is the first unconfirmed event that is longer than limit.
func (o *Outbox) firstAbove(limit int) (uint64, bool) {
	if o.confirmed == o.log.next-1 {
		return 0, false
	}
	si, i := o.log.find(o.confirmed + 1)
	for _, s := range o.log.segs[si:] {
		for ; i < len(s.events); i++ {
			if int(s.events[i].end-s.start(i)) > limit {
				return s.first + uint64(i), true
			}
		}
		i = 0
	}
	return 0, false
}

// cut takes the events from id on out of the log and returns them.
func (l *eventLog) cut(id uint64) []*segment {
	si, i := l.find(id)
	s := l.segs[si]
	rest := &segment{first: id, places: append([]batchPlace(nil), s.places...)}
	from := s.start(i)
	rest.buf = append(rest.buf, s.buf[from:]...)
	for _, m := range s.events[i:] {
		m.end -= from
		rest.events = append(rest.events, m)
	}
	s.buf, s.events = s.buf[:from], s.events[:i]
	old := append([]*segment{rest}, l.segs[si+1:]...)
	l.segs = l.segs[:si+1]
	l.next = id
	return old
}

// addRenumbered appends an encoded event under the next id. It reports false when that makes it too long.
func (o *Outbox) addRenumbered(ev []byte, m eventMeta, limit int) bool {
	s := o.log.room(len(ev) + 20)
	from := len(s.buf)
	s.buf = renumber(s.buf, ev, o.log.next, o.p.isJSON())
	if len(s.buf)-from > limit {
		s.buf = s.buf[:from]
		return false
	}
	o.log.commit(s, from, m)
	return true
}

// addPieces appends an encoded event that is too long, in pieces.
func (o *Outbox) addPieces(ev []byte, m eventMeta) {
	e, err := decodeEvent(ev, o.p.isJSON())
	if err != nil {
		panic(fmt.Sprintf("sinks: an event of our own encoding: %v", err))
	}
	first, block := o.log.next, int(m.block)-int(m.blocks)
	settled := o.log.cur.kind == placeSettled
	if at := o.log.cur; settled { // only its last piece stands at the place
		o.log.cur, block = batchPlace{kind: PlaceUnknown}, 0
		defer func() { o.log.settle(at, int(m.event), int(m.block)) }()
	}
	o.add(&e, int(m.event), block)
	if o.log.next > first {
		return
	}
	gone := convert.RouterEvent{Kind: convert.Removed, Tier: e.Tier, NoDomain: e.NoDomain}
	for _, b := range e.Blocks {
		gone.Hashes = append(gone.Hashes, b.Hash)
	}
	o.add(&gone, int(m.event), block)
}
