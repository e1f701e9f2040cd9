package convert

import "github.com/kvrelay/kvrelay/decode"

// remove publishes the hashes of which no copy is left, or that nobody knew.
func (r *Rank) remove(ev *decode.Event, tier Tier, group uint8, out *Output) {
	l := &r.ledger
	out.beginRemove(tier, len(ev.Hashes))
	published := 0
	l.warm(tier, ev.Hashes)
	for _, h := range ev.Hashes {
		r.refused.drop(h)
		if slot, e, at := l.seek(tier, h); e != nil {
			if r.takeCopy(slot, e, group) {
				continue
			}
			r.trust.removed(h, e)
			l.removeAt(slot, e, at)
			l.tidy(slot)
		}
		out.addHash(h)
		published++
	}
	out.closeFull()
	r.stats.Blocks.Published += uint64(published)
	r.stats.Blocks.Suppressed += uint64(len(ev.Hashes) - published)
	if published > 0 {
		r.stats.Events.Published++
	} else {
		r.stats.Events.Suppressed++
	}
}

// takeCopy takes one copy from a group's numbers, announcements first, and
// reports whether any main group still holds the entry.
func (r *Rank) takeCopy(slot uint32, e *entry, group uint8) (held bool) {
	l := &r.ledger
	if r.full && e.flags&flagDoubted != 0 {
		l.settleCounts(slot, e)
	}
	if e.side == 0 && group == e.group { // the usual case
		if r.cfg.Duplicates == Presence || e.copies <= 1 {
			return false
		}
		e.copies--
		return true
	}
	c := l.counts(e, group)
	switch {
	case !c.present():
		return l.held(e) // by other groups
	case r.cfg.Duplicates == Presence:
		c.copies = 0
	case c.announced > 0:
		c.announced--
		c.taken = addOne(c.taken)
	default:
		c.copies--
	}
	l.setCounts(e, group, c)
	return l.held(e)
}

// clear publishes an engine's AllBlocksCleared: everything of the rank is gone.
func (r *Rank) clear(out *Output) {
	before := len(out.Events)
	r.publishCleared(out, false)
	if len(out.Events) > before {
		r.stats.Events.Published++
	} else {
		r.stats.Events.Suppressed++ // by removes, and nothing was there
	}
	r.forget()
}

// forget drops what a clear drops; kinds, block size and reporting mode stay.
func (r *Rank) forget() {
	r.ledger.clear()
	r.refused.clear()
	r.ambiguous.clear()
	r.roots.n = 0
}

func (r *Rank) publishCleared(out *Output, noDomain bool) {
	if !r.cfg.RemovesForCleared {
		out.addCleared(noDomain)
		return
	}
	out.endRun()
	r.ledger.each(0, func(_ uint32, e *entry) bool {
		out.beginRemove(e.tier(), 1)
		out.addHash(e.hash)
		out.closeFull()
		return true
	})
	out.endRun()
}

// sweepLimit bounds what one batch pays for the switch to full reporting, in
// entries that announcements have touched: below a millisecond. Where there are
// more, further batches go on; until then those stay published, unless an event
// touches them.
const sweepLimit = 4096

// sweep removes the blocks that only announcements kept present.
func (r *Rank) sweep(out *Output) {
	l := &r.ledger
	out.endRun()
	before := len(out.Events)
	for n := 0; n < sweepLimit && l.doubted > 0; {
		s := l.doubtedFrom(r.sweepFrom)
		if s == nil { // round once: what is left comes with the next batch
			r.sweepFrom = 0
			break
		}
		n += int(s.doubted)
		r.sweepFrom = s.lastNumber() + 1
		r.sweepSegment(s, out)
		l.tidy(s.id << segShift)
	}
	r.stats.SelfMadeEvents += uint64(len(out.Events) - before)
}

func (r *Rank) sweepSegment(s *segment, out *Output) {
	l := &r.ledger
	for place := range s.used {
		e := &s.entries[place]
		if e.flags&flagDoubted == 0 {
			continue
		}
		slot := s.id<<segShift | place
		if l.settleCounts(slot, e); l.held(e) {
			continue
		}
		out.beginRemove(e.tier(), 1)
		out.addHash(e.hash)
		out.closeFull()
		l.remove(slot, e)
		r.stats.SelfMadeBlocks++
	}
}

// doubtedFrom is the first segment with doubted entries among those that may
// hold numbers from first on; nil: none.
func (l *ledger) doubtedFrom(first uint64) *segment {
	for _, s := range l.order[l.from(first):] {
		if s.doubted > 0 {
			return s
		}
	}
	return nil
}
