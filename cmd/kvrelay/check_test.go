package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/kvrelay/kvrelay/internal/check"
	"github.com/kvrelay/kvrelay/internal/mockengine"
)

const captures = "../../integration/testdata/captures/"

// A recording: the exit code says whether there is a problem, and flags may
// stand on either side of the file.
func TestCheckFile(t *testing.T) {
	for args, want := range map[string]int{
		captures + "vllm-0.33.0-base.jsonl.gz":                           exitOK,
		captures + "sglang-0.4.9-page16.jsonl.gz":                        exitFailed,
		captures + "vllm-0.33.0-base.jsonl.gz --block-size 32":           exitFailed,
		"--duplicates presence " + captures + "vllm-0.33.0-dup.jsonl.gz": exitOK,
	} {
		code, out, errs := run(t, append([]string{"check"}, strings.Fields(args)...)...)
		if code != want || errs != "" {
			t.Errorf("%s: code %d, stderr %q", args, code, errs)
		}
		mark := map[int]string{exitOK: "✓ healthy\n", exitFailed: "✗ 1 problem"}[want]
		if strings.Contains(args, "--block-size") {
			mark = "✗ 2 problems"
		}
		if !strings.Contains(out, mark) {
			t.Errorf("%s: no %q in\n%s", args, mark, out)
		}
	}

	present := map[string]int{}
	for _, how := range []string{"auto", "count", "presence"} {
		code, out, errs := run(t, "check", captures+"vllm-0.33.0-dup.jsonl.gz", "--json", "--duplicates="+how)
		var r check.Report
		if err := json.Unmarshal([]byte(out), &r); err != nil || code != exitOK || errs != "" {
			t.Fatalf("code %d, %v, stderr %q", code, err, errs)
		}
		if r.Engine != "vllm" || r.Version != "0.33.0" || !r.File || !r.Healthy || len(r.Streams) != 1 {
			t.Errorf("report %+v", r)
		}
		present[how] = r.Streams[0].Ranks[0].Present
	}
	if present["presence"] >= present["count"] {
		t.Errorf("--duplicates has no effect: %v", present)
	}
}

func TestCheckUsage(t *testing.T) {
	broken := filepath.Join(t.TempDir(), "broken")
	if err := os.WriteFile(broken, []byte("no capture\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for args, say := range map[string]string{
		"a b":             "2 files; want one at most",
		"none":            "no such file",
		broken:            "broken:1: ",
		"--for=0":         "want more than 0",
		"--duplicates=x":  "auto, count",
		"--engine=static": "ENDPOINTS",
	} {
		code, out, errs := run(t, append([]string{"check"}, strings.Fields(args)...)...)
		if code != exitUsage || out != "" || !strings.Contains(errs, say) {
			t.Errorf("%s: code %d, stdout %q, stderr %q; want %q", args, code, out, errs, say)
		}
	}
}

// A running engine, found by its discovery; and one that is not there.
func TestCheckEngine(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	mock := begin(t, runMock, "--http=127.0.0.1:0", "--rate=50", "--data-parallel-size=2")
	var url string
	mock.line("http %s", &url)
	for range 2 { // it serves when it has told everything
		var number int
		mock.line("rank %d", &number)
	}
	code, out, errs := run(t, "check", "--discovery-url", url, "--for=3s")
	if code != exitOK || !strings.Contains(errs, "looking at 2 sources") {
		t.Errorf("code %d, stderr %q", code, errs)
	}
	for _, want := range []string{url + " (vllm)", "\nrank 0\n", "\nrank 1\n", "back to number 0", "dropped     nothing", "✓ healthy"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	mock.end()

	code, out, _ = run(t, "check", "--endpoints=tcp://127.0.0.1:1", "--for=100ms")
	if code != exitFailed || !strings.Contains(out, "cannot be reached") || !strings.Contains(out, "kv-events-config") {
		t.Errorf("code %d\n%s", code, out)
	}
	code, out, _ = run(t, "check", "--discovery-url=http://127.0.0.1:1", "--for=300ms")
	if code != exitFailed || !strings.Contains(out, "no source of KV events was found") {
		t.Errorf("code %d\n%s", code, out)
	}
}

// Without replay a loss is a problem, and the verdict says what to do.
func TestCheckWithoutReplay(t *testing.T) {
	e, err := mockengine.Start(mockengine.Options{Replay: mockengine.NoReplay, Rate: 50, Workload: &mockengine.Workload{}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = e.Close() }()
	code, out, _ := run(t, "check", "--json", "--endpoints", e.Rank(0).Endpoint(), "--for=1s")
	var r check.Report
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatal(err)
	}
	if code != exitFailed || r.Healthy || fmt.Sprint(r.Findings[0].Code) != "no_replay" || !strings.Contains(r.Findings[0].Do, "REPLAY_ENDPOINTS") {
		t.Errorf("code %d, findings %+v", code, r.Findings)
	}
}
