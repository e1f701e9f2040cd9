package relay

import (
	"fmt"
	"runtime/debug"
	"sync/atomic"

	"github.com/kvrelay/kvrelay/convert"
	"github.com/kvrelay/kvrelay/decode"
	"github.com/kvrelay/kvrelay/discovery"
	"github.com/kvrelay/kvrelay/replay"
	"github.com/kvrelay/kvrelay/sinks"
)

// maxRanks bounds the data-parallel ranks that one source may name. Batches of
// further ranks are counted and dropped: no engine has one publisher for so many.
const maxRanks = 16

// Blocks of a returned engine are published again in chunks, each with credit
// of its own, so that the lock is not held for long and memory stays bounded.
const (
	republishBlocks  = 1024
	republishReserve = republishBlocks * 64
)

// rankState is one (worker, rank) on this source; guarded by Stream.mu.
type rankState struct {
	rank    uint32
	conv    *convert.Rank
	outbox  *sinks.Outbox
	suspect bool // an undecodable batch, or lost history kept, since the last clear or restart
	lag     Lag
	owned   *owned
	told    string // state that heartbeats were told of

	// For resumption: the place up to which batches are converted silently
	// (nil: none), the first seq of this conversion state where the Cursor's is
	// lower, the place of the newest event, the conversion's fingerprint.
	rebuild *sinks.Place
	base    uint64
	last    sinks.Place
	print   uint64
}

// owned is one rank's outbox and who may append to it; guarded by Relay.mu.
// The outbox outlives a source that moves, so event ids go on.
type owned struct {
	outbox *sinks.Outbox
	source discovery.Source
	stream atomic.Pointer[Stream] // also read when bytes are released; nil: nobody's
	holder atomic.Pointer[held]   // who answers for the rank; nil: nobody yet
	resume atomic.Bool            // Outbox.Resume must be called before anything is appended
	taken  atomic.Bool            // the rank's own source has it now, with another outbox
}

// claim gives s the outbox of rank, opening it on the first claim. Only a
// stream that starts can resume one.
func (r *Relay) claim(s *Stream, rank uint32) (*owned, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	o := r.owners[rank]
	taken := o != nil && rank == s.src.Rank && o.squatted(s)
	if taken {
		// A source that merely named the rank, first, must not keep its own out.
		// What it still appends goes nowhere; a new outbox begins with `cleared`.
		o.taken.Store(true)
		o.outbox.Close()
		r.o.Log.Warn("a data-parallel rank is taken from a source that named it: it has a source of its own", "rank", rank, "from", o.source.Name(), "source", s.src.Name())
		o = nil
	}
	if o == nil {
		o = &owned{}
		// What another source left in a stream is no place of this engine's.
		resume := s.starting && !taken && r.o.Publisher.Resumes()
		outbox, err := r.o.Publisher.OpenRank(r.o.WorkerID, rank, sinks.RankOptions{
			Released: func(n int) { r.credit.release(o.stream.Load(), n) },
			Source:   o, Resume: resume, Again: o.again,
		})
		if err != nil {
			return nil, err
		}
		o.outbox = outbox
		o.resume.Store(resume)
		r.owners[rank] = o
	}
	if owner := o.stream.Load(); owner != nil && owner != s {
		return nil, fmt.Errorf("rank %d is sent by two sources: %s has it, %s is refused; give each its own rank (data_parallel_rank in the engine, or FIRST_RANK)",
			rank, o.source.Name(), s.src.Name())
	}
	if o.resume.Load() && !s.starting {
		if rank == s.src.Rank { // refused at its start; who had it has left without resuming
			s.over = true
			s.endSession()
			return nil, fmt.Errorf("rank %d has to be resumed first: %s begins again", rank, s.src.Name())
		}
		return nil, fmt.Errorf("rank %d is named by %s before its own source has started", rank, s.src.Name())
	}
	o.source = s.src
	o.stream.Store(s)
	return o, nil
}

// squatted says whether another stream has o, whose source's own rank is another.
func (o *owned) squatted(s *Stream) bool {
	owner := o.stream.Load()
	return owner != nil && owner != s && owner.src.Rank != s.src.Rank
}

// again has the rank's stream begin as at start: the sink's subject has an
// event of an earlier life that came late.
func (o *owned) again() {
	o.resume.Store(true)
	s := o.stream.Load()
	if s == nil {
		return // the next stream asks
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.log.Warn("a late message of an earlier life is in the stream: beginning again behind it")
	s.over = true
	s.endSession()
}

// disown takes back the ranks of a stream that has ended.
func (r *Relay) disown(s *Stream) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, o := range r.owners {
		o.stream.CompareAndSwap(s, nil)
	}
}

