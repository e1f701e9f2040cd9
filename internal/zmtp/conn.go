// Package zmtp is one ZMTP 3 connection (https://rfc.zeromq.org/spec/23/ and
// /37/) as SUB or DEALER over TCP or a Unix socket.
//
// go-zeromq does the handshake; frames, limits, heartbeats and the finding of dead
// peers are ours. There is no reconnect here: after any error a Conn is dead and
// its owner makes another.
package zmtp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/kvrelay/kvrelay/internal/quicknet"
)

// Conn is one connection. One goroutine may call Recv and Buffered; everything
// else is safe beside it.
type Conn struct {
	nc          net.Conn
	endpoint    string
	heartbeat   time.Duration // ≤ 0: no PINGs
	peerTimeout time.Duration
	answers     bool // we send PINGs, and the peer's version of ZMTP has to answer them
	ttl         uint16
	start       time.Time

	in frameReader // owned by the caller of Recv

	waiting atomic.Int64 // since when the reader waits for bytes, from start; 0: it does not
	arrival arrival
	pings   pings
	pongs   chan pongContext

	writing sync.Mutex // held for a whole message or command

	failing sync.Mutex
	failed  atomic.Pointer[error] // the first error; set once, then stop is closed and nc too
	stop    chan struct{}
	kept    chan struct{} // closed when keep has returned
}

// Dial connects to endpoint, does the handshake and sends the subscriptions.
//
// endpoint is tcp://host:port (the name is looked up anew each time; IPv6 in
// brackets), ipc://path, or ipc://@name for an abstract socket (Linux). ctx bounds Dial
// only, not the life of the Conn. Errors: ErrEndpoint, ErrHandshake (then perhaps
// with a *PeerError or *FrameError), or net's own.
func Dial(ctx context.Context, endpoint string, o Options) (*Conn, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("zmtp %s: %w: %w", endpoint, ErrEndpoint, err)
	}
	nc, err := dial(ctx, endpoint, o)
	if err != nil {
		return nil, err
	}
	return open(ctx, nc, endpoint, o)
}

// Accept does the handshake on a connection that came in (from an engine whose
// PUB connects) and sends the subscriptions. It owns nc from now on and closes it on error.
// Errors are as Dial's.
func Accept(ctx context.Context, nc net.Conn, o Options) (*Conn, error) {
	endpoint := "ipc://" + nc.LocalAddr().String()
	if nc.LocalAddr().Network() != "unix" {
		endpoint = "tcp://" + nc.RemoteAddr().String()
	}
	o, err := o.withDefaults()
	if err != nil {
		nc.Close()
		return nil, fmt.Errorf("zmtp %s: %w: %w", endpoint, ErrEndpoint, err)
	}
	return open(ctx, nc, endpoint, o)
}

func open(ctx context.Context, nc net.Conn, endpoint string, o Options) (*Conn, error) {
	fail := func(err error) (*Conn, error) {
		nc.Close()
		return nil, fmt.Errorf("zmtp %s: %w: %w", endpoint, ErrHandshake, err)
	}
	if err := tune(nc, o); err != nil {
		return fail(err)
	}
	if err := nc.SetDeadline(time.Now().Add(o.HandshakeTimeout)); err != nil {
		return fail(err)
	}
	cut := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		nc.SetDeadline(time.Unix(1, 0))
		close(cut)
	})
	answers, err := handshake(nc, o)
	if err == nil && o.Type == SUB {
		_, err = nc.Write(subscribe(o.Subscriptions))
	}
	if !stop() {
		<-cut
		return fail(context.Cause(ctx))
	}
	if err == nil {
		err = nc.SetDeadline(time.Time{})
	}
	if err != nil {
		return fail(err)
	}

	c := &Conn{
		nc: quicknet.Wrap(nc), endpoint: endpoint, start: time.Now(),
		heartbeat: o.Heartbeat, peerTimeout: o.PeerTimeout, answers: answers && o.Heartbeat > 0,
		ttl:   uint16(min(ttlFactor*o.PeerTimeout/(100*time.Millisecond), maxTTL)),
		pongs: make(chan pongContext, maxPongs),
		stop:  make(chan struct{}), kept: make(chan struct{}),
	}
	c.in = frameReader{
		lim:  limits{frame: uint64(o.MaxFrame), message: uint64(o.MaxMessage), frames: o.MaxFrames},
		read: c.read, command: c.command,
	}
	if o.Type == DEALER {
		c.in.arrives = c.arrives
	}
	go c.keep()
	return c, nil
}

