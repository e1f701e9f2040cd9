package membership

import (
	"runtime"
	"testing"

	"github.com/kvrelay/kvrelay/decode"
)

// BenchmarkDump makes the answer with 250 000 blocks in chains of 64.
func BenchmarkDump(b *testing.B) {
	const blocks = 250_000
	r := newRank(b, 1, 1)
	for h := uint64(1); h <= blocks; h += 64 {
		e := decode.Event{Type: decode.Stored, HasTokens: true, HasBlockSz: true, BlockSize: 4}
		for i := range uint64(64) {
			x := (h + i) * 0x9e3779b97f4a7c15 // hashes as long as real ones
			e.Hashes = append(e.Hashes, x)
			e.Tokens = append(e.Tokens, byte(x), byte(x>>8), byte(x>>16), byte(x>>24), 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1)
		}
		r.batch(e)
	}
	b.ReportAllocs()
	var before, with runtime.MemStats
	for b.Loop() {
		runtime.GC()
		runtime.ReadMemStats(&before)
		p := take(b.Context(), r)
		n := p.blocks()
		runtime.GC()
		runtime.ReadMemStats(&with)
		b.ReportMetric(float64(with.HeapAlloc-before.HeapAlloc)/float64(n), "picture-B/block")
		body, _ := p.encode(r)
		size := 0
		for _, part := range body {
			size += len(part)
		}
		b.ReportMetric(float64(size)/float64(n), "json-B/block")
		runtime.KeepAlive(p)
	}
}
