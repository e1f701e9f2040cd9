package check

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/kvrelay/kvrelay/convert"
	"github.com/kvrelay/kvrelay/discovery"
	"github.com/kvrelay/kvrelay/internal/zmtp"
)

// Options are how an engine is looked at.
type Options struct {
	Convert  convert.Config // a zero BlockSize is taken from the source
	ZMTP     zmtp.Options
	Idle     time.Duration // a replay that says nothing for so long has ended; 0: 1 s
	Silence  time.Duration // after so long without a live message replay is asked for what live should have brought; doubles; 0: 2 s
	NoReplay bool          // the settings say to run without

	// Progress is told after every look at something new, by several goroutines
	// when there are several sources; nil: nobody.
	Progress func(rank uint32, n Numbers)
}

const (
	waiting   = 1024     // live messages that wait to be looked at; then the socket is not read
	holdBytes = 64 << 20 // live batches kept while a replay runs; further ones are dropped and counted
	redial    = 250 * time.Millisecond

	maxSilence = 30 * time.Second
)

// Watch looks at sources until ctx ends, and returns what it saw of each. All
// its goroutines have ended when it returns.
func Watch(ctx context.Context, sources []discovery.Source, o Options) []*Stream {
	if o.Idle <= 0 {
		o.Idle = time.Second
	}
	if o.Silence <= 0 {
		o.Silence = 2 * time.Second
	}
	streams := make([]*Stream, len(sources))
	var wg sync.WaitGroup
	for i, src := range sources {
		c := o.Convert
		if c.BlockSize == 0 {
			c.BlockSize = uint64(src.BlockSize)
		}
		s := NewStream(fmt.Sprintf("rank %d", src.Rank), src.Rank, c)
		s.prefix, s.exact = []byte(src.Topic), src.TopicExact
		s.Live.Endpoint = src.Endpoint
		s.Replay.Endpoint, s.Replay.Configured, s.Replay.Off = src.Replay, src.Replay != "", o.NoReplay
		streams[i] = s
		w := &watcher{s: s, src: src, o: o}
		wg.Go(func() { w.run(ctx) })
	}
	wg.Wait()
	for _, s := range streams {
		s.finish()
	}
	return streams
}

// watcher looks at one source; its goroutine alone touches the Stream.
type watcher struct {
	s   *Stream
	src discovery.Source
	o   Options

	live      chan message
	held      []message
	heldBytes int
	ended     bool        // the live connection has
	sent      bool        // a batch came on it …
	newest    uint64      // … and this is the last one's number
	mute      atomic.Bool // the peer ended the last connection at our first PING
	late      int         // times that askLate asked, the last time at lateAt
	lateAt    time.Time
}

// message is one live message, copied; err ends the connection.
type message struct {
	frames [][]byte
	at     time.Time
	err    error
}

func (w *watcher) run(ctx context.Context) {
	var door *zmtp.Door
	if addr, listens := strings.CutPrefix(w.src.Endpoint, "listen:"); listens {
		var err error
		if door, err = zmtp.Open(ctx, addr, w.options, func(net.Addr) {}); err != nil {
			w.s.Live.Error = err.Error()
			return
		}
		defer door.Close()
	}
	for ctx.Err() == nil {
		conn, err := w.connect(ctx, door)
		if err == nil {
			w.connection(ctx, conn)
		} else if ctx.Err() == nil || w.s.Live.Error == "" && door == nil {
			w.s.Live.Error = err.Error()
		}
		w.mute.Store(strings.Contains(w.s.Live.Error, zmtp.ErrPingRefused.Error()))
		if err == nil && door != nil {
			door.Leave()
		}
		t := time.NewTimer(redial)
		select {
		case <-ctx.Done():
		case <-t.C:
		}
		t.Stop()
	}
}

func (w *watcher) connect(ctx context.Context, door *zmtp.Door) (*zmtp.Conn, error) {
	if door == nil {
		return zmtp.Dial(ctx, w.src.Endpoint, w.options())
	}
	return door.Next(ctx)
}

// options are also asked for by the door's goroutines.
func (w *watcher) options() zmtp.Options {
	o := w.o.ZMTP
	o.Type, o.Subscriptions = zmtp.SUB, []string{w.src.Topic}
	if w.mute.Load() {
		o.Heartbeat = -1
	}
	return o
}

// connection looks at one live connection until it or ctx ends.
func (w *watcher) connection(ctx context.Context, conn *zmtp.Conn) {
	began := time.Now()
	l := &w.s.Live
	l.Connected = true
	l.Connects++
	w.live, w.held, w.heldBytes = make(chan message, waiting), nil, 0
	w.ended, w.sent = false, false
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { read(ctx, conn, w.live) })
	defer wg.Wait()
	defer conn.Close()
	defer cancel()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	defer func() { l.Seconds += time.Since(began).Seconds() }()

	w.catchUp(ctx)
	w.release(ctx)
	w.progress()
	silence := w.o.Silence
	quiet := time.NewTimer(silence)
	defer quiet.Stop()
	for !w.ended {
		select {
		case <-ctx.Done():
			return
		case m := <-w.live:
			w.take(ctx, m)
			silence = w.o.Silence
		case <-quiet.C:
			w.poll(ctx)
			silence = min(2*silence, maxSilence)
		}
		w.release(ctx)
		w.progress()
		quiet.Reset(silence)
	}
}