// tune makes TCP find out by itself that the peer is gone.
func tune(nc net.Conn, o Options) error {
	tc, ok := nc.(*net.TCPConn)
	if !ok {
		return nil // a Unix socket's peer cannot vanish silently
	}
	// A PING goes out within a Heartbeat of the cut; what is left of PeerTimeout is
	// for its acknowledgement.
	if err := setUserTimeout(tc, max(o.PeerTimeout-max(o.Heartbeat, 0), o.PeerTimeout/2)); err != nil {
		return fmt.Errorf("setting TCP_USER_TIMEOUT: %w", err)
	}
	every := max(o.PeerTimeout/5, time.Second)
	if err := tc.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: every, Interval: every, Count: 4}); err != nil {
		return fmt.Errorf("setting keepalive: %w", err)
	}
	return nil
}

// subscribe is the subscriptions as messages, which every PUB understands
// (commands only those of ZMTP 3.1).
func subscribe(topics []string) []byte {
	var b []byte
	for _, t := range topics {
		b = appendFrame(b, 0, []byte{1}, []byte(t))
	}
	return b
}

// Recv blocks for the next message. Its frames alias the Conn's buffer and are
// valid until the next Recv. Any error is final: the same comes again.
func (c *Conn) Recv() ([][]byte, error) {
	if err := c.failed.Load(); err != nil {
		return nil, *err
	}
	frames, err := c.in.next()
	if err != nil {
		return nil, c.fail(c.readError(err))
	}
	return frames, nil
}

// Buffered says whether Recv would return at once: a whole message has been
// read already.
func (c *Conn) Buffered() bool { return c.in.buffered() }

// read is where the reader waits for the peer.
func (c *Conn) read(p []byte) (int, error) {
	c.waiting.Store(max(1, int64(time.Since(c.start))))
	n, err := c.nc.Read(p)
	c.waiting.Store(0)
	return n, err
}

// Arrival is how far the newest message has come.
type Arrival struct {
	Bytes         int64     // read of it, at least; 0: there is none
	First, Newest time.Time // when the first and the newest of its bytes were read
	Whole         bool      // Recv returns it, or has returned it and not been called again
}

// arrival is the same as the reader writes it; times are from Conn.start. It is for
// replies alone: a live connection has no use for it, and more messages.
type arrival struct {
	bytes, from, newest atomic.Int64
	whole               atomic.Bool
}

func (c *Conn) arrives(n int, whole bool) {
	a := &c.arrival
	if n == 0 {
		a.bytes.Store(0)
		a.whole.Store(false)
		return
	}
	now := int64(time.Since(c.start))
	if a.bytes.Load() == 0 {
		a.from.Store(now)
	}
	a.newest.Store(now)
	a.whole.Store(whole)
	a.bytes.Store(int64(n))
}

// Arriving tells of the message that is coming, or that is in the hands of Recv's
// caller. Heartbeats between its bytes do not count. Of a SUB it tells nothing.
func (c *Conn) Arriving() Arrival {
	a := &c.arrival
	n := a.bytes.Load()
	if n == 0 {
		return Arrival{}
	}
	at := func(d *atomic.Int64) time.Time { return c.start.Add(time.Duration(d.Load())) }
	return Arrival{Bytes: n, First: at(&a.from), Newest: at(&a.newest), Whole: a.whole.Load()}
}

// command takes a command in the reader's stead: it must not wait.
func (c *Conn) command(body []byte) error {
	name, data, ok := splitCommand(body)
	if !ok {
		return &FrameError{Reason: BadCommand, Got: uint64(len(body))}
	}
	switch string(name) {
	case "PING":
		if len(data) < pingTTL {
			return &FrameError{Reason: BadCommand, Got: uint64(len(body))}
		}
		var ctx pongContext
		ctx.n = copy(ctx.b[:], data[pingTTL:])
		select {
		case c.pongs <- ctx:
		default:
		}
	case "PONG":
		c.pings.pong(data)
	case "ERROR":
		return &PeerError{Reason: errorReason(data)}
	}
	return nil // RFC 23 lets later versions send what we do not know
}

