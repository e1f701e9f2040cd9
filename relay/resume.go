package relay

import (
	"context"

	"github.com/zeebo/xxh3"

	"github.com/kvrelay/kvrelay/convert"
	"github.com/kvrelay/kvrelay/replay"
	"github.com/kvrelay/kvrelay/sinks"
)

// Why a JetStream subject is not resumed but cleared, as a person reads it.
const (
	refusedSettings = "settings, the engine's block size or the rules of this version are others than before"
	refusedEngine   = "the engine is another one than before: it was restarted, or another source spoke for this rank"
	refusedShort    = "the engine's replay buffer no longer reaches back to where conversion began"
)

// fingerprint differs when the same batches could give other router events.
func (s *Stream) fingerprint(c convert.Config) uint64 {
	var exact uint64
	if s.src.TopicExact {
		exact = 1
	}
	return c.Fingerprint() ^ xxh3.HashStringSeed(s.src.Topic, exact)
}

// at is the place of a rank's batch. s.mu is held.
func (s *Stream) at(rs *rankState, pos replay.Position) sinks.Place {
	return sinks.Place{Pos: pos, Base: max(rs.base, s.cursor.State().Base), Fingerprint: rs.print}
}

// resume asks a newly opened outbox where to go on, and prepares the source's
// own rank for it. It returns false when ctx ended before it was known. No lock is held.
func (s *Stream) resume(ctx context.Context) bool {
	s.begin()
	rs := s.ownRank()
	wait := rs != nil && rs.owned.resume.Load()
	s.resuming = wait
	s.finish(0)
	if !wait {
		return true
	}
	rs.owned.resume.Store(false) // before: Again may ask anew at once
	r, err := rs.outbox.Resume(ctx)
	if err != nil {
		rs.owned.resume.Store(true)
		return false
	}
	s.begin()
	defer s.finish(0)
	s.resuming = false
	switch {
	case r.Start == sinks.StartCleared:
		s.log.Info("the stream ends with a cleared: going on behind it", "event_id", r.LastID)
		return true
	case r.Start == sinks.StartAt && r.Place.Fingerprint != rs.print:
		r.Reason = refusedSettings
	case r.Start == sinks.StartAt && s.src.Replay == "":
		r.Reason = refusedShort + ": there is no replay endpoint"
	case r.Start == sinks.StartAt:
		s.newCursor(r.Place.Pos.Epoch)
		rs.rebuild, rs.base, rs.last = &r.Place, r.Place.Base, r.Place
		s.log.Info("resuming behind the last event in the stream, if the engine is still the same",
			"event_id", r.LastID, "seq", r.Place.Pos.Seq, "from_seq", r.Place.Base)
		return true
	}
	if r.Reason != "" {
		s.log.Warn("the stream cannot be resumed: its rank is cleared and published anew", "reason", r.Reason, "event_id", r.LastID)
	}
	s.clear(rs, true)
	return true
}

// ownRank is the state of the source's own rank, made on first sight; nil where
// it cannot be had. s.mu is held.
func (s *Stream) ownRank() *rankState {
	s.starting = true
	defer func() { s.starting = false }()
	return s.rank(s.src.Rank)
}

// newCursor begins at Start, with the given epoch. s.mu is held.
func (s *Stream) newCursor(epoch uint64) {
	c := s.cursorConfig(s.src.Replay == "")
	c.Epoch = epoch
	s.cursor.Stop()
	s.cursor = replay.NewCursor(c, (*host)(s))
	s.credited = true
}

// anew prepares another session of the stream: everything converted is
// forgotten, and published as cleared but where the outbox will say how to go on.
func (s *Stream) anew() {
	s.begin()
	defer s.finish(0)
	s.newCursor(s.cursor.State().Epoch + 1)
	s.republish, s.seqless = false, seqless{}
	s.story.isReady, s.story.replays = false, healing{}
	for _, rs := range s.ranks {
		rs.rebuild, rs.base = nil, 0
		if !rs.owned.resume.Load() {
			s.clear(rs, true)
		}
		rs.conv.Restart()
	}
}

// refuse ends a resumption: the session ends, the next one clears. s.mu is held.
func (s *Stream) refuse(reason string) {
	s.log.Warn("the stream cannot be resumed: its rank is cleared and published anew", "reason", reason)
	s.over = true
	s.endSession()
}

// nothingReplayed looks at a replay that has ended: an engine that has nothing
// from 0, twice (it may publish before it appends), is not the one that a stream
// could be resumed with. s.mu is held.
func (s *Stream) nothingReplayed() {
	if c := s.cursor.State(); !s.over && s.rebuilding() && !c.Begun && c.Counters.Ended >= 2 {
		s.refuse(refusedEngine)
	}
}

// rebuilding says whether a rank converts silently.
func (s *Stream) rebuilding() bool {
	for _, rs := range s.ranks {
		if rs.rebuild != nil {
			return true
		}
	}
	return false
}

// before says what of a batch is to be done while rs is rebuilt: nothing
// (skip), conversion alone (silent), or, behind the place, all of it. s.mu is held.
func (s *Stream) before(rs *rankState, at replay.Position) (skip, silent bool) {
	t := rs.rebuild
	switch {
	case t == nil:
		return false, false
	case s.cursor.State().Base > t.Base:
		s.refuse(refusedShort)
		return true, false
	case at.Seq < t.Base:
		return true, false
	case at.Seq < t.Pos.Seq:
		return false, true
	case at.Seq > t.Pos.Seq || at.Sum != t.Pos.Sum:
		s.refuse(refusedEngine)
		return true, false
	}
	return false, false
}

// resumed cuts what the stream has off the events of the place's own batch, and
// returns the place of what is left. s.mu is held.
func (s *Stream) resumed(rs *rankState, at sinks.Place) (left []convert.RouterEvent, place sinks.Place, ok bool) {
	t := *rs.rebuild
	evs := s.out.Events
	if t.Event >= len(evs) || t.Block > len(evs[t.Event].Blocks)+len(evs[t.Event].Hashes) {
		s.refuse(refusedSettings) // the same batch gives other events
		return nil, at, false
	}
	rs.rebuild = nil
	s.log.Info("resumed: the stream goes on without a cleared", "seq", t.Pos.Seq)
	e := &evs[t.Event]
	at.Event = t.Event
	if n := len(e.Blocks) + len(e.Hashes); t.Block < n {
		*e = convert.Part(e, t.Block, n)
		at.Block = t.Block
	} else {
		at.Event++
	}
	return evs[at.Event:], at, true
}

// endOf is the place behind the last of evs, which begin at place at.
func endOf(at sinks.Place, evs []convert.RouterEvent) sinks.Place {
	last := &evs[len(evs)-1]
	if len(evs) > 1 {
		at.Block = 0
	}
	at.Event += len(evs) - 1
	at.Block += len(last.Blocks) + len(last.Hashes)
	return at
}
