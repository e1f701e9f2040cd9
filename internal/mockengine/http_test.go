package mockengine

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/go-zeromq/zmq4"
)

// call makes a request to an engine's HTTP side and reads the JSON answer.
func call(t *testing.T, h http.Handler, method, path, body string, header ...string) (int, map[string]any) {
	t.Helper()
	req := httptest.NewRequest(method, path, strings.NewReader(body))
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, req)
	var v map[string]any
	if w.Body.Len() > 0 && strings.Contains(w.Header().Get("Content-Type"), "json") {
		if err := json.Unmarshal(w.Body.Bytes(), &v); err != nil {
			t.Fatalf("%s: %v", w.Body, err)
		}
	}
	return w.Code, v
}

func cachedTokens(t *testing.T, v map[string]any) float64 {
	t.Helper()
	u, ok := v["usage"].(map[string]any)
	if !ok {
		t.Fatalf("no usage in %v", v)
	}
	return u["prompt_tokens_details"].(map[string]any)["cached_tokens"].(float64)
}

func TestCompletions(t *testing.T) {
	e := start(t, Options{BlockSize: 4, Blocks: 6, Topic: "t"})
	h := e.Handler(DiscoverVLLM)
	r := e.Rank(0)
	sub := subscribe(t, r.Publisher, r.Endpoint(), "")
	const prompt = `{"model":"m","prompt":[11,22,33,44,55,66,77,88,99]}`

	// 0 % → stored → 100 % → evicted → 0 %, and each step leaves its events at once.
	for i, c := range []struct {
		body   string
		cached float64
		events string // kinds of the batch: 1 stored, 2 removed
	}{
		{prompt, 0, "1"},
		{prompt, 8, ""},
		{`{"prompt":[100,101,102,103,104,105,106,107,108,109,110,111,112,113,114,115,116,117,118,119,120]}`, 0, "221"},
		{prompt, 0, "221"},
	} {
		code, v := call(t, h, "POST", "/v1/completions", c.body)
		if code != 200 || cachedTokens(t, v) != c.cached {
			t.Fatalf("request %d: %d %v", i, code, v)
		}
		if c.events == "" {
			continue
		}
		_, events, _, err := decodeBatch(sub.recv()[2])
		if err != nil {
			t.Fatal(err)
		}
		kinds := ""
		for _, e := range events {
			kinds += strconv.Itoa(int(e.Kind))
		}
		if kinds != c.events {
			t.Errorf("request %d: events %s, want %s", i, kinds, c.events)
		}
	}

	code, v := call(t, h, "POST", "/v1/completions", `{"prompt":[[1,2,3,4,5],[11,22,33,44,9]],"max_tokens":3,"vllm_xargs":{"kv_cache_report_mode":"full"}}`)
	if code != 200 || cachedTokens(t, v) != 4 || len(v["choices"].([]any)) != 2 {
		t.Fatalf("%d %v", code, v)
	}
	if u := v["usage"].(map[string]any); u["prompt_tokens"] != 10.0 || u["completion_tokens"] != 6.0 || u["total_tokens"] != 16.0 {
		t.Errorf("usage %v", u)
	}
	sub.recv() // of the first prompt
	sub.recv() // of its answer
	_, events, _, err := decodeBatch(sub.recv()[2])
	if err != nil || len(events) < 1 || events[0].Kind != Stored || events[0].Hashes[0] != 4117275816416024698 || events[0].HasParent {
		t.Errorf("a full report begins with %v, %v", events, err)
	}
	// The answer's block was computed in a later step than the prompt's.
	for _, e := range events {
		if e.HasParent {
			t.Errorf("the prompt's batch goes on with the answer: %v", events)
		}
	}
	if _, events, _, err := decodeBatch(sub.recv()[2]); err != nil || len(events) == 0 || events[len(events)-1].Kind != Stored || events[len(events)-1].Parent != 4117275816416024698 {
		t.Errorf("the answer's batch: %v, %v", events, err)
	}

	if code, _ := call(t, h, "POST", "/reset_prefix_cache", ""); code != 200 || len(r.Truth()) != 0 {
		t.Errorf("reset: %d, %d blocks left", code, len(r.Truth()))
	}
	if _, events, _, err := decodeBatch(sub.recv()[2]); err != nil || len(events) != 1 || events[0].Kind != Cleared {
		t.Errorf("events of a reset: %v, %v", events, err)
	}
	if code, _ := call(t, h, "GET", "/health", ""); code != 200 {
		t.Errorf("health %d", code)
	}
}

