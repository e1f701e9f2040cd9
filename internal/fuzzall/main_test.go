package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// parsers is what reads bytes that others have made, and the target that fuzzes it.
var parsers = []struct{ what, file, function, target string }{
	{"an engine's batch", "decode/decode.go", "Decode", "./decode FuzzDecode"},
	{"a batch's time alone", "decode/peek.go", "PeekTS", "./decode FuzzPeekTS"},
	{"msgpack, value by value", "internal/msgpack/reader.go", "NewReader", "./internal/msgpack FuzzReader"},
	{"msgpack, skipped", "internal/msgpack/skip.go", "Skip", "./internal/msgpack FuzzSkip"},
	{"events with every variant of setting", "convert/rank.go", "Convert", "./convert FuzzPayload"},
	{"ZMTP frames", "internal/zmtp/reader.go", "next", "./internal/zmtp FuzzReader"},
	{"the ZMTP handshake", "internal/zmtp/handshake.go", "handshake", "./internal/zmtp FuzzHandshake"},
	{"replies of a replay", "replay/frames.go", "parseReply", "./replay FuzzParseFrames"},
	{"live messages", "replay/frames.go", "ParseLive", "./replay FuzzParseFrames"},
	{"vLLM's answer to discovery", "discovery/vllm.go", "parseVLLM", "./discovery FuzzVLLM"},
	{"SGLang's answer to discovery", "discovery/sglang.go", "parseSGLang", "./discovery FuzzSGLang"},
	{"advertised endpoints", "discovery/endpoint.go", "parseEndpoint", "./discovery FuzzEndpoint"},
	{"JSON with NaN", "discovery/json.go", "finite", "./discovery FuzzFinite"},
	{"recovery requests on NATS", "sinks/recovery.go", "ask", "./sinks FuzzRecoveryRequest"},
	{"heartbeats of other relays", "sinks/owner.go", "hear", "./sinks FuzzHeartbeat"},
	{"positions in stream headers", "sinks/position.go", "parsePosition", "./sinks FuzzPosition"},
	{"our own events, read back", "sinks/ownevent.go", "decodeEvent", "./sinks FuzzDecodeEvent"},
	{"recovery requests of Dynamo", "membership/request.go", "readRequest", "./membership FuzzRequest"},
	{"the same on NATS", "membership/natsplane.go", "parseMessage", "./membership FuzzMessage"},
	{"router events", "consumer/parse.go", "ParseMessage", "./consumer FuzzParseMessage"},
	{"heartbeats, by consumers", "consumer/heartbeat.go", "ParseHeartbeat", "./consumer FuzzParseHeartbeat"},
	{"capture files", "internal/capture/reader.go", "NewReader", "./internal/capture FuzzReader"},
	{"settings", "config/load.go", "Load", "./config FuzzLoad"},
	{"prompts of `kvrelay query`", "cmd/kvrelay/query.go", "readPrompt", "./cmd/kvrelay FuzzReadPrompt"},
	{"recordings that `kvrelay check` judges", "internal/check/file.go", "recorded", "./internal/check FuzzFrames"},
}

// unmeasured are targets without limits on time and memory, and why.
var unmeasured = map[string]string{
	"./convert FuzzConvert":                 "runs the converter against a model; FuzzPayload measures it",
	"./internal/msgpack FuzzReader":         "calls of the reader in random order; FuzzSkip measures",
	"./replay FuzzCursor":                   "a history, not an input; its memory is asserted as held bytes",
	"./sinks FuzzOwnEvents":                 "makes events and reads them back; FuzzDecodeEvent measures",
	"./internal/load FuzzHandshake":         "the load generator's peer, over a pipe that takes its time",
	"./internal/mockengine FuzzCompletions": "a mock engine for each input",
}

// TestEveryParserIsFuzzed: each parser is there, has a target, and the target
// measures what an input costs.
func TestEveryParserIsFuzzed(t *testing.T) {
	const root = "../.."
	all, err := find(root)
	if err != nil {
		t.Fatal(err)
	}
	bodies := map[string]string{}
	for _, x := range all {
		bodies[x.String()] = body(t, filepath.Join(root, x.dir), x.name)
	}
	for _, p := range parsers {
		text, err := os.ReadFile(filepath.Join(root, p.file))
		if err != nil || !regexp.MustCompile(`(?m)^func (\([^)]*\) )?`+p.function+`\(`).Match(text) {
			t.Errorf("%s: no function %s in %s (%v): has it moved?", p.what, p.function, p.file, err)
		}
		if _, ok := bodies[p.target]; !ok {
			t.Errorf("%s: no target %s", p.what, p.target)
		}
	}
	for name, b := range bodies {
		_, excused := unmeasured[name]
		if measures := strings.Contains(b, "fuzzlimit.Run("); measures == excused {
			t.Errorf("%s holds its parser to limits: %v; excused from it: %v", name, measures, excused)
		}
	}
	for name := range unmeasured {
		if _, ok := bodies[name]; !ok {
			t.Errorf("%s is excused, and is not there", name)
		}
	}
	if len(all) < len(parsers) {
		t.Errorf("%d targets", len(all))
	}
}

