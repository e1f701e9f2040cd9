package admin

import (
	"context"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/kvrelay/kvrelay/config"
	"github.com/kvrelay/kvrelay/convert"
	"github.com/kvrelay/kvrelay/relay"
)

// sample is the value of one series in the text of a scrape.
func sample(t *testing.T, scrape, series string) string {
	t.Helper()
	for line := range strings.Lines(scrape) {
		if value, ok := strings.CutPrefix(line, series+" "); ok {
			return strings.TrimSpace(value)
		}
	}
	t.Errorf("no series %s", series)
	return ""
}

func TestMetrics(t *testing.T) {
	w := newWorld(2)
	src := &w.st.Sources[1]
	c := &src.Cursor
	c.Gaps, c.Restarts, c.Losses, c.Gone, c.Lost, c.Burned = 3, 2, 5, 4, 17, 1
	c.Applied, c.Repeated, c.Discarded, c.Malformed, c.Frames = 100, 6, 7, 1, 114
	c.Requests, c.Counters.Ended, c.Stalled, c.Refused, c.Dropped = 20, 10, 5, 3, 2
	src.Connects, src.RefusedFrames = 4, 9
	src.State, src.Ranks[0].State = relay.StateReplaying, relay.StateReplaying
	v := &src.Ranks[0].Convert
	v.Events.Dropped[convert.ReasonOrphan], v.Partial[convert.ReasonOrphan], v.Undecodable = 2, 3, 4
	v.Present, v.Mismatched = 55, true
	src.Ranks[0].Unregistered = "no record"
	src.Ranks[0].LastID, src.Ranks[0].Confirmed = 12, 9
	src.Ranks[0].Lag = relay.Lag{N: 4, Sum: 70.0015}
	src.Ranks[0].Lag.Counts[0], src.Ranks[0].Lag.Counts[1], src.Ranks[0].Lag.Counts[len(relay.LagBounds)] = 1, 2, 1
	w.st.HeldBytes, w.st.Unconfirmed = 123, 456
	w.st.Sink.Failures, w.st.Sink.Reconnects, w.st.Sink.UnconfirmedEvents = 8, 3, 77
	w.disco.Asked, w.disco.Failed = 10, 4
	_, url := serve(t, w, nil)
	code, text := get(t, url+"/metrics")
	if code != 200 {
		t.Fatalf("code %d: %s", code, text)
	}
	for series, want := range map[string]string{
		`kvrelay_rank_unregistered{rank="0"}`:                                 "0",
		`kvrelay_rank_unregistered{rank="1"}`:                                 "1",
		`kvrelay_gaps_total{rank="1"}`:                                        "3",
		`kvrelay_gaps_total{rank="0"}`:                                        "0",
		`kvrelay_engine_restarts_total{rank="1"}`:                             "2",
		`kvrelay_lost_history_total{cause="gone",rank="1"}`:                   "4",
		`kvrelay_lost_history_total{cause="exhausted",rank="1"}`:              "1",
		`kvrelay_lost_batches_total{rank="1"}`:                                "17",
		`kvrelay_batches_received_total{rank="1"}`:                            "114",
		`kvrelay_batches_total{outcome="applied",rank="1"}`:                   "100",
		`kvrelay_batches_total{outcome="discarded",rank="1"}`:                 "7",
		`kvrelay_replays_total{outcome="ended",rank="1"}`:                     "10",
		`kvrelay_replays_total{outcome="stalled",rank="1"}`:                   "5",
		`kvrelay_engine_reconnects_total{rank="1"}`:                           "3",
		`kvrelay_engine_connected{rank="1"}`:                                  "1",
		`kvrelay_refused_frames_total{rank="1"}`:                              "9",
		`kvrelay_rank_state{rank="1",state="replaying"}`:                      "1",
		`kvrelay_rank_state{rank="1",state="live"}`:                           "0",
		`kvrelay_rank_state{rank="0",state="live"}`:                           "1",
		`kvrelay_events_dropped_total{rank="1",reason="orphan"}`:              "5",
		`kvrelay_events_dropped_total{rank="1",reason="undecodable_batch"}`:   "4",
		`kvrelay_events_dropped_total{rank="1",reason="block_size_mismatch"}`: "0",
		`kvrelay_ledger_blocks{rank="1"}`:                                     "55",
		`kvrelay_block_size_mismatch{rank="1"}`:                               "1",
		`kvrelay_rank_unconfirmed_events{rank="1"}`:                           "3",
		`kvrelay_lag_seconds_bucket{rank="1",le="0.001"}`:                     "1",
		`kvrelay_lag_seconds_bucket{rank="1",le="60"}`:                        "3",
		`kvrelay_lag_seconds_bucket{rank="1",le="+Inf"}`:                      "4",
		`kvrelay_lag_seconds_sum{rank="1"}`:                                   "70.0015",
		`kvrelay_held_bytes`:                                                  "123",
		`kvrelay_unconfirmed_bytes`:                                           "456",
		`kvrelay_unconfirmed_events`:                                          "77",
		`kvrelay_publish_errors_total`:                                        "8",
		`kvrelay_nats_reconnects_total`:                                       "3",
		`kvrelay_nats_connected`:                                              "1",
		`kvrelay_discovery_rounds_total{outcome="answered"}`:                  "6",
		`kvrelay_worker_info{worker_id="9223372036854775813"}`:                "1",
		`kvrelay_ranks`: "2",
	} {
		if got := sample(t, text, series); got != want {
			t.Errorf("%s %s, want %s", series, got, want)
		}
	}
	for _, name := range []string{"kvrelay_build_info{", "go_goroutines ", "process_"} {
		if !strings.Contains(text, "\n"+name) {
			t.Errorf("no %s", name)
		}
	}
}

