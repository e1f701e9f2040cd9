package convert

import (
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// BenchmarkLedgerLongest reports the longest single operations while a ledger
// of a million blocks grows, shrinks and is cleared: the pauses that a stream's
// lock would see. It counts the thread's processor time, so that what else the
// machine does is not in it.
func BenchmarkLedgerLongest(b *testing.B) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cpu := func() time.Duration {
		var ts unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
			b.Fatal(err)
		}
		return time.Duration(ts.Nano())
	}
	const n = 1 << 20
	longest := map[string]time.Duration{}
	timed := func(name string, f func()) {
		start := cpu()
		f()
		longest[name] = max(longest[name], cpu()-start)
	}
	for b.Loop() {
		rng := rand.New(rand.NewPCG(1, 1))
		l := newLedger(DefaultMaxBlocks)
		hashes := make([]uint64, n)
		for i := range hashes {
			hashes[i] = rng.Uint64()
			timed("add", func() { l.add(Device, hashes[i]) })
		}
		rng.Shuffle(n, func(i, k int) { hashes[i], hashes[k] = hashes[k], hashes[i] })
		for _, h := range hashes[:n*9/10] {
			timed("remove", func() {
				slot, e, _ := l.lookup(Device, h)
				l.remove(slot, e)
				l.tidy(slot)
			})
		}
		timed("clear", l.clear)
	}
	for name, d := range longest {
		b.ReportMetric(float64(d.Microseconds()), name+"-µs")
	}
}
