package convert

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/kvrelay/kvrelay/decode"
	mp "github.com/kvrelay/kvrelay/internal/msgpack"
)

// otherShape is a batch of one store that is neither A nor B.
type otherShape struct {
	blocks, size int
	wide         bool   // hashes of 32 bytes
	lora         string // "": nil
}

// batches are the store and the remove of its blocks.
func (s otherShape) batches(rng *rand.Rand) (store, remove []byte) {
	event := func(tag string, fields int) []byte {
		p := mp.AppendArrayHeader(mp.AppendFloat(mp.AppendArrayHeader(nil, 2), 1760000000.25), 1)
		p = mp.AppendStr(mp.AppendArrayHeader(p, fields+1), tag)
		return mp.AppendArrayHeader(p, s.blocks)
	}
	store, remove = event("BlockStored", 8), event("BlockRemoved", 2)
	for range s.blocks {
		h := binary.BigEndian.AppendUint64(nil, rng.Uint64())
		if s.wide {
			h = mp.AppendBin(nil, append(make([]byte, 24), h...))
		} else {
			h = append([]byte{0xcf}, h...)
		}
		store, remove = append(store, h...), append(remove, h...)
	}
	store = mp.AppendArrayHeader(mp.AppendNil(store), s.blocks*s.size)
	for range s.blocks * s.size {
		store = mp.AppendUint(store, rng.Uint64N(150_000))
	}
	store = mp.AppendStr(mp.AppendNil(mp.AppendUint(store, uint64(s.size))), "GPU")
	if s.lora == "" {
		store = mp.AppendNil(store)
	} else {
		store = mp.AppendStr(store, s.lora)
	}
	return mp.AppendNil(store), mp.AppendStr(remove, "GPU")
}

// BenchmarkOther… are the whole way of other batches that users see.
func BenchmarkOtherStoreWideHashes(b *testing.B) {
	benchOther(b, otherShape{blocks: 64, size: 16, wide: true}, false)
}
func BenchmarkOtherStoreLora(b *testing.B) {
	benchOther(b, otherShape{blocks: 64, size: 16, lora: "sql-adapter"}, false)
}
func BenchmarkOtherStoreOfOne128(b *testing.B) {
	benchOther(b, otherShape{blocks: 1, size: 128}, false)
}
func BenchmarkOtherRemove1000(b *testing.B) { benchOther(b, otherShape{blocks: 1000, size: 16}, true) }
func BenchmarkOtherRemove1000Wide(b *testing.B) {
	benchOther(b, otherShape{blocks: 1000, size: 16, wide: true}, true)
}

// benchOther measures stores, or removes, and does the others off the clock.
func benchOther(b *testing.B, s otherShape, removes bool) {
	const sets = 16
	rng := rand.New(rand.NewPCG(1, 2))
	var measured, undone [sets][]byte
	for i := range sets {
		measured[i], undone[i] = s.batches(rng)
		if removes {
			measured[i], undone[i] = undone[i], measured[i]
		}
	}
	r := New(Config{BlockSize: uint64(s.size)})
	var batch decode.Batch
	var out Output
	var payload []byte
	if removes {
		convertAll(b, r, undone[:])
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if i == sets {
			b.StopTimer()
			convertAll(b, r, undone[:])
			i = 0
			b.StartTimer()
		}
		if err := batch.Decode(measured[i]); err != nil {
			b.Fatal(err)
		}
		out.Reset()
		r.Convert(&batch, &out)
		payload = payload[:0]
		for k := range out.Events {
			payload = AppendEvent(payload, &out.Events[k], 7, 0, uint64(i))
		}
	}
	if r.Stats().Events.Dropped != (Stats{}).Events.Dropped {
		b.Fatal("events were dropped")
	}
}
