package zmtp

import (
	"context"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"
)

// maxCallers bounds the callers of a Door that have not finished their handshake. One
// more, and the one that has been at it longest is dropped: a peer is ready within a
// round trip or two, who is silent would stay for HandshakeTimeout.
const maxCallers = 16

// acceptAgain is the pause after an accept that failed: out of descriptors, or the
// caller was gone again.
const acceptAgain = 50 * time.Millisecond

// Door is an endpoint that is open for peers which connect to us. All who call shake
// hands at the same time, so that a silent one keeps nobody out; the first that is
// ready has the door until Leave, and whoever else calls is sent away.
type Door struct {
	ln      net.Listener
	options func() Options
	refused func(from net.Addr)
	cancel  context.CancelFunc
	wg      sync.WaitGroup // accept and the callers; Close waits

	ready  chan *Conn // capacity 1: the peer that has the door, until Next takes it
	failed chan error // callers that are no peers; what nobody waits for is forgotten

	mu      sync.Mutex
	taken   bool      // a peer has the door
	callers []*caller // at most maxCallers, oldest first
}

// caller is a connection that has come in and is not ready yet.
type caller struct {
	nc   net.Conn
	ctx  context.Context
	drop context.CancelCauseFunc
	done chan struct{}
}

// errCrowded is why a caller was dropped for the sake of another.
var errCrowded = fmt.Errorf("not complete, and more than %d at a time: the oldest is dropped", maxCallers)

// Open listens at endpoint (see Listen) until Close; the end of ctx ends every
// handshake, too. options is asked for each caller; refused is told of each that is
// sent away because another has the door. Both are called from the Door's goroutines.
func Open(ctx context.Context, endpoint string, options func() Options, refused func(from net.Addr)) (*Door, error) {
	ln, err := Listen(ctx, endpoint)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	d := &Door{
		ln: ln, options: options, refused: refused, cancel: cancel,
		ready: make(chan *Conn, 1), failed: make(chan error, maxCallers),
	}
	d.wg.Go(func() { d.accept(ctx) })
	return d, nil
}

// Next waits for the peer that gets the door. An error that is ErrHandshake is of one
// caller: the door is still open, and Next is to be called again.
func (d *Door) Next(ctx context.Context) (*Conn, error) {
	select {
	case c := <-d.ready:
		return c, nil
	case err := <-d.failed:
		return nil, err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Leave says that the connection of Next is over: the door is for others again.
func (d *Door) Leave() {
	for len(d.failed) > 0 { // those before that connection: old news
		<-d.failed
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.taken = false
}

// Close ends whatever is not ready, and a peer that Next has not taken.
func (d *Door) Close() {
	d.cancel()
	d.ln.Close()
	d.wg.Wait()
	select {
	case c := <-d.ready:
		c.Close()
	default:
	}
}

func (d *Door) accept(ctx context.Context) {
	for {
		nc, err := d.ln.Accept()
		if err != nil {
			t := time.NewTimer(acceptAgain)
			select {
			case <-t.C:
				continue
			case <-ctx.Done():
				t.Stop()
				return
			}
		}
		taken, oldest := d.look()
		if taken {
			d.refused(nc.RemoteAddr())
			nc.Close()
			continue
		}
		if oldest != nil {
			oldest.drop(errCrowded)
			<-oldest.done // at once: its deadline has passed
		}
		c := &caller{nc: nc, done: make(chan struct{})}
		c.ctx, c.drop = context.WithCancelCause(ctx)
		d.mu.Lock()
		d.callers = append(d.callers, c)
		d.mu.Unlock()
		d.wg.Go(func() { d.shake(c) })
	}
}

// look says whether a peer has the door, and which caller has to go before another
// may come in; nil: none.
func (d *Door) look() (taken bool, oldest *caller) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.callers) >= maxCallers {
		oldest = d.callers[0]
	}
	return d.taken, oldest
}

// shake does the handshake of one caller, and gives it the door if it is the first
// that is ready: the others are dropped without a word, and call again if they mean it.
func (d *Door) shake(c *caller) {
	defer close(c.done)
	defer c.drop(nil)
	conn, err := Accept(c.ctx, c.nc, d.options())
	d.mu.Lock()
	late := d.taken
	d.callers = slices.DeleteFunc(d.callers, func(other *caller) bool { return other == c })
	if err == nil && !late {
		d.taken = true
		d.ready <- conn // has room: taken since it was empty
		for _, other := range d.callers {
			other.drop(nil)
		}
	}
	d.mu.Unlock()
	switch {
	case err == nil && late:
		conn.Close()
		d.refused(c.nc.RemoteAddr())
	case err != nil && !late:
		select {
		case d.failed <- err:
		default:
		}
	}
}