func TestCompletionsRefused(t *testing.T) {
	e, err := New(Options{BlockSize: 4, Blocks: 6, FirstRank: 2, Ranks: 2})
	if err != nil {
		t.Fatal(err)
	}
	h := e.Handler(DiscoverNone)
	for body, says := range map[string]string{
		``:                                   "not a completion request",
		`[1]`:                                "not a completion request",
		`{"prompt":"text"}`:                  "has no tokenizer",
		`{"prompt":[]}`:                      "has no tokenizer",
		`{"prompt":[-1]}`:                    "has no tokenizer",
		`{"prompt":[4294967296]}`:            "has no tokenizer",
		`{"prompt":[[]]}`:                    "prompt 0 has no tokens",
		`{"prompt":[1],"max_tokens":-1}`:     "max_tokens",
		`{"prompt":[1],"max_tokens":100}`:    "6 blocks of 4 tokens",
		`{"prompt":[1],"max_tokens":999999}`: "max_tokens",
		`{"prompt":[1],"vllm_xargs":{"kv_cache_report_mode":"x"}}`:       "kv_cache_report_mode",
		`{"prompt":[` + strings.Repeat("[1],", 300) + `[1]]}`:            "301 prompts",
		`{"prompt":[1,` + strings.Repeat("1,", 1<<24) + `1]}`:            "longer than",
		`{"prompt":[1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7]}`: "6 blocks of 4 tokens",
	} {
		code, v := call(t, h, "POST", "/v1/completions", body)
		text := fmt.Sprint(v["error"])
		if code < 400 || code > 413 || !strings.Contains(text, says) {
			t.Errorf("%.40q: %d %s, want %q", body, code, text, says)
		}
	}
	for _, rank := range []string{"1", "4", "x"} {
		if code, v := call(t, h, "POST", "/v1/completions", `{"prompt":[1]}`, "X-Data-Parallel-Rank", rank); code != 400 || !strings.Contains(fmt.Sprint(v), "want 2 to 3") {
			t.Errorf("rank %s: %d %v", rank, code, v)
		}
	}
	e.Kill()
	if code, _ := call(t, h, "POST", "/v1/completions", `{"prompt":[1]}`); code != 503 {
		t.Errorf("a dead engine answers %d", code)
	}
	if code, _ := call(t, h, "POST", "/reset_prefix_cache", ``); code != 503 {
		t.Errorf("a dead engine resets: %d", code)
	}
	for _, path := range []string{"/kv_event_sources", "/server_info", "/get_server_info"} {
		if code, _ := call(t, h, "GET", path, ""); code != 404 {
			t.Errorf("%s of an old engine: %d", path, code)
		}
	}
}

// TestFaultsByRequests: without a clock a dead engine comes back after requests.
func TestFaultsByRequests(t *testing.T) {
	e, err := New(Options{BlockSize: 4, Faults: faults(t, "kill=5")})
	if err != nil {
		t.Fatal(err)
	}
	codes := map[int]int{}
	for range 300 {
		code, _ := call(t, e.Handler(DiscoverNone), "POST", "/v1/completions", `{"prompt":[1]}`)
		codes[code]++
	}
	if codes[200] < 20 || codes[503] < 50 || e.Rank(0).Incarnation() < 3 {
		t.Errorf("answers %v", codes)
	}
}

// TestRanksOverHTTP: a prompt goes where it is cached, or where it is sent.
func TestRanksOverHTTP(t *testing.T) {
	e, err := New(Options{BlockSize: 4, FirstRank: 2, Ranks: 3})
	if err != nil {
		t.Fatal(err)
	}
	h := e.Handler(DiscoverNone)
	rank := func(v map[string]any) any { return v["choices"].([]any)[0].(map[string]any)["data_parallel_rank"] }
	if _, v := call(t, h, "POST", "/v1/completions", `{"prompt":[1,2,3,4,5]}`, "X-Data-Parallel-Rank", "4"); rank(v) != 4.0 {
		t.Errorf("sent to 4, went to %v", rank(v))
	}
	if _, v := call(t, h, "POST", "/v1/completions", `{"prompt":[1,2,3,4,6]}`); rank(v) != 4.0 || cachedTokens(t, v) != 4 {
		t.Errorf("cached on 4, went to %v", rank(v))
	}
	if _, v := call(t, h, "POST", "/v1/completions", `{"prompt":[9]}`); rank(v) != 2.0 {
		t.Errorf("cached nowhere, went to %v", rank(v))
	}
}

