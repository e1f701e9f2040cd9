//go:build linux

package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/goleak"

	"github.com/kvrelay/kvrelay/internal/capture"
	"github.com/kvrelay/kvrelay/internal/natsd"
)

// program is this test as kvrelay, in a process of its own.
func program(t *testing.T, before []string, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), commandPatience)
	t.Cleanup(cancel)
	line := append(append(before, self), args...)
	cmd := exec.CommandContext(ctx, line[0], line[1:]...)
	cmd.Env = append(os.Environ(), asKvrelay+"=1")
	cmd.WaitDelay = time.Second
	return cmd
}

// A terminal that is closed ends a recording in order: the file is whole. One
// that nohup started does not end by it.
func TestHangup(t *testing.T) {
	// A signal that is caught is a new program's to take; one that is ignored, as
	// where nohup started the tests, stays ignored.
	caught := make(chan os.Signal, 1)
	signal.Notify(caught, syscall.SIGHUP)
	defer signal.Stop(caught)
	for name, before := range map[string][]string{"terminal": nil, "nohup": {"nohup"}} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "x.jsonl.gz")
			cmd := program(t, before, "record", "tcp://127.0.0.1:1", path)
			errs, err := cmd.StderrPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			said := bufio.NewScanner(errs)
			for said.Scan() && !strings.Contains(said.Text(), "trying again") { // it records
			}
			for _, s := range map[string][]syscall.Signal{"terminal": {syscall.SIGHUP}, "nohup": {syscall.SIGHUP, syscall.SIGTERM}}[name] {
				if err := cmd.Process.Signal(s); err != nil {
					t.Error(err)
				}
			}
			for said.Scan() {
			}
			if err := cmd.Wait(); err != nil {
				t.Errorf("it ended with %v", err)
			}
			if c, err := capture.Load(path); err != nil || c.Meta == nil {
				t.Errorf("the file: %v", err)
			}
		})
	}
}

// A bench that is killed takes its relay with it, which else looks for its
// engine for ever.
func TestBenchKilled(t *testing.T) {
	cmd := program(t, nil, "bench", "--for=1m")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var relay string
	waitFor(t, "the relay", func() bool {
		lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", cmd.Process.Pid))
		for _, list := range lists {
			if b, err := os.ReadFile(list); err == nil && len(b) > 0 {
				relay = strings.Fields(string(b))[0]
			}
		}
		return relay != ""
	})
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // killed
	waitFor(t, "the relay's end", func() bool {
		b, err := os.ReadFile("/proc/" + relay + "/stat")
		return err != nil || strings.Contains(string(b), ") Z ") // gone, or left to whoever reaps here
	})
}

// A bench that is interrupted tells what it measured until then; what is on its
// way then is not lost.
func TestBenchInterrupted(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	t.Setenv(asKvrelay, "1")
	s, err := natsd.Start(t.Context(), natsd.Options{Port: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	nc, err := nats.Connect(s.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	seen := 0
	if _, err := nc.Subscribe("namespace.>", func(*nats.Msg) {
		if seen++; seen == 20 {
			interrupt()
		}
	}); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	var out, errs strings.Builder
	code := dispatch(ctx, []string{"bench", "--for=1m", "--nats-url=" + s.URL()}, strings.NewReader(""), &out, &errs)
	if code != exitOK || !strings.Contains(out.String(), "nothing") {
		t.Errorf("code %d\n%s%s", code, out.String(), errs.String())
	}
}

// waitFor polls for a state.
func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(commandPatience); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %v", what, commandPatience)
		}
	}
}