// Send writes one message. It waits at most PeerTimeout for the peer to take it.
func (c *Conn) Send(frames ...[]byte) error {
	if len(frames) == 0 {
		return fmt.Errorf("zmtp %s: message without frames", c.endpoint)
	}
	if err := c.failed.Load(); err != nil {
		return *err
	}
	var b []byte
	for i, f := range frames {
		var flags byte
		if i < len(frames)-1 {
			flags = flagMore
		}
		b = appendFrame(b, flags, f)
	}
	if err := c.write(b); err != nil {
		if isTimeout(err) {
			return c.fail(c.deadError("nothing taken"))
		}
		return c.fail(fmt.Errorf("zmtp %s: %w", c.endpoint, err))
	}
	return nil
}

func (c *Conn) write(b []byte) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	if err := c.nc.SetWriteDeadline(time.Now().Add(c.peerTimeout)); err != nil {
		return err
	}
	_, err := c.nc.Write(b)
	return err
}

// LastPong is when the newest answered PING was sent; zero while none was. At
// some moment after it the peer was alive and this connection whole.
func (c *Conn) LastPong() time.Time { return c.pings.lastPong() }

// PongSince says whether a PING sent after t has been answered.
func (c *Conn) PongSince(t time.Time) bool { return c.pings.lastPong().After(t) }

// RemoteAddr is the peer's address.
func (c *Conn) RemoteAddr() net.Addr { return c.nc.RemoteAddr() }

// Endpoint names the connection in errors and logs.
func (c *Conn) Endpoint() string { return c.endpoint }

// Close ends the connection: Recv and Send return ErrClosed. It waits for the
// Conn's own goroutine (not for the caller of Recv) and may be called again.
func (c *Conn) Close() error {
	c.fail(fmt.Errorf("zmtp %s: %w", c.endpoint, ErrClosed))
	<-c.kept
	return nil
}

// fail makes err the Conn's last word, unless there is one already, and returns that.
func (c *Conn) fail(err error) error {
	c.failing.Lock()
	defer c.failing.Unlock()
	if first := c.failed.Load(); first != nil {
		return *first
	}
	c.failed.Store(&err)
	close(c.stop)
	c.nc.Close()
	return err
}

func (c *Conn) deadError(what string) error {
	return fmt.Errorf("zmtp %s: %w: %s for %v", c.endpoint, ErrPeerDead, what, c.peerTimeout)
}

// pingRefusal is within what time after a first PING a close counts as its answer.
const pingRefusal = time.Second

// readError words what ended the reading.
func (c *Conn) readError(err error) error {
	var frame *FrameError
	var peer *PeerError
	switch {
	case errors.As(err, &frame), errors.As(err, &peer):
		return fmt.Errorf("zmtp %s: %w", c.endpoint, err)
	case isTimeout(err):
		return c.deadError("nothing acknowledged")
	}
	if errors.Is(err, io.EOF) {
		err = fmt.Errorf("closed by the peer: %w", io.EOF)
	} else if errors.Is(err, io.ErrUnexpectedEOF) {
		err = fmt.Errorf("closed by the peer within a message: %w", io.ErrUnexpectedEOF)
	}
	if t, ok := c.pings.unanswered(); ok && time.Since(t) < pingRefusal {
		err = fmt.Errorf("%w: %w", ErrPingRefused, err)
	}
	return fmt.Errorf("zmtp %s: %w", c.endpoint, err)
}

// isTimeout: our own deadline has passed, or TCP has given the peer up. It then
// names what ICMP told it last, if anything: no route to a pod that is gone.
func isTimeout(err error) bool {
	return errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, syscall.ETIMEDOUT) ||
		errors.Is(err, syscall.EHOSTUNREACH) || errors.Is(err, syscall.ENETUNREACH)
}
