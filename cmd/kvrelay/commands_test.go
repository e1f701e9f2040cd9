package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvrelay/kvrelay/config"
	"github.com/kvrelay/kvrelay/relay"
	"go.uber.org/goleak"
)

// run runs a command line without KVRELAY_ variables of the surroundings.
func run(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	for _, entry := range os.Environ() {
		if name, value, _ := strings.Cut(entry, "="); strings.HasPrefix(name, "KVRELAY_") {
			t.Setenv(name, value) // restored afterwards
			os.Unsetenv(name)
		}
	}
	var out, errs strings.Builder
	code = dispatch(t.Context(), args, strings.NewReader(""), &out, &errs)
	return code, out.String(), errs.String()
}

func TestHelp(t *testing.T) {
	for _, args := range [][]string{{"help"}, {"-h"}, {"--help"}} {
		code, out, errs := run(t, args...)
		if code != exitOK || errs != "" {
			t.Errorf("%q: code %d, stderr %q", args, code, errs)
		}
		for _, c := range commands() {
			if !strings.Contains(out, "\n  "+c.name+" ") || !strings.Contains(out, c.short) {
				t.Errorf("%q does not tell of %s: %s", args, c.name, out)
			}
		}
	}
}

// Every command answers -h on stdout, also by `kvrelay help COMMAND`, and refuses a flag it does not have.
func TestEveryCommand(t *testing.T) {
	for _, c := range commands() {
		for _, args := range [][]string{{c.name, "-h"}, {c.name, "--help"}, {"help", c.name}} {
			code, out, errs := run(t, args...)
			if code != exitOK || errs != "" || !strings.Contains(out, "Usage: kvrelay") {
				t.Errorf("%q: code %d, stdout %q, stderr %q", args, code, out, errs)
			}
		}
		code, _, errs := run(t, c.name, "--no-such-flag=1")
		if code != exitUsage || !strings.HasPrefix(errs, "kvrelay "+c.name+": ") {
			t.Errorf("%s --no-such-flag: code %d, stderr %q", c.name, code, errs)
		}
	}
}

// The README's table of commands is complete.
func TestREADMENamesEveryCommand(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range commands() {
		if !strings.Contains(string(readme), "`kvrelay "+c.name+"`") {
			t.Errorf("`kvrelay %s` is not in README.md", c.name)
		}
	}
}

func TestUnknownCommand(t *testing.T) {
	for args, say := range map[string]string{"confg": `did you mean "config"?`, "VERSION": `did you mean "version"?`, "xyzzy": "The commands are", "help xyzzy": "The commands are"} {
		code, out, errs := run(t, strings.Fields(args)...)
		if code != exitUsage || out != "" || !strings.Contains(errs, say) {
			t.Errorf("%q: code %d, stdout %q, stderr %q, want %q", args, code, out, errs, say)
		}
	}
}

// Settings' flags without a command mean run.
func TestRunIsTheDefault(t *testing.T) {
	for _, args := range [][]string{{"--ranks", "0", "--lost=x"}, {"run", "--ranks", "0", "--lost=x"}} {
		code, _, errs := run(t, args...)
		if code != exitUsage || !strings.HasPrefix(errs, "kvrelay run: ") || !strings.Contains(errs, `--ranks="0"`) || !strings.Contains(errs, `--lost="x"`) {
			t.Errorf("%q: code %d, stderr %q", args, code, errs)
		}
	}
	if code, _, errs := run(t, "--engine=static"); code != exitUsage || !strings.Contains(errs, "KVRELAY_ENDPOINTS") {
		t.Errorf("static without endpoints: code %d, stderr %q", code, errs)
	}
}

// run waits for an engine that is not there, and ends in order when told to.
func TestRunEndsWhenTold(t *testing.T) {
	for _, engine := range []string{"--endpoints=tcp://127.0.0.1:1", "--discovery-url=grpc://127.0.0.1:1", "--discovery-url=http://127.0.0.1:1"} {
		t.Run(engine, func(t *testing.T) { testRunEndsWhenTold(t, engine) })
	}
}

func testRunEndsWhenTold(t *testing.T, engine string) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	ctx, stop := context.WithCancel(t.Context())
	logR, logW := io.Pipe()
	ended := make(chan int)
	go func() {
		code := runRun(ctx, []string{engine, "--sink=stdout", "--admin-addr=off", "--log-format=json"}, strings.NewReader(""), io.Discard, logW)
		logW.Close()
		ended <- code
	}()
	dec := json.NewDecoder(logR)
	var line struct{ Msg string }
	if err := dec.Decode(&line); err != nil || line.Msg != "starting" {
		t.Errorf("first line %+v, %v", line, err)
	}
	stop()
	go func() { _, _ = io.Copy(io.Discard, io.MultiReader(dec.Buffered(), logR)) }()
	select {
	case code := <-ended:
		if code != exitOK {
			t.Errorf("code %d", code)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("run did not end")
	}
}

