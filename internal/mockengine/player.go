package mockengine

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kvrelay/kvrelay/internal/capture"
)

// ReplayShapeOf is how the ROUTER of an engine version frames its replies, and
// its high-water mark for a buffer of so many batches. An engine or version
// that is not known is taken for a new one.
func ReplayShapeOf(engine, version string, bufferSteps int) (ReplayShape, int) {
	engine = strings.ToLower(engine)
	switch {
	case engine == "vllm" && before(version, 0, 26, 0), engine == "sglang" && before(version, 0, 5, 22), engine == "dynamo-mocker":
		return Reply3, oldReplayHWM
	case engine == "atom":
		return ReplyATOM, oldReplayHWM
	case engine == "vllm" && before(version, 0, 33, 0), engine == "sglang":
		return Reply4, oldReplayHWM
	}
	return Reply4, replayHWM(Reply4, bufferSteps)
}

// before reports whether a version is older than another: "0.9.0", "0.26.1rc2",
// "v0.5" are versions; a text that is none is older than nothing.
func before(version string, than ...int) bool {
	parts := strings.Split(strings.TrimPrefix(version, "v"), ".")
	for i, want := range than {
		n := 0
		if i < len(parts) {
			digits := parts[i]
			if end := strings.IndexFunc(digits, func(r rune) bool { return r < '0' || r > '9' }); end >= 0 {
				digits = digits[:end]
			}
			var err error
			if n, err = strconv.Atoi(digits); err != nil {
				return false
			}
		}
		if n != want {
			return n < want
		}
	}
	return false
}

// PlayOptions says how a capture is played.
type PlayOptions struct {
	Rate float64 // messages a second; 0: as fast as they can be read
	Drop float64 // probability that a message is only in the replay buffer
	Seed uint64  // of Drop
	Loop bool    // again and again, each time as a restarted engine
	// Wait for a subscriber before the first message, and for a while at each
	// restart: what is sent before that, only a replay can give.
	Wait bool
}

// PlayStats counts what was played.
type PlayStats struct {
	Messages int
	Withheld int // of those, only in the replay buffer
	Restarts int // where numbers began again, in the file or between rounds
	// Torn wraps capture.ErrTorn where the file ends in the middle of a line.
	Torn error
}

// patienceAtRestart is how long a restarted engine waits for its subscriber:
// somewhat longer than a client's longest pause between two attempts.
const patienceAtRestart = 6 * time.Second

// flushAtRestart is how long a restart waits for clients that read slowly.
const flushAtRestart = time.Second

// Play publishes a capture's messages as they were recorded, until its end or
// ctx's. open is called once a round. In rounds after the first the batches'
// ts is later, as it is after a real restart: a batch of the same bytes would
// be the same process's.
func Play(ctx context.Context, p *Publisher, open func() (*capture.Reader, error), o PlayOptions) (PlayStats, error) {
	pl := &player{p: p, o: o, random: rand.New(rand.NewPCG(o.Seed, 0)), first: math.Inf(1), last: math.Inf(-1)}
	if o.Wait {
		if p.WaitSubscribers(ctx, 1) != nil {
			return pl.stats, nil
		}
	}
	pl.due = time.Now()
	for {
		played := pl.stats.Messages
		if err := pl.round(ctx, open); err != nil || ctx.Err() != nil {
			return pl.stats, err
		}
		if !o.Loop || pl.stats.Messages == played { // an empty capture is not played for ever
			return pl.stats, nil
		}
		if span := pl.last - pl.first; span >= 0 {
			pl.later += span + 1
			pl.first, pl.last = math.Inf(1), math.Inf(-1)
		}
		pl.restart(ctx)
	}
}

type player struct {
	p           *Publisher
	o           PlayOptions
	random      *rand.Rand
	stats       PlayStats
	due         time.Time // of the next message
	first, last float64   // ts of this round
	later       float64   // seconds added to ts
}

func (pl *player) round(ctx context.Context, open func() (*capture.Reader, error)) error {
	r, err := open()
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }() // only read
	next := uint64(0)
	for {
		m, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if errors.Is(err, capture.ErrTorn) {
			pl.stats.Torn = err
			return nil
		}
		if err != nil {
			return err
		}
		if !pl.pace(ctx) {
			return nil
		}
		if seq, ok := m.Seq(); ok {
			if seq < next {
				pl.restart(ctx)
			}
			next = seq + 1
		}
		withhold := pl.random.Float64() < pl.o.Drop
		pl.p.Play(pl.retimed(m.Frames), withhold)
		pl.stats.Messages++
		pl.stats.Withheld += boolInt(withhold)
	}
}

// pace waits until the next message is due. False: ctx has ended.
func (pl *player) pace(ctx context.Context) bool {
	if pl.o.Rate <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(time.Until(pl.due))
	defer t.Stop()
	select {
	case <-t.C:
		// Late messages are not made up for by a burst.
		pl.due = later(pl.due, time.Now().Add(-time.Second)).Add(time.Duration(float64(time.Second) / pl.o.Rate))
		return true
	case <-ctx.Done():
		return false
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// restart is a new process with the same subscribers, who need a moment.
func (pl *player) restart(ctx context.Context) {
	pl.stats.Restarts++
	n := pl.p.Subscribers()
	// What the old process sent had arrived when it was recorded.
	drained, cancel := context.WithTimeout(ctx, flushAtRestart)
	_ = pl.p.Flush(drained) // a client that does not read loses it
	cancel()
	pl.p.Restart()
	if pl.o.Wait && n > 0 {
		ctx, cancel := context.WithTimeout(ctx, patienceAtRestart)
		defer cancel()
		_ = pl.p.WaitSubscribers(ctx, n) // those who do not come back miss it, as they would
	}
	pl.due = time.Now()
}

// retimed moves the ts of a batch in array form; other payloads stay as they are.
func (pl *player) retimed(frames [][]byte) [][]byte {
	payload := frames[max(len(frames)-1, 0):]
	if len(payload) == 0 || len(payload[0]) < 10 || payload[0][0]&0xf0 != 0x90 || payload[0][1] != 0xcb {
		return frames
	}
	ts := math.Float64frombits(binary.BigEndian.Uint64(payload[0][2:10]))
	pl.first, pl.last = min(pl.first, ts), max(pl.last, ts)
	if pl.later == 0 {
		return frames
	}
	moved := slices.Clone(payload[0])
	binary.BigEndian.PutUint64(moved[2:], math.Float64bits(ts+pl.later))
	return append(slices.Clone(frames[:len(frames)-1]), moved)
}
