//go:build integration

package systemd

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
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
