package relay

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvrelay/kvrelay/convert"
	"github.com/kvrelay/kvrelay/decode"
	"github.com/kvrelay/kvrelay/discovery"
	"github.com/kvrelay/kvrelay/internal/zmtp"
	"github.com/kvrelay/kvrelay/replay"
)

// Stream relays one source: it keeps a live and, when asked, a replay
// connection, brings their frames to the Cursor, and what the Cursor applies
// through decode and convert to the rank's outbox – all under one lock.
type Stream struct {
	r     *Relay
	src   discovery.Source
	topic []byte // src.Topic
	log   *slog.Logger

	wakeup chan struct{}   // capacity 1: the deadline moved, or there is something to do for steer
	asked  chan struct{}   // capacity 1: a replay request waits
	ctx    context.Context // of the session
	fatal  context.CancelCauseFunc

	pingRefused atomic.Bool // the peer ended the last live connection at our first PING

	mu      sync.Mutex // guards everything below
	cursor  *replay.Cursor
	batch   decode.Batch
	out     convert.Output
	ranks   []*rankState // few: found by scanning
	live    *zmtp.Conn
	liveGen int // counts live connections; what an older one still brings is not ours
	replay  replayConn
	seqless seqless
	story   story // what status and log tell

	// Of the present session; see run.
	endSession context.CancelFunc
	over       bool // it ends: what the Cursor still says does not count
	resuming   bool // it waits for the outbox to say where to go on
	starting   bool // the source's own rank is being claimed

	now       time.Time // of the input that is being handled
	charged   int       // bytes appended for it
	credited  bool      // what the cursor was last told
	republish bool      // Back was called: ledgers are being published again
	armed     time.Time // when steer wakes by itself; zero: never
}

// seqless numbers the batches of an engine that sends none.
type seqless struct {
	on   bool
	next uint64
	kind batchKind // what the present connection brings
}

// batchKind is whether an engine numbers its batches.
type batchKind uint8

const (
	kindUnknown batchKind = iota // no batch has come yet
	kindNumbered
	kindBare
)

func newStream(r *Relay, src discovery.Source) *Stream {
	s := &Stream{
		r: r, src: src, topic: []byte(src.Topic),
		log:      r.o.Log.With("rank", src.Rank, "engine", src.Endpoint),
		wakeup:   make(chan struct{}, 1),
		asked:    make(chan struct{}, 1),
		credited: true,
	}
	s.cursor = replay.NewCursor(s.cursorConfig(src.Replay == ""), (*host)(s))
	return s
}

func (s *Stream) cursorConfig(noReplay bool) replay.Config {
	c := s.r.o.Replay
	c.NoReplay = noReplay
	c.Hold = s.r.hold
	c.Portion = s.r.portion()
	c.TS = decode.PeekTS
	return c
}

// run relays until ctx ends, which is a child of the process's. It returns the
// reason when the source must not be relayed any longer (history lost under
// LOST=exit), else nil.
func (s *Stream) run(process, ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s.fatal = cancel
	s.r.credit.join(s)
	defer s.r.credit.leave(s)
	for s.session(ctx) {
		s.anew()
	}
	return s.end(ctx, process.Err() != nil)
}

// session relays from Start until ctx ends. It says whether the stream must
// begin again: what was to be resumed cannot be, or the sink asks for it.
func (s *Stream) session(run context.Context) (again bool) {
	ctx, cancel := context.WithCancel(run)
	defer cancel()
	s.mu.Lock()
	s.ctx, s.endSession, s.over = ctx, cancel, false
	s.mu.Unlock()
	if !s.resume(ctx) {
		return run.Err() == nil && ctx.Err() != nil
	}

	var wg sync.WaitGroup
	wg.Go(func() { s.liveLoop(ctx) })
	wg.Go(func() { s.replayLoop(ctx) })
	wg.Go(func() { s.steer(ctx) })
	<-ctx.Done()
	s.begin()
	s.closeLive()
	s.closeReplay()
	s.finish(0)
	wg.Wait()
	return run.Err() == nil
}

// end leaves the ranks to whoever comes next. What they published is cleared,
// unless the process ends and the engine lives on without it.
func (s *Stream) end(run context.Context, exiting bool) error {
	s.begin()
	s.cursor.Stop()
	if s.r.o.ClearOnExit || !exiting {
		for _, rs := range s.ranks {
			s.clear(rs, false)
			rs.conv.Restart() // recovery goes on until another stream has the rank
			if exiting && rs.owned.resume.Load() {
				rs.outbox.Close() // nobody resumes it: the `cleared` counts, behind what the subject holds
			}
		}
	}
	s.finish(0)
	s.r.disown(s)
	if err := context.Cause(run); err != context.Canceled {
		return err
	}
	return nil
}

