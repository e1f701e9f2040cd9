// Package decode turns the msgpack batches that LLM engines publish into typed
// events, without reflection and without copying more than conversion needs.
//
// The wire is described by the engines themselves (vLLM's and SGLang's
// kv_events modules): a batch is [ts, events, data_parallel_rank?] or the same
// as a map; each event is an array with its tag first or a map with a "type".
package decode

// Type says what an event is.
type Type uint8

const (
	// Malformed: the framing was sound but a field had a wrong type, or a
	// required one was missing. Problem says which.
	Malformed Type = iota
	Stored
	Removed
	Cleared
	// Ignored is the engine's own tag "Ignored".
	Ignored
	// Unknown is any other tag; Name holds it.
	Unknown
)

// FoldAfter is how many events of a batch are kept one by one whatever they
// are; see Event.Folded.
const FoldAfter = 1024

// Batch is one engine batch. Everything in it aliases either the payload or
// the Batch's own arenas, and is valid until the Batch is used again. The zero
// Batch is ready; a Batch is used by one goroutine at a time, and reused.
type Batch struct {
	TS      float64 // wall clock, seconds; meaningful when HasTS
	HasTS   bool    // ts was a finite number
	Rank    uint32  // data-parallel rank 0…65535; meaningful when HasRank
	HasRank bool
	BadRank bool // a rank was there and was no integer from 0 to 65535
	IsMap   bool // the batch was a map
	Events  []Event

	arena
}

// Event is one event of a Batch. Text fields are nil when the engine sent nil
// or nothing; where "absent" and "empty" or "another type" differ in meaning, a flag
// tells them apart. The flags stand together because a batch may hold a hundred
// thousand events, and padding would cost a fifth of their memory.
type Event struct {
	Type      Type
	IsMap     bool // the event was a map
	BytesHash bool // at least one hash came as bytes
	HasParent bool

	// Folded counts further events of the batch that this one stands for, 0
	// nearly always: past FoldAfter events, a Malformed one with the same
	// Problem, an Ignored one, or an Unknown one of the same Name takes no
	// place of its own. Whoever counts events counts 1 + Folded.
	Folded uint32

	Name    []byte // the tag as sent: Unknown, and Malformed where it was readable
	Problem string // Malformed: what was wrong; from a fixed list, never engine text

	// Hashes of the blocks, parent first. Signed and unsigned encodings of the
	// same 64 bits are the same hash; of a bytes hash these are the last 8
	// bytes, big-endian.
	Hashes    []uint64
	Parent    uint64 // meaningful when HasParent
	Tokens    Tokens // the tokens of the blocks; for EAGLE pairs the n+1 tokens that n pairs stand for
	BlockSize uint64 // meaningful when HasBlockSz

	LoraID    int64 // 0 when absent; −1 and 0 are the base model; capped at 2^63−1
	LoraName  []byte
	SlotSalt  []byte // SGLang's {"cache_salt": …} in the lora_name slot
	CacheSalt []byte // map key cache_salt

	Medium    []byte // of Cleared in array form: slot 1, which may also be an ownership
	ExtraKeys []ExtraKey
	MM        []MMObject // block_mm_infos
	Kind      []byte     // kv_cache_spec_kind
	Locality  []byte
	Ownership []byte
	SessionID []byte // map key session_id; the positional tail has no unambiguous place for it
	Group     uint32 // meaningful when HasGroup

	HasTokens     bool // false: hash-only (token_ids nil, or the map key absent)
	Pairs         Pairs
	HasBlockSz    bool // a store without tokens may lack block_size
	HasSlotSalt   bool // that map was there, whatever it held
	HasSalt       bool // the key cache_salt was there and not nil
	HasMM         bool // block_mm_infos was present as a list (it then wins over ExtraKeys)
	HasGroup      bool
	HasKind       bool
	OtherLocality bool // locality was there with a type that is no text
	Reused        bool // origin = "REUSED"
}

// Tokens are token ids as XXH3 wants them: little-endian, four bytes each.
type Tokens []byte

// Len is the number of tokens.
func (t Tokens) Len() int { return len(t) / 4 }

// At is the i-th token.
func (t Tokens) At(i int) uint32 {
	b := t[4*i : 4*i+4]
	return uint32(b[0]) | uint32(b[1])<<8 | uint32(b[2])<<16 | uint32(b[3])<<24
}

// Pairs says whether token_ids were EAGLE pairs (t[i], t[i+1]).
type Pairs uint8

const (
	NoPairs      Pairs = iota
	ChainedPairs       // each pair begins with the second token of the one before
	UnsoundPairs       // they do not chain, or plain tokens are among them
)

// ExtraKey is a textual item of extra_keys: a string or bytes, bare or first
// in an (id, offset) pair. Numbers and bools are left out, and so are texts of
// less than four bytes: no rule reads any so short, and they would take ten
// times their size.
type ExtraKey struct {
	Block int // index of the block it belongs to, from 0; may lie beyond the event's hashes
	Text  []byte
	Str   bool // msgpack str; false: bin
	Pair  bool // came as (id, offset)
}

// MMObject is one multimodal object of block_mm_infos.
type MMObject struct {
	Block   int // index of the block it belongs to, from 0; may lie beyond the event's hashes
	Hash    uint64
	Offsets [][2]uint64
	Empty   bool // it is none: it says that the block's list of objects was there, and empty
}
