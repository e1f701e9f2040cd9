package convert

import (
	"math/rand/v2"
	"testing"

	"github.com/zeebo/xxh3"

	"github.com/kvrelay/kvrelay/decode"
)

// BenchmarkStage… are the work of BenchmarkDecodeConvert…, one stage at a time.
// Validate and Ledger go through the rules' own code with as little of the rest
// as possible, so the stages add up to the whole only roughly.

func BenchmarkStageDecodeAArray(b *testing.B) { stageDecode(b, shapeA, false) }
func BenchmarkStageDecodeAMap(b *testing.B)   { stageDecode(b, shapeA, true) }
func BenchmarkStageDecodeBArray(b *testing.B) { stageDecode(b, shapeB, false) }
func BenchmarkStageDecodeBMap(b *testing.B)   { stageDecode(b, shapeB, true) }

func stageDecode(b *testing.B, s shape, named bool) {
	var batch decode.Batch
	relayBench(b, s, named, func(_ *Rank, store []byte) {
		if err := batch.Decode(store); err != nil {
			b.Fatal(err)
		}
	})
}

// stageBatches are decoded batches and a Rank for them.
func stageBatches(b *testing.B, s shape, named bool) (r *Rank, stores, removes []decode.Batch) {
	rng := rand.New(rand.NewPCG(1, 2))
	stores = make([]decode.Batch, benchWorkingSet)
	removes = make([]decode.Batch, benchWorkingSet)
	for i := range stores {
		st, rm := s.payloads(rng, named)
		if stores[i].Decode(st) != nil || removes[i].Decode(rm) != nil {
			b.Fatal("decoding")
		}
	}
	return New(Config{BlockSize: benchBlock}), stores, removes
}

func BenchmarkStageValidateAArray(b *testing.B) { stageValidate(b, shapeA, false) }
func BenchmarkStageValidateAMap(b *testing.B)   { stageValidate(b, shapeA, true) }
func BenchmarkStageValidateBArray(b *testing.B) { stageValidate(b, shapeB, false) }
func BenchmarkStageValidateBMap(b *testing.B)   { stageValidate(b, shapeB, true) }

// stageValidate asks what stands against each store, up to the ledger's room.
func stageValidate(b *testing.B, s shape, named bool) {
	r, stores, _ := stageBatches(b, s, named)
	var out Output
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		events := stores[i%benchWorkingSet].Events
		for k := range events {
			ev := &events[k]
			tier, reason := place(ev)
			_, groupReason := r.group(ev, tier, &out)
			_, ambiguous := r.saltFor(ev)
			repeats := r.repeats.in(ev.Hashes, ev.HasParent, ev.Parent)
			covered, _, coverReason := r.cover(ev)
			if reason != noReason || groupReason != noReason || ambiguous || repeats || !r.sizeFits(ev, &out) ||
				coverReason != noReason || r.fits(tier, ev.Hashes, &out) != covered {
				b.Fatal("refused")
			}
		}
	}
}

func BenchmarkStageHashAArray(b *testing.B) { stageHash(b, shapeA, false) }
func BenchmarkStageHashAMap(b *testing.B)   { stageHash(b, shapeA, true) }
func BenchmarkStageHashBArray(b *testing.B) { stageHash(b, shapeB, false) }
func BenchmarkStageHashBMap(b *testing.B)   { stageHash(b, shapeB, true) }

func stageHash(b *testing.B, s shape, named bool) {
	r, stores, _ := stageBatches(b, s, named)
	var out Output
	var sum uint64
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		events := stores[i%benchWorkingSet].Events
		for k := range events {
			r.hasher.begin(&events[k], routerSeed, benchBlock, false)
			for n := range events[k].Hashes {
				h, _ := r.hasher.block(n, &out)
				sum += h
			}
		}
	}
	if sum == 0 {
		b.Fatal("no hash")
	}
}

