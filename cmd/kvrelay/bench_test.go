package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kvrelay/kvrelay/config"
	"github.com/kvrelay/kvrelay/consumer"
	"github.com/kvrelay/kvrelay/convert"
	"github.com/kvrelay/kvrelay/internal/fuzzlimit"
	"github.com/kvrelay/kvrelay/internal/msgpack"
)

// bench starts its own program as the relay. Here that is the test, which then
// has to be kvrelay.
const asKvrelay = "BENCH_TEST_IS_KVRELAY"

func init() {
	if os.Getenv(asKvrelay) != "" {
		main()
	}
}

func benched(t *testing.T, args ...string) benchReport {
	t.Helper()
	ignore := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, ignore) })
	t.Setenv(asKvrelay, "1")
	code, out, errs := run(t, append([]string{"bench", "--json"}, args...)...)
	var r benchReport
	if err := json.Unmarshal([]byte(out), &r); err != nil || code != exitOK {
		t.Fatalf("code %d, %v, stdout %q, stderr %q", code, err, out, errs)
	}
	if r.Batches == 0 || r.Arrived != r.Expected || r.Lost+r.Cleared+r.Unread+r.Unreadable > 0 || r.BatchesPerSec <= 0 || r.ReplayRequests == 0 {
		t.Errorf("%+v", r)
	}
	if _, err := os.Stat("/proc/self/stat"); err == nil && (r.CPUSeconds == nil || r.PeakRSS == nil || *r.PeakRSS < 1<<20 || *r.RSS > *r.PeakRSS) {
		t.Errorf("what the relay used is not told: %+v", r)
	}
	return r
}

func TestBenchRate(t *testing.T) {
	r := benched(t, "--rate=200", "--for=500ms", "--ranks=2", "--blocks=4", "--block-size=8", "--keep=40")
	if r.Batches > 102 || r.Expected < r.Batches || r.HeldBlocks > 80 || r.Ranks != 2 { // one of each rank at once, then 200 a second
		t.Errorf("%+v", r)
	}
	l := r.LatencyMS
	if l["p50"] <= 0 || l["p50"] > l["p90"] || l["p90"] > l["p99"] || l["p99"] > l["p999"] || l["p999"] > l["max"] {
		t.Errorf("latencies %v", l)
	}
}

func TestBenchFullSpeed(t *testing.T) {
	for _, profile := range []string{"dynamo", "dynamo-single", "json"} {
		if r := benched(t, "--for=100ms", "--blocks=3", "--keep=30", "--profile="+profile); r.LatencyMS != nil || r.Rate != 0 {
			t.Errorf("%s: %+v", profile, r)
		}
	}
}

// The profile is one of the relay, gzipped as pprof reads it.
func TestBenchProfile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "cpu.out")
	benched(t, "--for=300ms", "--blocks=3", "--keep=30", "--cpu-profile="+file)
	if b, err := os.ReadFile(file); err != nil || !bytes.HasPrefix(b, []byte{0x1f, 0x8b}) {
		t.Errorf("%d bytes, %v", len(b), err)
	}
	if code, _, errs := run(t, "bench", "--for=100ms", "--cpu-profile="+filepath.Join(file, "x")); code != exitFailed || !strings.Contains(errs, "cpu.out") {
		t.Errorf("code %d, %q", code, errs)
	}
}

func TestBenchUsage(t *testing.T) {
	for args, say := range map[string]string{
		"--ranks=0":                              "--ranks=0",
		"--rate=-1":                              "--rate=-1",
		"--for=0":                                "--for=0s",
		"--blocks=0":                             "blocks per batch 0",
		"--block-size=5000":                      "block size 5000",
		"--keep=-1":                              "blocks to keep -1",
		"--blocks=4096 --block-size=4096":        "32 MiB at most",
		"x":                                      "no arguments",
		"--profile=x":                            "dynamo-single",
		"--nats-url=nats://127.0.0.1:1 --for=1s": "",
	} {
		code, out, errs := run(t, append([]string{"bench"}, strings.Fields(args)...)...)
		want := exitUsage
		if say == "" {
			want, say = exitFailed, "NATS at nats://127.0.0.1:1 cannot be reached"
		}
		if code != want || out != "" || !strings.Contains(errs, say) {
			t.Errorf("%q: code %d, stdout %q, stderr %q; want %q", args, code, out, errs, say)
		}
	}
}

// A relay that cannot start is not waited for.
func TestBenchRelayEnds(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	t.Setenv(asKvrelay, "1")
	t.Setenv("KVRELAY_HOLD_BYTES", "nonsense")
	var out, errs bytes.Buffer
	if code := dispatch(t.Context(), []string{"bench", "--for=1s"}, strings.NewReader(""), &out, &errs); code != exitFailed ||
		!strings.Contains(errs.String(), "the relay ended") || !strings.Contains(errs.String(), "HOLD_BYTES") {
		t.Errorf("code %d, stderr %q", code, errs.String())
	}
}

