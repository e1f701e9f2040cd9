package replay

import "time"

// more is what Config.Portion leaves of held batches that could be applied: a
// hold of tens of megabytes, applied at one input, would become as many router
// events at once, beyond every bound on those. The host has credit for each
// Drain; for what another input would bring beside its own batch it has none.
type more struct {
	waits bool // for Drain; other inputs apply nothing held
	ready bool // Ready is to be said once everything is applied
	keep  bool // keep goes on then
	want  bool // a replay is to be asked for then
}

// drain applies held batches as far as they reach, or leaves that to Drain. LostKeep
// comes here once for every hole.
func (c *Cursor) drain() {
	for !c.more.waits && c.drains() {
		seq, ok := c.held.min()
		if !ok || seq > c.next {
			return
		}
		if c.cfg.Portion > 0 && c.left <= 0 {
			c.more.waits = true
			return
		}
		b, replayed, _ := c.held.take(seq)
		c.left -= len(b.payload) + heldCost
		c.apply(seq, b.sum, b.payload, replayed)
	}
}

// drains: nothing is applied from an unproven connection, at Start nothing
// before the replay has ended, and nothing of a round that LostKeep has yet to
// believe.
func (c *Cursor) drains() bool {
	return c.proven && !c.starting && !c.waiting && c.credit && c.keepBy.IsZero()
}

// contradicts: a live batch differs from the one under its number that only
// waits for Drain. Applied, that one would have shown the same: another engine.
func (c *Cursor) contradicts(seq, sum uint64, replayed bool) bool {
	if !c.more.waits || replayed {
		return false // replies are compared with what is held before
	}
	old, _, ok := c.held.get(seq)
	return ok && old.sum != sum
}

// Draining says whether held batches wait for Drain: the host calls it when it
// has credit for some.
func (c *Cursor) Draining() bool { return !c.ended && c.more.waits && c.drains() }

// Drain applies the next bytes of the batches that are held and in order: at
// least one batch, and no more than Config.Portion.
func (c *Cursor) Drain(now time.Time, bytes int) {
	if !c.enter(now) || !c.Draining() {
		return
	}
	c.left = min(max(1, bytes), c.cfg.Portion)
	was := c.more
	c.more = more{}
	c.drain()
	if !c.more.waits && was.keep {
		was.keep = false
		c.keep()
	}
	if c.more.waits {
		was.keep = was.keep || c.more.keep
		c.more = was // nothing else was asked for meanwhile
		return
	}
	if was.want || c.missing() {
		c.want() // missing: there was a hole among what was held
	}
	if was.ready {
		c.ready()
	}
}
