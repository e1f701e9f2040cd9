// Package replay decides which batch of an engine's stream comes next, what is
// missing, and when history is lost or the engine is another one.
//
// Cursor is the pure part: a state machine without clock, socket or logger.
// Client is the reader of an engine's replay ROUTER.
package replay

import "time"

// Position names one batch of one incarnation of an engine. A number without
// its epoch means nothing; Sum is the XXH3-64 of the payload applied at Seq.
type Position struct {
	Epoch uint64
	Seq   uint64
	Sum   uint64
}

// Policy says what to do when history is lost.
type Policy uint8

const (
	LostClear Policy = iota
	LostKeep
	LostExit
)

// Cause says why a new epoch began.
type Cause uint8

const (
	// CauseRestart: another incarnation of the engine. Both connections are
	// closed and Start begins; without replay the live one stays.
	CauseRestart Cause = iota + 1
	// CauseLost: the engine no longer has what is missing. As a restart.
	CauseLost
	// CauseLostGoingOn: the attempts are exhausted, or there is no replay. The
	// live connection stays; the lowest batch held from it comes next.
	CauseLostGoingOn
)

// Config is a Cursor's fixed surroundings. Zero values take the defaults of
// the settings of the same names.
type Config struct {
	Epoch     uint64 // number of the first epoch
	NoReplay  bool   // no replay endpoint: gaps are lost history at once
	Lost      Policy
	Heartbeat time.Duration // first silence poll; then doubling up to 30 s; 0: 2 s
	Idle      time.Duration // REPLAY_IDLE; 0: 1 s
	Attempts  int           // REPLAY_ATTEMPTS; 0: 8
	DeadAfter time.Duration // 0: 30 s
	Ring      int           // applied batches remembered; 0: 1024
	Safe      int           // replies after a request that no ROUTER drops; 0: 1000 (libzmq's high-water mark)
	// Hold bounds the held batches of the whole process; nil: no bound.
	Hold *Budget
	// Portion bounds the bytes of held batches that one Cursor.Drain applies, to at
	// least one batch; no other input applies any. 0: there is no bound, every
	// input applies what it can, and Drain need not be called.
	Portion int
	// TS reads the wall-clock ts out of a payload; false where there is none.
	// nil: no payload has one.
	TS func(payload []byte) (float64, bool)
	// Rand yields [0,1) for jitter; nil: math/rand/v2.
	Rand func() float64
}

// Request is one replay request that the Cursor wants sent.
type Request struct {
	ID    uint64 // names the request in every later input
	Start uint64 // first seq asked for
	Fresh bool   // on a connection made for it; else the present one is used when there is one
}

// Host carries out what a Cursor decides. Its methods are called from within the
// Cursor's own, on the same goroutine; they must not call the Cursor, except
// State.
type Host interface {
	// Apply consumes a batch: it is next in order. payload is valid during the
	// call only. Never between Away and Back, and never without credit. Without
	// Config.Portion one input may apply everything that is held.
	Apply(at Position, payload []byte, replayed bool)
	// Burned: the numbers [from, to) never existed for anyone.
	Burned(from, to uint64)
	// Unknown: what this epoch had before first > 0 is unknown, because the
	// replay from 0 began there, or there was none. At most once an epoch, before
	// its first Apply.
	Unknown(first uint64)
	// NewEpoch: publish cleared, forget everything of the old one, also what Away
	// kept aside.
	NewEpoch(epoch uint64, cause Cause)
	// Lost: the numbers [from, to) are gone and policy is what was done about it
	// (a keep that could not be kept says clear). LostClear: NewEpoch follows;
	// from = to then says that only the identity of the engine was lost.
	// LostKeep: the ranks are suspect. LostExit: the Cursor does nothing more.
	Lost(from, to uint64, policy Policy)
	// Away: unreachable for DeadAfter: publish cleared, keep the ledger aside.
	// Back or NewEpoch ends it.
	Away()
	// Back: the same incarnation is back after Away: publish the ledger's blocks
	// again.
	Back()
	// Ready: the first replay is over: it has ended with everything known to
	// exist, or its attempts were exhausted (or there is none, and the live
	// connection is up). Said once.
	Ready()
	// Ask sends a replay request, as soon as a replay slot is free. The host
	// answers with ReplaySent or ReplayRefused, then with ReplayBatch, and
	// ReplayEnd or ReplayDown. The slot is free again after ReplayRefused,
	// ReplayEnd, ReplayDown, and with CloseReplay. At most one request is out at
	// a time.
	Ask(r Request)
	// CloseReplay ends the replay connection and forgets an Ask that is still
	// waiting for a slot or a connection.
	CloseReplay()
	// ReopenLive closes the live connection; the host dials anew and says
	// LiveUp. LiveDown need not be said.
	ReopenLive()
}
