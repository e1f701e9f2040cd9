package relay

import (
	"slices"
	"time"

	"github.com/kvrelay/kvrelay/convert"
	"github.com/kvrelay/kvrelay/discovery"
	"github.com/kvrelay/kvrelay/replay"
	"github.com/kvrelay/kvrelay/sinks"
)

// States of a rank, as heartbeats, status and metrics name them.
const (
	StateLive      = sinks.StateLive
	StateReplaying = sinks.StateReplaying
	StateSuspect   = sinks.StateSuspect // a batch could not be decoded, or lost history was kept
	StateWaiting   = sinks.StateWaiting // the engine is not reached, or the rank cannot be put on record
)

// Status is a snapshot of a Relay. Making it never waits for NATS or the engine.
type Status struct {
	Started     time.Time
	WorkerID    uint64
	Sources     []SourceStatus // by rank, then endpoint
	HeldBytes   int64          // of all sources
	HoldLimit   int64          // HOLD_BYTES
	Unconfirmed int64          // bytes charged to OUT_BYTES
	OutLimit    int64          // OUT_BYTES
	Sink        sinks.State
}

// SourceStatus is a snapshot of one source.
type SourceStatus struct {
	Source discovery.Source
	State  string // StateLive …
	Reason string // why it is not live, or what is wrong although it is; "": nothing
	Ready  bool   // its first replay has ended, or it has none, and its ranks could be put on record
	Cursor replay.State
	Ranks  []RankStatus

	LiveSince     time.Time // zero: not connected
	LastMessage   time.Time // zero: none yet
	LastError     string
	LastErrorAt   time.Time
	ReplayFailing bool // the newest replay request brought nothing that helps
	WrongTopic    bool // batches come, and none live of TOPIC
	Withheld      bool // no credit: NATS does not confirm fast enough
	Connects      uint64
	RefusedFrames uint64
	Filtered      uint64 // messages of other topics
	RefusedRanks  uint64
	ReplayRefused uint64
	Undecodable   uint64
	Panics        uint64
	Stalls        uint64
	Overdue       time.Duration // how late the stream's own clock is; more than moments: it is stuck
}

// RankStatus is a snapshot of one data-parallel rank.
type RankStatus struct {
	Rank  uint32
	State string
	// Unregistered is why the rank cannot be put on record for routers, so that
	// nothing of it is published; "": there is no such trouble.
	Unregistered string
	PublisherID  uint64
	LastID       uint64 // newest event id
	Confirmed    uint64 // newest id that NATS has confirmed
	Convert      convert.Stats
	Lag          Lag
}

// Status makes a snapshot.
func (r *Relay) Status() Status {
	r.mu.Lock()
	streams := make([]*Stream, 0, len(r.streams))
	for _, run := range r.streams {
		streams = append(streams, run.stream)
	}
	started := r.started
	r.mu.Unlock()
	st := Status{
		Started: started, WorkerID: r.o.WorkerID, HeldBytes: r.hold.Used(), HoldLimit: r.o.HoldBytes,
		Unconfirmed: r.credit.unconfirmed(), OutLimit: r.o.OutBytes, Sink: r.o.Publisher.State(),
	}
	for _, s := range streams {
		st.Sources = append(st.Sources, s.status())
	}
	slices.SortFunc(st.Sources, func(a, b SourceStatus) int {
		if a.Source.Rank != b.Source.Rank {
			return int(a.Source.Rank) - int(b.Source.Rank)
		}
		if a.Source.Endpoint < b.Source.Endpoint {
			return -1
		}
		return 1
	})
	return st
}

func (s *Stream) status() SourceStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := &s.story
	st := SourceStatus{
		Source: s.src, Cursor: s.cursor.State(), Ready: t.isReady,
		LiveSince: t.liveSince, LastMessage: t.lastMessage, LastError: t.lastError, LastErrorAt: t.lastErrorAt,
		ReplayFailing: t.asks.failing != "", WrongTopic: t.topics.wrong,
		Withheld: !s.credited, Connects: t.connects, RefusedFrames: t.refusedFrames, Filtered: t.filtered,
		RefusedRanks: t.refusedRanks, ReplayRefused: t.replayRefusals, Undecodable: t.undecodable,
		Panics: t.panics, Stalls: t.stalls,
	}
	if !s.armed.IsZero() && !s.resuming { // steer does not run while the sink is asked where to go on
		st.Overdue = max(0, time.Since(s.armed))
	}
	state, reason := s.state(&st.Cursor)
	st.State, st.Reason = state, reason
	for _, rs := range s.ranks {
		why := rs.outbox.Unregistered()
		if why != "" {
			st.State, st.Reason, st.Ready = StateWaiting, why, false
		}
		st.Ranks = append(st.Ranks, RankStatus{
			Rank: rs.rank, State: rs.state(state), Unregistered: why, PublisherID: rs.outbox.PublisherID(),
			LastID: rs.outbox.LastID(), Confirmed: rs.outbox.Confirmed(),
			Convert: rs.conv.Stats(), Lag: rs.lag,
		})
	}
	return st
}

// state says in one word how the source is, and in one sentence why. s.mu is held.
func (s *Stream) state(c *replay.State) (state, reason string) {
	switch {
	case s.resuming:
		return StateWaiting, "waiting for the JetStream stream to say where to go on"
	case !c.Live && c.Waiting:
		return StateWaiting, "the engine is unreachable; its blocks are published as cleared"
	case !c.Live:
		return StateWaiting, "not connected to the engine"
	case c.Waiting:
		return StateReplaying, "connected again; what the engine holds is not yet proven"
	case !s.credited:
		return StateReplaying, "NATS does not confirm fast enough: batches wait in the engine's replay buffer"
	case c.Missing && s.story.short.told:
		return StateReplaying, "replay ends below what comes live, again and again: the two endpoints are not of one engine"
	case c.Missing:
		return StateReplaying, "batches are missing and being replayed" + s.story.asks.why()
	case !c.Proven && s.story.isReady:
		return StateReplaying, "connected again; a replay has not shown yet which engine this is" + s.story.asks.why()
	case !s.story.isReady:
		return StateReplaying, "the first replay has not ended" + s.story.asks.why()
	case s.story.topics.wrong:
		return StateLive, "no live batch has the topic that TOPIC and TOPIC_EXACT ask for"
	case s.story.asks.failing != "":
		return StateLive, s.story.asks.failing + ": a gap would stay open"
	}
	return StateLive, ""
}
