package relay

import (
	"github.com/kvrelay/kvrelay/replay"
	"github.com/kvrelay/kvrelay/sinks"
)

// host is the Stream as the Cursor sees it: it carries out what was decided.
// All methods run under Stream.mu.
type host Stream

var _ replay.Host = (*host)(nil)

func (h *host) Apply(at replay.Position, payload []byte, replayed bool) {
	s := (*Stream)(h)
	if s.over {
		return
	}
	for s.republish { // rare: held batches follow a returned engine's anchor at once
		s.republishChunk()
	}
	s.story.applied(at.Seq, replayed)
	s.consume(at, payload)
}

func (h *host) Burned(from, to uint64) {
	s := (*Stream)(h)
	s.log.Debug("numbers that the engine drew and never used", "from", from, "to", to-1)
}

func (h *host) Unknown(first uint64) {
	s := (*Stream)(h)
	c := s.cursor.State()
	switch {
	case s.src.Replay == "" || s.seqless.on:
		s.log.Info("what the engine stored before this batch is unknown to routers", "first_seq", first, "because", "there is no replay")
	case c.Replayed == 0 && c.Counters.Ended == 0:
		s.log.Info("what the engine stored before this batch is unknown to routers", "first_seq", first, "because", "no replay has answered")
	default:
		s.log.Info("history before the engine's replay buffer is unknown: blocks stored earlier are not published", "first_seq", first)
	}
}

func (h *host) NewEpoch(epoch uint64, cause replay.Cause) {
	s := (*Stream)(h)
	if s.over {
		return
	}
	s.story.newEpoch(s, epoch, cause)
	s.republish = false
	for _, rs := range s.ranks {
		if rs.rebuild != nil {
			s.log.Warn("the stream cannot be resumed: its rank is cleared and published anew", "reason", refusedEngine)
		}
		rs.rebuild, rs.base = nil, 0
		s.clear(rs, cause != replay.CauseRestart)
		if cause == replay.CauseRestart {
			rs.conv.Restart()
		} else {
			rs.conv.Lost()
		}
	}
}

func (h *host) Lost(from, to uint64, policy replay.Policy) {
	s := (*Stream)(h)
	if s.over {
		return
	}
	s.story.lost(s, from, to, policy)
	switch policy {
	case replay.LostKeep:
		if s.rebuilding() {
			s.refuse(refusedShort)
			return
		}
		for _, rs := range s.ranks {
			rs.suspect = true
		}
	case replay.LostExit:
		s.fatal(&LostError{Source: s.src.Name(), From: from, To: to})
	}
}

func (h *host) Away() {
	s := (*Stream)(h)
	if s.over {
		return
	}
	s.republish = false
	s.log.Warn("the engine has not been reachable: its blocks are published as cleared until it is back",
		"for", s.r.o.Replay.DeadAfter.String())
	for _, rs := range s.ranks {
		s.clear(rs, false)
		rs.conv.Away()
		if rs.rebuild != nil {
			// The ledger has not come as far as the place.
			rs.rebuild, rs.last = nil, sinks.Place{Kind: sinks.PlaceUnknown}
		}
		if c := s.cursor.State(); c.Begun {
			rs.base = min(rs.base, c.Next) // conversion goes on below a base that was not reached
		} else {
			rs.base = 0 // whatever comes is converted from its beginning
		}
	}
}

func (h *host) Back() {
	s := (*Stream)(h)
	if s.over {
		return
	}
	s.republish = true
	if s.cursor.State().Begun { // else it is the first that is seen here, or another
		s.log.Info("the same engine is back: its blocks are published again")
	}
	for _, rs := range s.ranks {
		rs.conv.BeginRepublish()
	}
	s.nudge()
}

func (h *host) Ready() {
	s := (*Stream)(h)
	if s.over {
		return
	}
	if s.rebuilding() {
		// Everything the engine has is known, and the place was not in it.
		reason := refusedEngine
		if s.cursor.State().Counters.Ended == 0 {
			reason = refusedShort + ": it does not answer"
		}
		s.refuse(reason)
		return
	}
	s.story.ready(s)
}

func (h *host) Ask(r replay.Request) {
	s := (*Stream)(h)
	s.replay.want = &r
	s.story.asked(s.now)
	select {
	case s.asked <- struct{}{}:
	default:
	}
}

func (h *host) CloseReplay() { (*Stream)(h).closeReplay() }

func (h *host) ReopenLive() { (*Stream)(h).closeLive() }
