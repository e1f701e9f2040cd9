package relay

import (
	"slices"

	"github.com/kvrelay/kvrelay/convert"
	"github.com/kvrelay/kvrelay/sinks"
)

// held is a rank's state with the stream that has it.
type held struct {
	s  *Stream
	rs *rankState
}

// owned answers heartbeats and recovery for its rank: with the state of the
// stream that has it, or had it last.
var _ sinks.RankSource = (*owned)(nil)

// RankState is what heartbeats tell.
func (o *owned) RankState() sinks.RankState {
	h := o.holder.Load()
	if h == nil {
		return sinks.RankState{State: StateWaiting, Rebuilding: true}
	}
	s, rs := h.s, h.rs
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.cursor.State()
	state, _ := s.state(&c)
	return sinks.RankState{
		State: rs.state(state), Seq: c.Position.Seq, Epoch: c.Epoch,
		Blocks: rs.conv.Stats().Present, LagMS: 1000 * rs.lag.Last,
		BlockSize:  rs.conv.Stats().BlockSize,
		Rebuilding: rs.rebuild != nil || s.resuming,
	}
}

// Newest is the number given last to a published block.
func (o *owned) Newest() (number, lastID uint64) {
	h := o.holder.Load()
	if h == nil {
		return 0, o.outbox.LastID()
	}
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	return h.rs.conv.Newest(), o.outbox.LastID()
}

// Walk reads a chunk of what is published. The stream's lock is held for one chunk.
func (o *owned) Walk(from, to uint64, out *convert.Output) (next, lastID uint64) {
	h := o.holder.Load()
	if h == nil {
		return to + 1, o.outbox.LastID()
	}
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	return h.rs.conv.Walk(from, to, out), o.outbox.LastID()
}

// tellChanges has heartbeats go out where a rank's state has changed, and the log say
// what the Cursor has seen. s.mu is held.
func (s *Stream) tellChanges() {
	s.ranks = slices.DeleteFunc(s.ranks, func(rs *rankState) bool { return rs.owned.taken.Load() })
	c := s.cursor.State()
	s.story.replayLook(s, &c)
	state, _ := s.state(&c)
	for _, rs := range s.ranks {
		if now := rs.state(state); now != rs.told {
			rs.told = now
			rs.outbox.Changed()
		}
	}
}

// state is the rank's, given its stream's.
func (rs *rankState) state(stream string) string {
	switch {
	case rs.outbox.Unregistered() != "":
		return StateWaiting
	case stream != StateLive:
		return stream
	case rs.rebuild != nil:
		return StateReplaying
	case rs.suspect:
		return StateSuspect
	}
	return StateLive
}
