package membership

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"
)

const (
	// maxConns bounds the routers' connections; each pools one or a few. For a
	// further one the connection is closed that nothing has come over for longest:
	// so whoever holds many open keeps no router out. Answers have connections of
	// their own, and a router whose pooled one has gone makes another.
	maxConns = 256
	// maxAnswers bounds the answers being made or sent; a request beyond is not
	// acknowledged and its connection closed, so that the router asks again.
	maxAnswers = 64
	// requestTime is how long a request may take to arrive once it has begun,
	// and its acknowledgement to be taken.
	requestTime = 5 * time.Second
	// acceptPause follows a failed accept (no descriptors left).
	acceptPause = 100 * time.Millisecond
)

// server is Dynamo's request plane, as far as recovery needs it. Over TCP
// requests come over pooled connections and are acknowledged there (over NATS:
// natsPlane); each answer goes over a connection of its own to the address that
// the request names.
type server struct {
	log     *slog.Logger
	answers chan struct{} // a token per answer
	dumps   chan struct{} // a token per dump

	mu    sync.Mutex
	ranks map[string]*served     // by path
	conns map[net.Conn]time.Time // when it came, or its newest request began
}

// served is a rank whose requests are answered.
type served struct {
	src  Source
	dump chan struct{} // a token per dump of the rank
}

func newServer(log *slog.Logger) *server {
	return &server{
		log:     log,
		answers: make(chan struct{}, maxAnswers),
		dumps:   make(chan struct{}, maxDumps),
		ranks:   map[string]*served{},
		conns:   map[net.Conn]time.Time{},
	}
}

// add has requests with that path answered from src, until remove is called.
func (s *server) add(path string, src Source) (remove func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ranks[path] = &served{src: src, dump: make(chan struct{}, 1)}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.ranks, path)
	}
}

// workers are those with a rank that is answered.
func (s *server) workers() []uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	var ids []uint64
	for _, r := range s.ranks {
		if id := r.src.WorkerID(); !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	return ids
}

// begin counts an answer in, until done is called; false: there are too many.
func (s *server) begin() bool {
	select {
	case s.answers <- struct{}{}:
		return true
	default:
		s.log.Warn("too many recovery requests at once: one is refused, its router asks again", "limit", maxAnswers)
		return false
	}
}

func (s *server) done() { <-s.answers }

func (s *server) find(path string) *served {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ranks[path]
}

// listen opens addr and says what to advertise for it.
func listen(ctx context.Context, addr string) (ln net.Listener, target string, err error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, "", err
	}
	var lc net.ListenConfig
	ln, err = lc.Listen(ctx, "tcp", net.JoinHostPort(host, port))
	if err != nil {
		return nil, "", err
	}
	a := ln.Addr().(*net.TCPAddr)
	ip := a.IP
	if ip.IsUnspecified() {
		ip = outward()
	}
	return ln, (&net.TCPAddr{IP: ip, Port: a.Port, Zone: a.Zone}).String(), nil
}

// outward is the address that this host's packets to others carry: the one at
// which others reach the host or pod. Without a route: loopback.
func outward() net.IP {
	for _, peer := range []string{"192.0.2.1:9", "[2001:db8::1]:9"} { // addresses for documentation; nothing is sent
		c, err := net.Dial("udp", peer)
		if err != nil {
			continue
		}
		ip := c.LocalAddr().(*net.UDPAddr).IP
		c.Close()
		return ip
	}
	return net.IPv4(127, 0, 0, 1)
}

// run serves until ctx ends, and waits for everything that it started.
func (s *server) run(ctx context.Context, ln net.Listener) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	defer wg.Wait()
	stop := context.AfterFunc(ctx, func() {
		ln.Close()
		s.mu.Lock()
		defer s.mu.Unlock()
		for c := range s.conns {
			c.Close()
		}
	})
	defer stop()
	for {
		c, err := ln.Accept()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				c.Close()
			}
			return
		case err != nil:
			s.log.Warn("a router's connection cannot be accepted", "error", err)
			sleep(ctx, acceptPause)
		case !s.admit(ctx, c):
			c.Close()
		default:
			wg.Go(func() {
				defer s.leave(c)
				s.serve(ctx, c, &wg)
			})
		}
	}
}

// admit counts a connection in, and has the idlest make room where there are too
// many; false: ctx has ended.
func (s *server) admit(ctx context.Context, c net.Conn) bool {
	s.mu.Lock()
	if ctx.Err() != nil {
		s.mu.Unlock()
		return false
	}
	var idlest net.Conn // that has to go; nil: none
	var since time.Time
	if len(s.conns) >= maxConns {
		for c, at := range s.conns {
			if idlest == nil || at.Before(since) {
				idlest, since = c, at
			}
		}
		delete(s.conns, idlest)
	}
	s.conns[c] = time.Now()
	s.mu.Unlock()
	if idlest != nil {
		idlest.Close()
		s.log.Warn("too many connections to the recovery address: the one that was idle for longest is closed",
			"limit", maxConns, "from", idlest.RemoteAddr().String(), "idle", time.Since(since).Round(time.Second).String())
	}
	return true
}

// active notes that a request begins; false: the connection was closed meanwhile.
func (s *server) active(c net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, open := s.conns[c]
	if open {
		s.conns[c] = time.Now()
	}
	return open
}

func (s *server) leave(c net.Conn) {
	c.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
}

// serve reads a connection's requests until it ends, or sends what is none.
func (s *server) serve(ctx context.Context, c net.Conn, wg *sync.WaitGroup) {
	r := bufio.NewReader(c)
	for {
		_ = c.SetReadDeadline(time.Time{}) // fails only on a closed connection, as reading does
		if _, err := r.Peek(1); err != nil {
			return // the pool's end, or ours: nothing is owed
		}
		if !s.active(c) {
			return
		}
		_ = c.SetDeadline(time.Now().Add(requestTime))
		path, body, err := readRequest(r)
		var req request
		if err == nil {
			req, err = parseBody(path, body)
		}
		if err != nil {
			if !errors.Is(err, net.ErrClosed) && !errors.Is(err, io.ErrUnexpectedEOF) {
				s.log.Warn("a connection to the recovery address is closed: it does not speak as a Dynamo router does", "from", c.RemoteAddr().String(), "error", err)
			}
			return
		}
		req.local = fromHere(c)
		if !s.begin() {
			return
		}
		if _, err := c.Write([]byte{0, 0, 0, 0}); err != nil {
			s.done()
			return
		}
		wg.Go(func() {
			defer s.done()
			s.answer(ctx, &req)
		})
	}
}