// What Prometheus' own linter (promtool check metrics) says of a scrape.
func TestMetricsLint(t *testing.T) {
	w := newWorld(3)
	s, _ := serve(t, w, nil)
	problems, err := testutil.GatherAndLint(s.registry())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

// A full data-parallel host stays cheap, and what an engine could invent does
// not make more series than maxRanks allow.
func TestSeriesAreBounded(t *testing.T) {
	count := func(ranks int) (kvrelay int, omitted float64) {
		s, _ := serve(t, newWorld(ranks), nil)
		families, err := s.registry().Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if !strings.HasPrefix(f.GetName(), "kvrelay_") {
				continue
			}
			for _, m := range f.Metric {
				kvrelay++
				if h := m.GetHistogram(); h != nil {
					kvrelay += len(h.Bucket) + 2 // +Inf, sum; count is counted
				}
			}
			if f.GetName() == "kvrelay_ranks_omitted" {
				omitted = f.Metric[0].GetGauge().GetValue()
			}
		}
		return kvrelay, omitted
	}
	none, _ := count(0)
	at64, left := count(64)
	if perRank := (at64 - none) / 64; at64 > 6500 || perRank > 100 || left != 0 {
		t.Errorf("%d series at 64 ranks (%d a rank, %d without any), %v omitted", at64, perRank, none, left)
	}
	atMost, _ := count(maxRanks)
	if beyond, left := count(maxRanks + 44); beyond > atMost || left != 44 {
		t.Errorf("%d series beyond %d ranks, %d there; %v omitted", beyond, maxRanks, atMost, left)
	}
}

// Two sources that claim one rank are one rank in metrics, never a scrape that fails.
func TestRankClaimedTwice(t *testing.T) {
	w := newWorld(2)
	w.st.Sources[1].Source.Rank = 0
	w.st.Sources[1].Ranks[0].Rank = 0
	w.st.Sources[0].Cursor.Gaps, w.st.Sources[1].Cursor.Gaps = 3, 4
	_, url := serve(t, w, nil)
	code, text := get(t, url+"/metrics")
	if code != 200 {
		t.Fatalf("%d %s", code, text)
	}
	if got := sample(t, text, `kvrelay_gaps_total{rank="0"}`); got != "7" {
		t.Errorf("gaps %s, want 7", got)
	}
	if got := sample(t, text, `kvrelay_sequence{rank="0"}`); got != "41" {
		t.Errorf("seq %s, want 41", got)
	}
}

// A scrape of a stuck relay is answered, with how old its figures are.
func TestScrapeOfStuckRelay(t *testing.T) {
	w := newWorld(1)
	s, url := serve(t, w, nil)
	eventually(t, "the first look", func() bool { return strings.HasPrefix(s.Line(), "1 of 1") })
	w.hang()
	began := time.Now()
	code, text := get(t, url+"/metrics")
	if code != 200 || time.Since(began) > 15*time.Second {
		t.Fatalf("%d after %v", code, time.Since(began))
	}
	if age := sample(t, text, "kvrelay_status_age_seconds"); age == "0" || strings.HasPrefix(age, "-") {
		t.Errorf("age %s", age)
	}
	w.release()
}

func TestDocumentedMetrics(t *testing.T) {
	names := map[string]bool{}
	for _, m := range Metrics() {
		if names[m.Name] || !strings.HasPrefix(m.Name, "kvrelay_") || len(m.Help) < 15 || !strings.HasSuffix(m.Help, ".") {
			t.Errorf("%s: %q", m.Name, m.Help)
		}
		names[m.Name] = true
	}
	s := New(Options{Addr: config.Off, Status: newWorld(2).status})
	snap := snapshot{at: time.Now(), relay: s.o.Status()}
	families, err := gatherer(&snap).Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if !names[f.GetName()] {
			t.Errorf("%s is not documented", f.GetName())
		}
		for _, m := range f.Metric {
			if m.GetGauge() != nil && math.IsNaN(m.GetGauge().GetValue()) {
				t.Errorf("%s is NaN", f.GetName())
			}
		}
		delete(names, f.GetName())
	}
	if len(names) > 0 {
		t.Errorf("documented, but not there: %v", names)
	}
	if texts := DropReasons(); len(texts) != int(convert.NumReasons) || slices.Contains(reasonTexts[:], "") {
		t.Errorf("%d of %d drop reasons have a text", len(texts), convert.NumReasons)
	}
}

// gatherer gives the metrics of one snapshot.
func gatherer(snap *snapshot) prometheus.Gatherer {
	r := prometheus.NewRegistry()
	r.MustRegister(newCollector(func(context.Context) snapshot { return *snap }, build{}))
	return r
}
