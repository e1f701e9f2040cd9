package relay

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/kvrelay/kvrelay/internal/zmtp"
)

// listenPrefix marks an endpoint that we open, for engines whose PUB connects.
const listenPrefix = "listen:"

// connector is how a stream gets its live connections.
type connector interface {
	connect(ctx context.Context) (*zmtp.Conn, error)
	ended() // the connection that connect gave is over
	close()
}

func (s *Stream) connector() connector {
	if addr, listens := strings.CutPrefix(s.src.Endpoint, listenPrefix); listens {
		return &door{s: s, addr: addr, in: make(chan net.Conn, 1)}
	}
	return dialer{s}
}

// dialer connects to the engine's PUB. Its name is looked up anew each time.
type dialer struct{ s *Stream }

func (d dialer) connect(ctx context.Context) (*zmtp.Conn, error) {
	return zmtp.Dial(ctx, d.s.src.Endpoint, d.s.options(zmtp.SUB))
}

func (dialer) ended() {}
func (dialer) close() {}

// door is the listener of a `listen:` endpoint. One connection at a time is the
// stream; whoever comes while it lives is refused.
type door struct {
	s    *Stream
	addr string
	ln   net.Listener
	in   chan net.Conn // the next connection, waiting for connect
	wg   sync.WaitGroup
	busy atomic.Bool // a connection is the stream
}

// connect waits for the engine's PUB. The listener is opened at the first call
// and, when that failed, at the next (the port may become free).
func (d *door) connect(ctx context.Context) (*zmtp.Conn, error) {
	if d.ln == nil {
		ln, err := zmtp.Listen(ctx, d.addr)
		if err != nil {
			return nil, err
		}
		d.ln = ln
		d.wg.Go(d.accept)
	}
	select {
	case nc := <-d.in:
		conn, err := zmtp.Accept(ctx, nc, d.s.options(zmtp.SUB))
		if err == nil {
			d.busy.Store(true)
		}
		return conn, err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (d *door) ended() { d.busy.Store(false) }

func (d *door) accept() {
	for {
		nc, err := d.ln.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) || !pause(d.s.ctx, minBackoff) {
				return
			}
			continue // out of descriptors, or the peer was gone again
		}
		if !d.busy.Load() {
			select {
			case d.in <- nc:
				continue
			default:
			}
		}
		d.s.log.Warn("a second publisher connected while the first is there: refused; give each data-parallel rank its own port", "from", nc.RemoteAddr().String())
		nc.Close()
	}
}

func (d *door) close() {
	if d.ln == nil {
		return
	}
	d.ln.Close()
	d.wg.Wait()
	select {
	case nc := <-d.in:
		nc.Close()
	default:
	}
}
