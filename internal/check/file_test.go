package check

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kvrelay/kvrelay/convert"
)

var update = flag.Bool("update", false, "write the golden files anew")

const captureDir = "../../integration/testdata/captures/"

// What is to be said of every recorded engine, worst first.
var verdicts = map[string]string{
	"dynamo-mocker-1.6.1-golden":          "",
	"sglang-0.4.9-page16":                 "untrusted_hashes",
	"sglang-0.5.18-dp2-topic":             "",
	"sglang-0.5.2-page16":                 "untrusted_hashes",
	"sglang-0.5.23-eagle":                 "",
	"sglang-0.5.23-page16":                "",
	"sglang-0.5.23-salt-extra":            "",
	"vllm-0.18.1-base":                    "",
	"vllm-0.18.1-dup":                     "copies",
	"vllm-0.18.1-restart":                 "restarts",
	"vllm-0.33.0-base":                    "",
	"vllm-0.33.0-bytes":                   "",
	"vllm-0.33.0-clear":                   "",
	"vllm-0.33.0-dp1-topic":               "",
	"vllm-0.33.0-dup":                     "copies",
	"vllm-0.33.0-eagle-lookahead":         "copies",
	"vllm-0.33.0-evict":                   "copies",
	"vllm-0.33.0-extra":                   "extra_text",
	"vllm-0.33.0-full-report":             "full_reporting",
	"vllm-0.33.0-hybrid-3g":               "hybrid partial_blocks",
	"vllm-0.33.0-hybrid-mamba":            "hybrid copies",
	"vllm-0.33.0-hybrid-swa":              "hybrid",
	"vllm-0.33.0-offload-cpu-placeholder": "",
	"vllm-0.33.0-offload-cpu":             "copies",
	"vllm-0.33.0-restart":                 "restarts",
	"vllm-0.9.0-evict":                    "",
	"vllm-0.9.0-sha256-holes":             "holes",
}

func TestEveryRecording(t *testing.T) {
	files, err := filepath.Glob(captureDir + "*.jsonl.gz")
	if err != nil || len(files) != len(verdicts) {
		t.Fatalf("%d recordings, %v; %d verdicts", len(files), err, len(verdicts))
	}
	for _, path := range files {
		name := strings.TrimSuffix(filepath.Base(path), ".jsonl.gz")
		t.Run(name, func(t *testing.T) {
			r, err := File(path, convert.Config{})
			if err != nil {
				t.Fatal(err)
			}
			want := strings.Fields(verdicts[name])
			if got := codes(r); !slices.Equal(got, want) {
				t.Errorf("findings %q, want %q", got, want)
			}
			if r.Healthy == slices.Contains(want, "untrusted_hashes") {
				t.Errorf("healthy %v", r.Healthy)
			}
			s := r.Streams[0]
			if s.Numbers.Applied == 0 || s.Wire.BatchArrays != s.Numbers.Applied || len(s.Ranks) != 1 || s.Ranks[0].Batches != s.Numbers.Applied {
				t.Errorf("numbers %+v, %d arrays, ranks %+v", s.Numbers, s.Wire.BatchArrays, s.Ranks)
			}
			for reason, d := range s.Ranks[0].Drops {
				if !strings.HasPrefix(d.Example, "batch ") || !strings.Contains(d.Example, ", event ") || reason == "non_main_attention_group" && strings.Contains(d.Example, "group 0,") {
					t.Errorf("%s: example %q", reason, d.Example)
				}
			}
		})
	}
}

func codes(r *Report) []string {
	var list []string
	for _, f := range r.Findings {
		list = append(list, f.Code)
	}
	return list
}

// A whole page each, as it is read on a terminal of 80 columns.
func TestText(t *testing.T) {
	for _, name := range []string{"vllm-0.33.0-hybrid-3g", "sglang-0.4.9-page16", "vllm-0.33.0-extra"} {
		r, err := File(captureDir+name+".jsonl.gz", convert.Config{})
		if err != nil {
			t.Fatal(err)
		}
		r.Target = name + ".jsonl.gz"
		var b bytes.Buffer
		if err := r.Text(&b, Style{}); err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(b.String()) {
			if n := len([]rune(strings.TrimSuffix(line, "\n"))); n > 80 {
				t.Errorf("%d columns: %s", n, line)
			}
		}
		golden := filepath.Join("testdata", name+".txt")
		if *update {
			if err := os.WriteFile(golden, b.Bytes(), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if b.String() != string(want) {
			t.Errorf("%s differs (go test -update writes it anew):\n%s", golden, b.String())
		}
	}
}

func TestReplayTranscript(t *testing.T) {
	dir := "../mockengine/testdata/"
	for file, want := range map[string]string{
		"replay-vllm-0.18.1-evict-buf20.jsonl.gz":          "3",
		"replay-vllm-0.33.0-evict-buf20.jsonl.gz":          "4",
		"replay-sglang-0.4.9-page16-buf12.jsonl.gz":        "3",
		"replay-sglang-0.5.23-page16-buf12.jsonl.gz":       "4",
		"replay-vllm-0.9.0-sha256-holes-buf10000.jsonl.gz": "3",
	} {
		r, err := File(dir+file, convert.Config{})
		if err != nil {
			t.Fatal(err)
		}
		p := r.Streams[0].Replay
		if got := names(p.Frames); !slices.Equal(got, []string{want}) {
			t.Errorf("%s: frames %q, want %q", file, got, want)
		}
		if p.Answered == 0 || p.Answered != p.Requests || p.EndMarkers != p.Requests || p.Odd != 0 || p.First == nil {
			t.Errorf("%s: %+v", file, p)
		}
		if short := slices.Contains(codes(r), "replay_short"); short != (*p.First > 0) {
			t.Errorf("%s: back to %d, replay_short %v", file, *p.First, short)
		}
	}
}

func TestOldSGLang(t *testing.T) {
	for version, old := range map[string]bool{
		"0.4.9": true, "0.4.9.post2": true, "0.5.5": true, "0.5.5.post1": true, "0.5.6": false, "0.5.6rc1": false,
		"0.5.23": false, "1.0.0": false, "v0.5.2": true, "": false, "0.5": false, "x.y.z": false, "main": false,
	} {
		if got := oldSGLang(version); got != old {
			t.Errorf("%q: %v", version, got)
		}
	}
}
