package capture

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"strconv"
	"strings"
)

// Meta is a capture's first line. Fields that this package does not know are
// kept in Extra and written back.
type Meta struct {
	Engine        string          `json:"engine,omitzero"`
	Version       string          `json:"version,omitzero"`
	Case          string          `json:"case,omitzero"`
	Config        json.RawMessage `json:"config,omitzero"`
	Seed          *int64          `json:"seed,omitzero"`
	BlockSize     []uint32        `json:"block_size,omitzero"` // tokens per block, one entry per cache group
	HashBlockSize uint32          `json:"hash_block_size,omitzero"`
	Groups        []string        `json:"groups,omitzero"` // "full:16", "swa:16:64" …
	DPRank        uint32          `json:"dp_rank"`
	Topic         string          `json:"topic"`
	HashAlgo      string          `json:"hash_algo,omitzero"`
	IntHashes     *bool           `json:"int_hashes,omitzero"` // false: block hashes are bytes on the wire
	Published     *int            `json:"published,omitzero"`
	Received      *int            `json:"received,omitzero"`

	// State is what the engine held at the end. In a capture of several
	// incarnations each has its own and this one is the last's.
	State
	Incarnations []Incarnation `json:"incarnations,omitzero"`

	// Of replay transcripts.
	LastSeq           *uint64      `json:"last_seq,omitzero"`
	BufferSteps       *uint64      `json:"buffer_steps,omitzero"`
	OldestBufferedSeq *uint64      `json:"oldest_buffered_seq,omitzero"`
	LivePayloads      []PayloadSum `json:"live_payload_sha256_16,omitzero"`

	Extra map[string]json.RawMessage `json:"-"`
}

// State is what an engine itself says about its cache.
type State struct {
	FirstMessage int               `json:"first_message,omitzero"` // index of its first message in the file
	Messages     *int              `json:"messages,omitzero"`
	Truth        Truth             `json:"truth,omitzero"`
	TruthDigest  map[string]Digest `json:"truth_digest,omitzero"` // per group, as in Truth
	Checkpoints  []Checkpoint      `json:"checkpoints,omitzero"`
	Queries      []Query           `json:"queries,omitzero"`
}

// Incarnation is one engine process of several in one capture.
type Incarnation struct {
	State
}

// Truth is what an engine holds: per group ("0", or "0/CPU" for group 0 on the
// CPU tier) hash → physical blocks. A hash is a decimal integer, signed or
// unsigned, or the hex of a bytes hash; ParseHash reads it.
type Truth map[string]map[string]int

// Digest sums up one group.
type Digest struct {
	Hashes int    `json:"hashes"` // distinct hashes
	Blocks int    `json:"blocks"` // physical blocks
	XOR64  string `json:"xor64"`  // XOR of the hashes' low 64 bits, 16 hex digits
}

// Checkpoint is the state of the GPU tier after the batch AfterSeq; −1: before the first.
type Checkpoint struct {
	AfterSeq int64             `json:"after_seq"`
	Groups   map[string]Digest `json:"groups"`
}

// Query is a prompt and how many of its tokens the engine would have found
// cached at the end.
type Query struct {
	TokenIDs  []uint32        `json:"token_ids"`
	LoraName  string          `json:"lora_name,omitzero"`
	CacheSalt string          `json:"cache_salt,omitzero"`
	ExtraKey  string          `json:"extra_key,omitzero"` // SGLang's namespace
	MM        json.RawMessage `json:"mm,omitzero"`
	HitTokens int             `json:"hit_tokens"`
}

// PayloadSum is [seq, first 16 hex digits of the payload's SHA-256].
type PayloadSum struct {
	Seq uint64
	Sum string
}

