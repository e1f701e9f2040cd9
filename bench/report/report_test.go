package main

import (
	"strings"
	"testing"

	"github.com/kvrelay/kvrelay/internal/fuzzlimit"
)

const sample = `goos: linux
BenchmarkDecode/shape=A/lib=ours-2         	   15088	      2000 ns/op	 571.74 MB/s	       0 B/op
BenchmarkDecode/shape=A/lib=theirs-2       	    2882	     8000 ns/op
BenchmarkDecode/shape=A/lib=ours-2         	   15088	      4000 ns/op	 571.74 MB/s	       0 B/op
BenchmarkDecode/shape=B-map/lib=ours       	       1	      1000 ns/op
BenchmarkOther-16	10	5 ns/op	7 x/op
Benchmark 1 2
PASS
`

func TestCompared(t *testing.T) {
	var b strings.Builder
	if err := compared(strings.NewReader(sample), &b); err != nil {
		t.Fatal(err)
	}
	want := `| | ours | theirs |
|---|---|---|
| Decode A | 3 µs | 8 µs, × 2.67 |
| Decode B-map | 1 µs | — |
`
	if b.String() != want {
		t.Errorf("got\n%s", b.String())
	}
	if err := compared(strings.NewReader("PASS\n"), &b); err != errNothing {
		t.Errorf("%v", err)
	}
}

func TestTable(t *testing.T) {
	var b strings.Builder
	benchTable(&b, parseBench(sample))
	for _, line := range []string{
		"| Decode/shape=A/lib=ours | 3000 (2000 – 4000) ns/op, 572 MB/s, 0 B/op |",
		"| Other | 5 ns/op, 7 x/op |",
	} {
		if !strings.Contains(b.String(), line) {
			t.Errorf("no %q in\n%s", line, b.String())
		}
	}
}

func TestRow(t *testing.T) {
	var b strings.Builder
	m := measured{PerSecond: 53_300, CPUPer100k: 1.8, RSS: 13 << 20, PeakRSS: 57 << 20, Held: 9, CPUPercent: 0.08}
	n := m
	n.PerSecond, n.Latency = 54_000, map[string]float64{"p50": 0.13, "p99": 0.3, "p999": 1}
	row(&b, "x", []measured{m, m}, false)
	row(&b, "y", []measured{n, m, m}, false)
	row(&b, "z", []measured{m}, true)
	want := "| `x` | 53300 | 1.8 | 57 | 9 | — |\n" +
		"| `y` | 53300 (53300 – 54000) | 1.8 | 57 | 9 | 0 (0 – 0.13) / 0 (0 – 0.3) / 0 (0 – 1) |\n" +
		"| `z` | 0.08 | 13 |\n"
	if b.String() != want {
		t.Errorf("got\n%s", b.String())
	}
}

func FuzzParseBench(f *testing.F) {
	f.Add(sample)
	f.Fuzz(func(t *testing.T, text string) {
		fuzzlimit.Run(t, len(text), func() { parseBench(text) })
		for _, b := range parseBench(text) {
			for _, u := range b.units {
				if len(b.values[u]) == 0 {
					t.Errorf("%s: no value for %s", b.name, u)
				}
			}
		}
	})
}
