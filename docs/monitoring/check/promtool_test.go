package check

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// promtool runs Prometheus' own, as go.mod pins it.
func promtool(t *testing.T, stdin []byte, args ...string) (string, error) {
	t.Helper()
	cmd := exec.Command("go", append([]string{"tool", "promtool"}, args...)...)
	cmd.Stdin = bytes.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// changed are the rules and their tests in a folder of their own, with one edit.
func changed(t *testing.T, from, to string) (rules, tests string) {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"alerts.yaml", "alerts_test.yaml"} {
		text, err := os.ReadFile(filepath.Join("..", name))
		if err != nil {
			t.Fatal(err)
		}
		if name == "alerts.yaml" {
			if !strings.Contains(string(text), from) {
				t.Fatalf("the rules have no %q", from)
			}
			text = []byte(strings.Replace(string(text), from, to, 1))
		}
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "alerts.yaml"), filepath.Join(dir, "alerts_test.yaml")
}

func TestRules(t *testing.T) {
	if out, err := promtool(t, nil, "check", "rules", "--lint=all", "--lint-fatal", "../alerts.yaml"); err != nil {
		t.Errorf("promtool check rules: %v\n%s", err, out)
	}
	if out, err := promtool(t, nil, "test", "rules", "../alerts_test.yaml"); err != nil {
		t.Errorf("promtool test rules: %v\n%s", err, out)
	}
	// Both notice what is wrong.
	rules, _ := changed(t, "kvrelay_ranks == 0", "kvrelay_ranks == (0")
	if out, err := promtool(t, nil, "check", "rules", rules); err == nil {
		t.Errorf("a rule that is no PromQL passes:\n%s", out)
	}
	_, tests := changed(t, "kvrelay_ranks == 0", "kvrelay_ranks == 7")
	if out, err := promtool(t, nil, "test", "rules", tests); err == nil {
		t.Errorf("a rule that asks for something else passes:\n%s", out)
	}
}

// A real scrape, with ranks, is what Prometheus wants of metrics.
func TestScrape(t *testing.T) {
	w := scrapes(t)
	if out, err := promtool(t, w.second, "check", "metrics"); err != nil || out != "" {
		t.Errorf("promtool check metrics: %v\n%s", err, out)
	}
	bad := bytes.Replace(w.second, []byte("# HELP kvrelay_ranks "), []byte("# HELP kvrelay_rankz "), 1)
	if out, err := promtool(t, bad, "check", "metrics"); err == nil {
		t.Errorf("a metric without help passes:\n%s", out)
	}
}
