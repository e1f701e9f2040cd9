package convert

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/kvrelay/kvrelay/decode"
)

// BenchmarkLedgerLarge converts an A batch and the removal of the oldest blocks, as
// an engine sends them whose cache is full, with a ledger that is larger than the
// processor's cache.
func BenchmarkLedgerLarge(b *testing.B) {
	for _, n := range []int{1 << 17, 1 << 20} {
		b.Run(fmt.Sprintf("%dK", n>>10), func(b *testing.B) {
			rng := rand.New(rand.NewPCG(1, 2))
			store, remove := shapeA.payloads(rng, false)
			var stores, removes decode.Batch
			if err := stores.Decode(store); err != nil {
				b.Fatal(err)
			}
			if err := removes.Decode(remove); err != nil {
				b.Fatal(err)
			}
			// The hashes of a sequence: any two differ, and none is near another.
			hash := func(i int) uint64 { return uint64(i+1) * 0x9e3779b97f4a7c15 }
			r := New(Config{BlockSize: benchBlock})
			var out Output
			step := func(batch *decode.Batch, from int) {
				hashes := batch.Events[0].Hashes
				for i := range hashes {
					hashes[i] = hash(from + i)
				}
				out.Reset()
				r.Convert(batch, &out)
			}
			at := 0
			for ; at < n; at += shapeA.blocks {
				step(&stores, at)
			}
			for b.Loop() {
				step(&stores, at)
				step(&removes, at-n)
				at += shapeA.blocks
			}
			if got := r.ledger.size(); got != n {
				b.Fatalf("%d blocks, want %d", got, n)
			}
		})
	}
}
