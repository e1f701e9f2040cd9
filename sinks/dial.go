package sinks

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/kvrelay/kvrelay/internal/quicknet"
)

// minMaxPayload is the least max_payload that every event, also as a recovery
// answer, fits into except a store with a long session id or many multimodal
// objects. A server that allows less is not used. JetStream messages have longer headers.
const (
	minMaxPayload       = 768
	minMaxPayloadStream = 2048
)

// timing is how long things may take; tests shorten it.
type timing struct {
	// dial bounds one TCP dial, and each read of the handshake behind it.
	dial time.Duration
	// write bounds one write to the socket. A link that takes nothing for so
	// long is given up; what it swallowed is sent again on the next.
	write time.Duration
	// ping: a peer that answers nothing for two to three of them is dead.
	ping time.Duration
	// minBackoff and maxBackoff bound the wait between two dials; jittered.
	minBackoff, maxBackoff time.Duration
	// listen: how long the heartbeats of a rank are listened to before its first event.
	listen time.Duration
	// beat is the time between two heartbeats; a relay that has sent none for
	// silence is gone.
	beat, silence time.Duration
	// patience is how long another relay of the rank is waited for.
	patience time.Duration
	// deaf is how long a connection is kept on which a subscription was refused:
	// only on another one it is asked for again.
	deaf time.Duration
	// token is how long a snapshot lives after the last request for it.
	token time.Duration
}

var usualTiming = timing{
	dial:       2 * time.Second,
	write:      5 * time.Second,
	ping:       5 * time.Second,
	minBackoff: 50 * time.Millisecond,
	maxBackoff: 5 * time.Second,
	listen:     1500 * time.Millisecond,
	beat:       time.Second,
	silence:    3500 * time.Millisecond,
	patience:   30 * time.Second,
	deaf:       time.Minute,
	token:      30 * time.Second,
}

const pingsOut = 2

// dial makes one connection that never reconnects by itself: the library's own
// reconnect lets a Publish that waited for it overtake what has to be sent again.
// dead is closed when the connection is.
func (p *Publisher) dial(ctx context.Context, servers []string) (nc *nats.Conn, dead <-chan struct{}, err error) {
	opts, err := p.o.Auth.Options()
	if err != nil {
		return nil, nil, err
	}
	d := &linkDialer{ctx: ctx, dial: p.o.Dial, timeout: p.timing.dial}
	closed := make(chan struct{})
	opts = append(opts,
		nats.Name(p.o.Name),
		nats.NoReconnect(),
		nats.Timeout(p.timing.dial),
		nats.FlusherTimeout(p.timing.write),
		nats.PingInterval(p.timing.ping),
		nats.MaxPingsOutstanding(pingsOut),
		nats.SetCustomDialer(d),
		nats.SkipHostLookup(), // the dialer resolves names anew each time, within ctx
		// Errors come to serve through LastError; without a handler they go to stderr.
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}),
		nats.ClosedHandler(func(*nats.Conn) { close(closed) }),
	)
	nc, err = nats.Connect(strings.Join(servers, ","), opts...)
	if err != nil {
		return nil, nil, p.o.Auth.explain(servers, err, d.lastErr)
	}
	least := int64(minMaxPayload)
	if p.o.Kind == JetStream {
		least = minMaxPayloadStream
	}
	if err := tooNarrow(nc, least); err != nil {
		nc.Close()
		<-closed
		return nil, nil, err
	}
	return nc, closed, nil
}

// tooNarrow says that nc's server allows less than least bytes a message. A connection
// to it is of no use later either: a server whose max_payload a reload has raised does
// not tell, so nc would refuse for good what is longer.
func tooNarrow(nc *nats.Conn, least int64) error {
	if m := nc.MaxPayload(); m < least {
		return fmt.Errorf("NATS at %s allows messages of %d bytes only: raise max_payload there to %d at least, its default is 1 MiB", redact(nc.ConnectedUrl()), m, least)
	}
	return nil
}

// peersOf is what the connected server tells of its cluster. A user or token
// in the settings' first URL counts for them too.
func (p *Publisher) peersOf(nc *nats.Conn) []string {
	peers := nc.DiscoveredServers()
	first, err := url.Parse(p.o.Servers[0])
	if err != nil || first.User == nil {
		return peers
	}
	for i, s := range peers {
		if u, err := url.Parse(s); err == nil {
			u.User = first.User
			peers[i] = u.String()
		}
	}
	return peers
}

