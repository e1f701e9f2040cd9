package relay

import "sync"

// credit is the account of OUT_BYTES: router events that NATS has not yet
// confirmed, of the whole process. A stream takes credit before its lock and
// never waits for it: without credit it discards live batches, which the
// engine's replay buffer still has, and asks for them when a fair share is
// free again. So an outage costs no memory however long it is.
type credit struct {
	max int64

	mu      sync.Mutex
	used    int64
	streams map[*Stream]*account
}

// account is one stream's part; guarded by credit.mu.
type account struct {
	used    int64
	waiting bool // was refused, and is told when credit is back
}

// portion is how many bytes of held batches are applied under one lock and with
// one credit at most: an eighth of OUT_BYTES, up to a mebibyte, which takes a
// millisecond or two.
func (r *Relay) portion() int { return int(max(1, min(r.o.OutBytes/8, 1<<20))) }

// portion is at most so many bytes, and a stream's minimum share: more would be
// refused for as long as busier ones use up the rest.
func (c *credit) portion(most int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return int(max(1, min(int64(most), c.share())))
}

func newCredit(max int64) *credit {
	return &credit{max: max, streams: map[*Stream]*account{}}
}

func (c *credit) join(s *Stream) {
	c.mu.Lock()
	c.streams[s] = &account{}
	c.mu.Unlock()
}

// leave forgets s. What it still has unconfirmed stays charged until released.
func (c *credit) leave(s *Stream) {
	c.mu.Lock()
	delete(c.streams, s)
	c.mu.Unlock()
}

// open says whether s has not been refused since credit last came back.
func (c *credit) open(s *Stream) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	a := c.streams[s]
	return a != nil && !a.waiting
}

// take charges n bytes to s. It refuses when the bound is reached, except that
// each stream may always use its own minimum share, and that what is larger than the bound passes when nothing else is waiting.
func (c *credit) take(s *Stream, n int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	a := c.streams[s]
	if a == nil {
		return false
	}
	if a.waiting {
		return false // until resume: else a stream would trickle one batch at a time
	}
	if c.used+int64(n) > c.max && a.used+int64(n) > c.share() && c.used > 0 {
		a.waiting = true
		return false
	}
	c.used += int64(n)
	a.used += int64(n)
	return true
}

// settle corrects what take charged for a batch to what it really became.
func (c *credit) settle(s *Stream, delta int) {
	if delta == 0 {
		return
	}
	c.mu.Lock()
	c.used += int64(delta)
	if a := c.streams[s]; a != nil {
		a.used = max(0, a.used+int64(delta)) // what an ended stream left may be released through its heir
	}
	resumed := c.resumable()
	c.mu.Unlock()
	wake(resumed)
}

// release gives n confirmed bytes of s back and wakes streams that wait for credit.
func (c *credit) release(s *Stream, n int) { c.settle(s, -n) }

// resumable marks and returns the streams that may go on: when half of the
// bound is free again, not at the first byte, or half of the stream's own
// minimum share, so that busier ones cannot starve it. c.mu is held.
func (c *credit) resumable() []*Stream {
	var rs []*Stream
	for s, a := range c.streams {
		if a.waiting && (c.used <= c.max/2 || a.used <= c.share()/2) {
			a.waiting = false
			rs = append(rs, s)
		}
	}
	return rs
}

// share is a stream's minimum: a quarter of an equal one. c.mu is held.
func (c *credit) share() int64 { return c.max / int64(4*max(1, len(c.streams))) }

func wake(streams []*Stream) {
	for _, s := range streams {
		s.creditBack()
	}
}

// unconfirmed is how many bytes are charged now.
func (c *credit) unconfirmed() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.used
}
