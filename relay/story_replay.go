package relay

import (
	"errors"
	"time"

	"github.com/kvrelay/kvrelay/internal/zmtp"
	"github.com/kvrelay/kvrelay/replay"
)

// healing is one round of replays as a person is told of it. Gaps are common
// where an engine's PUB drops, so further ones within gapLine are summed up.
type healing struct {
	began         time.Time // when the running round began; zero: none
	from, to      uint64    // seq of the first and the last replayed batch it applied
	batches       uint64
	told          time.Time // of the newest line
	gapsUntold    uint64    // gaps healed since
	batchesUntold uint64
}

const gapLine = 10 * time.Second

// asks is what a person is told of the replay endpoint itself.
type asks struct {
	failing string // why the newest request brought nothing that helps; "": it did, or there was none
	told    bool   // the log has it
	heard   bool   // something came in answer to the newest request
	stalled uint64 // rounds of the Cursor's that ended without a marker, as far as they were looked at
	vain    int    // of these, those since the newest answer that brought nothing that helps
}

// short is how often replay has ended, whole, below what came live. An engine answers
// from what it has published, so that of another one is all that does so for long.
type short struct {
	since  time.Time // of the first; zero: no live batch waits, or one was applied since
	rounds int
	told   bool // the log has it
}

const (
	shortFor    = 10 * time.Second // so long at least, and
	shortRounds = 3
	wholeUpTo   = 1000 // replies: beyond them a ROUTER drops some, its high-water mark reached
)

const vainTold = 3 // one or two can be of an engine that dies, or is busy

const (
	replayRefuses = "the replay endpoint cannot be reached"
	replayForeign = "what answers at the replay endpoint is no engine's replay socket"
	replaySilent  = "the replay endpoint does not answer"
	replayGarbled = "what the replay endpoint answers is no batch"
	replayBroken  = "what the replay endpoint sends is no ZMTP, or more than MAX_FRAME_BYTES"
)

// why is the end of a sentence about a replay.
func (a *asks) why() string {
	if a.failing == "" {
		return ""
	}
	return ": " + a.failing
}

// replayHeard: a batch or an end marker came.
func (t *story) replayHeard(s *Stream) {
	a := &t.asks
	if a.told {
		s.log.Info("the replay endpoint answers: what is missing is fetched from it again", "replay", s.src.Replay)
	}
	a.heard, a.told, a.failing, a.vain = true, false, "", 0
}

// replayBad: something came that cannot be read.
func (t *story) replayBad() {
	t.refusedFrames++
	t.asks.heard, t.asks.failing = true, replayGarbled
}

// replayLook tells of requests that got no answer, which the Cursor alone sees. It
// is called after each of its inputs.
func (t *story) replayLook(s *Stream, c *replay.State) {
	a := &t.asks
	if c.Stalled > a.stalled {
		if !a.heard {
			a.failing = replaySilent
		}
		if a.failing != "" {
			a.vain++
		}
		if a.vain >= vainTold && !a.told {
			a.told = true
			s.log.Warn("replay requests are in vain: gaps stay open until they are answered", "because", a.failing, "replay", s.src.Replay)
		}
	}
	a.stalled = c.Stalled
	if t.isReady && !c.Replaying && !s.cursor.Draining() {
		t.replays.began = time.Time{} // a round that was given up is no part of the next
	}
}

func (t *story) asked(now time.Time) {
	if t.replays.began.IsZero() {
		t.replays.began, t.replays.batches = now, 0
	}
}

func (t *story) applied(seq uint64, replayed bool) {
	h := &t.replays
	if !replayed {
		t.short = short{}
		return
	}
	if h.batches == 0 {
		h.from = seq
	}
	h.to = seq
	h.batches++
}