// The sleeps are synctest's: they take no time.
func TestSignals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		signals := make(chan os.Signal, 2)
		stops, code := 0, -1
		go obey(signals, func() { stops++ }, func(c int) { code = c })
		signal := func(wantCode int) {
			t.Helper()
			signals <- syscall.SIGTERM
			synctest.Wait()
			if stops != 1 || code != wantCode {
				t.Errorf("stopped %d times, exit code %d; want once and %d", stops, code, wantCode)
			}
		}
		signal(-1)
		signal(-1) // the same wish, told to the whole group
		time.Sleep(oneWish - time.Millisecond)
		signal(-1)
		time.Sleep(time.Minute) // silence is no wish
		synctest.Wait()
		signal(exitUnconfirmed)
	})
}

func TestExitCodes(t *testing.T) {
	for want, err := range map[int]error{
		exitOK: nil, exitFailed: io.ErrUnexpectedEOF, exitLost: fmt.Errorf("x: %w", &relay.LostError{From: 1, To: 2}),
		exitUnconfirmed: &relay.UnconfirmedError{Messages: 1},
	} {
		if got := exitCode(err); got != want {
			t.Errorf("%v: code %d, want %d", err, got, want)
		}
	}
}

func TestConfigCommand(t *testing.T) {
	t.Setenv("NO_COLOR", "1")
	code, out, errs := run(t, "config", "--endpoints=tcp://127.0.0.1:5557", "--nats-url=nats://u:hunter2@h", "--topic", "kv@")
	if code != exitOK || errs != "" {
		t.Errorf("code %d, stderr %q", code, errs)
	}
	rows := strings.Split(out, "\n")
	for _, s := range config.Table() {
		if !slices.ContainsFunc(rows, func(row string) bool { return strings.HasPrefix(row, s.Var+" ") && strings.HasSuffix(row, s.Meaning) }) {
			t.Errorf("no row of %s", s.Var)
		}
	}
	for _, want := range [][]string{{"KVRELAY_TOPIC", "kv@", "flag"}, {"KVRELAY_RANKS", "1", "default"}, {"KVRELAY_NATS_URL", "nats://****@h", "flag"}} {
		if !slices.ContainsFunc(rows, func(row string) bool { f := strings.Fields(row); return len(f) > 3 && slices.Equal(f[:3], want) }) {
			t.Errorf("no row %q in\n%s", want, out)
		}
	}
	if strings.Contains(out, "hunter2") {
		t.Error("a password is shown")
	}

	code, out, errs = run(t, "config", "--json", "--endpoints=tcp://127.0.0.1:5557")
	var values []struct{ Name, Value, From string }
	if err := json.Unmarshal([]byte(out), &values); err != nil || code != exitOK || errs != "" {
		t.Fatalf("code %d, %v, stderr %q", code, err, errs)
	}
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	id := config.DeriveWorkerID("dynamo", host, "tcp://127.0.0.1:5557")
	for _, v := range values {
		if v.Name == "WORKER_ID" && (v.Value != fmt.Sprint(id) || v.From != "derived") {
			t.Errorf("worker id %+v, want %d", v, id)
		}
	}
	if len(values) != len(config.Table()) {
		t.Errorf("%d of %d settings", len(values), len(config.Table()))
	}

	// With problems: the table, then the problems, and the code of bad settings.
	code, out, errs = run(t, "config", "--ranks=0", "--lost=x")
	if code != exitUsage || !strings.Contains(out, "KVRELAY_RANKS") || !strings.Contains(errs, `--ranks="0"`) || !strings.Contains(errs, `--lost="x"`) {
		t.Errorf("code %d, stdout %q, stderr %q", code, out, errs)
	}
}

func TestVersion(t *testing.T) {
	for _, args := range [][]string{{"version"}, {"--version"}} {
		code, out, errs := run(t, args...)
		if code != exitOK || errs != "" || !strings.HasPrefix(out, "kvrelay ") || strings.Count(out, "\n") != 1 {
			t.Errorf("%q: code %d, stdout %q, stderr %q", args, code, out, errs)
		}
	}
	info := &debug.BuildInfo{Main: debug.Module{Version: "v1.2.3"}, Settings: []debug.BuildSetting{
		{Key: "vcs.revision", Value: "0123456789abcdef"}, {Key: "vcs.time", Value: "2026-11-29T10:00:00Z"}, {Key: "vcs.modified", Value: "true"},
	}}
	if got := versionText(info); !strings.HasPrefix(got, "kvrelay v1.2.3 (commit 0123456789ab, 2026-11-29T10:00:00Z, modified), go") {
		t.Errorf("got %q", got)
	}
	if got := versionText(nil); !strings.HasPrefix(got, "kvrelay (unknown), go") {
		t.Errorf("got %q", got)
	}
}

// Help must fit on a screen.
func TestOverviewIsShort(t *testing.T) {
	_, out, _ := run(t, "help")
	if n := strings.Count(out, "\n"); n > 30 {
		t.Errorf("%d lines", n)
	}
	_, out, _ = run(t, "run", "-h")
	for line := range strings.Lines(out) {
		if len(line) > 90 { // words are not cut
			t.Errorf("a line of %d columns: %s", len(line), line)
		}
	}
}
