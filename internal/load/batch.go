// Package load is an engine's publisher as fast as a socket takes it: what
// `kvrelay bench` measures the relay with. Frames are made by hand, so that the
// load costs little beside what is measured.
//
// Every batch is a pure function of its number. So the replay side can answer
// for any of them without keeping one, and whoever reads a block's hash knows
// which batch it came with.
package load

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/kvrelay/kvrelay/internal/mockengine"
)

// Shape is what every batch of a rank looks like: one store of a prompt's
// blocks and, once Keep is reached, one remove of the oldest prompt's.
type Shape struct {
	Rank      int // 0…4095
	Blocks    int // per batch, 1…4096
	BlockSize int // tokens per block, 1…4096
	// Keep is how many blocks the rank holds, as an engine's full cache does:
	// from then on each batch removes as many as it stores. 0: all are kept.
	Keep int
	TS   float64 // wall clock of batch 0, seconds; each further one is a microsecond later
}

// Bounds of a Shape. The largest batch is 4096 × 4096 tokens, some 80 MB; one
// that MAX_FRAME_BYTES does not let through is the caller's to refuse.
const (
	maxRank   = 4095
	maxBlocks = 4096
	maxSize   = 4096
)

// ErrShape is wrapped by what is wrong with a Shape.
var ErrShape = errors.New("bad load")

// Generator makes the batches of one rank. Its methods may be called at the
// same time.
type Generator struct {
	shape   Shape
	after   uint64 // batches before each one removes
	first   form   // of batches before that
	further form
}

// form is an encoded batch with the places of what differs.
type form struct {
	bytes   []byte
	stored  int // offset of the first stored hash; the others follow every 9 bytes
	removed int // likewise; 0: none
}

const (
	tsAt     = 2 // array head, float head
	hashStep = 9 // uint64 head and 8 bytes
)

// NewGenerator checks the shape.
func NewGenerator(s Shape) (*Generator, error) {
	var errs []error
	check := func(name string, v, low, high int) {
		if v < low || v > high {
			errs = append(errs, fmt.Errorf("%w: %s %d: want %d to %d", ErrShape, name, v, low, high))
		}
	}
	check("rank", s.Rank, 0, maxRank)
	check("blocks per batch", s.Blocks, 1, maxBlocks)
	check("block size", s.BlockSize, 1, maxSize)
	check("blocks to keep", s.Keep, 0, math.MaxInt32)
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	g := &Generator{shape: s, after: math.MaxUint64}
	if s.Keep > 0 {
		g.after = uint64(max(1, s.Keep/s.Blocks))
	}
	var err error
	if g.first, err = g.form(false); err == nil {
		g.further, err = g.form(true)
	}
	return g, err
}

// form encodes a batch as vLLM does, with hashes that stand nowhere else in it.
func (g *Generator) form(removes bool) (form, error) {
	enc := mockengine.Encoder{Batch: mockengine.Array, Event: mockengine.Map, Hashes: mockengine.Unsigned, BlockSize: g.shape.BlockSize, Rank: g.shape.Rank}
	stored, removed := make([]uint64, g.shape.Blocks), make([]uint64, g.shape.Blocks)
	for i := range stored {
		stored[i], removed[i] = 0xfeedfacecafe0000|uint64(i), 0xdeadbeefdead0000|uint64(i)
	}
	tokens := make([]uint32, g.shape.Blocks*g.shape.BlockSize)
	for i := range tokens {
		tokens[i] = 1000 + uint32(i*7919%120_000) // three to five bytes each, as of a large vocabulary
	}
	events := []mockengine.Event{{Kind: mockengine.Stored, Hashes: stored, Tokens: tokens}}
	if removes {
		events = append(events, mockengine.Event{Kind: mockengine.Removed, Hashes: removed})
	}
	f := form{bytes: enc.Encode(nil, 1.5, events)}
	var err error
	if f.stored, err = place(f.bytes, stored); err == nil && removes {
		f.removed, err = place(f.bytes, removed)
	}
	return f, err
}

// place is the offset of the first hash's bytes, checked for all of them.
func place(b []byte, hashes []uint64) (int, error) {
	var want []byte
	for _, h := range hashes {
		want = binary.BigEndian.AppendUint64(append(want, 0xcf), h)
	}
	at := bytes.Index(b, want)
	if at < 0 {
		return 0, errors.New("load: hashes are not encoded as expected")
	}
	return at + 1, nil
}

// Hash is the hash of a block of a batch: what a router sees of it.
func Hash(rank int, seq uint64, block int) uint64 {
	return 1<<63 | uint64(rank)<<51 | seq<<12 | uint64(block)
}

// maxSeq is how many batches have hashes of their own: 2^39, a year at 17 000 a second.
const maxSeq = 1 << 39

// Seq is the batch that a block came with.
func Seq(hash uint64) uint64 { return hash >> 12 & (maxSeq - 1) }

// Events is how many router events batch seq becomes: a store, and a remove.
func (g *Generator) Events(seq uint64) int {
	if seq >= g.after {
		return 2
	}
	return 1
}

// Held is how many blocks the rank holds after n batches.
func (g *Generator) Held(n uint64) uint64 { return min(n, g.after) * uint64(g.shape.Blocks) }

// Size is how many bytes a batch in the steady state has.
func (g *Generator) Size() int { return len(g.further.bytes) }

// Append appends the payload of batch seq.
func (g *Generator) Append(dst []byte, seq uint64) []byte {
	f := &g.first
	if seq >= g.after {
		f = &g.further
	}
	at := len(dst)
	dst = append(dst, f.bytes...)
	b := dst[at:]
	binary.BigEndian.PutUint64(b[tsAt:], math.Float64bits(g.shape.TS+float64(seq)/1e6))
	for i := range g.shape.Blocks {
		binary.BigEndian.PutUint64(b[f.stored+i*hashStep:], Hash(g.shape.Rank, seq, i))
	}
	if f.removed > 0 {
		for i := range g.shape.Blocks {
			binary.BigEndian.PutUint64(b[f.removed+i*hashStep:], Hash(g.shape.Rank, seq-g.after, i))
		}
	}
	return dst
}
