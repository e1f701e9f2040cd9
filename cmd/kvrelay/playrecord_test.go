package main

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/kvrelay/kvrelay/internal/capture"
)

const recordedStream = "../../internal/mockengine/testdata/live-vllm-0.33.0-full-report.jsonl.gz"

// TestPlayRecord: what play withholds from PUB, record gets from the ROUTER;
// the copy has the same messages as the original.
func TestPlayRecord(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	original, err := capture.Load(recordedStream)
	if err != nil {
		t.Fatal(err)
	}
	n := len(original.Messages)
	play := begin(t, runPlay, recordedStream, "--rate=1000", "--drop", "0.3", "--seed", fmt.Sprint(seedWithLastLive(n, 0.3)))
	var events, replay string
	play.line("events %s", &events)
	play.line("replay %s (4frame)", &replay)
	dir := t.TempDir()
	copied, transcript := filepath.Join(dir, "copy.jsonl.gz"), filepath.Join(dir, "transcript.jsonl")
	rec := begin(t, runRecord, "--replay", replay, events, copied, "--transcript="+transcript, "--engine=vllm", "--engine-version=0.33.0", "--count", fmt.Sprint(n))
	var messages, withheld, restarts int
	play.line("played %d messages, %d of them not on PUB, %d restarts", &messages, &withheld, &restarts)
	if messages != n || withheld < 20 || restarts != 0 {
		t.Errorf("played %d, withheld %d, %d restarts", messages, withheld, restarts)
	}
	rec.wait(exitOK)
	play.end()

	got, err := capture.Load(copied)
	if err != nil {
		t.Fatal(err)
	}
	if got.Meta.Engine != "vllm" || got.Meta.Version != "0.33.0" {
		t.Errorf("meta %+v", got.Meta)
	}
	if len(got.Messages) != n {
		t.Fatalf("%d of %d messages: %s", len(got.Messages), n, rec.stderr)
	}
	for i, m := range got.Messages {
		want := original.Messages[i]
		if !bytes.Equal(m.Payload(), want.Payload()) || !bytes.Equal(m.Frames[1], want.Frames[1]) {
			t.Fatalf("message %d differs", i)
		}
	}
	x, err := capture.Load(transcript)
	if err != nil || len(x.Exchanges) < 5 {
		t.Errorf("transcript: %v", err)
	}
}

// seedWithLastLive is a seed with which play sends the last of n messages on
// PUB: nothing else tells a recorder that there was one.
func seedWithLastLive(n int, drop float64) uint64 {
	for seed := uint64(1); ; seed++ {
		r, last := rand.New(rand.NewPCG(seed, 0)), 0.0
		for range n {
			last = r.Float64()
		}
		if last >= drop {
			return seed
		}
	}
}

func TestPlayRefuses(t *testing.T) {
	dir := t.TempDir()
	broken := filepath.Join(dir, "broken")
	if err := os.WriteFile(broken, []byte("no capture\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for says, args := range map[string][]string{
		"0 arguments; want one file":   {},
		"2 arguments; want one file":   {"a", "b"},
		"--drop=2: want a probability": {"x", "--drop=2"},
		"--rate=-1: want 0 or more":    {"x", "--rate=-1"},
		`--replay="x": want 4frame`:    {"x", "--replay=x"},
		`--for="-1s": want a duration`: {"x", "--for=-1s"},
		"--buffer-steps=0: want 1":     {"x", "--buffer-steps=0"},
		"ports end at 65535":           {"x", "--event-port=70000"},
		"--no-such-flag: no such flag": {"--no-such-flag"},
	} {
		refused(t, runPlay, exitUsage, says, args...)
	}
	refused(t, runPlay, exitFailed, "no such file", filepath.Join(dir, "none"))
	refused(t, runPlay, exitFailed, "broken:1: meta: JSON broken", broken)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	_, port, _ := net.SplitHostPort(taken.Addr().String())
	refused(t, runPlay, exitFailed, "choose other ports", recordedStream, "--event-port", port)
	refused(t, runPlay, exitFailed, "choose other ports", recordedStream, "--replay-port", port)
}

// TestPlayBrokenFile: what is broken later in the file is said when it comes.
func TestPlayBrokenFile(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	path := filepath.Join(t.TempDir(), "late")
	if err := os.WriteFile(path, []byte("{}\n{\"frames\":[\"\",\"0000000000000000\",\"90\"]}\nbroken\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	refused(t, runPlay, exitFailed, "late:3: JSON broken", path, "--wait=false", "--rate=0")
}

// What a killed recorder left is played as far as it goes.
func TestPlayTornGzip(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	whole, err := os.ReadFile(recordedStream)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "torn.jsonl.gz")
	if err := os.WriteFile(path, whole[:20_000], 0o644); err != nil {
		t.Fatal(err)
	}
	play := begin(t, runPlay, path, "--wait=false", "--rate=0")
	var events, replay string
	var messages, withheld, restarts int
	play.line("events %s", &events)
	play.line("replay %s (4frame)", &replay)
	play.line("played %d messages, %d of them not on PUB, %d restarts", &messages, &withheld, &restarts)
	if messages == 0 {
		t.Error("nothing was played")
	}
	play.end()
}

func TestRecordRefuses(t *testing.T) {
	dir := t.TempDir()
	there := filepath.Join(dir, "there")
	if err := os.WriteFile(there, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for says, args := range map[string][]string{
		"1 arguments; want the engine's endpoint and a file": {"tcp://127.0.0.1:1"},
		"--transcript needs --replay":                        {"tcp://127.0.0.1:1", "x", "--transcript=y"},
		"--rank=70000: want 0 to 65535":                      {"tcp://127.0.0.1:1", "x", "--rank=70000"},
		"- is no file":                                       {"tcp://127.0.0.1:1", "-"},
		"--for=\"-1s\": want a duration of 0 or more":        {"tcp://127.0.0.1:1", filepath.Join(dir, "new"), "--for=-1s"},
		"--no-such-flag: no such flag":                       {"--no-such-flag"},
		"bad endpoint":                                       {"nonsense", filepath.Join(dir, "new")},
	} {
		refused(t, runRecord, exitUsage, says, args...)
	}
	refused(t, runRecord, exitUsage, "bad endpoint", "tcp://127.0.0.1:1", filepath.Join(dir, "new"), "--replay=nonsense")
	refused(t, runRecord, exitFailed, "file exists", "tcp://127.0.0.1:1", there)
	refused(t, runRecord, exitFailed, "file exists", "tcp://127.0.0.1:1", filepath.Join(dir, "new"), "--replay=tcp://127.0.0.1:1", "--transcript", there)
	if files, err := os.ReadDir(dir); err != nil || len(files) != 1 {
		t.Errorf("a refused command leaves files in the way of the next: %v, %v", files, err)
	}
}

// TestRecordWaits: an engine that is not there is waited for; the file is whole.
func TestRecordWaits(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	path := filepath.Join(t.TempDir(), "x.jsonl")
	rec := begin(t, runRecord, "tcp://127.0.0.1:1", path, "--for=50ms", "--topic", "kv@")
	rec.line("0 messages in")
	rec.wait(exitOK)
	if c, err := capture.Load(path); err != nil || c.Meta.Topic != "kv@" || len(c.Messages) != 0 {
		t.Errorf("%v", err)
	}
}
