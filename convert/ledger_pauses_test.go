package convert

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"slices"
	"testing"
	"time"
)

// BenchmarkLedgerPauses reports the longest single operations, and their 99.999th
// percentiles, while a ledger grows, shrinks, grows again and is cleared: the
// pauses that a stream's lock would see. The very same history runs several
// times, without the collector, and of each operation the quickest run counts:
// what the machine did besides does not hit the same one every time, while what
// the ledger does itself is the same every time. "raw" is the longest of all
// runs, with everything in it.
func BenchmarkLedgerPauses(b *testing.B) {
	for _, n := range ledgerSizes {
		b.Run(fmt.Sprintf("%dM", n>>20), func(b *testing.B) {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			defer debug.SetGCPercent(debug.SetGCPercent(-1))
			for b.Loop() {
				ledgerPauses(b, n)
			}
		})
	}
}

const pauseRuns = 4

func ledgerPauses(b *testing.B, n int) {
	took := map[string][]time.Duration{}
	raw := map[string]time.Duration{}
	for run := range pauseRuns {
		runtime.GC() // by hand, between the runs: the one before left its memory
		at := map[string]int{}
		timed := func(kind string, f func()) {
			start := time.Now()
			f()
			d := time.Since(start)
			raw[kind] = max(raw[kind], d)
			if i := at[kind]; run == 0 {
				took[kind] = append(took[kind], d)
			} else {
				took[kind][i] = min(took[kind][i], d)
			}
			at[kind]++
		}
		rng := rand.New(rand.NewPCG(1, 1))
		l := newLedger(DefaultMaxBlocks)
		l.index.k0, l.index.k1 = rng.Uint64(), rng.Uint64()|1 // else no two runs would be the same
		hashes := make([]uint64, n)
		add := func(i int) {
			hashes[i] = rng.Uint64()
			timed("add", func() { l.add(Device, hashes[i]) })
		}
		for i := range hashes {
			add(i)
		}
		rng.Shuffle(n, func(i, k int) { hashes[i], hashes[k] = hashes[k], hashes[i] })
		for _, h := range hashes[:n*9/10] {
			timed("remove", func() {
				slot, e, at := l.seek(Device, h)
				l.removeAt(slot, e, at)
				l.tidy(slot)
			})
		}
		for i := range n * 9 / 10 {
			add(i)
		}
		timed("clear", l.clear)
	}
	for kind, all := range took {
		slices.Sort(all)
		b.ReportMetric(float64(all[len(all)-1].Nanoseconds())/1e3, kind+"-max-µs")
		b.ReportMetric(float64(raw[kind].Nanoseconds())/1e3, kind+"-raw-µs")
		if len(all) > 100_000 {
			b.ReportMetric(float64(all[len(all)-1-len(all)/100_000].Nanoseconds())/1e3, kind+"-p99.999-µs")
		}
	}
}