// poll asks replay, in silence, for what live should have brought.
func (w *watcher) poll(ctx context.Context) {
	s := w.s
	before := s.Numbers.Applied
	from := uint64(0)
	if s.begun {
		from = s.next - 1
	}
	w.fetch(ctx, from, 0, nil)
	s.Numbers.Polled += s.Numbers.Applied - before
}

func (w *watcher) progress() {
	if w.o.Progress != nil {
		w.o.Progress(w.src.Rank, w.s.Numbers)
	}
}

// read brings messages to live until the connection ends.
func read(ctx context.Context, conn *zmtp.Conn, live chan<- message) {
	for {
		frames, err := conn.Recv()
		m := message{at: time.Now(), err: err}
		for _, f := range frames {
			m.frames = append(m.frames, append([]byte(nil), f...))
		}
		select {
		case live <- m:
		case <-ctx.Done():
			return
		}
		if err != nil {
			return
		}
	}
}

// catchUp asks replay for what was before this connection. On a later one it
// begins with the newest batch known, whose sum tells whether the engine is the
// same.
func (w *watcher) catchUp(ctx context.Context) {
	s := w.s
	if !s.begun {
		w.fetch(ctx, 0, 0, nil)
		return
	}
	same := false
	anchor := s.next - 1
	w.fetch(ctx, anchor, 0, func(seq uint64, payload []byte) bool {
		if seq == anchor && xxh3.Hash(payload) == s.sum {
			same = true
		}
		return same
	})
	if !same && s.Replay.Connected && ctx.Err() == nil {
		s.restart()
		w.fetch(ctx, 0, 0, nil)
	}
}

// maxLate bounds how often a replay that had nothing at first is asked again.
const maxLate = 5

// askLate asks again for the history before the live batch seq where replay has
// brought nothing yet: it was empty, not open yet, or silent.
func (w *watcher) askLate(ctx context.Context, seq uint64) {
	if w.s.Replay.Batches > 0 || w.late == maxLate || time.Since(w.lateAt) < time.Duration(w.late)*500*time.Millisecond {
		return
	}
	w.late++
	w.fetch(ctx, 0, seq+1, func(n uint64, _ []byte) bool { return n < seq })
	w.lateAt = time.Now()
}

// release takes what was held while a replay ran.
func (w *watcher) release(ctx context.Context) {
	for len(w.held) > 0 {
		held := w.held
		w.held, w.heldBytes = nil, 0
		for _, m := range held { // a gap among them holds what comes meanwhile, behind them
			w.take(ctx, m)
		}
	}
}

// hold keeps a live message while a replay runs.
func (w *watcher) hold(m message) {
	size := 0
	for _, f := range m.frames {
		size += len(f)
	}
	if w.heldBytes+size > holdBytes && m.err == nil {
		w.s.Numbers.Dropped++
		return
	}
	w.heldBytes += size
	w.held = append(w.held, m)
}

// take looks at one live message, and heals the gap before it where it can.
func (w *watcher) take(ctx context.Context, m message) {
	s := w.s
	if m.err != nil {
		w.ended = true
		if ctx.Err() == nil && !errors.Is(m.err, zmtp.ErrClosed) {
			s.Live.Error = m.err.Error()
		}
		return
	}
	b, ok := s.message(m.frames)
	if !ok {
		return
	}
	if !b.HasSeq {
		s.apply("without number", b.Payload)
		s.lag(m.at)
		return
	}
	// PUB sends in order: what goes back within one connection is another engine's.
	back := w.sent && b.Seq <= w.newest
	w.sent, w.newest = true, b.Seq
	if back {
		s.restart()
	}
	w.askLate(ctx, b.Seq)
	if s.begun && b.Seq > s.next {
		s.Numbers.Gaps++
		before := s.Numbers.Applied
		if ctx.Err() == nil {
			w.fetch(ctx, s.next-1, b.Seq, func(seq uint64, _ []byte) bool { return seq <= b.Seq })
		}
		s.Numbers.Healed += s.Numbers.Applied - before
		if b.Seq+1 == s.next && xxh3.Hash(b.Payload) == s.sum {
			s.Numbers.Healed-- // this one came by itself
			return
		}
	}
	if s.begun && b.Seq < s.next {
		s.Numbers.Repeated++ // replay had it, too
		return
	}
	s.numbered(b.Seq, b.Payload)
	s.lag(m.at)
}
