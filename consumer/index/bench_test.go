package index

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/kvrelay/kvrelay/consumer"
)

// fill stores prompts of depth blocks that share their first half pairwise.
func fill(x *Index, rank consumer.Rank, blocks int) {
	r := rand.New(rand.NewPCG(1, 1)) // the same for every rank: shared tokens
	const depth = 50
	for n := 0; n < blocks; n += depth {
		e := consumer.Event{Rank: rank, Kind: consumer.Stored}
		for range depth {
			e.Blocks = append(e.Blocks, consumer.Block{Hash: r.Uint64() + rank.Worker, TokensHash: r.Uint64()})
		}
		x.Apply(&e)
	}
}

// BenchmarkMemory reports what a block takes: held by one worker, and by each
// further one.
func BenchmarkMemory(b *testing.B) {
	heap := func() float64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return float64(m.HeapAlloc)
	}
	const blocks = 1_000_000
	for b.Loop() {
		before := heap()
		x := New(Options{})
		fill(x, consumer.Rank{Worker: 1}, blocks)
		one := heap()
		fill(x, consumer.Rank{Worker: 2}, blocks)
		two := heap()
		if st := x.Stats(); st.Blocks != 2*blocks || st.Nodes != blocks {
			b.Fatalf("%+v", st)
		}
		b.ReportMetric((one-before)/blocks, "B/block")
		b.ReportMetric((two-one)/blocks, "B/shared-block")
	}
}

func BenchmarkApply(b *testing.B) {
	x := New(Options{})
	rank := consumer.Rank{Worker: 1}
	fill(x, rank, 100_000)
	store := consumer.Event{Rank: rank, Kind: consumer.Stored}
	remove := consumer.Event{Rank: rank, Kind: consumer.Removed}
	for i := range uint64(64) {
		store.Blocks = append(store.Blocks, consumer.Block{Hash: i + 1, TokensHash: i + 7})
		remove.Hashes = append(remove.Hashes, i+1)
	}
	b.ReportAllocs()
	for b.Loop() {
		x.Apply(&store)
		x.Apply(&remove)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/128, "ns/block")
}

// BenchmarkMatch: a prompt of 1000 blocks, of which all workers hold the first
// half and one the rest.
func BenchmarkMatch(b *testing.B) {
	for _, workers := range []int{1, 16, 256} {
		b.Run(fmt.Sprintf("workers=%d", workers), func(b *testing.B) {
			x := New(Options{})
			hashes := make([]uint64, 1000)
			for i := range hashes {
				hashes[i] = rand.Uint64()
			}
			for w := range uint64(workers) {
				e := consumer.Event{Rank: consumer.Rank{Worker: w}, Kind: consumer.Stored}
				n := len(hashes) / 2
				if w == 0 {
					n = len(hashes)
				}
				for i := range n {
					e.Blocks = append(e.Blocks, consumer.Block{Hash: hashes[i] + w, TokensHash: hashes[i]})
				}
				x.Apply(&e)
			}
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				var dst []Match
				for pb.Next() {
					if dst = x.MatchHashes(dst[:0], hashes); len(dst) != workers {
						b.Error(len(dst))
						return
					}
				}
			})
		})
	}
}