func TestBenchReportText(t *testing.T) {
	cpu, per, percent, rss, peak := 2.5, 1.25, 25.0, int64(40<<20), int64(50<<20)
	r := benchReport{
		Ranks: 2, Blocks: 64, BlockSize: 16, BatchBytes: 5400, Seconds: 10, Batches: 200_000, BatchesPerSec: 20_000,
		Expected: 400_000, Arrived: 399_999, EventsPerSec: 40_000, Messages: 1234567, MessageBytes: 3 << 30, Lost: 1, Cleared: 1, HeldBlocks: 100_000,
		CPUSeconds: &cpu, CPUPer100k: &per, CPUPercent: &percent, RSS: &rss, PeakRSS: &peak,
		LatencyMS: map[string]float64{"p50": 0.1, "p90": 0.2, "p99": 0.3, "p999": 0.4, "max": 5}, ReplayRequests: 3, ReplayBatches: 1000,
	}
	var b strings.Builder
	if err := r.text(&b); err != nil {
		t.Fatal(err)
	}
	want := `2 ranks, batches of 64 × 16 tokens (5.3 KiB), as fast as it goes, for 10.0 s

  batches           200,000, 20,000 a second (103.0 MiB/s)
  router events     399,999, 40,000 a second, in 1,234,567 messages (3.0 GiB)
  lost              1 of 400,000 events; 1 times history was declared lost
  CPU of the relay  1.25 s per 100,000 batches, 25 % of a core
  memory            40.0 MiB now, 50.0 MiB at most, with 100,000 blocks in the ledger
  latency           p50 0.10 ms, p90 0.20, p99 0.30, p99.9 0.40, max 5.00
  replay            asked 3 times, 1,000 batches sent again
`
	if b.String() != want {
		t.Errorf("got\n%s", b.String())
	}
}

func TestBenchMeterCounts(t *testing.T) {
	m := newBenchMeter(2, false)
	at := time.Unix(1, 0)
	for _, c := range []struct {
		rank                 int
		first, last, cleared uint64
	}{
		{0, 1, 3, 1},   // cleared, and two events
		{0, 2, 3, 0},   // again
		{0, 2, 5, 0},   // two of them again
		{1, 1, 1, 1},   // the other rank begins
		{0, 8, 9, 0},   // 6 and 7 are missing
		{0, 10, 11, 1}, // history lost
	} {
		m.count(c.rank, c.first, c.last, c.cleared, at)
	}
	if m.events.Load() != 7 || m.holes != 2 || m.cleared != 1 || m.readies.Load() != 2 {
		t.Errorf("%d events, %d holes, %d cleared, %d ready", m.events.Load(), m.holes, m.cleared, m.readies.Load())
	}
}

// scanEvents sees what a decoder sees.
func TestScanEvents(t *testing.T) {
	events := []convert.RouterEvent{
		{Kind: convert.Cleared}, {Kind: convert.Stored, Blocks: []convert.Block{{Hash: 1 << 63, TokensHash: 5}}}, {Kind: convert.Removed, Hashes: []uint64{9, 1 << 40}},
	}
	for _, first := range []uint64{1, 127, 128, 255, 256, 65535, 65536, 1<<32 - 1, 1 << 32} {
		for _, rank := range []uint32{0, 5, 127, 200, 300} {
			pack, text := msgpack.AppendArrayHeader(nil, len(events)), []byte("[")
			for i := range events {
				pack = convert.AppendEvent(pack, &events[i], 1, rank, first+uint64(i))
				text = convert.AppendEventJSON(append(text, ","[:min(i, 1)]...), &events[i], 1, rank, first+uint64(i))
			}
			for _, data := range [][]byte{pack, append(text, ']')} {
				parsed, err := consumer.ParseEvents("x", data)
				if err != nil {
					t.Fatal(err)
				}
				id, n, cleared, r, ok := scanEvents(data)
				if !ok || id != parsed[0].ID || n != len(parsed) || cleared != 1 || r != int(parsed[0].Rank.DP) {
					t.Errorf("id %d, %d events, %d cleared, rank %d, %v: want %d, rank %d", id, n, cleared, r, ok, first, rank)
				}
			}
		}
	}
}

func FuzzScanEvents(f *testing.F) {
	f.Add([]byte("event_id\x05dp_rank\xcd\x01"))
	f.Add([]byte(`"event_id":12,"dp_rank":3`))
	f.Fuzz(func(t *testing.T, data []byte) {
		fuzzlimit.Run(t, len(data), func() { scanEvents(data) })
		if _, n, _, rank, ok := scanEvents(data); ok && (n < 1 || rank < 0) {
			t.Errorf("%d events, rank %d", n, rank)
		}
	})
}

// A login in NATS_URL is in nobody's list of processes.
func TestBenchURLIsNoArgument(t *testing.T) {
	const url = "nats://u:S3CR3T@h:4222"
	b := &bench{cfg: &config.Config{}, ranks: 1}
	if args := strings.Join(b.relayArgs([]string{"tcp://h:1"}, []string{"tcp://h:2"}), " "); strings.Contains(args, "nats-url") {
		t.Error(args)
	}
	if env := b.relayEnv(url); !slices.Contains(env, "KVRELAY_NATS_URL="+url) {
		t.Errorf("%q", env)
	}
}
