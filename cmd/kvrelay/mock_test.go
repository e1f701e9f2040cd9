package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvrelay/kvrelay/internal/zmtp"
	"go.uber.org/goleak"
)

type commandFunc func(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int

// running is a command that has not ended yet.
type running struct {
	t      *testing.T
	stop   func()
	lines  *bufio.Scanner // of stdout
	ended  chan int
	stderr *lockedBuffer
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

const commandPatience = 20 * time.Second

func begin(t *testing.T, run commandFunc, args ...string) *running {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), commandPatience)
	r, w := io.Pipe()
	c := &running{t: t, stop: cancel, lines: bufio.NewScanner(r), ended: make(chan int, 1), stderr: &lockedBuffer{}}
	go func() {
		code := run(ctx, args, strings.NewReader(""), w, c.stderr)
		_ = w.Close()
		c.ended <- code
	}()
	t.Cleanup(func() {
		cancel()
		for c.lines.Scan() { // a command must not hang on a full pipe
		}
	})
	return c
}

// line is the next line of stdout, of the given form.
func (c *running) line(format string, a ...any) {
	c.t.Helper()
	if !c.lines.Scan() {
		c.t.Fatalf("the command ended: %s", c.stderr)
	}
	if _, err := fmt.Sscanf(c.lines.Text(), format, a...); err != nil {
		c.t.Fatalf("line %q: %v, want %q", c.lines.Text(), err, format)
	}
}

// end stops the command and expects exit code 0; it returns the rest of stdout.
func (c *running) end() string {
	c.t.Helper()
	c.stop()
	return c.wait(exitOK)
}

func (c *running) wait(code int) string {
	c.t.Helper()
	var rest strings.Builder
	for c.lines.Scan() {
		fmt.Fprintln(&rest, c.lines.Text())
	}
	if got := <-c.ended; got != code {
		c.t.Fatalf("exit code %d, want %d: %s", got, code, c.stderr)
	}
	return rest.String()
}

// refused runs a command that must end by itself with a line about its usage or failure.
func refused(t *testing.T, run commandFunc, code int, says string, args ...string) {
	t.Helper()
	var out, errs bytes.Buffer
	ctx, cancel := context.WithTimeout(context.Background(), commandPatience)
	defer cancel()
	if got := run(ctx, args, strings.NewReader(""), &out, &errs); got != code || !strings.Contains(errs.String(), says) {
		t.Errorf("%q: exit code %d, stderr %q; want %d and %q", args, got, errs.String(), code, says)
	}
}

func subscribeTo(t *testing.T, endpoint string) *zmtp.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), commandPatience)
	defer cancel()
	c, err := zmtp.Dial(ctx, endpoint, zmtp.Options{Type: zmtp.SUB})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// call makes an HTTP request and decodes the JSON answer.
func call(t *testing.T, method, url, body string, into any) int {
	t.Helper()
	req, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: commandPatience}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if into != nil {
		if err := json.NewDecoder(resp.Body).Decode(into); err != nil {
			t.Fatal(err)
		}
	}
	return resp.StatusCode
}

type mockState struct {
	Ranks []struct {
		Subscribers int            `json:"subscribers"`
		NextSeq     uint64         `json:"next_seq"`
		Truth       map[string]int `json:"truth"`
	} `json:"ranks"`
}

// until polls a mock's state.
func until(t *testing.T, url string, ok func(mockState) bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	late := time.After(commandPatience)
	for {
		var s mockState
		if call(t, "GET", url+"/mock/state", "", &s); ok(s) {
			return
		}
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("the mock never gets there: %+v", s)
		}
	}
}

