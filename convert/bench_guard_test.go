package convert

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/kvrelay/kvrelay/decode"
)

// TestFasterThanReference: the whole way of a batch – decode, validate, hash,
// ledger, encode – against vmihailenco only reading the same bytes, in the same
// process and in turns. The median of the rounds decides, at little more than
// half of what was measured (A 3.2, B 2.2 as arrays, 3.0 as maps): a busy machine
// slows both, and only a lost factor fails.
func TestFasterThanReference(t *testing.T) {
	if raceEnabled {
		t.Log("the race detector slows the two unevenly: nothing is measured")
		return
	}
	for _, c := range []struct {
		name  string
		shape shape
		named bool
		least float64
	}{
		{"A array", shapeA, false, 1.7},
		{"A map", shapeA, true, 1.7},
		{"B array", shapeB, false, 1.2},
		{"B map", shapeB, true, 1.7},
	} {
		rng := rand.New(rand.NewPCG(1, 2))
		var stores, removes [][]byte
		for range benchWorkingSet {
			st, rm := c.shape.payloads(rng, c.named)
			stores, removes = append(stores, st), append(removes, rm)
		}
		r := New(Config{BlockSize: benchBlock})
		ref := newStreamed()
		var batch decode.Batch
		var out Output
		var payload []byte
		relay := func(payloads [][]byte) time.Duration {
			start := time.Now()
			for _, p := range payloads {
				if err := batch.Decode(p); err != nil {
					t.Fatal(err)
				}
				out.Reset()
				r.Convert(&batch, &out)
				payload = payload[:0]
				for i := range out.Events {
					payload = AppendEvent(payload, &out.Events[i], 7, 0, uint64(i))
				}
			}
			return time.Since(start)
		}
		read := func() time.Duration {
			start := time.Now()
			for _, p := range stores {
				if err := ref.batch(p, c.named); err != nil {
					t.Fatal(err)
				}
			}
			return time.Since(start)
		}
		var ratios []float64
		for range 61 {
			ours := relay(stores)
			ratios = append(ratios, float64(read())/float64(ours))
			relay(removes)
		}
		slices.Sort(ratios)
		median := ratios[len(ratios)/2]
		t.Logf("%s: %.1f times as fast as the reference reads", c.name, median)
		if median < c.least {
			t.Errorf("%s: %.2f times as fast as the reference reads, at least %.1f is expected", c.name, median, c.least)
		}
	}
}
