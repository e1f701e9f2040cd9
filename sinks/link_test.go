package sinks

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/zeebo/xxh3"

	"github.com/kvrelay/kvrelay/internal/freeport"
)

// patience is how long a test waits for a state before it fails.
const patience = 30 * time.Second

// eventually polls until ok.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	end := time.After(patience)
	for !ok() {
		select {
		case <-tick.C:
		case <-end:
			t.Fatalf("waited %v for: %s", patience, what)
		}
	}
}

// startServer runs a real nats-server.
func startServer(t testing.TB, change func(*server.Options)) *server.Server {
	t.Helper()
	o := &server.Options{Host: "127.0.0.1", Port: freeport.Next(t, 1), NoSigs: true, NoLog: true, NoSystemAccount: true, NoFastProducerStall: true}
	if change != nil {
		change(o)
	}
	s, err := server.NewServer(o)
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	if !s.ReadyForConnections(patience) {
		t.Fatal("nats-server is not ready")
	}
	t.Cleanup(func() { stopServer(s) })
	return s
}

// reloadable is a server whose options can be changed while it runs.
func reloadable(t testing.TB, change func(*server.Options)) (s *server.Server, reload func(func(*server.Options))) {
	t.Helper()
	var opts *server.Options
	s = startServer(t, func(o *server.Options) {
		if opts = o; change != nil {
			change(o)
		}
	})
	return s, func(change func(*server.Options)) {
		t.Helper()
		opts = opts.Clone()
		change(opts)
		if err := s.ReloadOptions(opts.Clone()); err != nil {
			t.Fatal(err)
		}
	}
}

func stopServer(s *server.Server) {
	s.Shutdown()
	s.WaitForShutdown()
}

// connect makes a consumer's connection.
func connect(t testing.TB, url string, opts ...nats.Option) *nats.Conn {
	t.Helper()
	closed := make(chan struct{})
	nc, err := nats.Connect(url, append(opts, nats.ClosedHandler(func(*nats.Conn) { close(closed) }))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close(); <-closed })
	return nc
}

// run starts p.Run, and ends and checks it with the test.
func run(t testing.TB, p *Publisher) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	var once sync.Once
	var err error
	stop = func() error {
		once.Do(func() {
			cancel()
			select {
			case err = <-done:
			case <-time.After(patience):
				t.Error("Run does not end")
			}
		})
		return err
	}
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return stop
}

func drained(t testing.TB, p *Publisher) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if n := p.Drain(ctx); n != 0 {
		t.Fatalf("%d events unconfirmed: %+v", n, p.State())
	}
}

// proxy is a TCP proxy whose links can be cut, frozen and slowed.
type proxy struct {
	l  net.Listener
	wg sync.WaitGroup

	mu     sync.Mutex
	target string
	links  map[net.Conn]struct{}
	count  int           // links accepted so far
	gate   chan struct{} // closed: data flows
	rate   int           // bytes a second from client to server; 0: any
	closed bool
}

func startProxy(t testing.TB, target string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	x := &proxy{l: l, target: target, links: map[net.Conn]struct{}{}, gate: make(chan struct{})}
	close(x.gate)
	x.wg.Add(1)
	go x.accept()
	t.Cleanup(func() {
		x.thaw()
		x.mu.Lock()
		x.closed = true
		x.mu.Unlock()
		_ = l.Close()
		x.cut()
		x.wg.Wait()
	})
	return x
}

func (x *proxy) url() string { return "nats://" + x.l.Addr().String() }

func (x *proxy) accept() {
	defer x.wg.Done()
	for {
		c, err := x.l.Accept()
		if err != nil {
			return
		}
		x.mu.Lock()
		target := x.target
		x.mu.Unlock()
		s, err := net.Dial("tcp", target)
		if err != nil {
			_ = c.Close()
			continue
		}
		_ = s.(*net.TCPConn).SetWriteBuffer(64 << 10)
		_ = c.(*net.TCPConn).SetReadBuffer(64 << 10)
		x.mu.Lock()
		if x.closed {
			_, _ = c.Close(), s.Close()
		}
		x.links[c], x.links[s] = struct{}{}, struct{}{}
		x.count++
		x.wg.Add(2)
		x.mu.Unlock()
		go x.copy(s, c, true)
		go x.copy(c, s, false)
	}
}

