//go:build integration

package integration

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/kvrelay/kvrelay/consumer"
	"github.com/kvrelay/kvrelay/internal/mockengine"
)

// mock is `kvrelay mock` in a process of its own.
type mock struct {
	t     testing.TB
	cmd   *exec.Cmd
	ended chan struct{}
	http  string // "": no HTTP side
	grpc  string
	live  []string // endpoints of its ranks
}

const mockBlock = 4 // tokens

// startMock starts a mock engine with 6 blocks of 4 tokens, unless args say
// otherwise, and waits until it is up. The end of the test kills it.
func startMock(t testing.TB, args ...string) *mock {
	t.Helper()
	all := append([]string{"mock", "--http=127.0.0.1:0", "--grpc=127.0.0.1:0", "--blocks=6", "--block-size", strconv.Itoa(mockBlock)}, args...)
	m := &mock{t: t, cmd: exec.Command(kvrelayBinary, all...), ended: make(chan struct{})}
	m.cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "GORACE=halt_on_error=1"}
	m.cmd.Stderr = os.Stderr
	stdout, err := m.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := m.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.kill)
	lines := make(chan string)
	go func() {
		defer close(m.ended)
		for sc := bufio.NewScanner(stdout); sc.Scan(); {
			lines <- sc.Text()
		}
		close(lines)
		_ = m.cmd.Wait() // killed
	}()
	expected := 3 // two addresses and a rank
	for _, a := range m.cmd.Args {
		if n, ok := strings.CutPrefix(a, "--data-parallel-size="); ok {
			n, _ := strconv.Atoi(n)
			expected += n - 1
		}
		if a == "--role=decode" || a == "--event-port" {
			expected-- // it has no event sockets
		}
	}
	for range expected {
		line, ok := <-lines
		if !ok {
			t.Fatal("the mock engine ended")
		}
		var rank int
		var live, replay string
		switch {
		case strings.HasPrefix(line, "http "):
			m.http = line[len("http "):]
		case strings.HasPrefix(line, "grpc "):
			m.grpc = line[len("grpc "):]
		default:
			if _, err := fmt.Sscanf(line, "rank %d events %s replay %s", &rank, &live, &replay); err != nil {
				t.Fatalf("the mock says %q", line)
			}
			m.live = append(m.live, live)
		}
	}
	go func() { // it says no more
		for range lines {
		}
	}()
	return m
}

// kill ends the engine as a crash does.
func (m *mock) kill() {
	_ = m.cmd.Process.Kill() // it may have ended
	<-m.ended
}

// request makes an HTTP request at host:port of the engine's HTTP side.
func (m *mock) request(method, path, body string, into any) {
	m.t.Helper()
	req, err := http.NewRequest(method, m.http+path, strings.NewReader(body))
	if err != nil {
		m.t.Fatal(err)
	}
	client := http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		m.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && into != nil {
		err = json.Unmarshal(text, into)
	}
	if err != nil || resp.StatusCode != http.StatusOK {
		m.t.Fatalf("%s %s: %s, %v", method, path, resp.Status, err)
	}
}

// complete sends a prompt and returns how many of its tokens the engine had.
func (m *mock) complete(prompt []uint32) (cached int) {
	m.t.Helper()
	body, err := json.Marshal(map[string]any{"prompt": prompt, "max_tokens": 1})
	if err != nil {
		m.t.Fatal(err)
	}
	var answer struct {
		Usage struct {
			Details struct {
				Cached int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		}
	}
	m.request("POST", "/v1/completions", string(body), &answer)
	return answer.Usage.Details.Cached
}

// truth is what the engine holds, by rank.
func (m *mock) truth() map[uint32]map[uint64]bool {
	m.t.Helper()
	var state struct {
		Ranks []struct {
			Rank  uint32
			Truth map[string]int
		}
	}
	m.request("GET", "/mock/state", "", &state)
	truth := map[uint32]map[uint64]bool{}
	for _, r := range state.Ranks {
		truth[r.Rank] = map[uint64]bool{}
		for text := range r.Truth {
			h, err := strconv.ParseUint(text, 10, 64)
			if err != nil {
				m.t.Fatal(err)
			}
			truth[r.Rank][h] = true
		}
	}
	return truth
}

// promptOf makes n tokens of their own for each number.
func promptOf(number, n int) []uint32 {
	tokens := make([]uint32, n)
	for i := range tokens {
		tokens[i] = uint32(number*1000 + i)
	}
	return tokens
}

// overlap is the share of a prompt's blocks that a router would find at a worker, in percent.
func overlap(p *consumer.Picture, worker uint64, prompt []uint32) int {
	blocks := mockengine.BlockHashes(prompt, mockBlock)
	have := hashes(p, consumer.Rank{Worker: worker}, consumer.Device)
	n := 0
	for _, h := range blocks {
		if !have[h] {
			break
		}
		n++
	}
	return 100 * n / len(blocks)
}

// sees waits until the router's picture of a worker is what the engine holds.
func (m *mock) sees(r *router, worker uint64) {
	m.t.Helper()
	truth := m.truth()
	r.wait(m.t, fmt.Sprintf("the router's picture is the engine's cache: %v", truth), func(p *consumer.Picture) bool {
		for rank, want := range truth {
			if !maps.Equal(want, hashes(p, consumer.Rank{Worker: worker, DP: rank}, consumer.Device)) {
				return false
			}
		}
		return true
	})
}

// removals are the blocks that were removed, in order.
func removals(r *router) (list []uint64) {
	for _, e := range r.all() {
		if e.Kind == consumer.Removed {
			list = append(list, e.Hashes...)
		}
	}
	return list
}

// before says whether a comes before b in list, which must hold both.
func before(list []uint64, a, b uint64) bool {
	i, j := slices.Index(list, a), slices.Index(list, b)
	return i >= 0 && j >= 0 && i < j
}
