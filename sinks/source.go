package sinks

import (
	"context"

	"github.com/kvrelay/kvrelay/convert"
	"github.com/kvrelay/kvrelay/replay"
)

// States of a rank in heartbeats.
const (
	StateLive      = "live"
	StateReplaying = "replaying"
	StateSuspect   = "suspect" // a batch could not be decoded, or lost history was kept
	StateWaiting   = "waiting" // the engine is not reached, or the rank cannot be put on record
	StateLeaving   = "leaving" // the last heartbeat of a relay
)

// RankState is what heartbeats tell of a rank's engine side.
type RankState struct {
	State  string // StateLive …
	Seq    uint64 // of the engine batch applied last
	Epoch  uint64
	Blocks int     // (tier, hash) pairs published as held
	LagMS  float64 // how old that batch was when it was applied
	// BlockSize is the engine's, in tokens; 0: not known yet.
	BlockSize uint64
	// Rebuilding says that the ledger is not yet what was published: a resumed
	// stream converts again. Recovery answers 503 then.
	Rebuilding bool
}

// RankSource is the engine side of an outbox: whoever appends to it. Its
// methods may wait for the lock that guards conversion, never for NATS or the engine.
type RankSource interface {
	RankState() RankState
	// Newest is convert.Rank.Newest and, under the same lock, the outbox's LastID.
	Newest() (number, lastID uint64)
	// Walk is convert.Rank.Walk (1024 blocks at most) and, under the same lock,
	// the outbox's LastID. What out gets is the caller's, but for the lock.
	Walk(from, to uint64, out *convert.Output) (next, lastID uint64)
}

// RankOptions are what OpenRank is told of a rank beside its name.
type RankOptions struct {
	// Released is called with the number of bytes that were confirmed or
	// dropped; their sum equals what Append returned. It is called without a
	// lock held, and must not block. nil: nothing is called.
	Released func(n int)
	// Source makes the rank one with heartbeats, one owner and a recovery
	// service. Nothing is published before the rank is owned. nil: none of it.
	Source RankSource
	// Resume says that the caller will call Outbox.Resume before it appends.
	// Only JetStream looks at it.
	Resume bool
	// Again is called when another life of this publisher has written: what was
	// appended and not stored is dropped, further events are dropped too until
	// Resume was called anew. It must not block. Needed with Resume.
	Again func()
}

// Start says how a stream begins after Outbox.Resume.
type Start uint8

const (
	// StartEmpty: publish `cleared`, then everything.
	StartEmpty Start = iota
	// StartCleared: the last message was a `cleared` behind which any engine
	// may begin: publish everything, without another one.
	StartCleared
	// StartAt: convert from Place.Base to Place without publishing, then go on.
	StartAt
)

// Resumption is what a rank's subject says of where to go on.
type Resumption struct {
	Start  Start
	Place  Place  // of StartAt: the last event stored
	Reason string // of StartEmpty: why not resumed; "" when there was nothing to resume
	LastID uint64 // id of the last event stored
}

// PlaceKind says what a Place means.
type PlaceKind uint8

const (
	// PlaceAt: as the fields say.
	PlaceAt PlaceKind = iota
	// PlaceEmpty: of a `cleared` behind which any engine may begin anew.
	PlaceEmpty
	// PlaceUnknown: of events that say again what was said before a `cleared`,
	// more of which follow. A stream cannot be resumed behind them.
	PlaceUnknown
	// PlaceRepublished: as PlaceUnknown, but the last event ends it: behind it
	// the stream stands where the fields say.
	PlaceRepublished

	// placeSettled is of that last event.
	placeSettled
)

// Resume waits until the rank is owned and its subject's last message was read,
// and says how to begin. It returns at once where nothing is resumed: without
// JetStream, or without RankOptions.Resume. Its error is ctx's, or ErrEnded.
func (o *Outbox) Resume(ctx context.Context) (Resumption, error) {
	if o.p.o.Kind != JetStream || !o.resumes {
		return Resumption{}, nil
	}
	select {
	case r := <-o.known:
		o.mu.Lock()
		o.deaf, o.owed = false, nil
		o.mu.Unlock()
		return r, nil
	case <-ctx.Done():
		return Resumption{}, ctx.Err()
	case <-o.p.done:
		return Resumption{}, ErrEnded
	}
}

// Changed says that the source's state may have changed: a heartbeat goes out
// at once when it has. It never blocks.
func (o *Outbox) Changed() {
	select {
	case o.changed <- struct{}{}:
	default:
	}
}

// place is where the event of a kept id came from. o.mu is held.
func (o *Outbox) place(id uint64) Place {
	si, i := o.log.find(id)
	s := o.log.segs[si]
	m := s.events[i]
	b := s.places[m.place]
	if b.kind == placeSettled {
		b.kind = PlaceAt
	}
	return Place{Kind: b.kind, Pos: b.pos, Event: int(m.event), Block: int(m.block), Base: b.base, Fingerprint: b.print}
}

// batchPlace is what the events of one batch have in common.
type batchPlace struct {
	kind  PlaceKind
	pos   replay.Position
	base  uint64
	print uint64 // Place.Fingerprint
}
