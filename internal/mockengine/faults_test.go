package mockengine

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvrelay/kvrelay/internal/fuzzlimit"
)

func TestParseFaults(t *testing.T) {
	for text, want := range map[string][]Fault{
		"":                             nil,
		" , ":                          nil,
		"drop":                         {{FaultDrop, 0.3}},
		"drop=0.5, restart=7,holes=0":  {{FaultDrop, 0.5}, {FaultRestart, 7}, {FaultHoles, 0}},
		"slowjoin,late,evict,halfopen": {{FaultSlowJoin, 50}, {FaultLate, 50}, {FaultEvict, 10}, {FaultHalfOpen, 300}},
	} {
		got, err := ParseFaults(text)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %v, %v; want %v", text, got, err, want)
		}
	}
	for text, says := range map[string]string{
		"dorp":              `"dorp" is none of drop, burst, restart`,
		"drop=x":            `drop: "x" is no number`,
		"drop=1.5":          "drop=1.5: want a number from 0 to 1",
		"drop=NaN":          "want a number",
		"restart=0":         "restart=0: want a whole number from 1",
		"restart=2.5":       "want a whole number",
		"restart=1e99":      "want a whole number",
		"drop,drop=0.1":     "drop twice",
		"dorp,drop=2,kill=": `kill: "" is no number`,
	} {
		_, err := ParseFaults(text)
		if !errors.Is(err, ErrFault) || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v, want %q", text, err, says)
		}
	}
	// Everything in the list can be said, and is read back the same.
	for _, f := range Faults() {
		got, err := ParseFaults(Fault{f.Kind, f.Default}.String())
		if err != nil || len(got) != 1 || got[0] != (Fault{f.Kind, f.Default}) || f.Doc == "" {
			t.Errorf("%s: %v, %v", f.Kind, got, err)
		}
	}
}

func FuzzParseFaults(f *testing.F) {
	for _, in := range Faults() {
		f.Add(string(in.Kind) + "=1,drop")
	}
	f.Fuzz(func(t *testing.T, text string) {
		fuzzlimit.Run(t, len(text), func() { _, _ = ParseFaults(text) })
		got, err := ParseFaults(text)
		if err != nil {
			return
		}
		var texts []string
		for _, f := range got {
			texts = append(texts, f.String())
		}
		again, err := ParseFaults(strings.Join(texts, ","))
		if err != nil || !reflect.DeepEqual(got, again) {
			t.Errorf("%q: %v, again %v, %v", text, got, again, err)
		}
	})
}

// history runs an engine without sockets and returns everything it published.
func history(t testing.TB, o Options, steps int) []Published {
	t.Helper()
	var out []Published
	now := time.Unix(1_800_000_000, 0)
	o.Now = func() time.Time {
		now = now.Add(time.Millisecond)
		return now
	}
	o.Observe = func(b Published) { out = append(out, b) }
	e, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	for range steps {
		e.Step()
	}
	return out
}

const everyFault = "drop=0.2,burst=5,restart=90,overtake=150,kill=200,cut=100,freeze=120,halfopen=150,silent,truncate,burn,evict,garbage,late=5,slowjoin=5"

