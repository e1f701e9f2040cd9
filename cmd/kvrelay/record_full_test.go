//go:build linux

package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// fullDisk is set where this test's process is the recorder, whose files end
// at 10 kB: the limit is a whole process's.
const fullDisk = "TEST_RECORD_FULL_DISK"

// TestRecordFullDisk: that the file cannot grow is said once, and what is in it
// can be looked at.
func TestRecordFullDisk(t *testing.T) {
	if args := os.Getenv(fullDisk); args != "" {
		signal.Ignore(syscall.SIGXFSZ) // else it ends the process before a write fails
		if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: 10_000, Max: 10_000}); err != nil {
			t.Fatal(err)
		}
		os.Exit(runRecord(t.Context(), strings.Fields(args), nil, os.Stdout, os.Stderr))
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"x.jsonl", "x.jsonl.gz"} {
		t.Run(name, func(t *testing.T) {
			play := begin(t, runPlay, recordedStream, "--rate=0")
			var events, replay string
			play.line("events %s", &events)
			play.line("replay %s (4frame)", &replay)
			path := filepath.Join(t.TempDir(), name)
			ctx, cancel := context.WithTimeout(t.Context(), commandPatience)
			defer cancel()
			recorder := exec.CommandContext(ctx, self, "-test.run=^TestRecordFullDisk$")
			recorder.Env = append(os.Environ(), fullDisk+"="+events+" "+path)
			recorder.WaitDelay = time.Second
			said, err := recorder.CombinedOutput()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != exitFailed || strings.Count(string(said), "file too large") != 1 {
				t.Errorf("%v; want exit code %d and one line that says why:\n%s", err, exitFailed, said)
			}
			var n, withheld, restarts int
			play.line("played %d messages, %d of them not on PUB, %d restarts", &n, &withheld, &restarts)
			play.end()
			_, out, errs := run(t, "check", path)
			if !strings.Contains(out, "rank 0") {
				t.Errorf("check: %s%s", out, errs)
			}
			if torn := strings.Count(out, "in the middle of a line"); torn != strings.Count(name, ".gz") { // the other is cut back
				t.Errorf("said %d times where it ends:\n%s", torn, out)
			}
		})
	}
}
