package zmtp

import (
	"encoding/binary"
	"sync"
	"time"
)

const (
	pingTTL     = 2  // bytes of TTL in a PING, tenths of a second
	maxContext  = 16 // bytes of context in a PING (RFC 37)
	maxPings    = 64 // PINGs whose time is remembered; an answer to an older one moves LastPong no more
	maxPongs    = 16 // PONGs waiting to be written; a peer that asks faster gets no more
	pingContext = 8  // bytes of our own context: the PING's number

	// ttlFactor times PeerTimeout is the TTL we send: after so much silence of ours
	// an engine drops us and what it holds for us. Much longer than it takes us
	// to drop the engine: a relay that was merely stopped for a while is kept.
	ttlFactor = 3
	maxTTL    = 65535
)

// pings remembers when each PING was sent until it is answered.
type pings struct {
	mu       sync.Mutex
	sent     [maxPings]time.Time // by number, modulo
	next     uint64              // number of the next PING
	answered uint64              // PINGs below it are answered, or passed over
	first    time.Time           // when number 0 was sent
	last     time.Time           // when the newest answered one was sent
}

// add numbers a PING sent at t.
func (p *pings) add(t time.Time) (n uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n = p.next
	if n == 0 {
		p.first = t
	}
	p.sent[n%maxPings] = t
	p.next++
	return n
}

// pong takes an answer; false when no PING waits for one. An old libzmq (before
// 4.3) echoes no context: PONGs come in the order of the PINGs, so it is taken as the answer
// to the oldest, which claims too little rather than too much.
func (p *pings) pong(context []byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.answered
	if len(context) == pingContext {
		n = max(n, binary.BigEndian.Uint64(context))
	}
	if n >= p.next {
		return false
	}
	p.answered = n + 1
	if p.next-n <= maxPings {
		p.last = p.sent[n%maxPings]
	}
	return true
}

func (p *pings) lastPong() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.last
}

// unanswered is when the first PING was sent, as long as none has been answered.
func (p *pings) unanswered() (first time.Time, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.first, p.next > 0 && p.answered == 0
}

// pongContext is the context of a PING, to be echoed.
type pongContext struct {
	b [maxContext]byte
	n int
}

// keep is the Conn's own goroutine: it sends PINGs and PONGs and finds out that
// the peer is dead. It never reads, so a busy reader delays no heartbeat.
func (c *Conn) keep() {
	defer close(c.kept)
	var tick <-chan time.Time
	var timer *time.Timer
	next := time.Now().Add(c.heartbeat / 8) // early: of ZMTP 3.0 peers only who has answered is judged by answers
	due := next
	if c.heartbeat > 0 {
		timer = time.NewTimer(time.Until(due))
		defer timer.Stop()
		tick = timer.C
	}
	for {
		select {
		case <-c.stop:
			return
		case ctx := <-c.pongs:
			if !c.keepWriting(appendCommand(nil, "PONG", ctx.b[:ctx.n])) {
				return
			}
		case <-tick:
			now := time.Now()
			if !now.Before(next) {
				n := c.pings.add(now)
				ping := binary.BigEndian.AppendUint16(nil, c.ttl)
				if !c.keepWriting(appendCommand(nil, "PING", binary.BigEndian.AppendUint64(ping, n))) {
					return
				}
				next = now.Add(c.heartbeat)
			}
			dead := c.deadAt(now)
			if !now.Before(dead) {
				// When this tick comes late, so may have the reader: the whole process
				// was stopped. Let it read what has arrived meanwhile.
				if grace := c.peerTimeout / 10; now.Sub(due) > grace {
					dead = now.Add(grace)
				} else {
					c.fail(c.deadError("nothing received"))
					return
				}
			}
			due = next
			if dead.Before(due) {
				due = dead
			}
			timer.Reset(time.Until(due))
		}
	}
}

// deadAt is when the peer is dead if it stays silent; far off while the reader
// is not waiting for it, or while nothing says that it answers PINGs: neither its
// version (3.1 does, libzmq ≥ 4.3) nor an answer so far. Else an engine that
// freezes before its first answer would never be found.
func (c *Conn) deadAt(now time.Time) time.Time {
	waiting := c.waiting.Load()
	if waiting == 0 || !c.answers && c.pings.lastPong().IsZero() {
		return now.Add(c.peerTimeout)
	}
	return c.start.Add(time.Duration(waiting)).Add(c.peerTimeout)
}

// keepWriting writes a heartbeat; false when there is no more use in it. A
// broken pipe is left to the reader to find, behind what the peer sent before.
func (c *Conn) keepWriting(b []byte) bool {
	err := c.write(b)
	if err == nil {
		return true
	}
	if isTimeout(err) {
		c.fail(c.deadError("nothing taken"))
	} else {
		c.nc.SetReadDeadline(time.Now().Add(c.peerTimeout))
	}
	return false
}