func (x *proxy) copy(dst, src net.Conn, up bool) {
	defer x.wg.Done()
	defer func() {
		_, _ = dst.Close(), src.Close()
		x.mu.Lock()
		delete(x.links, dst)
		delete(x.links, src)
		x.mu.Unlock()
	}()
	buf := make([]byte, 16<<10)
	for {
		x.mu.Lock()
		gate, rate := x.gate, x.rate
		x.mu.Unlock()
		<-gate
		b := buf
		if up && rate > 0 {
			b = buf[:max(1, rate/100)]
			<-time.After(10 * time.Millisecond)
		}
		n, err := src.Read(b)
		if n > 0 {
			if _, werr := dst.Write(b[:n]); werr != nil {
				return
			}
		}
		if err == io.EOF || err != nil {
			return
		}
	}
}

// cut ends every link now, with what is on its way.
func (x *proxy) cut() {
	x.mu.Lock()
	defer x.mu.Unlock()
	for c := range x.links {
		if tc, ok := c.(*net.TCPConn); ok {
			_ = tc.SetLinger(0)
		}
		_ = c.Close()
	}
}

// freeze keeps links open and lets nothing through.
func (x *proxy) freeze() {
	x.mu.Lock()
	defer x.mu.Unlock()
	select {
	case <-x.gate:
		x.gate = make(chan struct{})
	default:
	}
}

func (x *proxy) thaw() {
	x.mu.Lock()
	defer x.mu.Unlock()
	select {
	case <-x.gate:
	default:
		close(x.gate)
	}
}

func (x *proxy) set(target string, rate int) {
	x.mu.Lock()
	x.target, x.rate = target, rate
	x.mu.Unlock()
}

func (x *proxy) accepted() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.count
}

// consumer follows one rank as a router would, and fails the test on a gap or
// an inversion among the ids that it does not know yet.
type consumer struct {
	t       testing.TB
	profile Profile

	mu       sync.Mutex
	last     map[uint64]uint64    // by publisher
	order    []uint64             // publishers, as they came
	seqs     map[[2]uint64]uint64 // payload of each (publisher, sequence)
	state    fold
	repeats  int
	messages int
	broken   string
}

func follow(t testing.TB, nc *nats.Conn, subject string, profile Profile) *consumer {
	t.Helper()
	c := &consumer{t: t, profile: profile, last: map[uint64]uint64{}, seqs: map[[2]uint64]uint64{}, state: fold{}}
	sub, err := nc.Subscribe(subject, c.message)
	if err != nil {
		t.Fatal(err)
	}
	if err := sub.SetPendingLimits(-1, -1); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *consumer) message(m *nats.Msg) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.messages++
	payload := m.Data
	var pub, seq uint64
	if c.profile == JSON {
		if _, err := fmt.Sscan(m.Header.Get(publisherHeader), &pub); err != nil {
			c.fail("header: " + err.Error())
		}
	} else {
		var err error
		if pub, seq, _, payload, err = parseEnvelope(m.Data); err != nil {
			c.fail("envelope: " + err.Error())
			return
		}
		// One sequence never has two contents.
		id := [2]uint64{pub, seq}
		if was, ok := c.seqs[id]; ok && was != xxh3.Hash(payload) {
			c.fail(fmt.Sprintf("sequence %d came with two contents", seq))
		}
		c.seqs[id] = xxh3.Hash(payload)
	}
	evs, err := parseEvents(c.profile, payload)
	if err != nil {
		c.fail("payload: " + err.Error())
		return
	}
	last, known := c.last[pub]
	if !known {
		c.order = append(c.order, pub)
	} else if pub != c.order[len(c.order)-1] {
		c.fail("a message of an earlier publisher behind a later one's")
	}
	for i := range evs {
		if evs[i].id <= last {
			c.repeats++
			continue
		}
		if evs[i].id != last+1 {
			c.fail(fmt.Sprintf("id %d after %d", evs[i].id, last))
		}
		last = evs[i].id
		c.state.apply(&evs[i].e)
	}
	c.last[pub] = last
}

func (c *consumer) fail(what string) {
	if c.broken == "" {
		c.broken = what
		c.t.Error(what)
	}
}

func (c *consumer) lastOf(pub uint64) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last[pub]
}

// smallBuffers dials with a small send buffer, so that a frozen peer is felt at once.
func smallBuffers(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err == nil {
		err = c.(*net.TCPConn).SetWriteBuffer(16 << 10)
	}
	return c, err
}
