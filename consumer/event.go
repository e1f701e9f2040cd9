// Package consumer is for authors of KV-aware routers: it reads kvrelay's
// router events from NATS, notices what was lost on the way, and gets it back.
//
//   - [ParseMessage] decodes one NATS message of any profile.
//   - [Picture] folds events into what each worker holds.
//   - [Consumer] subscribes, recovers and follows, and hands every event to a
//     hook; see the package example.
//   - Package index answers "how much of this prompt does each worker hold".
//
// It needs a NATS connection and nothing else of kvrelay.
package consumer

import "strconv"

// Kind says what a router event does.
type Kind uint8

const (
	// Stored adds Event.Blocks to a tier.
	Stored Kind = iota + 1
	// Removed takes Event.Hashes out of a tier.
	Removed
	// Cleared empties every tier of the rank.
	Cleared
)

// String is the kind's name in router events.
func (k Kind) String() string {
	switch k {
	case Stored:
		return "stored"
	case Removed:
		return "removed"
	case Cleared:
		return "cleared"
	}
	return "kind(" + strconv.Itoa(int(k)) + ")"
}

// Tier is where a block lies, fastest first.
type Tier uint8

const (
	Device Tier = iota
	HostPinned
	Disk
	External

	// NumTiers is how many tiers there are.
	NumTiers = 4
)

var tierNames = [NumTiers]string{"device", "host_pinned", "disk", "external"}

// String is the tier's name in router events.
func (t Tier) String() string {
	if int(t) < len(tierNames) {
		return tierNames[t]
	}
	return "tier(" + strconv.Itoa(int(t)) + ")"
}

// ParseTier is the tier of that name.
func ParseTier(name string) (Tier, bool) {
	for i, n := range tierNames {
		if n == name {
			return Tier(i), true
		}
	}
	return 0, false
}

// Rank names one stream of router events: one data-parallel rank of one worker.
type Rank struct {
	Worker uint64
	DP     uint32
}

// String is "worker/dp".
func (r Rank) String() string {
	return strconv.FormatUint(r.Worker, 10) + "/" + strconv.FormatUint(uint64(r.DP), 10)
}

// Event is one router event.
type Event struct {
	Rank Rank
	Tier Tier
	// ID counts a publisher's events from 1 without a hole. 0: a walked event
	// of a snapshot, which stands for the state and not for a moment.
	ID   uint64
	Kind Kind

	// Parent of the first block. A Stored event without one starts a prompt;
	// a parent need not be known to the reader, now or ever.
	Parent    uint64
	HasParent bool
	// Start is the position of the first block in its prompt, in blocks, where
	// the publisher said it (kvrelay does not).
	Start    uint32
	HasStart bool
	Blocks   []Block  // Stored; each is the parent of the next
	Hashes   []uint64 // Removed

	Session string // the session that a store was for; "" when none was named
	Domain  string // residency_domain; "" when absent
}

// Block is one stored block.
type Block struct {
	// Hash is the engine's own, sequence-aware: it stands for the block and
	// everything before it.
	Hash uint64
	// TokensHash is what a router computes from the block's tokens alone.
	TokensHash uint64
	MM         []MMObject // multimodal objects in it
}

// MMObject is one multimodal object in a block.
type MMObject struct {
	Hash    uint64
	Offsets [][2]uint64
}

// Message is one NATS message of router events, all of one rank.
type Message struct {
	// Publisher names one life of one rank's stream; event ids count within it.
	// 0: the message did not say (JSON without the header).
	Publisher uint64
	// Sequence and PublishedAt (ms since 1970) come from the envelope of the
	// dynamo profiles; 0 in JSON.
	Sequence    uint64
	PublishedAt uint64
	Events      []Event
}
