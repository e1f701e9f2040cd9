package convert

import "strconv"

// Bound is a limit on what an engine could invent without end. The list is closed.
type Bound uint8

const (
	// BoundBlocks: Config.MaxBlocks; further stores are dropped as ledger_full.
	BoundBlocks Bound = iota
	// BoundRefused: 65 536 refused hashes; the oldest is forgotten, and its
	// children are published although routers will not find their parent.
	BoundRefused
	// BoundAmbiguous: 65 536 hashes with an ambiguous salt; the oldest is
	// forgotten, and its unsalted children take the salt that the ledger has.
	BoundAmbiguous
	// BoundSalts: 65 533 salts of present blocks; blocks of further ones become
	// ambiguous, so that their unsalted children are dropped.
	BoundSalts
	// BoundGroups: 254 cache groups; further ones are counted as one, and their
	// kinds are not learned.
	BoundGroups
	// BoundMultimodal: 65 536 blocks with, together, 1 048 576 numbers of
	// multimodal information; of further blocks a snapshot has none.
	BoundMultimodal
	// BoundCopies: 65 535 copies of one block in its first group, and MaxBlocks
	// records (24 bytes) of announcements and of further groups; more are not
	// counted, so the block may go too early.
	BoundCopies
	// BoundTags: 32 unknown tags told apart; further ones are counted together.
	BoundTags

	numBounds
)

var boundTexts = [numBounds]string{
	"blocks in the ledger (MaxBlocks): further stores are dropped",
	"refused hashes: the oldest are forgotten",
	"ambiguous salts: the oldest are forgotten",
	"cache salts in use: blocks of further ones lose their unsalted children",
	"cache groups: further ones are counted as one",
	"multimodal information: snapshots have none for further blocks",
	"copies of one block, or blocks of several groups: more are not counted",
	"unknown tags: further ones are counted together",
}

// String says what the bound is on, and what happens when it is reached.
func (b Bound) String() string {
	if int(b) < len(boundTexts) {
		return boundTexts[b]
	}
	return "bound(" + strconv.Itoa(int(b)) + ")"
}

// Stats is a copy of a Rank's counters. They only grow, over restarts too.
//
//	Events.In = Events.Published + Events.Suppressed + ΣEvents.Dropped
//	Blocks.In = Blocks.Published + Blocks.Suppressed + ΣBlocks.Dropped
//
// Batches that could not be decoded are in Undecodable only.
type Stats struct {
	Batches     uint64 // converted
	Undecodable uint64 // batches
	BadRank     uint64 // batches whose rank was no number from 0 to 65535; nothing of them is dropped

	Events  Tally              // of the engine; a partial store counts as published
	Blocks  Tally              // hashes in stores and removes
	Partial [NumReasons]uint64 // partial stores, by why their other blocks are missing

	SelfMadeEvents uint64 // removes of ours when full reporting was found
	SelfMadeBlocks uint64
	RouterEvents   uint64 // made from the engine's, before sinks split them

	Bounds [numBounds]uint64 // times that a bound took effect

	// Present is the number of (tier, hash) pairs published now; Kept those of
	// an engine that is away.
	Present, Kept int

	BlockSize     uint64 // expected now; 0: not known yet
	OtherSize     uint64 // of the last store that had another one; 0: none
	Mismatched    bool   // NoticeMismatch was given since the last restart
	FullReporting bool
	Untrusted     bool
}

// Tally counts events or blocks.
type Tally struct {
	In, Published, Suppressed uint64
	Dropped                   [NumReasons]uint64
}

// Drops is what `kvrelay decode` and the metrics show for a reason: whole
// events, partial stores and undecodable batches together.
func (s Stats) Drops(r Reason) uint64 {
	if r == ReasonUndecodable {
		return s.Undecodable
	}
	return s.Events.Dropped[r] + s.Partial[r]
}
