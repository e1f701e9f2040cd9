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

// connector returns how this stream gets its live connection, and what to call
// at the end.
func (s *Stream) connector(ctx context.Context) (connect func(context.Context) (*zmtp.Conn, error), done func()) {
	addr, listens := strings.CutPrefix(s.src.Endpoint, listenPrefix)
	if !listens {
		return func(ctx context.Context) (*zmtp.Conn, error) {
			return zmtp.Dial(ctx, s.src.Endpoint, s.options(zmtp.SUB))
		}, func() {}
	}
	d := &door{s: s, addr: addr, in: make(chan net.Conn, 1)}
	return d.connect, d.close
}

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
	d.busy.Store(false)
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
