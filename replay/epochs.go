package replay

import "time"

// restart: the engine is another one. Both connections are closed, because
// either may still lead to the old one.
func (c *Cursor) restart() {
	c.count.Restarts++
	c.newEpoch(CauseRestart)
	c.reopen()
}

// newEpoch forgets the incarnation, but not what is held.
func (c *Cursor) newEpoch(cause Cause) {
	c.epoch++
	c.begun, c.hasTS = false, false
	c.base, c.next, c.unknown = 0, 0, false
	c.anchor = seen{}
	c.ring.clear()
	c.hint = hint{}
	c.neighbors = nil
	c.progress()
	c.answered, c.denied = false, false
	c.waiting, c.wasDown = false, 0
	c.keepBy = time.Time{}
	c.more = more{}
	c.count.EpochApplied, c.count.EpochBurned, c.count.EpochLost = 0, 0, 0
	c.host.NewEpoch(c.epoch, cause)
}

// exhausted: the attempts, or the patience with an endpoint that refuses.
func (c *Cursor) exhausted() {
	c.count.Exhausted++
	c.attempts = 0
	c.starting, c.again = false, false
	c.closeReplay(false)
	c.ready() // the first replay will not come; status says what is unknown
	if !c.begun {
		// Start without replay: the live stream from its lowest held batch on.
		c.proven = true
		c.hint = hint{}
		c.back()
		if first, ok := c.held.min(); ok {
			c.startAt(first)
			c.drain()
		}
		c.finish()
		return
	}
	switch {
	case c.denied:
		// Replay cannot tell – an engine without end markers is silent about an
		// anchor it never had – but what came live does: another engine, which
		// has not come as far.
		c.restart()
	case c.missing() || !c.proven && c.held.len() > 0:
		c.lose(false, c.lossEnd())
	default:
		c.finish() // nothing changes until the next poll
	}
}

// lossEnd is the first number that is at hand behind what is missing.
func (c *Cursor) lossEnd() uint64 {
	if first, ok := c.held.min(); ok {
		return max(first, c.next)
	}
	if c.hint.ok && c.hint.seq >= c.next {
		return c.hint.seq + 1
	}
	return c.next
}

// lose: the numbers from next to to are lost, because the engine no longer has
// them (gone), or because the attempts are exhausted.
func (c *Cursor) lose(gone bool, to uint64) {
	if c.cfg.Lost != LostKeep || !c.proven {
		c.forget(gone, to)
		return
	}
	if c.held.len() == 0 {
		c.finish() // nothing to go on from yet
		return
	}
	// keep needs to know that behind the proven live connection there still was an
	// engine after the newest replay connection was made. Else that one may lead to
	// another engine, whose batches would be applied to what the old one left.
	c.keepGone, c.keepTo = gone, to
	if c.pinged.After(c.connected) {
		c.keep()
		return
	}
	// A live connection that answers nothing for so long has ended by its own
	// heartbeats.
	c.keepBy = c.now.Add(5 * c.cfg.Heartbeat)
}

// keep goes on behind what is lost, with everything known before it. Of a buffer
// that begins at keepTo, every hole below is lost, and is declared now: one by
// one each would cost two rounds.
func (c *Cursor) keep() {
	c.keepBy = time.Time{}
	c.neighbors = nil
	c.progress()
	for {
		first, ok := c.held.min()
		if !ok || first > c.next && c.next >= c.keepTo {
			break
		}
		if first > c.next { // else it was only the anchor that had left the engine's buffer
			c.declare(first, LostKeep, c.keepGone)
			// The ring begins anew behind the hole: its numbers do exist, and
			// must not be taken for numbers that never were.
			c.ring.clear()
		}
		c.drain() // keep is for proven connections, so it applies first or waits
		if c.more.waits {
			c.more.keep = true // and goes on with Drain
			return
		}
	}
	if c.round == nil {
		c.again = c.again || c.missing()
		c.finish()
	}
}

// forget clears what is known, or ends, as the policy says.
func (c *Cursor) forget(gone bool, to uint64) {
	if c.cfg.Lost == LostExit {
		c.declare(to, LostExit, gone)
		c.dropRound()
		c.Stop()
		return
	}
	c.declare(to, LostClear, gone)
	if gone {
		// As a restart: a buffer is the newest part of history, so what it has
		// next follows no hole; and an engine that lost history and one that was
		// replaced look alike.
		c.newEpoch(CauseLost)
		c.reopen()
		return
	}
	// Replay leads nowhere, so it is not begun again, and the live connection stays.
	c.dropRound()
	c.count.Discarded += c.held.dropReplayed()
	c.newEpoch(CauseLostGoingOn)
	c.proven = true
	if first, ok := c.held.min(); ok {
		c.base, c.next = first, first
		c.drain()
		c.again = c.missing()
		c.finish()
	} else {
		c.want()
	}
}

// declare says that the numbers from next to to are lost, and passes over them.
func (c *Cursor) declare(to uint64, policy Policy, gone bool) {
	from := c.next
	c.next = max(from, to)
	c.count.Losses++
	if gone {
		c.count.Gone++
	}
	c.count.Lost += c.next - from
	c.count.EpochLost += c.next - from
	c.host.Lost(from, c.next, policy)
}
