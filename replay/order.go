package replay

import (
	"slices"
	"time"
)

// hint is the highest number that is known to have been published and was not
// kept: discarded without credit, or dropped from what is held. It says how far
// replay has to go.
type hint struct {
	seq uint64
	ok  bool
	id  uint64 // newest request when it was raised: only a later one can refute it
}

// ahead raises the hint.
func (c *Cursor) ahead(seq uint64) {
	if h := &c.hint; !h.ok || seq > h.seq {
		*h = hint{seq, true, c.lastID}
	}
}

// pair is two neighbouring replies between which numbers are missing.
type pair struct{ lo, hi uint64 }

// feed puts a batch of our own incarnation in its place.
func (c *Cursor) feed(seq, sum uint64, payload []byte, replayed bool) {
	switch {
	case c.contradicts(seq, sum, replayed):
		c.count.Discarded++
		c.restart()
	case replayed && seq >= c.next && !c.keepBy.IsZero():
		c.hold(seq, sum, payload, replayed) // nobody has vouched for it yet
	case seq == c.next:
		c.apply(seq, sum, payload, replayed)
		c.drain()
	case seq > c.next:
		was := c.missing()
		c.hold(seq, sum, payload, replayed)
		if !replayed && !c.more.waits {
			if !was {
				c.count.Gaps++
			}
			c.want()
		}
	default:
		c.below(seq, sum, payload, replayed)
	}
}

// startAt: the first batch of this epoch is seq. What came before is unknown;
// there is nothing to clear, and nothing was lost that anybody had.
func (c *Cursor) startAt(seq uint64) {
	c.base, c.next, c.unknown = seq, seq, seq > 0 // which is said when it is applied
	c.count.Discarded += c.held.dropBelow(seq)
}

func (c *Cursor) apply(seq, sum uint64, payload []byte, replayed bool) {
	c.back()
	if _, _, ok := c.held.take(seq); ok {
		c.count.Repeated++ // replay was faster than what was held
	}
	if c.unknown {
		c.unknown = false
		c.host.Unknown(c.base)
	}
	c.begun = true
	c.anchor = seen{seq, sum}
	c.next = seq + 1
	if c.ring.empty() {
		c.ringAt = c.now
	}
	c.ring.add(c.anchor)
	if ts, ok := c.cfg.TS(payload); ok {
		c.ts, c.hasTS = ts, true
	}
	c.progress()
	c.count.Applied++
	c.count.EpochApplied++
	if replayed {
		c.count.Replayed++
	}
	c.host.Apply(Position{c.epoch, seq, sum}, payload, replayed)
}

// progress forgets what was counted against the present state of things.
func (c *Cursor) progress() {
	c.attempts, c.above, c.empty = 0, 0, 0
	c.refused, c.refusals = time.Time{}, 0
	c.strayAt = time.Time{}
}

// below judges a batch whose number has passed.
func (c *Cursor) below(seq, sum uint64, payload []byte, replayed bool) {
	if c.repeats(seq, sum, payload, replayed) {
		c.count.Repeated++
		return
	}
	c.count.Discarded++
	c.restart()
}

// repeats says whether a batch whose number has passed is of our incarnation. In
// the ring its sum decides. Outside, the anchor has vouched for what is replayed,
// and the wall clock for what is live: a repeat is not newer than what came after
// it.
func (c *Cursor) repeats(seq, sum uint64, payload []byte, replayed bool) bool {
	if old, ok := c.ring.get(seq); ok {
		return old == sum
	}
	if replayed {
		return true
	}
	ts, ok := c.cfg.TS(payload)
	return !ok || !c.hasTS || ts <= c.ts
}

// hold keeps a copy of a batch that cannot be applied yet. When the budget is
// reached the newest goes, not the oldest: the engine still has it, and what is
// applied first is what makes room. The highest number dropped is remembered, so
// that the replay goes on until it is reached.
func (c *Cursor) hold(seq, sum uint64, payload []byte, replayed bool) {
	if old, _, ok := c.held.get(seq); ok {
		if old.sum == sum || replayed {
			c.count.Repeated++
			if !replayed {
				c.held.toLive(seq)
			}
			return
		}
		c.held.take(seq) // the connection itself says otherwise now
		c.count.Discarded++
	}
	for !c.held.put(seq, sum, payload, replayed) {
		c.count.Discarded++
		top, ok := c.held.max()
		if !ok || seq > top {
			c.ahead(seq)
			return
		}
		c.held.take(top)
		c.ahead(top)
	}
}

// missing says whether numbers from next on are known to exist that are not held
// in order.
func (c *Cursor) missing() bool {
	first, ok := c.held.min()
	return ok && first > c.next || c.hint.ok && c.hint.seq >= c.next
}

// skipped: two neighbouring replies, both among those that no ROUTER drops, leave
// numbers out. When the round before showed the same, they were burned: drawn by
// the engine for a batch that never came to exist. One round would not do: a
// reply may have been unreadable. A live batch is no neighbour: what it skips may
// not have been appended yet.
func (c *Cursor) skipped(r *round, p pair) {
	r.pairs = append(r.pairs, p)
	if p.lo < c.next && c.next < p.hi && slices.Contains(c.neighbors, p) {
		to := p.hi
		if first, ok := c.held.min(); ok {
			to = min(to, first)
		}
		c.burn(to)
	}
}

func (c *Cursor) burn(to uint64) {
	if to <= c.next {
		return
	}
	from := c.next
	c.count.Burned += to - from
	c.count.EpochBurned += to - from
	c.next = to
	c.attempts = 0
	c.host.Burned(from, to)
	c.drain()
}

// settle decides what a round leaves to do. ended: by its end marker – which
// proves nothing about what came before it: a ROUTER beyond its high-water mark
// leaves holes in the middle.
func (c *Cursor) settle(r *round, ended bool) {
	c.drain()
	if ended && r.alone() && r.id > c.hint.id {
		c.hint = hint{} // only a hint: there is nothing above the anchor
	}
	if c.missing() {
		c.neighbors = r.pairs
		c.retry(r, len(r.pairs) > 0)
		return
	}
	c.neighbors = nil
	if !ended {
		c.retry(r, false)
		return
	}
	if r.kind >= probeRing && !c.proven && c.held.len() > 0 {
		c.retry(r, false)
		return
	}
	c.finish()
}
