package mockengine

import (
	"encoding/binary"

	"github.com/zeebo/xxh3"
)

// Kind says what an Event does.
type Kind uint8

const (
	Stored Kind = iota + 1
	Removed
	Cleared
)

// Event is one KV event of the pool, before its encoding.
type Event struct {
	Kind      Kind
	Hashes    []uint64 // Stored: parent first. Removed: the blocks that are gone
	Parent    uint64   // Stored, with HasParent
	HasParent bool
	Tokens    []uint32 // Stored: len(Hashes) × block size
}

// hashSeed seeds the hashes that KV routers compute over prompts.
const hashSeed = 1337

// TokensHash is the hash a router recomputes for one block of a prompt:
// XXH3-64, seed 1337, over the token ids as four little-endian bytes each.
func TokensHash(tokens []uint32) uint64 {
	b := make([]byte, 0, 4*len(tokens))
	for _, t := range tokens {
		b = binary.LittleEndian.AppendUint32(b, t)
	}
	return xxh3.HashSeed(b, hashSeed)
}

// RootHash is the block hash of a prompt's first block: its tokens hash.
func RootHash(tokens []uint32) uint64 { return TokensHash(tokens) }

// ChildHash is the block hash of a block after parent:
// XXH3-64(1337, LE64(parent) LE64(tokens hash)), as Dynamo's mock engine does.
func ChildHash(parent uint64, tokens []uint32) uint64 {
	var b [16]byte
	binary.LittleEndian.PutUint64(b[:8], parent)
	binary.LittleEndian.PutUint64(b[8:], TokensHash(tokens))
	return xxh3.HashSeed(b[:], hashSeed)
}

// BlockHashes are the hashes of the whole blocks of a prompt, parent first.
func BlockHashes(tokens []uint32, blockSize int) []uint64 {
	out := make([]uint64, 0, len(tokens)/blockSize)
	for i := 0; i+blockSize <= len(tokens); i += blockSize {
		block := tokens[i : i+blockSize]
		if i == 0 {
			out = append(out, RootHash(block))
		} else {
			out = append(out, ChildHash(out[len(out)-1], block))
		}
	}
	return out
}
