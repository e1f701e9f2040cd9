package convert

import (
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/kvrelay/kvrelay/decode"
)

// TestNoAllocations: in steady state a batch costs no allocation, from payload
// to payload; the ledger takes at most 64 bytes a block.
func TestNoAllocations(t *testing.T) {
	for name, s := range map[string]shape{"A": shapeA, "B": shapeB} {
		for _, named := range []bool{false, true} {
			rng := rand.New(rand.NewPCG(1, 2))
			r := New(Config{})
			var batch decode.Batch
			var out Output
			var payload []byte
			var payloads [][]byte
			// Enough that the ledger's segments and the index's pages come and go.
			var removes [][]byte
			for range 2 * segSize / (s.stores * s.blocks) {
				st, rm := s.payloads(rng, named)
				payloads, removes = append(payloads, st), append(removes, rm)
			}
			payloads = append(payloads, removes...)
			relay := func() {
				for _, p := range payloads {
					if err := batch.Decode(p); err != nil {
						t.Fatal(err)
					}
					out.Reset()
					r.Convert(&batch, &out)
					payload = payload[:0]
					for i := range out.Events {
						payload = AppendEvent(payload, &out.Events[i], 1, 2, 3)
					}
				}
			}
			relay()
			if n := testing.AllocsPerRun(20, relay); n > 0 {
				t.Errorf("%s, map %t: %v allocations in %d batches", name, named, n, len(payloads))
			}
		}
	}
}

func TestLedgerBytes(t *testing.T) {
	const n = 1 << 18
	var l ledger
	rng := rand.New(rand.NewPCG(1, 1))
	full := heapOf(func() {
		l = newLedger(DefaultMaxBlocks)
		fill(&l, n, rng)
	})
	if got := float64(full) / n; got > 64 {
		t.Errorf("%.1f bytes a block", got)
	}
	l.clear()
	churned := heapOf(func() {
		fill(&l, n, rng)
		churn(&l, n/2, rng)
	})
	if got := float64(churned) / n; got > 64 {
		t.Errorf("%.1f bytes a block after churn", got)
	}
	runtime.KeepAlive(&l)
}