// rank returns the state of rank, made on first sight; a publisher's first
// event is `cleared`, because a router may hold what an earlier life published.
// It returns nil, and has said why, where the rank cannot be had. s.mu is held.
func (s *Stream) rank(rank uint32) *rankState {
	for _, rs := range s.ranks {
		if rs.rank == rank {
			return rs
		}
	}
	if len(s.ranks) >= maxRanks {
		s.story.refusedRanks++
		s.log.Error("the source names too many data-parallel ranks: batches of further ones are dropped", "limit", maxRanks)
		return nil
	}
	own, err := s.r.claim(s, rank)
	if err != nil {
		s.story.refusedRanks++
		s.story.trouble(err)
		s.log.Error("a data-parallel rank is refused: its batches are dropped", "refused_rank", rank, "error", err)
		return nil
	}
	c := s.r.o.Convert
	c.WorkerID, c.Rank = s.r.o.WorkerID, rank
	if c.BlockSize == 0 {
		c.BlockSize = uint64(s.src.BlockSize)
	}
	c.RemovesForCleared = s.src.Ranks > 1 // as asStreams leaves it
	rs := &rankState{rank: rank, conv: convert.New(c), outbox: own.outbox, owned: own, print: s.fingerprint(c)}
	s.ranks = append(s.ranks, rs)
	own.holder.Store(&held{s, rs})
	if !own.resume.Load() && own.outbox.LastID() == 0 {
		s.clear(rs, true)
	}
	return rs
}

// consume decodes, converts and appends one batch that is next in order: the
// only place where bytes become router events. A panic costs the batch, not
// the process: what it left half done is cleared.
func (s *Stream) consume(at replay.Position, payload []byte) {
	var rs *rankState
	defer func() {
		if p := recover(); p != nil {
			s.story.panics++
			s.log.Error("a batch made kvrelay panic: please report it with the stack; its rank is cleared",
				"seq", at.Seq, "bytes", len(payload), "xxh3", fmt.Sprintf("%016x", at.Sum), "panic", fmt.Sprintf("%T", p), "stack", string(debug.Stack()))
			s.undecodable()
			if rs != nil {
				s.batch = decode.Batch{}
				s.out = convert.Output{}
				if rs.rebuild != nil {
					s.refuse(refusedSettings) // it did no harm before
					return
				}
				s.clear(rs, true)
				rs.conv.Lost()
				rs.base = at.Seq + 1
				rs.suspect = true
			}
		}
	}()
	if err := s.batch.Decode(payload); err != nil {
		s.log.Warn("a batch cannot be decoded: it is skipped, and the rank is suspect until the next clear or restart",
			"seq", at.Seq, "bytes", len(payload), "xxh3", fmt.Sprintf("%016x", at.Sum), "error", err)
		s.undecodable()
		return
	}
	rs = s.rank(convert.RankOf(&s.batch, s.src.Rank))
	if rs == nil {
		return
	}
	skip, silent := s.before(rs, at)
	if skip {
		return
	}
	s.out.Reset()
	rs.conv.Convert(&s.batch, &s.out)
	for _, n := range s.out.Notices {
		s.notice(rs, n)
	}
	for i := range s.out.Events {
		if s.out.Events[i].Kind == convert.Cleared {
			rs.suspect = false
		}
	}
	if silent {
		return
	}
	place := s.at(rs, at)
	if rs.rebuild != nil {
		var ok bool
		if s.out.Events, place, ok = s.resumed(rs, place); !ok {
			return
		}
	}
	s.append(rs, place)
	if s.batch.HasTS {
		rs.lag.observe(s.batch.TS, s.now)
	}
}

// undecodable counts a batch that nothing could be made of. Which rank it was
// of is unknown, so all of the source's are suspect.
func (s *Stream) undecodable() {
	s.story.undecodable++
	for _, rs := range s.ranks {
		rs.suspect = true
		if rs.rank == s.src.Rank {
			rs.conv.Undecodable()
		}
	}
}

// append leaves what was converted to the outbox. s.mu is held.
func (s *Stream) append(rs *rankState, at sinks.Place) {
	if at.Kind == sinks.PlaceAt && len(s.out.Events) > 0 {
		rs.last = endOf(at, s.out.Events)
	}
	s.charged += rs.outbox.Append(at, s.out.Events)
}

// clear publishes that rs holds nothing. What becomes of its conversion state
// is the caller's next step. s.mu is held.
func (s *Stream) clear(rs *rankState, noDomain bool) {
	s.out.Reset()
	rs.conv.Cleared(&s.out, noDomain)
	s.append(rs, sinks.Place{Kind: sinks.PlaceEmpty})
	rs.suspect = false
}

// republishChunk publishes the next blocks of an engine that came back, or ends
// republishing. s.mu is held.
func (s *Stream) republishChunk() {
	for _, rs := range s.ranks {
		s.out.Reset()
		more := rs.conv.Republish(&s.out, republishBlocks)
		if len(s.out.Events) > 0 {
			at := rs.last
			if at.Kind == sinks.PlaceAt && rs.conv.Stats().Kept == 0 {
				at.Kind = sinks.PlaceRepublished
			} else {
				at.Kind = sinks.PlaceUnknown
			}
			s.append(rs, at)
		}
		if more {
			return
		}
	}
	s.republish = false
}

func (s *Stream) notice(rs *rankState, n convert.Notice) {
	log := s.log.With("batch_rank", rs.rank)
	switch n.Kind {
	case convert.NoticeMismatch, convert.NoticeBound:
		log.Error(n.String())
	case convert.NoticeUntrusted:
		log.Warn(n.String())
	default:
		log.Info(n.String())
	}
}
