package replay

import "github.com/zeebo/xxh3"

// alone is a live batch where there is no replay. Connections need no proof –
// there is none to be had – so a restart that lands on the number expected
// cannot be seen.
func (c *Cursor) alone(seq uint64, payload []byte) {
	sum := xxh3.Hash(payload)
	switch {
	case !c.begun:
		c.startAt(seq)
	case seq > c.next:
		c.count.Gaps++
		if !c.aloneLost(seq) {
			c.count.Discarded++
			return
		}
	case seq < c.next:
		if c.repeats(seq, sum, payload, false) {
			c.count.Repeated++
			if _, ok := c.ring.get(seq); ok {
				c.shown = true
				c.back()
			}
			return
		}
		c.count.Restarts++
		c.newEpoch(CauseRestart)
		c.startAt(seq)
	}
	c.shown = true
	c.apply(seq, sum, payload, false)
}

// aloneLost declares the numbers up to to lost, and reports whether to go on from
// there.
func (c *Cursor) aloneLost(to uint64) bool {
	switch {
	case c.cfg.Lost == LostExit:
		c.forget(false, to)
		return false
	case c.cfg.Lost == LostKeep && c.shown:
		// The same connection, so the same engine.
		c.declare(to, LostKeep, false)
	default:
		c.declare(to, LostClear, false)
		c.newEpoch(CauseLostGoingOn)
		c.base, c.next = to, to
	}
	return true
}

// aloneAgain: credit is back, and what was discarded without it is lost.
func (c *Cursor) aloneAgain() {
	h := c.hint
	c.hint = hint{}
	if c.begun && h.ok && h.seq >= c.next {
		c.aloneLost(h.seq + 1)
	}
}
