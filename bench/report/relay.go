package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

// measured is what the tables show of `kvrelay bench --json`.
type measured struct {
	Batches    uint64             `json:"batches"`
	PerSecond  float64            `json:"batches_per_second"`
	Lost       uint64             `json:"lost"`
	Cleared    uint64             `json:"cleared"`
	CPUPer100k float64            `json:"cpu_seconds_per_100k_batches"`
	CPUPercent float64            `json:"cpu_percent"`
	RSS        float64            `json:"rss_bytes"`
	PeakRSS    float64            `json:"peak_rss_bytes"`
	Held       uint64             `json:"held_blocks"`
	Latency    map[string]float64 `json:"latency_ms"`
}

// relayTables measures the relay in a process of its own.
func relayTables(ctx context.Context, w io.Writer, binary string, runs, seconds, idle int) error {
	for _, t := range []struct {
		title string
		idle  bool
		loads []string
	}{
		{"The relay at full speed", false, []string{"", "--blocks 4", "--blocks 1", "--blocks 256", "--ranks 4", "--ranks 16 --for 1s"}},
		{"The relay at a steady rate", false, []string{"--rate 100", "--rate 1000", "--rate 1000 --ranks 4", "--rate 4000"}},
		{"The relay at rest: one batch a rank, then silence", true, []string{"--rate 0.001 --ranks 1 --keep 0", "--rate 0.001 --ranks 4 --keep 0", "--rate 0.001 --ranks 64 --keep 0"}},
	} {
		fmt.Fprintf(w, "\n## %s\n\n", t.title)
		length := seconds
		switch {
		case t.idle:
			length = idle
			fmt.Fprint(w, "| `kvrelay bench …` | CPU, % of a core | memory, MiB |\n|---|---|---|\n")
		default:
			fmt.Fprint(w, "| `kvrelay bench …` | batches/s | CPU, s per 100,000 | memory, MiB | blocks held | p50 / p99 / p99.9, ms |\n|---|---|---|---|---|---|\n")
		}
		for _, load := range t.loads {
			args := append([]string{"bench", "--json", "--for", fmt.Sprintf("%ds", length)}, strings.Fields(load)...)
			repeat := runs
			if t.idle {
				repeat = 1 // long enough to be even
			}
			var all []measured
			for range repeat {
				text, err := output(ctx, "", binary, args...)
				if err != nil {
					return err
				}
				var m measured
				if err := json.Unmarshal([]byte(text), &m); err != nil {
					return fmt.Errorf("%s: %w", strings.Join(args, " "), err)
				}
				all = append(all, m)
			}
			row(w, strings.TrimPrefix(strings.Join(args, " "), "bench --json "), all, t.idle)
		}
	}
	return nil
}

// row prints what some runs of the same load gave.
func row(w io.Writer, name string, all []measured, idle bool) {
	of := func(f func(measured) float64) string {
		var v []float64
		for _, m := range all {
			v = append(v, f(m))
		}
		return spread(v, "")
	}
	memory := of(func(m measured) float64 { return m.PeakRSS / (1 << 20) })
	if idle { // what it has come down to
		memory = of(func(m measured) float64 { return m.RSS / (1 << 20) })
		fmt.Fprintf(w, "| `%s` | %s | %s |\n", name, of(func(m measured) float64 { return m.CPUPercent }), memory)
		return
	}
	latency := "—"
	if all[0].Latency != nil {
		var parts []string
		for _, q := range []string{"p50", "p99", "p999"} {
			parts = append(parts, of(func(m measured) float64 { return m.Latency[q] }))
		}
		latency = strings.Join(parts, " / ")
	}
	fmt.Fprintf(w, "| `%s` | %s | %s | %s | %d | %s |\n", name, of(func(m measured) float64 { return m.PerSecond }),
		of(func(m measured) float64 { return m.CPUPer100k }), memory, all[0].Held, latency)
}
