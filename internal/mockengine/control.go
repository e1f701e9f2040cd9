package mockengine

import (
	"context"
	"errors"
)

// What can be done to a Publisher while it runs. Every method leaves both
// sockets in the same state; an engine without replay has only one.

func (p *Publisher) gates(do func(*Gate)) {
	do(p.events)
	if p.replay != nil {
		do(p.replay)
	}
}

func (p *Publisher) drop() {
	p.pub.drop()
	if p.router != nil {
		p.router.drop()
	}
}

func (p *Publisher) fresh() {
	p.next, p.history = 0, nil
	p.incarnation++
	p.inj.Started()
}

// Restart is a new process at the same address at once: connections close,
// numbers begin at 0 and the replay buffer is empty.
func (p *Publisher) Restart() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drop()
	p.gates(func(g *Gate) { g.Cut(false) })
	p.fresh()
}

// Kill is the end of the process: connections end in mid-frame, connecting is
// refused until Start.
func (p *Publisher) Kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gates((*Gate).Refuse)
	p.drop()
	p.gates(func(g *Gate) { g.Cut(true) })
	p.fresh()
}

// Start lets clients in again after Kill.
func (p *Publisher) Start() error {
	var err error
	p.gates(func(g *Gate) { err = errors.Join(err, g.Admit()) })
	return err
}

// Cut ends the connections in mid-frame; the process lives on.
func (p *Publisher) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drop()
	p.gates(func(g *Gate) { g.Cut(true) })
}

// Freeze stops the sockets, connections included, as SIGSTOP does.
func (p *Publisher) Freeze() { p.gates((*Gate).Freeze) }

// Thaw ends Freeze.
func (p *Publisher) Thaw() { p.gates((*Gate).Thaw) }

// HalfOpen leaves the clients with connections that stand still for good, as
// when a host loses its power; a new process answers at the address.
func (p *Publisher) HalfOpen() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gates((*Gate).HalfOpen)
	p.drop()
	p.fresh()
}

// DropNext keeps the next n batches off PUB; the replay has them.
func (p *Publisher) DropNext(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.skip = n
}

// Burn draws n numbers that are never used.
func (p *Publisher) Burn(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for range n {
		p.burn()
	}
}

// Garbage publishes a payload that is no batch, with a number of its own.
func (p *Publisher) Garbage() (seq uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.send(p.inj.Garbage(), false, true)
}

// EvictHistory makes the replay buffer forget all but the last keep batches.
func (p *Publisher) EvictHistory(keep int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.history) - keep; n > 0 {
		p.history = append([]buffered(nil), p.history[n:]...)
	}
}

// Silence makes the ROUTER take requests without answering, or ends that.
func (p *Publisher) Silence(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.silent = on
}

// OpenReplay and CloseReplay let clients to the ROUTER, or refuse them.
func (p *Publisher) OpenReplay() error {
	if p.replay == nil {
		return nil
	}
	return p.replay.Admit()
}

// CloseReplay: see OpenReplay.
func (p *Publisher) CloseReplay() {
	if p.replay == nil {
		return
	}
	p.replay.Refuse()
	p.router.drop()
	p.replay.Cut(false)
}

// NextSeq is the number that the next batch will have.
func (p *Publisher) NextSeq() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.next
}

// Incarnation counts the restarts.
func (p *Publisher) Incarnation() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.incarnation
}

// Buffered is the replay buffer's length and its oldest number.
func (p *Publisher) Buffered() (n int, oldest uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.history) == 0 {
		return 0, 0
	}
	return len(p.history), p.history[0].seq
}

// Dropped counts the messages that found a client's queue full: on PUB, and on
// the ROUTER; of the clients connected now.
func (p *Publisher) Dropped() (events, replies uint64) {
	events = p.pub.dropped()
	if p.router != nil {
		replies = p.router.dropped()
	}
	return events, replies
}

// WaitSubscribers returns when n clients have subscribed.
func (p *Publisher) WaitSubscribers(ctx context.Context, n int) error {
	return p.pub.await(ctx, func() bool { return p.pub.subscribers() >= n })
}

// Subscribers is how many clients have subscribed.
func (p *Publisher) Subscribers() int {
	p.pub.mu.Lock()
	defer p.pub.mu.Unlock()
	return p.pub.subscribers()
}

// Flush returns when everything sent has been handed to the kernel. A client
// that does not read keeps it waiting until ctx ends.
func (p *Publisher) Flush(ctx context.Context) error {
	if err := p.pub.await(ctx, p.pub.drained); err != nil || p.router == nil {
		return err
	}
	return p.router.await(ctx, p.router.drained)
}
