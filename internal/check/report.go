// Package check looks at an engine's KV events and says in plain words what is
// wrong with them and what to do about it: what a person runs first when
// routing hits are low.
//
// A Stream collects facts about one source; it is pure. Watch feeds Streams
// from an engine's sockets, File from a recording. Judge turns a Report into
// findings, Report.Text into something to read. Nothing here ever holds a token
// id, a salt, the name of an adapter, or text of a prompt.
package check

import (
	"github.com/kvrelay/kvrelay/convert"
)

// Report is everything that was seen.
type Report struct {
	Target   string    `json:"target"`            // address of the engine, or the file
	Engine   string    `json:"engine,omitempty"`  // vllm, sglang …; "": not known
	Version  string    `json:"version,omitempty"` // of the engine
	File     bool      `json:"file"`              // a recording, not a running engine
	Seconds  float64   `json:"seconds"`           // how long was looked
	Streams  []*Stream `json:"streams"`           // by rank
	Findings []Finding `json:"findings"`          // worst first
	Healthy  bool      `json:"healthy"`           // no Finding is a Problem

	// Discovery is why no engine was found, or what it offers that is of no use;
	// Doubts are what it offers that is probably not as meant.
	Discovery []string `json:"discovery,omitempty"`
	Doubts    []string `json:"doubts,omitempty"`
}

// Level says how bad a Finding is.
type Level string

// Levels of findings, worst first.
const (
	Problem Level = "problem" // routing hits are lost, or will be: exit code 1
	Warning Level = "warning" // right as long as nothing else goes wrong
	Note    Level = "note"    // good to know
)

// Finding is one thing to know, in plain words.
type Finding struct {
	Level Level  `json:"level"`
	Code  string `json:"code"`            // stable name, for programs
	Where string `json:"where,omitempty"` // ranks it is about
	What  string `json:"what"`
	Do    string `json:"do,omitempty"` // what to do about it
}

// Live is what the live stream showed.
type Live struct {
	Endpoint  string            `json:"endpoint,omitempty"`
	Connected bool              `json:"connected"`
	Connects  int               `json:"connects"`
	Error     string            `json:"error,omitempty"` // of the last attempt to connect, or end of a connection
	Seconds   float64           `json:"seconds"`         // connected
	Messages  uint64            `json:"messages"`
	Bytes     uint64            `json:"bytes"`             // of payloads
	Frames    map[string]uint64 `json:"frames"`            // number of frames → messages
	Odd       uint64            `json:"odd"`               // of no known shape
	OddWhy    string            `json:"odd_why,omitempty"` // of the first of them
	Filtered  uint64            `json:"filtered"`          // topics that TOPIC_EXACT excludes
	Topics    []string          `json:"topics"`            // at most maxNames; further ones are not listed
	Unnumber  uint64            `json:"without_seq"`
	LagMS     float64           `json:"lag_ms"`     // now − ts, mean over live batches; negative: the engine's clock is ahead
	LagMaxMS  float64           `json:"lag_max_ms"` // largest

	lagSum float64
	lagN   int
}

// Replay is what the replay socket showed.
type Replay struct {
	Configured bool              `json:"configured"`
	Off        bool              `json:"off"` // switched off by setting
	Endpoint   string            `json:"endpoint,omitempty"`
	Connected  bool              `json:"connected"`
	Error      string            `json:"error,omitempty"`
	Requests   uint64            `json:"requests"`
	Answered   uint64            `json:"answered"`   // requests with at least one reply
	EndMarkers uint64            `json:"end_marks"`  // requests that ended with the marker
	Batches    uint64            `json:"batches"`    // replies that were batches
	First      *uint64           `json:"first"`      // lowest seq of the answer to "everything from 0"
	Holes      uint64            `json:"holes"`      // numbers left out within one answer
	FirstMS    float64           `json:"first_ms"`   // from the first request to its first reply
	TookMS     float64           `json:"took_ms"`    // to its last one
	Frames     map[string]uint64 `json:"frames"`     // shapes of batches: "4", "3", "2" frames, delimiter included
	EndFrames  map[string]uint64 `json:"end_frames"` // shapes of end markers
	Odd        uint64            `json:"odd"`        // replies that are neither
}

