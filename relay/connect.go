package relay

import (
	"context"
	"errors"
	"net"
	"strings"

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
		return &door{s: s, addr: addr}
	}
	return dialer{s}
}

// dialer connects to the engine's PUB. Its name is looked up anew each time.
type dialer struct{ s *Stream }

func (d dialer) connect(ctx context.Context) (*zmtp.Conn, error) {
	return zmtp.Dial(ctx, d.s.src.Endpoint, d.s.options(zmtp.SUB, d.s.pingRefused.Swap(false)))
}

func (dialer) ended() {}
func (dialer) close() {}

// door is the listener of a `listen:` endpoint. One connection at a time is the
// stream; whoever comes while it lives is refused.
type door struct {
	s    *Stream
	addr string
	open *zmtp.Door // nil: not yet
}

// connect waits for the engine's PUB. The listener is opened at the first call
// and, when that failed, at the next (the port may become free). ctx is the session's.
func (d *door) connect(ctx context.Context) (*zmtp.Conn, error) {
	if d.open == nil {
		open, err := zmtp.Open(ctx, d.addr, d.options, d.second)
		if err != nil {
			return nil, err
		}
		d.open = open
	}
	for {
		conn, err := d.open.Next(ctx)
		if err == nil {
			d.s.pingRefused.Store(false)
		}
		if !errors.Is(err, zmtp.ErrHandshake) {
			return conn, err
		}
		d.s.stranger(ctx, err) // no reason to pause: the engine may be next
	}
}

// options of a caller: the peer that wants no PINGs may be any of them.
func (d *door) options() zmtp.Options { return d.s.options(zmtp.SUB, d.s.pingRefused.Load()) }

func (d *door) second(from net.Addr) {
	d.s.log.Warn("a second publisher connected while the first is there: refused; give each data-parallel rank its own port", "from", from.String())
}

func (d *door) ended() { d.open.Leave() }

func (d *door) close() {
	if d.open != nil {
		d.open.Close()
	}
}
