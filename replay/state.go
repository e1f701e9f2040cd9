package replay

// State is a snapshot of a Cursor.
type State struct {
	Position Position // newest applied batch; meaningful when Begun
	Epoch    uint64
	Begun    bool   // a batch of this epoch has been applied
	Base     uint64 // first seq of this epoch that counts; what came before is unknown or was lost
	Next     uint64 // the seq expected

	Live      bool // the live connection is up
	Proven    bool // it leads to the incarnation whose batches were applied
	Waiting   bool // Away was said, and neither Back nor NewEpoch since
	Credit    bool
	Replaying bool // a replay is under way: asked for, running, or in a pause before the next attempt
	Missing   bool // numbers are known to be missing
	Ended     bool // stopped, or history lost under LostExit

	Held      int   // batches
	HeldBytes int64 // as counted in the Budget
	Attempts  int   // rounds in a row without progress

	Counters
}

// Counters only ever grow, those of the epoch excepted. They add up:
//
//	Frames      = Applied + Repeated + Discarded + Malformed + State.Held
//	Next − Base = EpochApplied + EpochBurned + EpochLost
//	Requests    = Ended + Stalled + Refused + Dropped (+ 1 while one is under way)
type Counters struct {
	Frames    uint64 // live, discarded by the host, and replayed
	Applied   uint64 // undecodable ones included
	Replayed  uint64 // of Applied: brought by replay
	Repeated  uint64 // known already
	Discarded uint64 // without credit, without proof, without room, of a dead connection, or behind a restart
	Malformed uint64 // seq 2^64 − 1

	Burned uint64 // numbers that never existed
	Lost   uint64 // numbers declared lost

	EpochApplied, EpochBurned, EpochLost uint64

	Gaps      uint64 // times a live batch was ahead of the one expected
	Restarts  uint64 // of the engine
	Losses    uint64 // times history was declared lost …
	Gone      uint64 // … of these: the engine no longer had it (the others: exhausted, or no replay)
	Conflicts uint64 // times live and replay were of two incarnations
	Exhausted uint64 // times the attempts were

	Polls    uint64 // requests for silence
	Requests uint64
	Ended    uint64 // with the end marker
	Stalled  uint64 // silent, trickling, or the connection ended
	Refused  uint64
	Dropped  uint64 // by ourselves: live connection gone, no credit, or decided before the end
}

// State returns a snapshot; it is cheap.
func (c *Cursor) State() State {
	return State{
		Position:  Position{c.epoch, c.anchor.seq, c.anchor.sum},
		Epoch:     c.epoch,
		Begun:     c.begun,
		Base:      c.base,
		Next:      c.next,
		Live:      c.live,
		Proven:    c.proven,
		Waiting:   c.waiting,
		Credit:    c.credit,
		Replaying: c.busy(),
		Missing:   c.missing(),
		Ended:     c.ended,
		Held:      c.held.len(),
		HeldBytes: c.held.bytes,
		Attempts:  c.attempts,
		Counters:  c.count,
	}
}
