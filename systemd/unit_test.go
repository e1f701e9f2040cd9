//go:build integration

package systemd

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

// unit is a copy of kvrelay.service whose ExecStart exists.
func unit(t *testing.T, change func(string) string) string {
	t.Helper()
	text, err := os.ReadFile("kvrelay.service")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	binary := filepath.Join(dir, "kvrelay")
	if err := os.WriteFile(binary, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	const installed = "ExecStart=/usr/local/bin/kvrelay run\n"
	if !bytes.Contains(text, []byte(installed)) {
		t.Fatalf("the unit has no %q", installed)
	}
	copied := change(strings.ReplaceAll(string(text), "/usr/local/bin/kvrelay", binary))
	path := filepath.Join(dir, "kvrelay.service")
	if err := os.WriteFile(path, []byte(copied), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func analyze(t *testing.T, args ...string) (string, error) {
	t.Helper()
	tool, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Fatalf("%v; on Debian and Ubuntu: apt-get install systemd", err)
	}
	cmd := exec.Command(tool, args...)
	cmd.Env = append(os.Environ(), "SYSTEMD_PAGER=", "SYSTEMD_COLORS=0")
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// TestUnit: systemd understands every line of it.
func TestUnit(t *testing.T) {
	same := func(s string) string { return s }
	if out, err := analyze(t, "verify", "--man=no", unit(t, same)); err != nil || out != "" {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
	wrong := func(s string) string { return strings.Replace(s, "WatchdogSec=", "WatchdogSecs=", 1) }
	if out, _ := analyze(t, "verify", "--man=no", unit(t, wrong)); !strings.Contains(out, "WatchdogSecs") {
		t.Errorf("a wrong line passes: %q", out)
	}
}

// TestExposure: the unit is hardened as docs/operations.md says.
func TestExposure(t *testing.T) {
	out, err := analyze(t, "security", "--offline=true", "--no-pager", "--threshold=20", unit(t, func(s string) string { return s }))
	if err != nil {
		t.Errorf("systemd-analyze security: %v\n%s", err, out)
	}
	found := regexp.MustCompile(`Overall exposure level for kvrelay.service: ([0-9.]+)`).FindStringSubmatch(out)
	if found == nil {
		t.Fatalf("no score in:\n%s", out)
	}
	doc, err := os.ReadFile("../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	// systemd 252 to 257 weigh some lines otherwise; the threshold above holds for all.
	if version, _ := analyze(t, "--version"); strings.HasPrefix(version, "systemd 252 ") && !strings.Contains(string(doc), "exposure level of "+found[1]) {
		t.Errorf("docs/operations.md does not say that the score is %s", found[1])
	}
}

// TestAbortedIsRestarted: the watchdog aborts a kvrelay that is stuck. With the
// unit's environment it dies of that, rather than with an exit code that the
// unit does not restart: Go's own for a crash is that of bad settings.
func TestAbortedIsRestarted(t *testing.T) {
	text, err := os.ReadFile("kvrelay.service")
	if err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(t.TempDir(), "kvrelay")
	build := exec.Command("go", "build", "-trimpath", "-o", binary, "../cmd/kvrelay")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building kvrelay: %v\n%s", err, out)
	}
	for _, env := range [][]string{environment(string(text)), nil} {
		cmd := exec.Command(binary, "run", "--endpoints", "tcp://127.0.0.1:1", "--admin-addr", "off", "--log-format", "json")
		cmd.Env = env
		pipe, err := cmd.StderrPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines, told := bufio.NewScanner(pipe), false
		for lines.Scan() { // it works when it says that the engine is away
			if !told && strings.Contains(lines.Text(), "waiting for the engine") {
				told = true
				if err := cmd.Process.Signal(syscall.SIGABRT); err != nil {
					t.Fatal(err)
				}
			}
		}
		_, _ = io.Copy(io.Discard, pipe) // a line that is too long for a Scanner
		_ = cmd.Wait()                   // the state tells how
		status := cmd.ProcessState.Sys().(syscall.WaitStatus)
		switch {
		case !told:
			t.Error("kvrelay did not start")
		case env != nil && (!status.Signaled() || status.Signal() != syscall.SIGABRT):
			t.Errorf("aborted as the watchdog does, it ended with code %d", status.ExitStatus())
		case env == nil && !strings.Contains(string(text), fmt.Sprintf("RestartPreventExitStatus=%d\n", status.ExitStatus())):
			t.Errorf("without the unit's environment it ended with %d: is GOTRACEBACK still needed?", status.ExitStatus())
		}
	}
}

// environment are the unit's variables.
func environment(unit string) (env []string) {
	for _, m := range regexp.MustCompile(`(?m)^Environment=(\S+)$`).FindAllStringSubmatch(unit, -1) {
		env = append(env, m[1])
	}
	return env
}
