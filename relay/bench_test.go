package relay_test

import (
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kvrelay/kvrelay/internal/load"
	"github.com/kvrelay/kvrelay/internal/zmtp"
	"github.com/kvrelay/kvrelay/relay"
	"github.com/kvrelay/kvrelay/replay"
)

// BenchmarkRanks is the live path, from the publishers' sockets to NATS'
// confirmation, everything in this process: per batch, whatever the number of ranks.
func BenchmarkRanks(b *testing.B) {
	for _, ranks := range []int{1, 8, 64} {
		b.Run(fmt.Sprintf("%d", ranks), func(b *testing.B) {
			f := startFleet(b, ranks, load.Shape{Blocks: 64, BlockSize: 16, Keep: 409_600 / ranks}, 0, nil)
			f.until(b, "all are ready", func(st relay.Status) bool {
				for _, s := range st.Sources {
					if !s.Ready {
						return false
					}
				}
				return len(st.Sources) == ranks
			})
			each := uint64(max(1, b.N/ranks))
			cpu := cpuTime(b)
			b.ResetTimer()
			var wg sync.WaitGroup
			for _, p := range f.publishers {
				wg.Go(func() { _ = p.Publish(b.Context(), 0, each, nil) }) // it ends with each
			}
			wg.Wait()
			f.until(b, "everything is applied and confirmed", func(st relay.Status) bool {
				for _, s := range st.Sources {
					if applied(s) != each {
						return false
					}
				}
				return st.Sink.UnconfirmedEvents == 0
			})
			b.StopTimer()
			n := float64(each * uint64(ranks))
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/n, "ns/batch")
			b.ReportMetric(float64((cpuTime(b)-cpu).Nanoseconds())/n, "cpu-ns/batch")
			f.stop()
		})
	}
}

// BenchmarkReplay is 10 000 batches of 4 KB from a ROUTER that makes them as it
// writes: a loop that only reads them, and the relay, until all are applied.
func BenchmarkReplay(b *testing.B) {
	const n = 10_000
	var bare, whole time.Duration
	b.ReportAllocs()
	for range b.N {
		f := startFleet(b, 1, load.Shape{Blocks: 48, BlockSize: 16, Keep: 4800}, n, nil)
		var began time.Time
		f.until(b, "asked", func(relay.Status) bool {
			requests, _ := f.publishers[0].Replays()
			began = time.Now()
			return requests > 0
		})
		f.until(b, "replayed", func(st relay.Status) bool { return applied(st.Sources[0]) == n && st.Sources[0].Ready })
		whole += time.Since(began)

		c, err := replay.DialRouter(b.Context(), f.publishers[0].ReplayEndpoint(), zmtp.Options{})
		if err != nil {
			b.Fatal(err)
		}
		began = time.Now()
		if err := c.Ask(0); err != nil {
			b.Fatal(err)
		}
		for got := 0; ; got++ {
			r, err := c.Next()
			if err != nil {
				b.Fatal(err)
			}
			if r.End {
				if got != n {
					b.Fatalf("%d replies", got)
				}
				break
			}
		}
		bare += time.Since(began)
		c.Close()
		f.stop()
	}
	b.ReportMetric(float64(bare.Microseconds())/float64(b.N)/1e3, "bare-ms")
	b.ReportMetric(float64(whole.Microseconds())/float64(b.N)/1e3, "relay-ms")
	b.ReportMetric(float64(whole)/float64(bare), "times-bare")
}

// cpuTime is what this process has used.
func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
