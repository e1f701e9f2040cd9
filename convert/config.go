package convert

import (
	"encoding/binary"

	"github.com/zeebo/xxh3"

	"github.com/kvrelay/kvrelay/decode"
)

// RulesVersion changes whenever the same batches would give other router
// events than before. It is part of a Config's Fingerprint.
const RulesVersion = 1

// DefaultMaxBlocks is Config.MaxBlocks when that is 0.
const DefaultMaxBlocks = 1 << 22

// Config is what is known of one (worker, data-parallel rank) before its first
// batch. The zero value works: worker 0, rank 0, the block size is learned.
type Config struct {
	WorkerID uint64
	Rank     uint32 // the source's own, for batches that name none

	// BlockSize is the engine's tokens per block, configured or discovered.
	// 0: the first main-attention store with tokens teaches it.
	BlockSize uint64

	// ImageToken and VideoToken are routing tokens of multimodal models; nil:
	// none. Equal ones are as good as none.
	ImageToken, VideoToken *uint32

	Duplicates Duplicates
	Eagle      Eagle

	// RemovesForCleared publishes removes of the rank's known blocks where
	// others publish cleared, for routers (Dynamo ≤ 1.3) that take a cleared for
	// the whole worker although it has several ranks.
	RemovesForCleared bool

	// MaxBlocks bounds the ledger: (tier, hash) pairs present at one time, about
	// 50 bytes each, 60 after long churn. What a store has beyond it is dropped as
	// ledger_full. 0: 4 194 304; above some ten million a bound of the ledger's
	// own has the same effect.
	MaxBlocks int
}

// Duplicates says how several copies of a block under one hash are counted.
type Duplicates uint8

const (
	// Auto tells copies from the announcements of engines that report fully.
	Auto Duplicates = iota
	// Count takes every store as a copy, except those marked REUSED.
	Count
	// Presence takes a hash as there or not.
	Presence
)

// Eagle says whether a block's hash covers one token of the next block.
type Eagle uint8

const (
	// EagleAuto: where token_ids came as pairs.
	EagleAuto Eagle = iota
	// EagleOn: always. Plain tokens then leave the last block of a store without
	// its extra token; it is dropped as short_tokens.
	EagleOn
	// EagleOff: never. Of pairs only the first members count.
	EagleOff
)

// RankOf is the rank that b belongs to: its own, or own where it names none.
func RankOf(b *decode.Batch, own uint32) uint32 {
	if b.HasRank {
		return b.Rank
	}
	return own
}

// Fingerprint is a number that differs when the same batches could give other
// router events: settings, discovered values, RulesVersion.
func (c Config) Fingerprint() uint64 {
	token := func(t *uint32) uint64 {
		if t == nil {
			return 0
		}
		return 1 + uint64(*t)
	}
	var removes uint64
	if c.RemovesForCleared {
		removes = 1
	}
	var b []byte
	for _, v := range [...]uint64{
		RulesVersion, c.WorkerID, uint64(c.Rank), c.BlockSize, token(c.ImageToken), token(c.VideoToken),
		uint64(c.Duplicates), uint64(c.Eagle), removes, uint64(c.maxBlocks()),
	} {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	return xxh3.Hash(b)
}

func (c Config) maxBlocks() int {
	if c.MaxBlocks > 0 {
		return c.MaxBlocks
	}
	return DefaultMaxBlocks
}
