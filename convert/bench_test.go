package convert

import (
	"math/rand/v2"
	"testing"

	"github.com/kvrelay/kvrelay/decode"
	mp "github.com/kvrelay/kvrelay/internal/msgpack"
)

// shape is a batch of stores: A is one store of 64 blocks, B 32 stores of one.
type shape struct{ stores, blocks int }

var (
	shapeA = shape{1, 64}
	shapeB = shape{32, 1}
)

const benchBlock = 16

// payloads are a batch of stores and the batch that removes its blocks, so that
// the ledger stays as it is.
func (s shape) payloads(rng *rand.Rand, named bool) (store, remove []byte) {
	head := func(dst []byte, events int) []byte {
		if named {
			dst = mp.AppendFloat(mp.AppendStr(mp.AppendMapHeader(dst, 3), "ts"), 1760000000.25)
			return mp.AppendArrayHeader(mp.AppendStr(dst, "events"), events)
		}
		return mp.AppendArrayHeader(mp.AppendFloat(mp.AppendArrayHeader(dst, 3), 1760000000.25), events)
	}
	tail := func(dst []byte) []byte {
		if named {
			dst = mp.AppendStr(dst, "data_parallel_rank")
		}
		return mp.AppendUint(dst, 0)
	}
	key := func(dst []byte, k string) []byte {
		if named {
			return mp.AppendStr(dst, k)
		}
		return dst
	}
	event := func(dst []byte, tag string, fields int) []byte {
		if named {
			return mp.AppendStr(mp.AppendStr(mp.AppendMapHeader(dst, fields+1), "type"), tag)
		}
		return mp.AppendStr(mp.AppendArrayHeader(dst, fields+1), tag)
	}
	store, remove = head(nil, s.stores), head(nil, s.stores)
	for range s.stores {
		store, remove = event(store, "BlockStored", 8), event(remove, "BlockRemoved", 2)
		store = mp.AppendArrayHeader(key(store, "block_hashes"), s.blocks)
		remove = mp.AppendArrayHeader(key(remove, "block_hashes"), s.blocks)
		for range s.blocks {
			h := rng.Uint64()
			store, remove = mp.AppendUint(store, h), mp.AppendUint(remove, h)
		}
		store = mp.AppendNil(key(store, "parent_block_hash"))
		store = mp.AppendArrayHeader(key(store, "token_ids"), s.blocks*benchBlock)
		for range s.blocks * benchBlock {
			store = mp.AppendUint(store, rng.Uint64N(150_000))
		}
		store = mp.AppendUint(key(store, "block_size"), benchBlock)
		store = mp.AppendNil(key(store, "lora_id"))
		store = mp.AppendStr(key(store, "medium"), "GPU")
		store = mp.AppendNil(key(store, "lora_name"))
		store = mp.AppendNil(key(store, "extra_keys"))
		remove = mp.AppendStr(key(remove, "medium"), "GPU")
	}
	return tail(store), tail(remove)
}

// benchWorkingSet is how many batches are stored until their blocks are removed
// again, outside the clock: the ledger stays below 4096 blocks.
const benchWorkingSet = 64

// relayBench runs f over batches of stores.
func relayBench(b *testing.B, s shape, named bool, f func(r *Rank, store []byte)) {
	rng := rand.New(rand.NewPCG(1, 2))
	r := New(Config{BlockSize: benchBlock})
	var stores, removes [][]byte
	for range benchWorkingSet {
		st, rm := s.payloads(rng, named)
		stores, removes = append(stores, st), append(removes, rm)
	}
	b.ReportAllocs()
	b.SetBytes(int64(len(stores[0])))
	for i := 0; b.Loop(); i++ {
		if i == benchWorkingSet {
			b.StopTimer()
			convertAll(b, r, removes)
			i = 0
			b.StartTimer()
		}
		f(r, stores[i])
	}
}

func convertAll(b *testing.B, r *Rank, payloads [][]byte) {
	var batch decode.Batch
	var out Output
	for _, p := range payloads {
		if err := batch.Decode(p); err != nil {
			b.Fatal(err)
		}
		out.Reset()
		r.Convert(&batch, &out)
	}
}

// decodeConvert is the whole way from an engine's payload to an envelope's.
func decodeConvert(b *testing.B, s shape, named bool) {
	var batch decode.Batch
	var out Output
	var payload []byte
	var id uint64
	relayBench(b, s, named, func(r *Rank, store []byte) {
		if err := batch.Decode(store); err != nil {
			b.Fatal(err)
		}
		out.Reset()
		r.Convert(&batch, &out)
		payload = mp.AppendArrayHeader(payload[:0], len(out.Events))
		for i := range out.Events {
			id++
			payload = AppendEvent(payload, &out.Events[i], 7, 0, id)
		}
	})
}

func BenchmarkDecodeConvertAArray(b *testing.B) { decodeConvert(b, shapeA, false) }
func BenchmarkDecodeConvertAMap(b *testing.B)   { decodeConvert(b, shapeA, true) }
func BenchmarkDecodeConvertBArray(b *testing.B) { decodeConvert(b, shapeB, false) }
func BenchmarkDecodeConvertBMap(b *testing.B)   { decodeConvert(b, shapeB, true) }
