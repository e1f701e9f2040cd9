// Package record writes an engine's event stream into a capture: what a SUB
// socket receives, in order, with the gaps filled from the replay ROUTER where
// there is one. It proves less than the relay does: a process that was
// replaced while nobody was connected, and is past the old one's numbers, is
// not noticed.
package record

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/kvrelay/kvrelay/internal/capture"
	"github.com/kvrelay/kvrelay/internal/zmtp"
)

// Options says what to record. A zero field takes the default given with it.
type Options struct {
	Endpoint       string        // of the engine's PUB; required
	ReplayEndpoint string        // of its replay ROUTER; empty: gaps stay
	Topic          string        // subscription prefix; empty: everything
	Count          uint64        // ends after so many messages; 0: only with ctx
	Idle           time.Duration // a replay that says nothing for so long has ended; 2 s
	ZMTP           zmtp.Options  // limits and heartbeats of both connections
	Log            *slog.Logger  // required: connections, gaps, restarts
}

// Stats counts what a recording did.
type Stats struct {
	Messages uint64 // in the file
	Replayed uint64 // of those, from replays
	Repeated uint64 // received again and left out
	Missing  uint64 // numbers that neither live nor a replay had; burned ones are among them
	Restarts int    // processes after the first
	Odd      uint64 // messages without a number, in the file as they came
}

const (
	defaultIdle = 2 * time.Second
	waiting     = 1024                   // live messages that wait while a replay runs; then the socket is not read and the engine buffers
	firstPause  = 50 * time.Millisecond  // between two attempts to connect; doubles
	longPause   = 5 * time.Second        // up to this
	maxKept     = 64 << 20               // bytes of replies kept for a transcript; an exchange with more is left out of it
	flushEvery  = 500 * time.Millisecond // so much is lost when the recorder itself is killed
)

// Check says what is wrong with the endpoints of o; such an error wraps
// zmtp.ErrEndpoint. It does no I/O.
func Check(o Options) error {
	ended, cancel := context.WithCancel(context.Background())
	cancel() // Dial looks at the endpoint, and goes no further
	for _, c := range []struct {
		endpoint string
		typ      zmtp.SocketType
	}{{o.Endpoint, zmtp.SUB}, {o.ReplayEndpoint, zmtp.DEALER}} {
		opts := o.ZMTP
		opts.Type = c.typ
		if c.endpoint == "" && c.typ == zmtp.DEALER {
			continue
		}
		if _, err := zmtp.Dial(ended, c.endpoint, opts); errors.Is(err, zmtp.ErrEndpoint) {
			return err
		}
	}
	return nil
}

// Run records until ctx ends, Count is reached, or the file cannot be written.
// It connects again whenever the connection ends. transcript may be nil; else
// every exchange with the ROUTER goes there. Run closes neither writer. An
// error that wraps zmtp.ErrEndpoint is about Options.
func Run(ctx context.Context, o Options, w, transcript *capture.Writer) (Stats, error) {
	if o.Idle <= 0 {
		o.Idle = defaultIdle
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	r := &recorder{o: o, w: w, transcript: transcript}
	live := make(chan item, waiting)
	wg.Go(func() { r.listen(ctx, live) })
	flush := time.NewTicker(flushEvery)
	defer flush.Stop()
	for o.Count == 0 || r.stats.Messages < o.Count {
		select {
		case <-ctx.Done():
			return r.stats, nil
		case <-flush.C:
			if err := w.Flush(); err != nil {
				return r.stats, err
			}
		case it := <-live:
			if it.err != nil {
				return r.stats, it.err
			}
			if err := r.take(ctx, it); err != nil {
				return r.stats, err
			}
		}
	}
	return r.stats, nil
}

// item is a live message, or the news of a new connection, or a final error.
type item struct {
	frames    [][]byte
	connected bool
	err       error
}

// recorder: listen has its own goroutine and touches only o; the rest belongs to Run.
type recorder struct {
	o          Options
	w          *capture.Writer
	transcript *capture.Writer
	order      order
	topic      []byte // of the last live message
	stats      Stats
}

// listen connects, and again after every end, and hands on what comes.
func (r *recorder) listen(ctx context.Context, live chan<- item) {
	opts := r.o.ZMTP
	opts.Type, opts.Subscriptions = zmtp.SUB, []string{r.o.Topic}
	send := func(it item) bool {
		select {
		case live <- it:
			return true
		case <-ctx.Done():
			return false
		}
	}
	pause, said := firstPause, ""
	for {
		conn, err := zmtp.Dial(ctx, r.o.Endpoint, opts)
		if errors.Is(err, zmtp.ErrEndpoint) {
			send(item{err: err})
			return
		}
		if err == nil {
			pause, said = firstPause, ""
			r.o.Log.Info("connected", "endpoint", r.o.Endpoint)
			err = receive(ctx, conn, send)
		}
		if ctx.Err() != nil {
			return
		}
		if text := err.Error(); text != said {
			r.o.Log.Warn("not connected; trying again", "endpoint", r.o.Endpoint, "err", err)
			said = text
		}
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return
		}
		pause = min(2*pause, longPause)
	}
}

// receive reads one connection to its end.
func receive(ctx context.Context, conn *zmtp.Conn, send func(item) bool) error {
	defer func() { _ = conn.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	if !send(item{connected: true}) {
		return ctx.Err()
	}
	for {
		frames, err := conn.Recv()
		if err != nil {
			return err
		}
		copied := make([][]byte, len(frames))
		for i, f := range frames {
			copied[i] = slices.Clone(f)
		}
		if !send(item{frames: copied}) {
			return ctx.Err()
		}
	}
}

// take deals with one live item.
func (r *recorder) take(ctx context.Context, it item) error {
	if it.connected {
		r.order.connected()
		return r.fill(ctx, capture.EndSeq)
	}
	m := capture.Message{Frames: it.frames}
	seq, ok := m.Seq()
	if !ok || seq == capture.EndSeq {
		r.stats.Odd++
		r.stats.Messages++
		return r.w.Write(m)
	}
	r.topic = m.Topic()
	switch r.order.judge(seq, m.Payload()) {
	case repeat:
		r.stats.Repeated++
		return nil
	case restart:
		r.restarted()
		if seq == 0 {
			break
		}
		fallthrough
	case gap:
		if err := r.fill(ctx, seq); err != nil {
			return err
		}
		if ctx.Err() == nil {
			r.missed(seq)
		}
	case write:
	}
	if r.full() {
		return nil
	}
	return r.put(seq, m)
}

// full reports whether Count is reached.
func (r *recorder) full() bool { return r.o.Count > 0 && r.stats.Messages >= r.o.Count }

func (r *recorder) put(seq uint64, m capture.Message) error {
	if err := r.w.Write(m); err != nil {
		return err
	}
	r.order.wrote(seq, m.Payload())
	r.stats.Messages++
	return nil
}

func (r *recorder) restarted() {
	r.o.Log.Warn("the engine was restarted", "expected", r.order.next)
	r.stats.Restarts++
	r.order.restarted()
}

// missed counts the numbers passed over before seq. What was before the first
// message of a process is not missing: an engine's buffer has a beginning.
func (r *recorder) missed(seq uint64) {
	if !r.order.started || seq <= r.order.next {
		return
	}
	r.o.Log.Warn("messages are missing", "from", r.order.next, "to", seq-1)
	r.stats.Missing += seq - r.order.next
}
