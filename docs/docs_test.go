package docs

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/kvrelay/kvrelay/config"
)

// folder is where binary builds; made and removed by TestMain.
var folder string

// binary is a kvrelay to run, built once, with a release's flags.
var binary = sync.OnceValues(func() (string, error) {
	path := filepath.Join(folder, "kvrelay")
	cmd := exec.Command("go", "build", "-trimpath", "-o", path, "./cmd/kvrelay")
	cmd.Dir = ".."
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	return path, cmd.Run()
})

func TestMain(m *testing.M) {
	var err error
	if folder, err = os.MkdirTemp("", "kvrelay-docs"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	_ = os.RemoveAll(folder) // what stays is in the system's folder for such things
	os.Exit(code)
}

func built(t *testing.T) string {
	t.Helper()
	path, err := binary()
	if err != nil {
		t.Fatalf("building kvrelay: %v", err)
	}
	return path
}

// environment is ours without settings of kvrelay's, with kvrelay in the path.
func environment(t *testing.T, more ...string) []string {
	t.Helper()
	env := slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, "KVRELAY_") || strings.HasPrefix(e, "PATH=") })
	return append(append(env, "PATH="+filepath.Dir(built(t))+string(filepath.ListSeparator)+os.Getenv("PATH")), more...)
}

// pages are all documents, by path from here.
func pages(t *testing.T) map[string]string {
	t.Helper()
	texts := map[string]string{}
	for _, pattern := range []string{"*.md", "../*.md"} {
		names, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			texts[name] = string(text)
		}
	}
	return texts
}

// blocks are the fenced blocks of a page with this info string.
func blocks(text, info string) []string {
	var list []string
	for {
		_, rest, ok := strings.Cut(text, "\n```"+info+"\n")
		if !ok {
			return list
		}
		block, after, ok := strings.Cut(rest, "\n```\n")
		if !ok {
			return list
		}
		list, text = append(list, block), "\n"+after
	}
}

var promised = regexp.MustCompile(`(?m)\s# → (.+)$`)

// TestCommands runs every block marked `sh run`. It must succeed, and print
// what its comments promise.
func TestCommands(t *testing.T) {
	n := 0
	for name, text := range pages(t) {
		for i, script := range blocks(text, "sh run") {
			n++
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
				defer cancel()
				cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-m", "-c", script)
				cmd.Dir = t.TempDir()
				cmd.Env = environment(t)
				cmd.WaitDelay = 5 * time.Second
				out, err := cmd.CombinedOutput()
				if err != nil {
					t.Errorf("block %d: %v\n%s\n%s", i+1, err, script, out)
				}
				for _, p := range promised.FindAllStringSubmatch(script, -1) {
					if !strings.Contains(string(out), strings.TrimSpace(p[1])) {
						t.Errorf("block %d does not print %q:\n%s\n%s", i+1, p[1], script, out)
					}
				}
			})
		}
	}
	if n < 3 {
		t.Errorf("%d blocks are marked to be run", n)
	}
}

var link = regexp.MustCompile(`\]\(([^)\s]+)\)`)

// TestLinks: what a page of ours points to is there, headings too.
func TestLinks(t *testing.T) {
	for name, text := range pages(t) {
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			file, heading, _ := strings.Cut(m[1], "#")
			path := name
			if file != "" {
				path = filepath.Join(filepath.Dir(name), file)
			}
			there, err := os.Stat(path)
			if err != nil {
				t.Errorf("%s points to %s, which is not there", name, m[1])
				continue
			}
			if heading == "" || there.IsDir() {
				continue
			}
			target, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Contains(headings(string(target)), heading) {
				t.Errorf("%s points to %s, and there is no such heading", name, m[1])
			}
		}
	}
}

// headings are the anchors that forges make of a page's headings.
func headings(text string) []string {
	var list []string
	for line := range strings.Lines(text) {
		if title := strings.TrimLeft(line, "#"); title != line && strings.HasPrefix(title, " ") {
			title = strings.ToLower(strings.TrimSpace(title))
			title = regexp.MustCompile(`[^\p{L}\p{N} _-]`).ReplaceAllString(title, "")
			list = append(list, strings.ReplaceAll(title, " ", "-"))
		}
	}
	return list
}

// TestSettingsExist: KVRELAY_… in a page or file is a setting.
func TestSettingsExist(t *testing.T) {
	known := map[string]bool{}
	for _, s := range config.Table() {
		known["KVRELAY_"+s.Name] = true
	}
	texts := pages(t)
	for _, name := range []string{"../systemd/kvrelay.service", "../k8s/base/deployment.yaml"} {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		texts[name] = string(text)
	}
	for name, text := range texts {
		for _, variable := range regexp.MustCompile(`\bKVRELAY_[A-Z_]*[A-Z]\b`).FindAllString(text, -1) {
			if !known[variable] {
				t.Errorf("%s: %s is no setting", name, variable)
			}
		}
	}
}

// TestNATSConfiguration: the server of k8s/nats understands its file.
func TestNATSConfiguration(t *testing.T) {
	o, err := server.ProcessConfigFile("../k8s/nats/nats.conf")
	if err != nil {
		t.Fatal(err)
	}
	if o.Port != 4222 || o.HTTPPort != 8222 || !o.NoFastProducerStall {
		t.Errorf("port %d, monitoring %d, no stall %v", o.Port, o.HTTPPort, o.NoFastProducerStall)
	}
}