// Numbers is what the sequence numbers showed.
type Numbers struct {
	First    *uint64 `json:"first"`
	Last     *uint64 `json:"last"`
	Applied  uint64  `json:"applied"`  // batches, in order
	Gaps     uint64  `json:"gaps"`     // times that a live batch was ahead of the one expected
	Healed   uint64  `json:"healed"`   // batches that replay brought for gaps
	Polled   uint64  `json:"polled"`   // batches that replay brought in silence, although live should have
	Burned   uint64  `json:"burned"`   // numbers that were never used: replay twice had both neighbours and nothing between
	Missing  uint64  `json:"missing"`  // numbers that neither live nor replay had
	Repeated uint64  `json:"repeated"` // batches that were known already
	Restarts uint64  `json:"restarts"` // of the engine
	Dropped  uint64  `json:"dropped"`  // live batches for which there was no room while replay ran
}

// Wire is how batches are written.
type Wire struct {
	BatchArrays uint64 `json:"batch_arrays"`
	BatchMaps   uint64 `json:"batch_maps"`
	EventArrays uint64 `json:"event_arrays"`
	EventMaps   uint64 `json:"event_maps"`
	Empty       uint64 `json:"empty_batches"`
	RankNamed   uint64 `json:"rank_named"` // batches that say their rank
	RankAbsent  uint64 `json:"rank_absent"`
	NoTS        uint64 `json:"no_ts"`
	HashInts    uint64 `json:"hash_ints"`  // events with integer hashes
	HashBytes   uint64 `json:"hash_bytes"` // events with bytes hashes

	Stored    uint64            `json:"stored"`
	Removed   uint64            `json:"removed"`
	Cleared   uint64            `json:"cleared"`
	Ignored   uint64            `json:"ignored"`
	Unknown   map[string]uint64 `json:"unknown"`   // tag → events
	Malformed map[string]uint64 `json:"malformed"` // what was wrong → events

	Roots      uint64            `json:"roots"`     // stores without a parent
	HashOnly   uint64            `json:"hash_only"` // stores without tokens
	Pairs      uint64            `json:"eagle_pairs"`
	LoRA       uint64            `json:"lora"` // stores of an adapter
	Adapters   int               `json:"adapters"`
	Salted     uint64            `json:"salted"`
	ExtraText  uint64            `json:"extra_text"` // stores with other text in extra_keys
	Multimodal uint64            `json:"multimodal"`
	Sessions   uint64            `json:"sessions"`
	Reused     uint64            `json:"reused"` // stores marked as announcements
	BlockSizes map[string]uint64 `json:"block_sizes"`
	Groups     []Group           `json:"groups"`
	Media      []Medium          `json:"media"`

	adapters map[uint64]struct{} // hashes of names; at most maxNames
}

// Group is one KV-cache group as stores name it.
type Group struct {
	Index      *uint32           `json:"index"` // nil: not named
	Kind       string            `json:"kind,omitempty"`
	Routable   bool              `json:"routable"`
	Stores     uint64            `json:"stores"`
	Removes    uint64            `json:"removes"`
	BlockSizes map[string]uint64 `json:"block_sizes"`
}

// Medium is one storage medium as events name it.
type Medium struct {
	Name    string `json:"name"`
	Tier    string `json:"tier"` // "": not known
	Stores  uint64 `json:"stores"`
	Removes uint64 `json:"removes"`
}

// Rank is what became of the batches of one data-parallel rank.
type Rank struct {
	Rank          uint32          `json:"rank"`
	Batches       uint64          `json:"batches"`
	Undecodable   uint64          `json:"undecodable"`
	BadRank       uint64          `json:"bad_rank"`
	Events        uint64          `json:"events"`
	Published     uint64          `json:"published"`
	Suppressed    uint64          `json:"suppressed"` // removes of one of several copies, and empty ones
	Blocks        uint64          `json:"blocks"`
	BlocksOut     uint64          `json:"blocks_published"`
	RouterEvents  uint64          `json:"router_events"`
	Present       int             `json:"present"` // blocks that a router would hold at the end, over all tiers
	BlockSize     uint64          `json:"block_size"`
	OtherSize     uint64          `json:"other_size"`
	Mismatched    bool            `json:"mismatched"`
	FullReporting bool            `json:"full_reporting"`
	Untrusted     bool            `json:"untrusted"`
	Drops         map[string]Drop `json:"drops"`

	conv *convert.Rank
	seen [convert.NumReasons]uint64
}

// Drop is one reason for which something is not published.
type Drop struct {
	Events  uint64 `json:"events"` // whole or in part; batches for undecodable_batch
	Blocks  uint64 `json:"blocks"`
	Example string `json:"example"` // the first
}