// UnmarshalJSON reads the pair.
func (p *PayloadSum) UnmarshalJSON(b []byte) error {
	var pair []json.RawMessage
	if err := json.Unmarshal(b, &pair); err != nil {
		return err
	}
	if len(pair) != 2 {
		return errors.New("a payload sum is a pair of seq and digest")
	}
	if err := json.Unmarshal(pair[0], &p.Seq); err != nil {
		return err
	}
	return json.Unmarshal(pair[1], &p.Sum)
}

// MarshalJSON writes the pair.
func (p PayloadSum) MarshalJSON() ([]byte, error) { return json.Marshal([]any{p.Seq, p.Sum}) }

// ParseHash gives a truth's hash as the 64 bits that router events carry:
// integers as their two's complement, bytes hashes as their last 8 bytes,
// big-endian.
func ParseHash(text string) (uint64, error) {
	// An integer has at most 20 characters and a bytes hash 64 hex digits.
	if len(text) > 20 {
		b, err := hex.DecodeString(text)
		if err != nil {
			return 0, fmt.Errorf("bytes hash: %w", ErrFormat)
		}
		return binary.BigEndian.Uint64(b[len(b)-8:]), nil
	}
	if strings.HasPrefix(text, "-") {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("integer hash: %w", ErrFormat)
		}
		return uint64(n), nil
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("integer hash: %w", ErrFormat)
	}
	return n, nil
}

// Hashes is one group's truth with parsed hashes: hash → physical blocks. A
// group that is not there holds nothing.
func (t Truth) Hashes(group string) (map[uint64]int, error) {
	out := make(map[uint64]int, len(t[group]))
	for text, copies := range t[group] {
		h, err := ParseHash(text)
		if err != nil {
			return nil, fmt.Errorf("truth of group %q: %w", group, err)
		}
		out[h] += copies
	}
	return out, nil
}

// XOR is the digest's XOR64 as a number.
func (d Digest) XOR() (uint64, error) {
	n, err := strconv.ParseUint(d.XOR64, 16, 64)
	if err != nil {
		return 0, fmt.Errorf("xor64: %w", ErrFormat)
	}
	return n, nil
}

// BytesHashes reports whether block hashes are bytes on the wire.
func (m *Meta) BytesHashes() bool { return m.IntHashes != nil && !*m.IntHashes }

// plainMeta has Meta's fields without its methods, so that they are encoded
// the usual way.
type plainMeta Meta

// metaFields is the set of JSON names that Meta has fields for.
var metaFields = jsonNames(reflect.TypeFor[plainMeta](), map[string]bool{})

func jsonNames(t reflect.Type, into map[string]bool) map[string]bool {
	for i := range t.NumField() {
		f := t.Field(i)
		if f.Anonymous {
			jsonNames(f.Type, into)
			continue
		}
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "-" {
			into[name] = true
		}
	}
	return into
}

// UnmarshalJSON reads the fields it knows and keeps the others in Extra.
func (m *Meta) UnmarshalJSON(b []byte) error {
	var p plainMeta
	if err := json.Unmarshal(b, &p); err != nil {
		return err
	}
	if err := json.Unmarshal(b, &p.Extra); err != nil {
		return err
	}
	maps.DeleteFunc(p.Extra, func(k string, _ json.RawMessage) bool { return metaFields[strings.ToLower(k)] })
	if len(p.Extra) == 0 {
		p.Extra = nil
	}
	*m = Meta(p)
	return nil
}

// MarshalJSON writes the known fields and Extra; a known field wins over an
// Extra of the same name.
func (m *Meta) MarshalJSON() ([]byte, error) {
	b, err := json.Marshal((*plainMeta)(m))
	if err != nil || len(m.Extra) == 0 {
		return b, err
	}
	all := maps.Clone(m.Extra)
	maps.DeleteFunc(all, func(k string, _ json.RawMessage) bool { return metaFields[strings.ToLower(k)] })
	extra, err := json.Marshal(all)
	if err != nil || len(all) == 0 {
		return b, err
	}
	// Both are objects with at least one member: dp_rank is always written.
	return append(append(b[:len(b)-1], ','), extra[1:]...), nil
}
