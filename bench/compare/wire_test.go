package compare

import (
	"math/rand/v2"

	"github.com/tinylib/msgp/msgp"
)

// shape is a batch of stores of 16 tokens a block.
type shape struct {
	name           string
	stores, blocks int
	named          bool // events as maps
}

var shapes = []shape{
	{"A-array", 1, 64, false}, {"A-map", 1, 64, true},
	{"B-array", 32, 1, false}, {"B-map", 32, 1, true},
}

// batches are many of one shape and different content: a single one would let
// the branch predictor learn it by heart.
func (s shape) batches() [][]byte {
	rnd := rand.New(rand.NewPCG(7, 7))
	out := make([][]byte, 256)
	for i := range out {
		out[i] = s.batch(rnd)
	}
	return out
}

// batch is [ts, events, rank], as vLLM encodes it.
func (s shape) batch(rnd *rand.Rand) []byte {
	p := msgp.AppendArrayHeader(nil, 3)
	p = msgp.AppendFloat64(p, 1.79e9)
	p = msgp.AppendArrayHeader(p, uint32(s.stores))
	key := func(name string) {
		if s.named {
			p = msgp.AppendString(p, name)
		}
	}
	for range s.stores {
		if s.named {
			p = msgp.AppendMapHeader(p, 7)
		} else {
			p = msgp.AppendArrayHeader(p, 7)
		}
		key("type")
		p = msgp.AppendString(p, "BlockStored")
		key("block_hashes")
		p = msgp.AppendArrayHeader(p, uint32(s.blocks))
		for range s.blocks {
			p = msgp.AppendUint64(p, rnd.Uint64())
		}
		key("parent_block_hash")
		p = msgp.AppendUint64(p, rnd.Uint64())
		key("token_ids")
		p = msgp.AppendArrayHeader(p, uint32(16*s.blocks))
		for range 16 * s.blocks {
			p = msgp.AppendUint32(p, rnd.Uint32N(150_000))
		}
		key("block_size")
		p = msgp.AppendInt(p, 16)
		key("lora_id")
		p = msgp.AppendNil(p)
		key("medium")
		p = msgp.AppendString(p, "GPU")
	}
	return msgp.AppendInt(p, 0)
}

// batch is what each library decodes into; kvrelay has its own.
type batch struct {
	events         int
	hashes, parent uint64 // sums, so that nothing is left out
	tokens         uint64
}