func TestDiscovery(t *testing.T) {
	e := start(t, Options{Ranks: 2, FirstRank: 1, Topic: "kv@x", BlockSize: 32, BufferSteps: 77})
	sources := e.Sources()
	if len(sources) != 2 || sources[1].Rank != 2 || sources[0].Endpoint == sources[1].Endpoint {
		t.Fatalf("sources %v", sources)
	}
	_, v := call(t, e.Handler(DiscoverVLLM), "GET", "/kv_event_sources", "")
	for _, s := range sources {
		got, ok := v[strconv.Itoa(s.Rank)].(map[string]any)
		if !ok || got["endpoint"] != s.Endpoint || got["replay_endpoint"] != s.ReplayEndpoint || got["topic"] != "kv@x" ||
			got["publisher"] != "zmq" || got["enable_kv_cache_events"] != true || got["buffer_steps"] != 77.0 {
			t.Errorf("rank %d: %v", s.Rank, got)
		}
	}
	if len(v) != 2 {
		t.Errorf("%d ranks", len(v))
	}
	for _, path := range []string{"/server_info", "/get_server_info"} {
		_, v := call(t, e.Handler(DiscoverSGLang), "GET", path, "")
		list := v["kv_event_sources"].([]any)
		first := list[0].(map[string]any)
		if len(list) != 2 || first["endpoint"] != sources[0].Endpoint || first["replay_endpoint"] != sources[0].ReplayEndpoint || first["block_size"] != 32.0 || first["dp_rank"] != 1.0 {
			t.Errorf("%s: %v", path, list)
		}
		old := v["kv_events"].(map[string]any)
		if old["publisher"] != "zmq" || old["endpoint_host"] != "127.0.0.1" || old["block_size"] != 32.0 || old["dp_size"] != 3.0 ||
			old["endpoint_port_base"] != float64(e.Rank(0).EventPort()-1) {
			t.Errorf("%s: %v", path, old)
		}
	}
	if _, v := call(t, e.Handler(DiscoverSGLangOld), "GET", "/server_info", ""); v["kv_event_sources"] != nil || v["kv_events"] == nil {
		t.Errorf("old SGLang: %v", v)
	}
}

// TestDiscoveryPorts: fixed ports of ranks follow each other, and say so.
func TestDiscoveryPorts(t *testing.T) {
	var e *Engine
	base := 0
	for try := 20_000; ; try += 50 { // some range of four free ports
		var err error
		if e, err = Start(Options{Ranks: 2, EventPort: try, ReplayPort: try + 10, Host: "*"}); err == nil {
			base = try
			break
		} else if try > 30_000 {
			t.Fatal(err)
		}
	}
	defer e.Close()
	_, v := call(t, e.Handler(DiscoverSGLangOld), "GET", "/server_info", "")
	got := v["kv_events"].(map[string]any)
	if got["endpoint_port_base"] != float64(base) || got["replay_endpoint_port_base"] != float64(base+10) || got["publishers"] != nil || got["endpoint_host"] != "*" {
		t.Errorf("%v", got)
	}
	if want := fmt.Sprintf("tcp://*:%d", base+1); e.Rank(1).Endpoint() != want {
		t.Errorf("endpoint %s, want %s", e.Rank(1).Endpoint(), want)
	}
	dial(t, fmt.Sprintf("127.0.0.1:%d", base+11), zmq4.Dealer)
}

func TestDiscoveryOfNothing(t *testing.T) {
	e := start(t, Options{Role: Decode})
	if _, v := call(t, e.Handler(DiscoverVLLM), "GET", "/kv_event_sources", ""); len(v) != 0 {
		t.Errorf("vLLM: %v", v)
	}
	_, v := call(t, e.Handler(DiscoverSGLang), "GET", "/server_info", "")
	if events, ok := v["kv_events"]; !ok || events != nil || len(v["kv_event_sources"].([]any)) != 0 {
		t.Errorf("SGLang: %v", v)
	}
	e = start(t, Options{Replay: NoReplay})
	if _, v := call(t, e.Handler(DiscoverVLLM), "GET", "/kv_event_sources", ""); v["0"].(map[string]any)["replay_endpoint"] != nil {
		t.Errorf("no replay: %v", v)
	}
}

func TestState(t *testing.T) {
	e := start(t, Options{BlockSize: 4})
	if _, err := e.Prompt(golden, PromptOptions{}); err != nil {
		t.Fatal(err)
	}
	e.Step()
	_, v := call(t, e.Handler(DiscoverNone), "GET", "/mock/state", "")
	rank := v["ranks"].([]any)[0].(map[string]any)
	truth := rank["truth"].(map[string]any)
	if rank["next_seq"] != 1.0 || len(truth) != 2 || truth["5947898228081096063"] != 1.0 || truth["4117275816416024698"] != 1.0 || rank["endpoint"] != e.Rank(0).Endpoint() {
		t.Errorf("state %v", v)
	}
}

// FuzzCompletions: no body may panic, and none that is refused changes anything.
func FuzzCompletions(f *testing.F) {
	f.Add([]byte(`{"prompt":[1,2,3],"max_tokens":3}`))
	f.Add([]byte(`{"prompt":[[1],[2]],"vllm_xargs":{"kv_cache_report_mode":"full"}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		e, err := New(Options{BlockSize: 2, Blocks: 8})
		if err != nil {
			t.Fatal(err)
		}
		w := httptest.NewRecorder()
		e.Handler(DiscoverNone).ServeHTTP(w, httptest.NewRequest("POST", "/v1/completions", io.NopCloser(bytes.NewReader(body))))
		if !slices.Contains([]int{200, 400, 413}, w.Code) {
			t.Errorf("%q: %d", body, w.Code)
		}
		if !json.Valid(w.Body.Bytes()) {
			t.Errorf("%q: answer %q", body, w.Body)
		}
	})
}