// begin takes the lock for one input to the Cursor.
func (s *Stream) begin() (now time.Time) {
	s.mu.Lock()
	s.charged = 0
	s.now = time.Now()
	return s.now
}

// finish gives the lock back, has steer wake earlier where the input asks for
// it, and corrects the credit that was reserved to what was really appended.
func (s *Stream) finish(reserved int) {
	at := s.cursor.Deadline()
	sooner := !at.IsZero() && (s.armed.IsZero() || at.Before(s.armed)) || s.cursor.Draining() && !s.republish
	delta := s.charged - reserved
	s.tellChanges()
	s.mu.Unlock()
	if sooner {
		s.nudge()
	}
	s.r.credit.settle(s, delta)
}

// releaseAfter is how long a silent stream keeps the memory of its last batch.
const releaseAfter = 30 * time.Second

// steer is the stream's clock: it ticks the Cursor when it asked for it, tells
// it that credit is back, and publishes a returned engine's blocks again.
func (s *Stream) steer(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.wakeup:
		case <-timer.C:
		}
		for s.republishing() && s.r.credit.take(s, republishReserve) {
			s.begin()
			s.republishChunk()
			s.finish(republishReserve)
		}
		s.drain(ctx)
		now := s.begin()
		if !s.credited && !s.republish && s.r.credit.open(s) {
			s.credited = true
			s.cursor.Credit(now, true)
		}
		s.tellPong(now)
		s.tellArriving(now)
		if now.Sub(s.story.lastMessage) > releaseAfter {
			s.batch.Release() // a giant batch may have been the last one
			s.out = convert.Output{}
		}
		s.cursor.Tick(now)
		at := s.cursor.Deadline()
		if s.r.o.Replay.Lost == replay.LostKeep && s.live != nil {
			at = sooner(at, now.Add(s.r.o.Replay.Heartbeat)) // for tellPong
		}
		if silent := s.story.silence(s, now); !silent.IsZero() {
			at = sooner(at, silent)
		}
		s.armed = at
		s.finish(0)
		if at.IsZero() {
			timer.Stop() // nothing waits for time
		} else {
			timer.Reset(max(0, time.Until(at)))
		}
	}
}

// tellPong tells the Cursor of answered heartbeats, which LOST=keep alone looks
// at. s.mu is held.
func (s *Stream) tellPong(now time.Time) {
	if s.r.o.Replay.Lost != replay.LostKeep || s.live == nil {
		return
	}
	if sent := s.live.LastPong(); !sent.IsZero() {
		s.cursor.Pong(now, sent)
	}
}

// worthWaiting is the pace, bytes a second, at which a reply that is not whole yet
// keeps its replay slot beyond the 10 s that a round has: the largest frame
// (MAX_FRAME_BYTES) then holds it for some four minutes. What comes more slowly is
// given up, and asked for again; so is what began after the 10 s.
const worthWaiting = 256 << 10

// tellArriving tells the Cursor of a reply that is coming: a frame of tens of
// megabytes takes longer than REPLAY_IDLE on a slow link, and is no silence. Nor is
// one that is there and whose reader waits for our lock. s.mu is held.
func (s *Stream) tellArriving(now time.Time) {
	if s.replay.client == nil || s.replay.active == 0 {
		return
	}
	if a := s.replay.client.Arriving(); a.Bytes > 0 {
		fast := float64(a.Bytes) >= worthWaiting*now.Sub(a.First).Seconds()
		s.cursor.ReplayArriving(now, s.replay.active, replay.Arrival{First: a.First, Newest: a.Newest, Fast: fast, Whole: a.Whole})
	}
}

// sooner is the earlier of two times; a zero one is never.
func sooner(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}

func (s *Stream) republishing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.republish
}

// drain applies what was held, portion by portion and each with credit of its
// own: the lock is free between them, and what is unconfirmed stays within
// OUT_BYTES however much was held.
func (s *Stream) drain(ctx context.Context) {
	for ctx.Err() == nil && s.draining() {
		want := s.r.credit.portion(s.r.portion())
		credit := s.r.credit.take(s, want)
		now := s.begin()
		if !credit {
			s.withhold(now)
			s.finish(0)
			return
		}
		if !s.republish {
			s.cursor.Drain(now, want)
		}
		s.finish(want)
	}
}

func (s *Stream) draining() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cursor.Draining() && s.credited && !s.republish
}

// nudge has steer look again. It never blocks.
func (s *Stream) nudge() {
	select {
	case s.wakeup <- struct{}{}:
	default:
	}
}

// creditBack is called by the credit account, under no lock of ours.
func (s *Stream) creditBack() { s.nudge() }

// withhold tells the Cursor, once, that there is no credit. s.mu is held.
func (s *Stream) withhold(now time.Time) {
	if s.credited {
		s.credited = false
		s.story.stalls++
		s.cursor.Credit(now, false)
		s.nudge() // credit may have come back between the refusal and now
	}
}