// TestMockByHand: a person caches a prompt, sees the hit, and evicts it.
func TestMockByHand(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	c := begin(t, runMock, "--http", "127.0.0.1:0", "--block-size", "4", "--blocks=6", "--topic", "kv@mock")
	var url, events, replay string
	c.line("http %s", &url)
	c.line("rank 0 events %s replay %s", &events, &replay)

	var sources map[string]struct{ Endpoint, Topic string }
	call(t, "GET", url+"/kv_event_sources", "", &sources)
	if sources["0"].Endpoint != events || sources["0"].Topic != "kv@mock" {
		t.Errorf("discovery says %v, stdout %s", sources, events)
	}
	sub := subscribeTo(t, events)
	defer sub.Close()
	until(t, url, func(s mockState) bool { return s.Ranks[0].Subscribers == 1 })

	const prompt, other = `{"prompt":[11,22,33,44,55,66,77,88,99]}`, `{"prompt":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21]}`
	for i, r := range []struct {
		body   string
		cached int
	}{{prompt, 0}, {prompt, 8}, {other, 0}, {prompt, 0}} {
		var v struct {
			Usage struct {
				Details struct {
					Cached int `json:"cached_tokens"`
				} `json:"prompt_tokens_details"`
			}
		}
		if code := call(t, "POST", url+"/v1/completions", r.body, &v); code != 200 || v.Usage.Details.Cached != r.cached {
			t.Errorf("request %d: %d %+v, want %d cached", i, code, v, r.cached)
		}
	}
	for i := range 3 { // the second request stored nothing
		frames, err := sub.Recv()
		if err != nil || len(frames) != 3 || string(frames[0]) != "kv@mock" || frames[1][7] != byte(i) {
			t.Fatalf("message %d: %q, %v", i, frames, err)
		}
	}
	if rest := c.end(); rest != "" {
		t.Errorf("more output: %q", rest)
	}
}

func TestMockWorkload(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	c := begin(t, runMock, "--http=127.0.0.1:0", "--data-parallel-size=2", "--data-parallel-start-rank=4", "--rate=500", "--replay=none", "--discovery=sglang", "--fault", "drop=0.1,cut=50")
	var url, events string
	c.line("http %s", &url)
	c.line("rank 4 events %s replay none", &events)
	c.line("rank 5 events %s replay none", &events)
	until(t, url, func(s mockState) bool {
		return len(s.Ranks) == 2 && s.Ranks[0].NextSeq > 20 && s.Ranks[1].NextSeq > 20 && len(s.Ranks[0].Truth) > 10
	})
	var info struct {
		Sources []any `json:"kv_event_sources"`
	}
	if code := call(t, "GET", url+"/server_info", "", &info); code != 200 || len(info.Sources) != 2 {
		t.Errorf("server_info %d %v", code, info)
	}
	if code := call(t, "GET", url+"/kv_event_sources", "", nil); code != 404 {
		t.Errorf("kv_event_sources of SGLang: %d", code)
	}
	c.end()
}

func TestMockEndsByItself(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	c := begin(t, runMock, "--http=off", "--for=10ms", "--role", "decode")
	if rest := c.wait(exitOK); rest != "" {
		t.Errorf("a decode engine without HTTP says %q", rest)
	}
}

func TestMockRefuses(t *testing.T) {
	for says, args := range map[string][]string{
		`--discovery="x": want vllm`:              {"--discovery", "x"},
		"mock takes no arguments":                 {"x"},
		`"dorp" is none of drop, burst`:           {"--fault=dorp"},
		"--no-such-flag: no such flag":            {"--no-such-flag=1"},
		`encoding "xml": want array, map`:         {"--encoding=xml"},
		`replay "5frame": want 4frame`:            {"--replay=5frame"},
		"--hashes=: want a value":                 {"--hashes="},
		"--blocks=0: want 1 or more":              {"--blocks=0"},
		"--buffer-steps=0: want 1 or more":        {"--buffer-steps=0"},
		`--for="-1s": want a duration of 0 or`:    {"--for=-1s"},
		"overtake needs a workload":               {"--fault=overtake"},
		"event ports 5000… and replay ports 5001": {"--event-port=5000", "--replay-port=5001", "--data-parallel-size=2"},
	} {
		refused(t, runMock, exitUsage, says, args...)
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	refused(t, runMock, exitFailed, "choose another address, or port 0", "--http", taken.Addr().String())
	refused(t, runMock, exitFailed, "--grpc="+taken.Addr().String(), "--http=127.0.0.1:0", "--grpc", taken.Addr().String())
}

// TestMockPortTaken: as the engines, it says so, advertises nothing and goes on.
func TestMockPortTaken(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	_, port, _ := net.SplitHostPort(taken.Addr().String())
	c := begin(t, runMock, "--http=127.0.0.1:0", "--event-port", port)
	var url string
	c.line("http %s", &url)
	var sources map[string]any
	if code := call(t, "GET", url+"/kv_event_sources", "", &sources); code != 200 || len(sources) != 0 {
		t.Errorf("%d %v", code, sources)
	}
	if code := call(t, "POST", url+"/v1/completions", `{"prompt":[1,2,3]}`, nil); code != 200 {
		t.Errorf("completions %d", code)
	}
	c.end()
	if !strings.Contains(c.stderr.String(), "--event-port") {
		t.Errorf("stderr %q", c.stderr)
	}
}
