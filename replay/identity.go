package replay

import "time"

// judge looks for the anchor, the first reply that was asked for.
func (c *Cursor) judge(r *round, seq, sum uint64, payload []byte) {
	switch {
	case seq < r.anchor.seq:
		c.below(seq, sum, payload, true) // an engine that sends more than it was asked for
	case seq > r.anchor.seq:
		c.gone(r, seq, sum, payload)
	case sum != r.anchor.sum:
		c.count.Discarded++
		c.restart()
	default:
		c.count.Repeated++
		r.judged, r.prev, r.chained = true, seq, true
		c.prove()
	}
}

// prove: the anchor came back unchanged in a round that was asked for after the
// live connection came up (rounds do not outlive it). So both lead to the
// incarnation whose batches were applied.
func (c *Cursor) prove() {
	c.above, c.denied = 0, false
	c.strayAt = time.Time{}
	c.back()
	c.proven = true
	c.drain()
}

// back ends Away: the incarnation that was away has shown itself.
func (c *Cursor) back() {
	if c.waiting {
		c.waiting = false
		c.more.waits = c.cfg.Portion > 0 && c.held.len() > 0 // behind what the host publishes again
		c.host.Back()
	}
}

// gone: the first reply is above the anchor. Either history has left the engine's
// buffer, or this is another engine: identity cannot be proven. A second round on
// a fresh connection, because the first one's may have led to an engine that is
// no more.
func (c *Cursor) gone(r *round, seq, sum uint64, payload []byte) {
	if c.above++; c.above < 2 {
		c.count.Discarded++
		c.dropRound()
		c.pause(c.backoff(0))
		return
	}
	r.judged, r.prev, r.chained = true, seq, true // for LostKeep, whose round goes on
	c.hold(seq, sum, payload, true)
	c.lose(true, seq)
}

// probed compares a reply to a probe. Equal sums prove nothing – the engine may
// be another one that began alike – but anything that contradicts the ring is a
// restart.
func (c *Cursor) probed(r *round, seq, sum uint64) {
	switch old, ok := c.ring.get(seq); {
	case ok && old == sum:
		c.count.Repeated++
		r.same = true
		return
	case seq > c.anchor.seq:
		r.late = true
	case seq < c.ring.lowest():
		// Asked from the ring's lowest, which has moved on since: the first reply
		// inside decides.
		r.below = true
	default: // another sum, or a number that was not in use between those that were
		c.count.Discarded++
		c.restart()
		return
	}
	c.count.Discarded++
}

// onlyBelow says whether a probe from 0 showed an engine that has not come as
// far as the ring. Of a ring that has only just begun it says nothing: an engine
// may publish before it appends.
func (c *Cursor) onlyBelow(r *round) bool {
	return r.kind == probeZero && r.below && !r.same && !r.late && c.now.Sub(c.ringAt) >= c.cfg.Idle
}

// probeEnded: there was nothing from the anchor on, and this is what there is below.
func (c *Cursor) probeEnded(r *round) {
	switch {
	case r.n == 0 && r.kind == probeRing && c.ring.lowest() > 0:
		c.begin(probeZero, 0)
	case r.n == 0 && c.answered:
		c.restart() // a buffer that had batches does not become empty
	case r.n == 0 && !c.proven:
		// Nothing even from 0, and nothing was ever replayed: an engine that has
		// published but not yet appended, or one that has published nothing.
		if c.empty++; c.empty >= 2 {
			c.restart()
			return
		}
		c.pause(c.cfg.Idle)
	case c.onlyBelow(r):
		c.restart()
	case r.same && !r.late && c.stray():
		c.restart()
	default:
		c.settle(r, true)
	}
}

// stray says whether the anchor has been missing for DeadAfter while its
// predecessors were there. No engine takes so long to append what it has
// published: the batch came late, from an incarnation that was dying while the
// replay from 0 already led to the next.
func (c *Cursor) stray() bool {
	if c.strayAt.IsZero() {
		c.strayAt = c.now
	}
	return c.now.Sub(c.strayAt) >= c.cfg.DeadAfter
}

// conflict: a reply differs from a batch held under its number, or skips a live
// one: live and replay are of two incarnations. Merged they would make a history
// that no engine had.
func (c *Cursor) conflict(r *round, seq, sum uint64) bool {
	if c.held.len() == 0 {
		return false
	}
	if b, _, ok := c.held.get(seq); ok && b.sum != sum {
		return true
	}
	return r.chained && seq > r.prev && r.n <= c.cfg.Safe && c.held.liveBetween(r.prev, seq)
}

// parted drops what is held and takes both connections anew.
func (c *Cursor) parted() {
	c.count.Conflicts++
	if c.conflicts++; c.conflicts >= c.cfg.Attempts {
		c.conflicts = 0
		c.dropRound()
		c.exhausted()
		return
	}
	c.reopen()
}

// reopen closes both connections; the Cursor goes on with LiveUp.
func (c *Cursor) reopen() {
	c.lostLive()
	c.host.ReopenLive()
}

// lostLive: nothing held from a connection outlives it, and no round does: what
// comes on the next one may be of another incarnation whose numbers fit. Nor does
// what the connection, or a round beside it, seemed to show.
func (c *Cursor) lostLive() {
	if c.proven || c.now.Sub(c.upAt) >= c.cfg.DeadAfter {
		c.wasDown = 0
	}
	c.live, c.proven, c.shown = false, false, false
	c.downAt = c.now
	c.denied, c.empty = false, 0
	if !c.begun {
		// Where this epoch was to begin went with the batch that was held for it: the
		// next connection's engine may begin below.
		c.base, c.next, c.unknown = 0, 0, false
	}
	c.keepBy = time.Time{}
	c.more = more{}
	c.count.Discarded += c.held.clear()
	c.dropRound()
}

// deadAt is when the engine counts as dead, where the live connection is down. One
// that came up meanwhile and proved nothing was perhaps another's, or an engine's that
// ends again and again before it is of use: it does not make the time begin anew,
// unless it lasted as long itself.
func (c *Cursor) deadAt() time.Time { return c.downAt.Add(c.cfg.DeadAfter - c.wasDown) }

// away: unreachable for DeadAfter. A router must not count on its blocks.
func (c *Cursor) away() {
	c.waiting = true
	c.host.Away()
}