// Options are the connection options; the files are looked at now. Its errors
// name the setting.
func (a *Auth) Options() ([]nats.Option, error) {
	for _, f := range []struct{ setting, path string }{
		{"NATS_CREDS_FILE", a.CredsFile},
		{"NATS_NKEY_FILE", a.NKeyFile},
		{"NATS_TLS_CA", a.TLSCA},
		{"NATS_TLS_CERT", a.TLSCert},
		{"NATS_TLS_KEY", a.TLSKey},
	} {
		if f.path == "" {
			continue
		}
		h, err := os.Open(f.path)
		if err != nil {
			return nil, fmt.Errorf("KVRELAY_%s: %w", f.setting, err)
		}
		_ = h.Close() // opened for the error alone
	}
	if err := a.checkTLSFiles(); err != nil {
		return nil, err
	}
	var opts []nats.Option
	if a.CredsFile != "" {
		opts = append(opts, nats.UserCredentials(a.CredsFile))
	}
	if a.NKeyFile != "" {
		o, err := nats.NkeyOptionFromSeed(a.NKeyFile)
		if err != nil {
			return nil, fmt.Errorf("KVRELAY_NATS_NKEY_FILE: %s holds no nkey seed", a.NKeyFile)
		}
		opts = append(opts, o)
	}
	if a.User != "" || a.Password != "" {
		opts = append(opts, nats.UserInfo(a.User, a.Password))
	}
	if a.Token != "" {
		opts = append(opts, nats.Token(a.Token))
	}
	if a.TLSCA != "" {
		opts = append(opts, nats.RootCAs(a.TLSCA))
	}
	if a.TLSCert != "" {
		opts = append(opts, nats.ClientCert(a.TLSCert, a.TLSKey))
	}
	return opts, nil
}

// linkDialer dials within ctx, for one nats.Conn, and remembers why it last
// failed: nats.go swallows that. It also forgets to close a connection that ended
// before the server's greeting when it dials again; so the dialer closes it.
type linkDialer struct {
	ctx     context.Context
	dial    func(ctx context.Context, network, address string) (net.Conn, error)
	timeout time.Duration
	lastErr error
	last    *linkConn // owned by nats.go until it dials again
}

// Dial implements nats.CustomDialer.
func (d *linkDialer) Dial(network, address string) (net.Conn, error) {
	if d.last != nil {
		_ = d.last.Close() // nearly always a second time
		d.last = nil
	}
	ctx, cancel := context.WithTimeout(d.ctx, d.timeout)
	defer cancel()
	c, err := d.dial(ctx, network, address)
	if err != nil {
		d.lastErr = err
		return nil, err
	}
	l := &linkConn{Conn: quicknet.Wrap(c)}
	// A Publish that blocks in a write must not outlive Run's context.
	l.stop = context.AfterFunc(d.ctx, func() { _ = c.Close() })
	d.last = l
	return l, nil
}

// linkConn closes itself after a failed write. nats.go does so only when part
// of the buffer went out; when nothing did, it drops the buffer, keeps the
// connection, and a later PONG would confirm messages that never left.
type linkConn struct {
	net.Conn
	stop    func() bool
	greeted bool  // something was read
	refusal error // that came with the greeting; nil: none did
}

// Read looks at what comes first: nats.go reads no further than the greeting before it
// logs in, and buffers the rest.
func (c *linkConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if !c.greeted && n > 0 {
		c.greeted = true
		if _, rest, ok := bytes.Cut(b[:n], []byte("\r\n")); ok {
			c.refusal = refusalIn(rest)
		}
	}
	return n, err
}

func (c *linkConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if err != nil {
		if errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) {
			err = cmp.Or(c.lastWords(), err)
		}
		_ = c.Conn.Close() // its error adds nothing to err
	}
	return n, err
}

// lastWords is why the peer ended the connection; nil: it has not said so. A full server
// says it behind its greeting and closes at once, so that the login often fails before
// nats.go comes to that.
func (c *linkConn) lastWords() error {
	if c.refusal != nil {
		return c.refusal
	}
	_ = c.Conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond)) // what is there is there: nothing more comes
	b := make([]byte, 256)
	n, _ := c.Conn.Read(b) // without words its error is as good as the write's
	return refusalIn(b[:n])
}

// refusalIn is the error that b begins with, as nats.go makes it of the same; else nil.
func refusalIn(b []byte) error {
	text, ok := bytes.CutPrefix(b, []byte("-ERR '"))
	text, _, whole := bytes.Cut(text, []byte("'"))
	if !ok || !whole {
		return nil
	}
	return errors.New("nats: " + strings.ToLower(string(text)))
}

func (c *linkConn) Close() error {
	c.stop()
	return c.Conn.Close()
}
