package load

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Publisher is one rank: a PUB and a replay ROUTER on loopback ports of their
// own. Call Listen, then Run; Publish while Run runs.
type Publisher struct {
	gen    *Generator
	events net.Listener
	replay net.Listener

	next     atomic.Uint64 // number of the next batch
	replayed atomic.Uint64 // batches in answers
	requests atomic.Uint64

	mu      sync.Mutex
	subs    map[*peer]struct{} // guarded by mu
	conns   map[net.Conn]struct{}
	changed chan struct{} // closed and replaced when subs changes
	closed  bool
}

// NewPublisher publishes g's batches. It does no I/O.
func NewPublisher(g *Generator) *Publisher {
	return &Publisher{gen: g, subs: map[*peer]struct{}{}, conns: map[net.Conn]struct{}{}, changed: make(chan struct{})}
}

// Listen opens both sockets on free ports of 127.0.0.1.
func (p *Publisher) Listen() (err error) {
	if p.events, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return err
	}
	if p.replay, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		p.events.Close()
	}
	return err
}

// Endpoint and ReplayEndpoint are where the sockets are, after Listen.
func (p *Publisher) Endpoint() string { return "tcp://" + p.events.Addr().String() }

// ReplayEndpoint: see Endpoint.
func (p *Publisher) ReplayEndpoint() string { return "tcp://" + p.replay.Addr().String() }

// Preload makes the batches below n ones that were published before anybody
// subscribed. To be called before Publish.
func (p *Publisher) Preload(n uint64) { p.next.Store(n) }

// Published is how many batches there are so far.
func (p *Publisher) Published() uint64 { return p.next.Load() }

// Replays is how many replay requests were answered, with how many batches.
func (p *Publisher) Replays() (requests, batches uint64) {
	return p.requests.Load(), p.replayed.Load()
}

// Run serves until ctx ends, then closes everything and waits for it.
func (p *Publisher) Run(ctx context.Context) {
	var wg sync.WaitGroup
	stop := context.AfterFunc(ctx, p.close)
	defer stop()
	wg.Go(func() { p.serve(p.events, "PUB", p.subscriber, &wg) })
	wg.Go(func() { p.serve(p.replay, "ROUTER", p.requester, &wg) })
	wg.Wait()
}

func (p *Publisher) close() {
	p.events.Close()
	p.replay.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for c := range p.conns {
		c.Close()
	}
}

func (p *Publisher) serve(l net.Listener, socket string, handle func(*peer) error, wg *sync.WaitGroup) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return // closed; a process without descriptors has no use for a load
		}
		p.mu.Lock()
		if p.closed {
			conn.Close()
		}
		p.conns[conn] = struct{}{}
		p.mu.Unlock()
		wg.Go(func() {
			if peer, err := accept(conn, socket); err == nil {
				_ = handle(peer) // the relay dials again
			}
			conn.Close()
			p.mu.Lock()
			delete(p.conns, conn)
			p.mu.Unlock()
		})
	}
}

// subscriber reads what a SUB sends: its subscription makes it one.
func (p *Publisher) subscriber(c *peer) error {
	defer p.change(func() { delete(p.subs, c) })
	for {
		flags, body, err := c.frame()
		if err != nil {
			return err
		}
		if flags&command == 0 && len(body) > 0 && body[0] == 1 {
			p.change(func() { p.subs[c] = struct{}{} })
		}
	}
}

func (p *Publisher) change(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
	close(p.changed)
	p.changed = make(chan struct{})
}

// subscribers are the present ones; waits for one until ctx ends.
func (p *Publisher) subscribers(ctx context.Context, dst []*peer) ([]*peer, error) {
	for {
		p.mu.Lock()
		dst = dst[:0]
		for c := range p.subs {
			dst = append(dst, c)
		}
		changed := p.changed
		p.mu.Unlock()
		if len(dst) > 0 {
			return dst, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// requester answers replay requests, one after the other.
func (p *Publisher) requester(c *peer) error {
	var payload []byte
	for {
		delimiter, body, err := c.frame()
		if err != nil {
			return err
		}
		if delimiter&more == 0 || len(body) != 0 {
			return errProtocol
		}
		_, body, err = c.frame()
		if err != nil {
			return err
		}
		if len(body) != 8 {
			return errProtocol
		}
		p.requests.Add(1)
		end := p.next.Load()
		for seq := binary.BigEndian.Uint64(body); seq < end; seq++ {
			payload = p.gen.Append(payload[:0], seq)
			if err := c.batch(true, seq, payload, false); err != nil {
				return err
			}
			p.replayed.Add(1)
		}
		if err := c.batch(true, 1<<64-1, nil, true); err != nil {
			return err
		}
	}
}

// Publish sends batches until ctx ends or max are out; 0: no end. rate is
// batches a second; 0: as fast as the subscriber takes them. sending is called
// right before each one leaves; nil: nobody is told. It waits for a subscriber.
func (p *Publisher) Publish(ctx context.Context, rate float64, max uint64, sending func(seq uint64)) error {
	var subs []*peer
	var payload []byte
	began := time.Now()
	for n := uint64(0); (max == 0 || n < max) && ctx.Err() == nil; n++ {
		if rate > 0 {
			due := began.Add(time.Duration(float64(n) / rate * float64(time.Second)))
			if wait := time.Until(due); wait > 0 && !sleep(ctx, wait) {
				break
			}
		}
		var err error
		if n&63 == 0 || len(subs) == 0 || rate > 0 { // a new one is noticed soon; it asks replay for what it missed
			if subs, err = p.subscribers(ctx, subs); err != nil {
				break
			}
		}
		seq := p.next.Load()
		if seq >= maxSeq {
			return errors.New("load: out of numbers")
		}
		payload = p.gen.Append(payload[:0], seq)
		if sending != nil {
			sending(seq)
		}
		// Before it is written: a replay that is asked for it must have it.
		p.next.Store(seq + 1)
		for i := 0; i < len(subs); i++ {
			if subs[i].batch(false, seq, payload, rate > 0) != nil {
				subs = append(subs[:i], subs[i+1:]...)
				i--
			}
		}
	}
	for _, c := range subs {
		_ = c.flush() // the relay has gone, or asks replay for it
	}
	return nil
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
