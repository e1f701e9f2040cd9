package relay

import (
	"strings"
	"time"

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
	toldTopic      bool
	liveless       int // replays that brought batches although no live message ever came
	isReady        bool
	readyAt        time.Time

	replays healing // what replay brings, for the log
}

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

const (
	gapLine      = 10 * time.Second
	livelessTold = 3 // one or two can come of live batches that were lost at the start
)

func (t *story) trouble(err error) {
	t.lastError, t.lastErrorAt = err.Error(), time.Now()
}

func (t *story) up(s *Stream, now time.Time) {
	t.connects++
	t.liveSince = now
	if t.connects == 1 {
		s.log.Info("connected to the engine", "topic", s.src.Topic, "replay", s.src.Replay)
	} else {
		s.log.Info("connected to the engine again", "connections", t.connects)
	}
}

func (t *story) unreachable(s *Stream, err error) {
	t.trouble(err)
	if strings.HasPrefix(s.src.Endpoint, listenPrefix) {
		s.log.Warn("cannot listen for the engine's publisher: trying again", "error", err)
		return
	}
	s.log.Warn("waiting for the engine: its event endpoint cannot be reached yet", "error", err)
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

// otherTopic is a replayed batch that TOPIC leaves out: nothing else shows why
// a stream stays silent.
func (t *story) otherTopic(s *Stream, topic []byte) {
	t.filtered++
	if !t.toldTopic {
		t.toldTopic = true
		s.log.Warn("the engine's batches have another topic than TOPIC and TOPIC_EXACT ask for: they are left out", "their_topic", string(topic[:min(len(topic), 200)]), "topic", s.src.Topic)
	}
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
	t.trouble(err)
	s.log.Warn("live connection ended", "error", err)
}

func (t *story) asked(now time.Time) {
	if t.replays.began.IsZero() {
		t.replays.began, t.replays.batches = now, 0
	}
}

func (t *story) applied(seq uint64, replayed bool) {
	h := &t.replays
	if !replayed {
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
	h := &t.replays
	began, n := h.began, h.batches
	h.began, h.batches = time.Time{}, 0
	if n == 0 || began.IsZero() {
		return
	}
	if t.lastMessage.IsZero() {
		if t.liveless++; t.liveless == livelessTold {
			s.log.Warn("batches come by replay alone, late, and none live: TOPIC is not the engine's, or the two endpoints are not of one engine", "topic", s.src.Topic, "replay", s.src.Replay)
		}
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

func (t *story) replayRefused(s *Stream, err error) {
	t.replayRefusals++
	t.trouble(err)
	s.log.Warn("the replay endpoint cannot be reached: gaps stay open until it can", "replay", s.src.Replay, "error", err)
}

func (t *story) replayDown(s *Stream, err error) {
	t.trouble(err)
	s.log.Debug("replay connection ended", "error", err)
}

func (t *story) ready(s *Stream) {
	first := !t.isReady && t.readyAt.IsZero()
	t.isReady, t.readyAt = true, s.now
	h := &t.replays
	switch {
	case s.src.Replay != "" && !h.began.IsZero():
		s.log.Info("live: the first replay has ended", "batches", h.batches, "took", s.now.Sub(h.began).Round(time.Millisecond).String())
		h.began, h.batches = time.Time{}, 0
	case s.src.Replay == "" && first:
		s.log.Warn("live without replay: every lost batch is lost history, and a restart of the engine that lands on the same seq cannot be seen; set REPLAY_ENDPOINTS where the engine has a replay endpoint")
	}
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