// BenchmarkStageHashAlone is XXH3 by itself over the tokens of one batch.
func BenchmarkStageHashAlone(b *testing.B) {
	tokens := make([]byte, 64*benchBlock*4)
	for i := range tokens {
		tokens[i] = byte(i * 7)
	}
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

func BenchmarkStageLedgerAArray(b *testing.B) { stageLedger(b, shapeA, false) }
func BenchmarkStageLedgerAMap(b *testing.B)   { stageLedger(b, shapeA, true) }
func BenchmarkStageLedgerBArray(b *testing.B) { stageLedger(b, shapeB, false) }
func BenchmarkStageLedgerBMap(b *testing.B)   { stageLedger(b, shapeB, true) }

// stageLedger keeps the blocks of stores.
func stageLedger(b *testing.B, s shape, named bool) {
	var out Output
	stageStores(b, s, named, func(r *Rank, batch *decode.Batch) {
		for k := range batch.Events {
			for _, h := range batch.Events[k].Hashes {
				r.keep(Device, h, 0, asCopy, &out)
			}
		}
	})
}

// stageStores does one with each of the working set's stores, and between the
// measured parts takes their blocks away again.
func stageStores(b *testing.B, s shape, named bool, one func(*Rank, *decode.Batch)) {
	r, stores, removes := stageBatches(b, s, named)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if i == benchWorkingSet {
			b.StopTimer()
			convertBatches(r, removes)
			i = 0
			b.StartTimer()
		}
		one(r, &stores[i])
	}
}

func convertBatches(r *Rank, batches []decode.Batch) {
	var out Output
	for i := range batches {
		out.Reset()
		r.Convert(&batches[i], &out)
	}
}

func BenchmarkStageConvertAArray(b *testing.B) { stageConvert(b, shapeA, false) }
func BenchmarkStageConvertAMap(b *testing.B)   { stageConvert(b, shapeA, true) }
func BenchmarkStageConvertBArray(b *testing.B) { stageConvert(b, shapeB, false) }
func BenchmarkStageConvertBMap(b *testing.B)   { stageConvert(b, shapeB, true) }

// stageConvert is all that lies between decoding and encoding.
func stageConvert(b *testing.B, s shape, named bool) {
	var out Output
	stageStores(b, s, named, func(r *Rank, batch *decode.Batch) {
		out.Reset()
		r.Convert(batch, &out)
	})
}

func BenchmarkStageEncodeAArray(b *testing.B) { stageEncode(b, shapeA, false) }
func BenchmarkStageEncodeAMap(b *testing.B)   { stageEncode(b, shapeA, true) }
func BenchmarkStageEncodeBArray(b *testing.B) { stageEncode(b, shapeB, false) }
func BenchmarkStageEncodeBMap(b *testing.B)   { stageEncode(b, shapeB, true) }

func stageEncode(b *testing.B, s shape, named bool) {
	r, stores, _ := stageBatches(b, s, named)
	var out Output
	r.Convert(&stores[0], &out)
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

// BenchmarkStageRemove… converts removes of as many blocks.
func BenchmarkStageRemoveAArray(b *testing.B) { stageRemove(b, shapeA, false) }
func BenchmarkStageRemoveAMap(b *testing.B)   { stageRemove(b, shapeA, true) }
func BenchmarkStageRemoveBArray(b *testing.B) { stageRemove(b, shapeB, false) }
func BenchmarkStageRemoveBMap(b *testing.B)   { stageRemove(b, shapeB, true) }

func stageRemove(b *testing.B, s shape, named bool) {
	r, stores, removes := stageBatches(b, s, named)
	var out Output
	b.ReportAllocs()
	for i := benchWorkingSet; b.Loop(); i++ {
		if i == benchWorkingSet {
			b.StopTimer()
			convertBatches(r, stores)
			i = 0
			b.StartTimer()
		}
		out.Reset()
		r.Convert(&removes[i], &out)
	}
}
