package systemd

import (
	"os"
	"strings"
	"testing"

	"github.com/kvrelay/kvrelay/config"
)

// TestEnvironmentFile: every line of it, also those that are commented out, is
// a setting that kvrelay takes.
func TestEnvironmentFile(t *testing.T) {
	text, err := os.ReadFile("kvrelay.env")
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, s := range config.Table() {
		known["KVRELAY_"+s.Name] = true
	}
	set, off := map[string]string{}, map[string]string{}
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		to := set
		if strings.HasPrefix(line, "#KVRELAY_") {
			line, to = line[1:], off
		}
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, value, ok := strings.Cut(line, "=")
		if !ok || !known[name] {
			t.Errorf("%q is no setting", line)
		}
		to[name] = value
	}
	if len(set) == 0 || len(off) == 0 {
		t.Fatal("the file has no settings")
	}
	load := func(env map[string]string) {
		t.Helper()
		for name, value := range env {
			t.Setenv(name, value)
		}
		if _, err := config.Load(nil, nil); err != nil {
			t.Errorf("%v: %v", env, err)
		}
	}
	load(set)
	// The endpoints stand in for DISCOVERY_URL.
	t.Setenv("KVRELAY_DISCOVERY_URL", "")
	load(off)
}
