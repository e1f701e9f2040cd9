package replay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kvrelay/kvrelay/internal/zmtp"
)

// maxMalformed bounds malformed replies in a row. Beyond it the far side is taken
// for no replay ROUTER, and the connection ends.
const maxMalformed = 16

// ErrNoRouter is in the chain when so many replies in a row were malformed that
// the far side cannot be a replay ROUTER.
var ErrNoRouter = errors.New("far side is no replay ROUTER")

// MalformedReply is a reply that is neither a batch nor an end marker. Framing was
// sound: the connection goes on.
type MalformedReply struct {
	Frames  int    // how many it had
	Problem string // from a fixed list, never text of the peer
}

func (e *MalformedReply) Error() string {
	return fmt.Sprintf("malformed reply of %d frames: %s", e.Frames, e.Problem)
}

// Client asks an engine's replay ROUTER for batches. One goroutine calls Next and
// Buffered; everything else is safe beside it. After an error that is no *MalformedReply it is dead.
type Client struct {
	conn      *zmtp.Conn
	malformed int // in a row; owned by the caller of Next
}

// DialRouter connects to a replay endpoint, as zmtp.Dial does. It sets o.Type and
// o.Subscriptions itself.
func DialRouter(ctx context.Context, endpoint string, o zmtp.Options) (*Client, error) {
	o.Type, o.Subscriptions = zmtp.DEALER, nil
	conn, err := zmtp.Dial(ctx, endpoint, o)
	if err != nil {
		return nil, fmt.Errorf("replay: %w", err)
	}
	return &Client{conn: conn}, nil
}

// Ask requests every buffered batch with seq ≥ start. The answers to several
// requests follow each other without saying whose they are: one at a time, and a fresh
// Client after a stall.
func (c *Client) Ask(start uint64) error {
	if err := c.conn.Send(request(start)...); err != nil {
		return fmt.Errorf("replay: %w", err)
	}
	return nil
}

// Next blocks for the next reply. A *MalformedReply costs only that reply; any
// other error is final.
func (c *Client) Next() (Reply, error) {
	frames, err := c.conn.Recv()
	if err != nil {
		return Reply{}, fmt.Errorf("replay: %w", err)
	}
	r, problem := parseReply(frames)
	if problem == "" {
		c.malformed = 0
		return r, nil
	}
	bad := &MalformedReply{Frames: len(frames), Problem: problem}
	if c.malformed++; c.malformed < maxMalformed {
		return Reply{}, fmt.Errorf("replay %s: %w", c.conn.Endpoint(), bad)
	}
	c.conn.Close()
	return Reply{}, fmt.Errorf("replay %s: %w: %d replies in a row: %s", c.conn.Endpoint(), ErrNoRouter, c.malformed, problem)
}

// Buffered says whether Next would return at once.
func (c *Client) Buffered() bool { return c.conn.Buffered() }

// Arriving tells of the reply that is coming, or that Next has returned last.
func (c *Client) Arriving() zmtp.Arrival { return c.conn.Arriving() }

// LastPong is when the newest answered PING was sent; zero while none was.
func (c *Client) LastPong() time.Time { return c.conn.LastPong() }

// PongSince says whether a PING sent after t has been answered.
func (c *Client) PongSince(t time.Time) bool { return c.conn.PongSince(t) }

// Endpoint names the connection in errors and logs.
func (c *Client) Endpoint() string { return c.conn.Endpoint() }

// Close ends the connection: Next returns zmtp.ErrClosed. It may be called again.
func (c *Client) Close() error { return c.conn.Close() }
