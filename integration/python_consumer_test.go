//go:build integration

package integration

import (
	"bufio"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// The page of Python in docs/examples that shows routers the whole contract: it
// comes late, recovers what it missed, follows, and sees what is cleared.
func TestPythonConsumer(t *testing.T) {
	python := filepath.Join("..", ".venv", "bin", "python")
	if _, err := os.Stat(python); err != nil {
		t.Fatalf("the Python packages are missing, run `make venv`: %v", err)
	}
	url := natsServer(t, -1).ClientURL()
	m := startMock(t)
	startKvrelay(t, settings{"NATS_URL": url, "DISCOVERY_URL": m.http})
	prompt := promptOf(1, 3*mockBlock)
	m.complete(prompt) // before the consumer is there

	var text []string
	for _, token := range prompt {
		text = append(text, strconv.FormatUint(uint64(token), 10))
	}
	cmd := exec.Command(python, filepath.Join("..", "docs", "examples", "consumer.py"), url, "dynamo", strings.Join(text, ","), strconv.Itoa(mockBlock))
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	type answer struct {
		Worker    uint64
		Rank      int
		Held, Hit int
	}
	answers := make(chan answer, 100)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for sc := bufio.NewScanner(stdout); sc.Scan(); {
			var a answer
			if err := json.Unmarshal(sc.Bytes(), &a); err != nil {
				t.Errorf("%v in %q", err, sc.Text())
			}
			answers <- a
		}
		_ = cmd.Wait() // killed
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		<-ended
	})
	await := func(what string, hit int) {
		t.Helper()
		deadline := time.After(patience)
		for {
			select {
			case a := <-answers:
				if a.Worker == 42 && a.Hit == hit {
					return
				}
			case <-ended:
				t.Fatalf("the consumer ended before %s", what)
			case <-deadline:
				t.Fatalf("no %s within %v", what, patience)
			}
		}
	}
	await("recovery of what was stored before", 3)
	m.request("POST", "/reset_prefix_cache", "", nil)
	m.complete(promptOf(2, mockBlock)) // a step that publishes
	await("clear", 0)
	m.complete(prompt)
	await("new store", 3)
}
