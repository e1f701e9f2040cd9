package relay

import (
	"errors"
	"os"
	"strings"
	"time"

	"github.com/kvrelay/kvrelay/internal/zmtp"
	"github.com/kvrelay/kvrelay/replay"
)

// story is what a stream tells of itself: counters for status and metrics, and
// the lines a person reads at level info. Guarded by Stream.mu.
type story struct {
	liveSince   time.Time // of the present live connection; zero: none
	lastMessage time.Time // last live message of any kind
	lastError   string    // last trouble of either connection
	lastErrorAt time.Time

	connects       uint64 // live connections that came up
	refusedFrames  uint64 // messages of a shape no engine sends
	filtered       uint64 // messages of other topics
	replayRefusals uint64
	refusedRanks   uint64 // batches of ranks that another source has, or too many
	undecodable    uint64
	panics         uint64
	stalls         uint64 // times without credit to publish
	toldSilence    bool
	isReady        bool
	readyAt        time.Time

	topics  topics  // whose messages come
	replays healing // what replay brings, for the log
	asks    asks    // whether replay answers
	short   short   // whether it comes as far as the live batches
}

func (t *story) trouble(err error) {
	t.lastError, t.lastErrorAt = err.Error(), time.Now()
}

func (t *story) up(s *Stream, now time.Time) {
	t.connects++
	t.liveSince = now
	t.topics.connected()
	if t.connects == 1 {
		s.log.Info("connected to the engine", "topic", s.src.Topic, "replay", s.src.Replay)
	} else {
		s.log.Info("connected to the engine again", "connections", t.connects)
	}
}

func (t *story) unreachable(s *Stream, err error) {
	t.trouble(err)
	switch {
	case strings.HasPrefix(s.src.Endpoint, listenPrefix):
		s.log.Warn("cannot listen for the engine's publisher: trying again", "error", err)
	case hangs(err):
		s.log.Warn("waiting for the engine: its event endpoint takes connections and does not answer: it hangs, or somebody else has the port", "error", err)
	case errors.Is(err, zmtp.ErrHandshake):
		s.log.Warn("waiting for the engine: what answers at its event endpoint is no publisher", "error", err)
	default:
		s.log.Warn("waiting for the engine: its event endpoint cannot be reached yet", "error", err)
	}
}

// hangs: the handshake did not come to its end in time. A hung engine does so, too, so
// nothing is said of who it is.
func hangs(err error) bool {
	return errors.Is(err, zmtp.ErrHandshake) && errors.Is(err, os.ErrDeadlineExceeded)
}

func (t *story) stranger(s *Stream, err error) {
	t.trouble(err)
	s.log.Warn("whoever connected to the listen: endpoint is no publisher: still waiting for the engine's", "error", err)
}

// refused counts a live message that is no batch in any variant.
func (t *story) refused(s *Stream, frames [][]byte, problem string) {
	t.refusedFrames++
	sizes := make([]int, 0, 4)
	for _, f := range frames[:min(len(frames), 4)] {
		sizes = append(sizes, len(f))
	}
	s.log.Warn("a message is no engine batch (topic, 8-byte seq, payload): is this the engine's event endpoint?", "problem", problem, "frames", len(frames), "first_sizes", sizes)
}

// mixed counts a batch with a number among some without, or the reverse.
func (t *story) mixed(s *Stream) {
	t.refusedFrames++
	s.log.Warn("batches with and without a sequence number on one connection: those unlike the first are left out")
}

// silence tells once of an engine that has sent nothing at all since it was
// connected, and returns when to look again; zero: no more.
func (t *story) silence(s *Stream, now time.Time) time.Time {
	c := s.cursor.State()
	if t.toldSilence || t.liveSince.IsZero() || !t.lastMessage.IsZero() || c.Applied > 0 {
		return time.Time{}
	}
	if at := t.liveSince.Add(s.r.o.SilentAfter); now.Before(at) {
		return at
	}
	t.toldSilence = true
	answers := "it answers"
	switch {
	case s.src.Replay == "":
		answers = "there is none"
	case c.Counters.Ended == 0:
		answers = "it does not answer"
	}
	s.log.Info("connected, but no message has come yet: an idle engine is no fault, a TOPIC that the engine does not use is",
		"for", now.Sub(t.liveSince).Round(time.Second).String(), "topic", s.src.Topic, "replay_endpoint", answers)
	return time.Time{}
}

func (t *story) down(s *Stream, err error) {
	t.liveSince = time.Time{}
	t.asks.failing = "" // no news of an engine that is gone
	t.trouble(err)
	var frame *zmtp.FrameError
	if errors.As(err, &frame) {
		s.log.Warn("live connection given up: what comes is no ZMTP, or more than MAX_FRAME_BYTES", "error", err)
		return
	}
	s.log.Warn("live connection ended", "error", err)
}

func (t *story) newEpoch(s *Stream, epoch uint64, cause replay.Cause) {
	if cause == replay.CauseRestart {
		s.log.Warn("the engine was restarted: its old blocks are cleared", "epoch", epoch)
	}
}

func (t *story) lost(s *Stream, from, to uint64, policy replay.Policy) {
	done := map[replay.Policy]string{
		replay.LostClear: "cleared; going on from what the engine still has",
		replay.LostKeep:  "kept; the picture may be wrong until the next clear or restart",
		replay.LostExit:  "exit",
	}[policy]
	s.log.Error("history is lost: batches can no longer be had from the engine's replay buffer", "from_seq", from, "to_seq", to-1, "then", done)
}
