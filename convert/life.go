package convert

// Cleared appends what tells routers that the rank holds nothing: a cleared
// or, with RemovesForCleared, removes of all that is published. noDomain leaves
// its residency_domain out: a publisher's first, and lost history. The caller
// follows it with Restart, Lost or Away.
func (r *Rank) Cleared(out *Output, noDomain bool) {
	r.publishCleared(out, noDomain)
	out.settle()
}

// Restart forgets everything but the counters: another engine begins.
func (r *Rank) Restart() {
	r.forget()
	r.groups = groups{}
	r.full, r.sweepFrom = false, 0
	r.blockSize, r.matched, r.misses = r.cfg.BlockSize, false, 0
	r.trust = trust{}
	r.stats.OtherSize, r.stats.Mismatched, r.stats.Untrusted = 0, false, false
}

// Lost forgets what Restart forgets: after lost history a resumed stream must
// come to the same state from the batches behind the loss alone.
func (r *Rank) Lost() { r.Restart() }

// Away keeps the ledger aside: the engine is unreachable, and was published as
// cleared. Nothing counts as published until Republish says it again.
func (r *Rank) Away() { r.ledger.setAside() }

// BeginRepublish is called when the same engine is back. It implies Away.
func (r *Rank) BeginRepublish() { r.Away() }

// maxClimb bounds how far Republish looks for ancestors before a block. Of a
// chain that is longer, and lies in the ledger in the opposite order, some
// blocks precede their parents.
const maxClimb = 4096

// Republish appends stores of up to max kept blocks, parents first where
// possible, and says whether more are kept. Batches may be converted in between.
func (r *Rank) Republish(out *Output, max int) (more bool) {
	l := &r.ledger
	out.endRun()
	for max > 0 && len(l.aside) > 0 {
		s := l.aside[0]
		if l.asideAt == int(s.used) {
			l.aside = l.aside[1:]
			l.asideAt = 0
			l.recycle(s)
			continue
		}
		slot := s.id<<segShift | uint32(l.asideAt)
		if e := l.at(slot); e.flags&flagLive != 0 {
			max -= r.republish(slot, e, max, out)
			continue // it was published, or max was reached before it
		}
		l.asideAt++
	}
	if len(l.aside) == 0 {
		l.aside = nil
	}
	out.settle()
	return len(l.aside) > 0
}

// republish publishes a kept entry and, before it, its kept ancestors: at most
// max of them together.
func (r *Rank) republish(slot uint32, e *entry, max int, out *Output) (n int) {
	l := &r.ledger
	r.climb = append(r.climb[:0], slot)
	for len(r.climb) < maxClimb && e.hasParent() {
		var ok bool
		if slot, e, ok = l.lookup(e.tier(), e.parent); !ok || l.published(slot) {
			break
		}
		r.climb = append(r.climb, slot)
	}
	for i := len(r.climb) - 1; i >= 0 && n < max; i-- {
		slot := r.climb[i]
		e := l.at(slot)
		if e.flags&flagLive == 0 {
			continue // a cycle of parents: published already
		}
		if r.full && e.flags&flagDoubted != 0 {
			if l.settleCounts(slot, e); !l.held(e) {
				l.remove(slot, e)
				continue
			}
		}
		if l.room() == 0 {
			r.bound(BoundBlocks, out)
			l.remove(slot, e)
			continue
		}
		_, e = l.publish(slot, e)
		l.emit(e, out)
		n++
	}
	return n
}
