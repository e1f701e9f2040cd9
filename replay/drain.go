package replay

import "time"

// more is what Config.Portion leaves of held batches that could be applied: a
// hold of tens of megabytes, applied at one input, would become as many router
// events at once, beyond every bound on those.
type more struct {
	waits bool // for Drain; other inputs apply nothing held
	ready bool // Ready is to be said once everything is applied
	keep  bool // keep goes on then
	want  bool // a replay is to be asked for then
}

// drain applies held batches as far as they reach, at most a portion.
func (c *Cursor) drain() {
	if !c.more.waits {
		c.portion()
	}
}

func (c *Cursor) portion() {
	done := 0
	for c.drains() {
		seq, ok := c.held.min()
		if !ok || seq > c.next {
			break
		}
		if c.cfg.Portion > 0 && done >= c.cfg.Portion {
			c.more.waits = true
			return
		}
		b, replayed, _ := c.held.take(seq)
		done += len(b.payload) + heldCost
		c.apply(seq, b.sum, b.payload, replayed)
	}
}

// drains: nothing is applied from an unproven connection, and at Start nothing
// before the replay has ended.
func (c *Cursor) drains() bool {
	return c.proven && !c.starting && !c.waiting && c.credit
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
// has credit for another Config.Portion.
func (c *Cursor) Draining() bool { return !c.ended && c.more.waits && c.drains() }

// Drain applies the next portion of the batches that are held and in order.
func (c *Cursor) Drain(now time.Time) {
	if !c.enter(now) || !c.Draining() {
		return
	}
	was := c.more
	c.more = more{}
	c.portion()
	if !c.more.waits && was.keep {
		was.keep = false
		c.keep()
	}
	if c.more.waits {
		c.more.ready = c.more.ready || was.ready
		c.more.keep = c.more.keep || was.keep
		c.more.want = c.more.want || was.want
		return
	}
	if was.want || c.missing() {
		c.want() // missing: there was a hole among what was held
	}
	if was.ready {
		c.ready()
	}
}
