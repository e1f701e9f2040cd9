package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// benchReport is what was measured. Batches are the engine's, events the router's.
type benchReport struct {
	Ranks      int     `json:"ranks"`
	Blocks     int     `json:"blocks_per_batch"`
	BlockSize  int     `json:"block_size"`
	BatchBytes int     `json:"batch_bytes"`
	Rate       float64 `json:"rate"` // asked for; 0: as fast as it goes
	Seconds    float64 `json:"seconds"`

	Batches        uint64  `json:"batches"`
	BatchesPerSec  float64 `json:"batches_per_second"`
	Expected       uint64  `json:"events_expected"`
	Arrived        uint64  `json:"events_arrived"`
	EventsPerSec   float64 `json:"events_per_second"`
	Messages       uint64  `json:"messages"`
	MessageBytes   uint64  `json:"message_bytes"`
	Lost           uint64  `json:"lost"`    // events
	Cleared        uint64  `json:"cleared"` // times that the relay had to declare history lost
	Unread         uint64  `json:"unread"`  // messages that the subscriber was too slow for: lost by bench, not by the relay
	Unreadable     uint64  `json:"unreadable"`
	ReplayRequests uint64  `json:"replay_requests"`
	ReplayBatches  uint64  `json:"replay_batches"` // sent again for them
	HeldBlocks     uint64  `json:"held_blocks"`    // in the relay's ledger at the end

	CPUSeconds *float64           `json:"cpu_seconds,omitempty"` // of the relay; absent where the system does not tell
	CPUPer100k *float64           `json:"cpu_seconds_per_100k_batches,omitempty"`
	CPUPercent *float64           `json:"cpu_percent,omitempty"` // of one core
	RSS        *int64             `json:"rss_bytes,omitempty"`
	PeakRSS    *int64             `json:"peak_rss_bytes,omitempty"`
	LatencyMS  map[string]float64 `json:"latency_ms,omitempty"` // p50 p90 p99 p999 max, from before the engine's write to the subscriber
}

// report takes what the parts have counted.
func (b *bench) report(began time.Time, want uint64) *benchReport {
	r := &benchReport{
		Ranks: b.ranks, Blocks: b.blocks, BlockSize: b.blockSize, BatchBytes: b.gens[0].Size(), Rate: b.rate,
		Expected: want, Arrived: b.meter.events.Load(), LatencyMS: b.meter.percentiles(),
	}
	if last := b.meter.lastAt.Load(); last > began.UnixNano() {
		r.Seconds = float64(last-began.UnixNano()) / 1e9
	}
	for i, p := range b.publishers {
		n := p.Published()
		r.Batches += n
		r.HeldBlocks += b.gens[i].Held(n)
		requests, batches := p.Replays()
		r.ReplayRequests += requests
		r.ReplayBatches += batches
	}
	if r.Arrived < want {
		r.Lost = want - r.Arrived
	}
	b.meter.mu.Lock()
	defer b.meter.mu.Unlock()
	r.Messages, r.MessageBytes, r.Cleared, r.Unreadable = b.meter.messages, b.meter.bytes, b.meter.cleared, b.meter.bad
	if r.Seconds > 0 {
		r.BatchesPerSec, r.EventsPerSec = float64(r.Batches)/r.Seconds, float64(r.Arrived)/r.Seconds
	}
	return r
}

// usage takes what the relay used within a time: that of the sending, and of
// what was still to arrive.
func (r *benchReport) usage(before, after processCost, within time.Duration) {
	cpu := (after.cpu - before.cpu).Seconds()
	r.CPUSeconds, r.RSS, r.PeakRSS = &cpu, &after.rss, &after.peak
	if r.Batches > 0 {
		per := cpu * 1e5 / float64(r.Batches)
		r.CPUPer100k = &per
	}
	percent := 100 * cpu / within.Seconds()
	r.CPUPercent = &percent
}

// text is the report for people.
func (r *benchReport) text(w io.Writer) error {
	speed := "as fast as it goes"
	if r.Rate > 0 {
		speed = thousands(uint64(r.Rate)) + " batches a second"
	}
	ranks := "1 rank"
	if r.Ranks > 1 {
		ranks = fmt.Sprintf("%d ranks", r.Ranks)
	}
	fmt.Fprintf(w, "%s, batches of %d × %d tokens (%s), %s, for %.1f s\n\n", ranks, r.Blocks, r.BlockSize, sizeText(float64(r.BatchBytes)), speed, r.Seconds)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(name, format string, a ...any) { fmt.Fprintf(t, "  %s\t%s\n", name, fmt.Sprintf(format, a...)) }
	row("batches", "%s, %s a second (%s/s)", thousands(r.Batches), thousands(uint64(r.BatchesPerSec)), sizeText(r.BatchesPerSec*float64(r.BatchBytes)))
	row("router events", "%s, %s a second, in %s messages (%s)", thousands(r.Arrived), thousands(uint64(r.EventsPerSec)), thousands(r.Messages), sizeText(float64(r.MessageBytes)))
	lost := "nothing"
	if r.Lost > 0 {
		lost = fmt.Sprintf("%s of %s events", thousands(r.Lost), thousands(r.Expected))
	}
	if r.Cleared > 0 {
		lost += fmt.Sprintf("; %d times history was declared lost", r.Cleared)
	}
	if r.Unread > 0 {
		lost += fmt.Sprintf("; the subscriber was too slow for %d messages", r.Unread)
	}
	row("lost", "%s", lost)
	if r.CPUPer100k != nil && r.CPUPercent != nil {
		row("CPU of the relay", "%.2f s per 100,000 batches, %.3g %% of a core", *r.CPUPer100k, *r.CPUPercent)
	} else {
		row("CPU of the relay", "not told by this system")
	}
	if r.PeakRSS != nil {
		row("memory", "%s now, %s at most, with %s blocks in the ledger", sizeText(float64(*r.RSS)), sizeText(float64(*r.PeakRSS)), thousands(r.HeldBlocks))
	}
	if l := r.LatencyMS; l != nil {
		row("latency", "p50 %.2f ms, p90 %.2f, p99 %.2f, p99.9 %.2f, max %.2f", l["p50"], l["p90"], l["p99"], l["p999"], l["max"])
	}
	row("replay", "asked %s times, %s batches sent again", thousands(r.ReplayRequests), thousands(r.ReplayBatches))
	return t.Flush()
}

// thousands writes 1234567 as 1,234,567.
func thousands(n uint64) string {
	s := fmt.Sprint(n)
	var b strings.Builder
	for i, c := range s {
		if i > 0 && (len(s)-i)%3 == 0 {
			b.WriteByte(',')
		}
		b.WriteRune(c)
	}
	return b.String()
}

func sizeText(n float64) string {
	for _, unit := range []string{"bytes", "KiB", "MiB"} {
		if n < 1024 {
			if unit == "bytes" {
				return fmt.Sprintf("%.0f bytes", n)
			}
			return fmt.Sprintf("%.1f %s", n, unit)
		}
		n /= 1024
	}
	return fmt.Sprintf("%.1f GiB", n)
}