// roundEnded tells of a replay that brought something.
func (t *story) roundEnded(s *Stream, now time.Time) {
	if !t.isReady {
		return // still the first replay, whose end ready tells
	}
	h := &t.replays
	began, n := h.began, h.batches
	h.began, h.batches = time.Time{}, 0
	t.endedShort(s, now, n)
	if n == 0 || began.IsZero() {
		return
	}
	if t.lastMessage.IsZero() {
		t.replayAlone(s)
	}
	if now.Sub(h.told) < gapLine {
		h.gapsUntold++
		h.batchesUntold += n
		return
	}
	attrs := []any{"from_seq", h.from, "to_seq", h.to, "batches", n, "took", now.Sub(began).Round(time.Millisecond).String()}
	if h.gapsUntold > 0 {
		attrs = append(attrs, "gaps_since_last_line", h.gapsUntold, "their_batches", h.batchesUntold)
	}
	h.told, h.gapsUntold, h.batchesUntold = now, 0, 0
	s.log.Info("gap healed by replay", attrs...)
}

// endedShort looks at a round that has ended and brought n batches.
func (t *story) endedShort(s *Stream, now time.Time, n uint64) {
	c := s.cursor.State()
	if !c.Missing || c.Held == 0 || n >= wholeUpTo {
		t.short = short{}
		return
	}
	p := &t.short
	if p.rounds++; p.since.IsZero() {
		p.since = now
	}
	if p.told || p.rounds < shortRounds || now.Sub(p.since) < min(shortFor, s.r.o.SilentAfter) {
		return
	}
	p.told = true
	s.log.Warn("replay ends below what comes live, again and again: the two endpoints are not of one engine", "replay", s.src.Replay, "replay_ends_below", c.Next, "live_batches_held", c.Held)
}

func (t *story) replayRefused(s *Stream, err error) {
	t.replayRefusals++
	t.trouble(err)
	t.asks.failing, t.asks.told = replayRefuses, true
	if hangs(err) {
		t.asks.failing = replaySilent
		s.log.Warn("the replay endpoint takes connections and does not answer: gaps stay open until it does", "replay", s.src.Replay, "error", err)
		return
	}
	if errors.Is(err, zmtp.ErrHandshake) {
		t.asks.failing = replayForeign
		s.log.Warn("what answers at the replay endpoint is no engine's replay socket: gaps stay open until one does", "replay", s.src.Replay, "error", err)
		return
	}
	s.log.Warn("the replay endpoint cannot be reached: gaps stay open until it can", "replay", s.src.Replay, "error", err)
}

func (t *story) replayDown(s *Stream, err error) {
	t.trouble(err)
	var frame *zmtp.FrameError
	if errors.As(err, &frame) {
		t.asks.heard, t.asks.failing = true, replayBroken
	}
	s.log.Debug("replay connection ended", "error", err)
}

// ready tells that the stream is live, and what of. A first replay that was given up
// has not ended: what it would have brought is unknown.
func (t *story) ready(s *Stream) {
	first := !t.isReady && t.readyAt.IsZero()
	t.isReady, t.readyAt = true, s.now
	h := &t.replays
	switch c := s.cursor.State(); {
	case s.seqless.on: // what that means was told with the first batch
	case s.src.Replay == "" && first:
		s.log.Warn("live without replay: every lost batch is lost history, and a restart of the engine that lands on the same seq cannot be seen; set REPLAY_ENDPOINTS where the engine has a replay endpoint")
	case s.src.Replay == "":
	case c.Exhausted > 0:
		t.replayLook(s, &c)
		because := t.asks.failing
		if because == "" {
			because = "its answers stop before their end"
		}
		t.asks.told = true
		s.log.Warn("live without the first replay: what the engine has cached so far is unknown to routers; is the endpoint the engine's replay socket, is it open, does a network policy forbid it?",
			"because", because, "replay", s.src.Replay, "error", t.lastError, "batches", h.batches)
	default:
		s.log.Info("live: the first replay has ended", "batches", h.batches, "took", s.now.Sub(h.began).Round(time.Millisecond).String())
	}
	h.began, h.batches = time.Time{}, 0
}
