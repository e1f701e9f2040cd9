package mockengine

import (
	"context"
	"errors"
	"net"
	"sync"

	"github.com/go-zeromq/zmq4"
)

// socket is the common part of PUB and ROUTER: clients, each with a bounded
// queue of its own that drops when it is full, as libzmq's pipes do. Nothing
// here ever waits for a client.
type socket struct {
	typ     zmq4.SocketType
	gate    *Gate
	hwm     int
	request func(p *peer, frames [][]byte) // ROUTER: a message came in

	mu    sync.Mutex
	peers map[*peer]struct{}
	moved chan struct{} // closed and made anew by changed while somebody waits
}

func newSocket(typ zmq4.SocketType, gate *Gate, hwm int, request func(*peer, [][]byte)) *socket {
	return &socket{typ: typ, gate: gate, hwm: hwm, request: request, peers: map[*peer]struct{}{}}
}

// run serves until ctx ends, then closes every connection and waits for all.
func (s *socket) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = s.gate.Close() }) // the listener's end is what was wanted
	defer stop()
	var clients sync.WaitGroup
	defer clients.Wait()
	for {
		conn, err := s.gate.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return errors.Join(err, s.gate.Close())
		}
		clients.Go(func() { s.serve(conn) })
	}
}

// serve is the life of one client. Why a client left is its own business:
// engines do not say either.
func (s *socket) serve(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	if handshake(conn, s.typ) != nil {
		return
	}
	p := &peer{conn: conn, socket: s, topics: map[string]int{}}
	p.wake.L = &s.mu
	s.mu.Lock()
	s.peers[p] = struct{}{}
	s.changed()
	s.mu.Unlock()
	var writer sync.WaitGroup
	writer.Go(p.write)
	_ = p.read()
	s.leave(p)
	writer.Wait()
}

// leave forgets a client and closes its connection, which ends its goroutines.
func (s *socket) leave(p *peer) {
	s.mu.Lock()
	s.forget(p)
	s.mu.Unlock()
	_ = p.conn.Close()
}

func (s *socket) forget(p *peer) {
	delete(s.peers, p)
	p.gone = true
	p.queue, p.pongs = nil, nil
	p.wake.Broadcast()
	s.changed()
}

// drop forgets every client at once, so that nothing sent from now on is on an
// old connection. What becomes of the connections is the gate's matter.
func (s *socket) drop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for p := range s.peers {
		s.forget(p)
	}
}

// received is called with each message of a client. A subscription is a
// message of one frame: 1 or 0, then the prefix (ZMTP 3.0).
func (s *socket) received(p *peer, frames [][]byte) {
	if s.request != nil {
		s.request(p, frames)
		return
	}
	if len(frames) != 1 || len(frames[0]) == 0 || frames[0][0] > 1 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p.subscribe(string(frames[0][1:]), 2*int(frames[0][0])-1)
}

// publish sends m to every client that wants its first frame.
func (s *socket) publish(m message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	topic := string(m[0])
	for p := range s.peers {
		if p.wants(topic) {
			p.put(m)
		}
	}
}

// reply sends m to one client. False: it is gone or its queue is full.
func (s *socket) reply(p *peer, m message) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return p.put(m)
}

// changed wakes those who wait for a state of the clients; mu is held.
func (s *socket) changed() {
	if s.moved != nil {
		close(s.moved)
		s.moved = nil
	}
}

// await returns when ok does, or with ctx's error. ok is called with mu held.
func (s *socket) await(ctx context.Context, ok func() bool) error {
	for {
		s.mu.Lock()
		if ok() {
			s.mu.Unlock()
			return nil
		}
		if s.moved == nil {
			s.moved = make(chan struct{})
		}
		moved := s.moved
		s.mu.Unlock()
		select {
		case <-moved:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// drained reports whether everything sent has been written; mu is held.
func (s *socket) drained() bool {
	for p := range s.peers {
		if len(p.queue) > 0 || p.busy {
			return false
		}
	}
	return true
}

// subscribers is the number of clients with a subscription; mu is held.
func (s *socket) subscribers() int {
	n := 0
	for p := range s.peers {
		if len(p.topics) > 0 {
			n++
		}
	}
	return n
}

// dropped is how many messages found a full queue, of the clients there now.
func (s *socket) dropped() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	var n uint64
	for p := range s.peers {
		n += p.dropped
	}
	return n
}