// body is the text of a function in the tests of a folder.
func body(t *testing.T, dir, name string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if _, rest, ok := strings.Cut(string(text), "\nfunc "+name+"("); ok {
			b, _, _ := strings.Cut(rest, "\n}\n")
			return b
		}
	}
	t.Fatalf("%s: no %s", dir, name)
	return ""
}

// A tree of one package: a target that passes and one that fails. FUNC keeps find
// from taking them for targets of this tree.
func TestFuzzAll(t *testing.T) {
	root := t.TempDir()
	for name, text := range map[string]string{
		"go.mod": "module example\n\ngo 1.26.0\n",
		"a/a_test.go": `package a

import "testing"

FUNC FuzzGood(f *testing.F) {
	f.Add([]byte("x"))
	f.Fuzz(func(t *testing.T, b []byte) {})
}

FUNC FuzzBad(f *testing.F) {
	f.Add([]byte("x"))
	f.Fuzz(func(t *testing.T, b []byte) { t.Fatal("always") })
}
`,
		"nested/go.mod":      "module nested\n\ngo 1.26.0\n",
		"nested/n_test.go":   "package nested\n\nimport \"testing\"\n\nfunc FuzzNested(f *testing.F) {}\n",
		"a/testdata/x.go":    "package x\n",
		"testdata/b_test.go": "package b\n\nimport \"testing\"\n\nfunc FuzzData(f *testing.F) {}\n",
	} {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(strings.ReplaceAll(text, "FUNC", "func")), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	all, err := find(root)
	if err != nil || !slices.Equal(all, []target{{"./a", "FuzzGood"}, {"./a", "FuzzBad"}}) {
		t.Fatalf("found %v, %v", all, err)
	}
	for _, c := range []struct {
		pattern string
		code    int
		says    string
	}{
		{"Good", 0, "./a FuzzGood"},
		{"./a ", 1, "./a FuzzBad"},
		{"Nothing", 2, "0 targets"},
	} {
		var out bytes.Buffer
		code, err := fuzzAll(t.Context(), &out, root, time.Second, c.pattern)
		if code != c.code || (err != nil) != (code == 2) || !strings.Contains(out.String(), c.says) {
			t.Errorf("%s: code %d, %v\n%s", c.pattern, code, err, out.String())
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if code, err := fuzzAll(ctx, &bytes.Buffer{}, root, time.Second, "."); code != 1 || err == nil {
		t.Errorf("interrupted: code %d, %v", code, err)
	}
	if code, err := fuzzAll(t.Context(), &bytes.Buffer{}, root, 0, "("); code != 2 || err == nil {
		t.Errorf("bad flags: code %d, %v", code, err)
	}
}

func TestResult(t *testing.T) {
	var r result
	text := "fuzz: elapsed: 0s, gathering baseline coverage: 0/2 completed\nfuzz: elapsed: 3s, execs: 1234 (411/sec), new interesting: 1 (total: 3)\n" +
		"fuzz: elapsed: 4s, execs: 2000 (700/sec), new interesting: 5 (total: 7)\nPASS\n"
	if !r.read([]byte(text)) || r.inputs != 2000 || r.fresh != 5 {
		t.Errorf("%+v", r)
	}
	if r = (result{}); r.read([]byte("PASS\n")) {
		t.Error("figures from nothing")
	}
	if !r.read([]byte("fuzz: elapsed: 3s, gathering baseline coverage: 202/214 completed\nPASS\n")) || r.inputs != 202 {
		t.Errorf("the corpus alone: %+v", r)
	}
	dir := t.TempDir()
	for name, text := range map[string]string{"1": "1000 2.5\n", "2": "5000000 0\n", "3": "12"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.measurements(dir); err != nil || r.took != 5*time.Millisecond || r.factor != 2.5 {
		t.Errorf("%+v, %v", r, err)
	}
}