func faults(t testing.TB, text string) []Fault {
	t.Helper()
	f, err := ParseFaults(text)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestReproducible(t *testing.T) {
	o := Options{BlockSize: 4, Blocks: 64, Ranks: 2, FirstRank: 3, Workload: &Workload{}, Seed: 7, Faults: faults(t, everyFault)}
	a, b := history(t, o, 1000), history(t, o, 1000)
	if !reflect.DeepEqual(a, b) {
		t.Error("the same seed gave another history")
	}
	o.Seed = 8
	if reflect.DeepEqual(a, history(t, o, 1000)) {
		t.Error("another seed gave the same history")
	}
	ranks := map[int][]uint64{}
	for _, p := range a {
		ranks[p.Rank] = append(ranks[p.Rank], p.Seq)
	}
	if len(ranks) != 2 || ranks[3] == nil || slices.Equal(ranks[3], ranks[4]) {
		t.Errorf("%d ranks, or both the same", len(ranks))
	}
}

// TestFaultsAlone: each fault does to a history what it says, and nothing else.
func TestFaultsAlone(t *testing.T) {
	o := Options{BlockSize: 4, Blocks: 64, Workload: &Workload{}, Seed: 3}
	plain := history(t, o, 1000)
	payloads := func(h []Published) (out []string) {
		for _, p := range h {
			if p.Payload != nil && !p.Garbage {
				out = append(out, string(p.Payload))
			}
		}
		return out
	}
	type counts struct{ withheld, burned, garbage, incarnations int }
	for text, ok := range map[string]func(counts) bool{
		"drop=0.3":    func(c counts) bool { return c.withheld > 200 && c.withheld < 400 },
		"drop=1":      func(c counts) bool { return c.withheld == len(plain) },
		"drop=0":      func(c counts) bool { return c == counts{} },
		"burst=20":    func(c counts) bool { return c.withheld > 50 && c.withheld < 400 },
		"slowjoin=40": func(c counts) bool { return c.withheld == 40 },
		"burn=0.1":    func(c counts) bool { return c.burned > 50 && c.burned < 200 },
		"garbage=0.1": func(c counts) bool { return c.garbage > 50 && c.garbage < 200 },
		"restart=100": func(c counts) bool { return c.incarnations > 4 && c.incarnations < 25 },
	} {
		o.Faults = faults(t, text)
		h := history(t, o, 1000)
		var c counts
		next := uint64(0)
		for _, p := range h {
			if p.Incarnation > c.incarnations {
				c.incarnations, next = p.Incarnation, 0
			}
			if p.Seq != next {
				t.Fatalf("%s: number %d, want %d", text, p.Seq, next)
			}
			next++
			c.withheld += boolInt(p.Withheld)
			c.burned += boolInt(p.Payload == nil)
			c.garbage += boolInt(p.Garbage)
		}
		if !ok(c) {
			t.Errorf("%s: %+v", text, c)
		}
		if c.incarnations == 0 && !slices.Equal(payloads(h), payloads(plain)) {
			t.Errorf("%s changed the batches themselves", text)
		}
	}
}

// TestFaultsIndependent: switching one fault on does not move another's, and
// replay requests do not move the batches' fates.
func TestFaultsIndependent(t *testing.T) {
	both, alone := NewInjector(faults(t, "drop=0.3,burn=0.5,silent"), 9, 1), NewInjector(faults(t, "drop=0.3"), 9, 1)
	other := NewInjector(faults(t, "drop=0.3"), 9, 2)
	same := 0
	for i := range 500 {
		if i%3 == 0 {
			both.Replay()
			both.Step()
		}
		a, b, c := both.Batch(), alone.Batch(), other.Batch()
		if a.Withhold != b.Withhold {
			t.Fatalf("batch %d: withheld %v with another fault, %v without", i, a.Withhold, b.Withhold)
		}
		same += boolInt(a.Withhold == c.Withhold)
	}
	if same == 500 {
		t.Error("two ranks have the same fates")
	}
}

func TestReplayFates(t *testing.T) {
	for text, want := range map[string]ReplayFate{
		"":                      {Whole: -1},
		"silent=1":              {Silent: true, Whole: -1},
		"truncate=7":            {Whole: 7},
		"holes=7":               {Whole: 7, Holes: true},
		"holes=7,truncate=9":    {Whole: 7, Holes: true},
		"holes=9,truncate=7":    {Whole: 7},
		"silent=0,truncate=100": {Whole: 100},
	} {
		if got := NewInjector(faults(t, text), 1, 0).Replay(); got != want {
			t.Errorf("%q: %+v, want %+v", text, got, want)
		}
	}
}

func TestOptionsProblems(t *testing.T) {
	_, err := New(Options{
		BlockSize: -1, Blocks: 1, Ranks: 5000, Replay: "5frame", Encoding: "xml", Rate: -1, EventPort: 65535,
		Faults: []Fault{{"drop", 2}, {"nope", 0}, {FaultOvertake, 5}},
	})
	for _, want := range []string{"block-size -1", "blocks 1:", "data-parallel-size 5000", `replay "5frame": want 4frame, 3frame`, `encoding "xml": want array, map`,
		"rate -1", "drop=2", `"nope" is none of`, "overtake needs a workload"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("problems do not name %s:\n%v", want, err)
		}
	}
	for o, want := range map[*Options]string{
		{EventPort: 5000, ReplayPort: 5003, Ranks: 4}:                 "overlap",
		{EventPort: 65535, Ranks: 2}:                                  "event-port 65535",
		{FirstRank: 65535, Ranks: 2}:                                  "data-parallel-start-rank 65535: want 0 to 65534",
		{Workload: &Workload{Arrivals: 9}}:                            "arrivals 9",
		{Workload: &Workload{FollowUps: 2}}:                           "probabilities",
		{Blocks: 4, Workload: &Workload{PrefixBlocks: 4}}:             "the pool has 4",
		{Workload: &Workload{Prefixes: -1, Steps: -1, Vocabulary: 1}}: "prefixes -1",
	} {
		if _, err := New(*o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", o, err, want)
		}
	}
	for o, want := range map[*Options]string{ // one wrong value is one problem, and its bounds are some that can be kept
		{Ranks: 99_999}: "data-parallel-size 99999: want 1 to 1024",
		{Ranks: -5, FirstRank: 7, EventPort: 5000, ReplayPort: 5003}: "data-parallel-size -5: want 1 to 1024",
		{BufferSteps: -1}:                    "buffer-steps -1: want 1 to 16777216",
		{BufferSteps: 1 << 30}:               "buffer-steps 1073741824: want 1 to 16777216",
		{HWM: -1}:                            "hwm -1: want 1 to 16777216",
		{ReplayHWM: -1}:                      "replay-hwm -1: want 1 to 67108864, or 0",
		{Blocks: -1, Workload: &Workload{}}:  "blocks -1: want 2 to 16777216",
		{EventPort: -1, ReplayPort: 2}:       "event-port -1: want 1 to 65535, or 0 for free ones",
		{ReplayPort: 70000, Ranks: 8}:        "replay-port 70000: want 1 to 65528, or 0 for free ones",
		{Faults: []Fault{{FaultBurst, 0.5}}}: "bad fault: burst=0.5: want a whole number from 1 to 16777216",
	} {
		if _, err := New(*o); err == nil || err.Error() != "mock engine: "+want {
			t.Errorf("%+v: %v, want %q alone", o, err, want)
		}
	}
	if _, err := New(Options{EventPort: 5000, ReplayPort: 5004, Ranks: 4}); err != nil {
		t.Error(err)
	}
	if fmt.Sprint(replayHWM(Reply4, 10), replayHWM(Reply3, 10)) != "22 1000" {
		t.Error("replay high-water marks")
	}
}
