package convert

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/vmihailenco/msgpack/v5"
	"github.com/zeebo/xxh3"

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

// BenchmarkStage… are the same work, one stage at a time.

func stage(b *testing.B, s shape, f func(r *Rank, store []byte)) {
	relayBench(b, s, false, f)
}

func stageConvert(b *testing.B, s shape) {
	// Decoded once: what conversion takes, the ledger included.
	rng := rand.New(rand.NewPCG(1, 2))
	r := New(Config{BlockSize: benchBlock})
	batches := make([]decode.Batch, benchWorkingSet)
	removes := make([]decode.Batch, benchWorkingSet)
	for i := range batches {
		st, rm := s.payloads(rng, false)
		if batches[i].Decode(st) != nil || removes[i].Decode(rm) != nil {
			b.Fatal("decoding")
		}
	}
	var out Output
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if i == benchWorkingSet {
			b.StopTimer()
			for k := range removes {
				out.Reset()
				r.Convert(&removes[k], &out)
			}
			i = 0
			b.StartTimer()
		}
		out.Reset()
		r.Convert(&batches[i], &out)
	}
}

func BenchmarkStageConvertA(b *testing.B) { stageConvert(b, shapeA) }
func BenchmarkStageConvertB(b *testing.B) { stageConvert(b, shapeB) }

func stageDecode(b *testing.B, s shape) {
	var batch decode.Batch
	stage(b, s, func(_ *Rank, store []byte) {
		if err := batch.Decode(store); err != nil {
			b.Fatal(err)
		}
	})
}

func BenchmarkStageDecodeA(b *testing.B) { stageDecode(b, shapeA) }
func BenchmarkStageDecodeB(b *testing.B) { stageDecode(b, shapeB) }

// BenchmarkStageHashA hashes the 64 blocks of one batch A.
func BenchmarkStageHashA(b *testing.B) {
	tokens := make([]byte, 64*benchBlock*4)
	for i := range tokens {
		tokens[i] = byte(i * 7)
	}
	b.ReportAllocs()
	var sum uint64
	for b.Loop() {
		for at := 0; at < len(tokens); at += benchBlock * 4 {
			sum += xxh3.HashSeed(tokens[at:at+benchBlock*4], routerSeed)
		}
	}
	if sum == 0 {
		b.Fatal("no hash")
	}
}

func stageEncode(b *testing.B, s shape) {
	st, _ := s.payloads(rand.New(rand.NewPCG(1, 2)), false)
	var batch decode.Batch
	if err := batch.Decode(st); err != nil {
		b.Fatal(err)
	}
	var out Output
	New(Config{}).Convert(&batch, &out)
	var payload []byte
	b.ReportAllocs()
	for b.Loop() {
		payload = payload[:0]
		for i := range out.Events {
			payload = AppendEvent(payload, &out.Events[i], 7, 0, uint64(i))
		}
	}
	b.SetBytes(int64(len(payload)))
}

func BenchmarkStageEncodeA(b *testing.B) { stageEncode(b, shapeA) }
func BenchmarkStageEncodeB(b *testing.B) { stageEncode(b, shapeB) }

// BenchmarkStageRemoveA converts removes of 64 blocks each.
func BenchmarkStageRemoveA(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 2))
	r := New(Config{BlockSize: benchBlock})
	var stores [][]byte
	removes := make([]decode.Batch, benchWorkingSet)
	for i := range removes {
		st, rm := shapeA.payloads(rng, false)
		stores = append(stores, st)
		if err := removes[i].Decode(rm); err != nil {
			b.Fatal(err)
		}
	}
	var out Output
	b.ReportAllocs()
	for i := benchWorkingSet; b.Loop(); i++ {
		if i == benchWorkingSet {
			b.StopTimer()
			convertAll(b, r, stores)
			i = 0
			b.StartTimer()
		}
		out.Reset()
		r.Convert(&removes[i], &out)
	}
}

// BenchmarkReferenceDecode is vmihailenco's streaming decoder over the same
// bytes: only reading, nothing made of it.
func BenchmarkReferenceDecodeA(b *testing.B) { referenceDecode(b, shapeA) }
func BenchmarkReferenceDecodeB(b *testing.B) { referenceDecode(b, shapeB) }

func referenceDecode(b *testing.B, s shape) {
	st, _ := s.payloads(rand.New(rand.NewPCG(1, 2)), false)
	src := bytes.NewReader(st)
	d := msgpack.NewDecoder(src)
	var hashes []uint64
	var tokens []uint32
	fail := func(err error) {
		if err != nil {
			b.Fatal(err)
		}
	}
	length := func(n int, err error) int {
		fail(err)
		return n
	}
	b.ReportAllocs()
	b.SetBytes(int64(len(st)))
	for b.Loop() {
		src.Reset(st)
		d.Reset(src)
		length(d.DecodeArrayLen())
		_, err := d.DecodeFloat64()
		fail(err)
		for range length(d.DecodeArrayLen()) {
			length(d.DecodeArrayLen())
			_, err := d.DecodeString()
			fail(err)
			hashes, tokens = hashes[:0], tokens[:0]
			for range length(d.DecodeArrayLen()) {
				h, err := d.DecodeUint64()
				fail(err)
				hashes = append(hashes, h)
			}
			fail(d.DecodeNil())
			for range length(d.DecodeArrayLen()) {
				t, err := d.DecodeUint32()
				fail(err)
				tokens = append(tokens, t)
			}
			_, err = d.DecodeUint32()
			fail(err)
			for range 4 {
				fail(d.Skip())
			}
		}
		fail(d.Skip())
	}
}
