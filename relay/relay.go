// Package relay joins the rooms: a Supervisor starts, moves and ends one
// Stream per source, a Stream brings an engine's batches in order to the
// outbox of their rank.
package relay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/kvrelay/kvrelay/convert"
	"github.com/kvrelay/kvrelay/discovery"
	"github.com/kvrelay/kvrelay/internal/zmtp"
	"github.com/kvrelay/kvrelay/replay"
	"github.com/kvrelay/kvrelay/sinks"
)

// Options are a Relay's fixed surroundings.
type Options struct {
	WorkerID  uint64
	Convert   convert.Config // WorkerID, Rank and a zero BlockSize are filled in per rank
	Replay    replay.Config  // NoReplay, Hold and TS are filled in per source
	ZMTP      zmtp.Options   // Type and Subscriptions are filled in
	Publisher *sinks.Publisher
	Profile   sinks.Profile

	HoldBytes   int64 // held batches, whole process
	OutBytes    int64 // unconfirmed router events, whole process
	Replays     int   // replays at once, whole process
	ClearOnExit bool
	SilentAfter time.Duration // how long a connection may bring nothing at all before the log tells what that can mean; 0: 1 min
	DrainFor    time.Duration // how long Run waits for NATS to confirm at the end; 0: 3 s

	// Watch tells the sources now and whenever they change, until ctx ends.
	Watch func(ctx context.Context, update func([]discovery.Source)) error
	// SourceLost is called whenever a live connection ends or cannot be made,
	// so that the engine is asked whether its source has moved. It is called
	// under a stream's lock and must not block; nil: nothing is called.
	SourceLost func()
	Log        *slog.Logger
}

// LostError ends a Relay under LOST=exit.
type LostError struct {
	Source   string
	From, To uint64 // [From, To) is gone
}

func (e *LostError) Error() string {
	return fmt.Sprintf("history of %s is lost: seq %d to %d are gone and LOST=exit", e.Source, e.From, e.To-1)
}

// UnconfirmedError says that a Relay stopped as asked but events stayed unconfirmed.
type UnconfirmedError struct {
	Messages int
	Why      string // "": there was too little time
}

func (e *UnconfirmedError) Error() string {
	s := fmt.Sprintf("not confirmed by NATS before the end: %d messages", e.Messages)
	if e.Why != "" {
		s += ": " + e.Why
	}
	return s
}

// Relay is the whole process between discovery and the sink.
type Relay struct {
	o      Options
	hold   *replay.Budget
	credit *credit
	slots  chan struct{} // one token per running replay

	mu      sync.Mutex // guards what follows; never held while a Stream's is taken
	streams map[discovery.Source]*running
	owners  map[uint32]*owned // by rank
	started time.Time
}

// running is a started stream.
type running struct {
	stream *Stream
	cancel context.CancelFunc
	done   chan struct{}
}

// New makes a Relay. It does no I/O.
func New(o Options) *Relay {
	if o.DrainFor == 0 {
		o.DrainFor = 3 * time.Second
	}
	if o.SourceLost == nil {
		o.SourceLost = func() {}
	}
	if o.SilentAfter == 0 {
		o.SilentAfter = time.Minute
	}
	return &Relay{
		o:       o,
		hold:    replay.NewBudget(o.HoldBytes),
		credit:  newCredit(o.OutBytes),
		slots:   make(chan struct{}, max(1, o.Replays)),
		streams: map[discovery.Source]*running{},
		owners:  map[uint32]*owned{},
	}
}

// Run relays until ctx ends. It returns nil when everything was confirmed,
// *UnconfirmedError when not, *LostError under LOST=exit, or what made the
// publisher give up.
func (r *Relay) Run(ctx context.Context) error {
	r.mu.Lock()
	r.started = time.Now()
	r.mu.Unlock()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	// The publisher outlives the streams: it still sends their last events.
	pctx, pstop := context.WithCancel(context.WithoutCancel(ctx))
	published := make(chan error, 1)
	go func() {
		err := r.o.Publisher.Run(pctx)
		if err != nil {
			cancel(err)
		}
		published <- err
	}()

	var wg sync.WaitGroup
	err := r.o.Watch(ctx, func(sources []discovery.Source) { r.update(ctx, cancel, sources, &wg) })
	if err == nil || errors.Is(err, context.Canceled) {
		<-ctx.Done()
		err = context.Cause(ctx)
	} else {
		cancel(err)
	}
	wg.Wait()
	dctx, dstop := context.WithTimeout(context.WithoutCancel(ctx), r.o.DrainFor)
	left := r.o.Publisher.Drain(dctx)
	dstop()
	state := r.o.Publisher.State()
	pstop()
	<-published

	switch {
	case err != nil && !errors.Is(err, context.Canceled):
		return err
	case left > 0:
		return &UnconfirmedError{Messages: left, Why: cmp.Or(state.Unregistered, state.LastError)}
	}
	return nil
}
