package convert

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
)

// heapOf is what is still reachable after f has built it, by the heap.
func heapOf(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&before)
	f()
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&after)
	return after.HeapAlloc - before.HeapAlloc
}

// fill makes n blocks present, with all that conversion keeps of them.
func fill(l *ledger, n int, rng *rand.Rand) {
	for range n {
		_, e := l.add(Device, rng.Uint64())
		e.tokens = rng.Uint64()
		e.setParent(true, rng.Uint64())
		e.copies = 1
	}
}

// churn removes and adds n blocks, half at random and half the oldest.
func churn(l *ledger, n int, rng *rand.Rand) {
	hashes := make([]uint64, 0, l.size())
	l.each(0, func(_ uint32, e *entry) bool {
		hashes = append(hashes, e.hash)
		return true
	})
	oldest := 0
	for i := range n {
		k := rng.IntN(len(hashes))
		if i%2 == 0 {
			k = oldest % len(hashes)
			oldest++
		}
		slot, e, ok := l.lookup(Device, hashes[k])
		if !ok {
			panic("lost")
		}
		l.remove(slot, e)
		l.tidy(slot)
		hashes[k] = rng.Uint64()
		_, e = l.add(Device, hashes[k])
		e.copies = 1
	}
}

var ledgerSizes = []int{1 << 20, 1 << 22}

// BenchmarkLedgerBytes reports the heap of a full ledger per block, as filled
// and after as many removals as it has blocks.
func BenchmarkLedgerBytes(b *testing.B) {
	for _, n := range ledgerSizes {
		for _, churned := range []bool{false, true} {
			name := fmt.Sprintf("%dM", n>>20)
			if churned {
				name += "Churned"
			}
			b.Run(name, func(b *testing.B) {
				var bytes uint64
				for b.Loop() {
					var l ledger
					bytes = heapOf(func() {
						rng := rand.New(rand.NewPCG(1, 1))
						l = newLedger(DefaultMaxBlocks)
						fill(&l, n, rng)
						if churned {
							churn(&l, n, rng)
						}
					})
					runtime.KeepAlive(&l)
				}
				b.ReportMetric(float64(bytes)/float64(n), "bytes/block")
			})
		}
	}
}

// BenchmarkLedgerChurn is one removal and one addition in a full ledger.
func BenchmarkLedgerChurn(b *testing.B) {
	for _, n := range ledgerSizes {
		b.Run(fmt.Sprintf("%dM", n>>20), func(b *testing.B) {
			rng := rand.New(rand.NewPCG(1, 1))
			l := newLedger(DefaultMaxBlocks)
			fill(&l, n, rng)
			b.ResetTimer()
			b.ReportAllocs()
			churn(&l, b.N, rng)
		})
	}
}

// BenchmarkLedgerLookup finds present hashes of a full ledger.
func BenchmarkLedgerLookup(b *testing.B) {
	for _, n := range ledgerSizes {
		b.Run(fmt.Sprintf("%dM", n>>20), func(b *testing.B) {
			l := newLedger(DefaultMaxBlocks)
			fill(&l, n, rand.New(rand.NewPCG(1, 1)))
			var hashes []uint64
			l.each(0, func(_ uint32, e *entry) bool { hashes = append(hashes, e.hash); return true })
			rand.Shuffle(len(hashes), func(i, k int) { hashes[i], hashes[k] = hashes[k], hashes[i] })
			i := 0
			for b.Loop() {
				if _, _, ok := l.lookup(Device, hashes[i]); !ok {
					b.Fatal("lost")
				}
				if i++; i == len(hashes) {
					i = 0
				}
			}
		})
	}
}

// BenchmarkLedgerWalk appends chunks of 1024 blocks, as snapshots do.
func BenchmarkLedgerWalk(b *testing.B) {
	for _, n := range ledgerSizes {
		b.Run(fmt.Sprintf("%dM", n>>20), func(b *testing.B) {
			r := New(Config{})
			fill(&r.ledger, n, rand.New(rand.NewPCG(1, 1)))
			var out Output
			from := uint64(1)
			b.ReportAllocs()
			for b.Loop() {
				out.Reset()
				if from = r.Walk(from, r.Newest(), &out); from > r.Newest() {
					from = 1
				}
			}
			b.ReportMetric(walkLimit*1e9/float64(b.Elapsed().Nanoseconds())*float64(b.N), "blocks/s")
		})
	}
}
