package mockengine

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
)

// Discovery is which engine's way of saying where its events are the HTTP side has.
type Discovery string

const (
	DiscoverVLLM      Discovery = "vllm"       // GET /kv_event_sources, vLLM from 0.31
	DiscoverSGLang    Discovery = "sglang"     // GET /server_info and /get_server_info, with kv_event_sources
	DiscoverSGLangOld Discovery = "sglang-old" // likewise with kv_events alone
	DiscoverNone      Discovery = "none"       // neither, as older engines: 404
)

const (
	maxBody    = 32 << 20 // a completion request; a longer one is refused with 413
	maxPrompts = 256      // prompts in one request; more are refused
	maxAnswer  = 1 << 16  // max_tokens; more is refused
)

// Handler is the engine's HTTP side:
//
//	POST /v1/completions      {"prompt": [ids] or [[ids], …], "max_tokens"?: 1, "vllm_xargs"?: {"kv_cache_report_mode": "full"}}
//	POST /reset_prefix_cache  clears the cache of every rank
//	GET  /health
//	GET  /mock/state          what each rank holds, for tests
//
// and discovery as d says. A completion's events leave at once, in a batch of
// the prompt's blocks and one for each block of the answer, as a scheduler's
// steps do. Its rank is the one of the header X-Data-Parallel-Rank, else the
// one with the longest hit. usage.prompt_tokens_details.cached_tokens is the hit.
func (e *Engine) Handler(d Discovery) http.Handler {
	m := http.NewServeMux()
	m.HandleFunc("GET /health", func(http.ResponseWriter, *http.Request) {})
	m.HandleFunc("POST /v1/completions", e.completions)
	m.HandleFunc("POST /reset_prefix_cache", e.resetCache)
	m.HandleFunc("GET /mock/state", e.state)
	switch d {
	case DiscoverVLLM:
		m.HandleFunc("GET /kv_event_sources", func(w http.ResponseWriter, _ *http.Request) { answer(w, e.vllmSources()) })
	case DiscoverSGLang, DiscoverSGLangOld:
		info := func(w http.ResponseWriter, _ *http.Request) { answer(w, e.sglangInfo(d == DiscoverSGLang)) }
		m.HandleFunc("GET /server_info", info)
		m.HandleFunc("GET /get_server_info", info)
	}
	return m
}

func answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // the client has gone; nothing is left to do
}

// refuse answers with an error as OpenAI's API words one.
func refuse(w http.ResponseWriter, code int, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(map[string]any{ // likewise
		"error": map[string]any{"message": message, "type": http.StatusText(code), "code": code},
	})
}

type completionRequest struct {
	Model     string          `json:"model"`
	Prompt    json.RawMessage `json:"prompt"`
	MaxTokens *int            `json:"max_tokens"`
	XArgs     struct {
		Report ReportMode `json:"kv_cache_report_mode"`
	} `json:"vllm_xargs"`
}

// prompts reads one prompt of token ids or a list of them.
func (c *completionRequest) prompts() ([][]uint32, error) {
	var one []uint32
	if json.Unmarshal(c.Prompt, &one) == nil && len(one) > 0 {
		return [][]uint32{one}, nil
	}
	var many [][]uint32
	if json.Unmarshal(c.Prompt, &many) == nil && len(many) > 0 {
		if len(many) > maxPrompts {
			return nil, fmt.Errorf("%d prompts: at most %d", len(many), maxPrompts)
		}
		return many, nil
	}
	return nil, errors.New("prompt must be a list of token ids, or a list of such lists: the mock engine has no tokenizer")
}

func (e *Engine) completions(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, maxBody))
	if tooLong := (*http.MaxBytesError)(nil); errors.As(err, &tooLong) {
		refuse(w, http.StatusRequestEntityTooLarge, fmt.Sprintf("request longer than %d bytes", maxBody))
		return
	}
	var c completionRequest
	if err != nil || json.Unmarshal(body, &c) != nil {
		refuse(w, http.StatusBadRequest, "not a completion request in JSON")
		return
	}
	prompts, err := c.prompts()
	if err != nil {
		refuse(w, http.StatusBadRequest, err.Error())
		return
	}
	length := 1
	if c.MaxTokens != nil {
		length = *c.MaxTokens
	}
	if length < 0 || length > maxAnswer {
		refuse(w, http.StatusBadRequest, fmt.Sprintf("max_tokens: want 0 to %d", maxAnswer))
		return
	}
	if c.XArgs.Report != "" && c.XArgs.Report != Full && c.XArgs.Report != Incremental {
		refuse(w, http.StatusBadRequest, "kv_cache_report_mode: want full or incremental")
		return
	}
	asked, err := e.askedRank(req.Header.Get("X-Data-Parallel-Rank"))
	if err != nil {
		refuse(w, http.StatusBadRequest, err.Error())
		return
	}
	e.run(w, c, prompts, length, asked)
}

// run completes the prompts one after the other, none in a batch with another.
func (e *Engine) run(w http.ResponseWriter, c completionRequest, prompts [][]uint32, length, asked int) {
	type choice struct {
		Index  int      `json:"index"`
		Text   string   `json:"text"` // empty: no tokenizer
		Tokens []uint32 `json:"token_ids"`
		Finish string   `json:"finish_reason"`
		Rank   int      `json:"data_parallel_rank"`
	}
	var choices []choice
	var in, out, cached int
	for i, prompt := range prompts {
		at := asked
		if at < 0 {
			at = e.nearest(prompt)
		}
		r := e.ranks[at]
		hit, tokens, err := e.complete(prompt, PromptOptions{Rank: at, Report: c.XArgs.Report, Answer: length, bySteps: true})
		r.leave()
		switch {
		case errors.Is(err, ErrPrompt):
			refuse(w, http.StatusBadRequest, fmt.Sprintf("prompt %d has no tokens, or needs more than the %d blocks of %d tokens there are", i, e.o.Blocks, e.o.BlockSize))
			return
		case err != nil:
			refuse(w, http.StatusServiceUnavailable, err.Error())
			return
		}
		choices = append(choices, choice{Index: i, Tokens: tokens, Finish: "length", Rank: r.number})
		in, out, cached = in+len(prompt), out+len(tokens), cached+hit
	}
	answer(w, map[string]any{
		"object":  "text_completion",
		"model":   c.Model,
		"created": e.o.Now().Unix(),
		"choices": choices,
		"usage": map[string]any{
			"prompt_tokens": in, "completion_tokens": out, "total_tokens": in + out,
			"prompt_tokens_details": map[string]any{"cached_tokens": cached},
		},
	})
}

// askedRank is the index of the rank that a request names; negative: none.
func (e *Engine) askedRank(header string) (int, error) {
	if header == "" {
		return -1, nil
	}
	n, err := strconv.Atoi(header)
	if err != nil || n < e.o.FirstRank || n >= e.o.FirstRank+len(e.ranks) {
		return 0, fmt.Errorf("X-Data-Parallel-Rank: want %d to %d", e.o.FirstRank, e.o.FirstRank+len(e.ranks)-1)
	}
	return n - e.o.FirstRank, nil
}

// nearest is the index of the rank with the longest hit.
func (e *Engine) nearest(prompt []uint32) int {
	best, longest := 0, -1
	for i, r := range e.ranks {
		if hit := r.Hit(prompt); hit > longest {
			best, longest = i, hit
		}
	}
	return best
}

func (e *Engine) resetCache(w http.ResponseWriter, _ *http.Request) {
	for _, r := range e.ranks {
		if err := r.Clear(); err != nil {
			refuse(w, http.StatusServiceUnavailable, err.Error())
			return
		}
		r.leave()
	}
}

// state tells a test in another process what each rank holds. Hashes are
// texts: JSON numbers end at 2^53.
func (e *Engine) state(w http.ResponseWriter, _ *http.Request) {
	type rank struct {
		Rank        int            `json:"rank"`
		Endpoint    string         `json:"endpoint"`
		Replay      string         `json:"replay_endpoint"`
		NextSeq     uint64         `json:"next_seq"`
		Incarnation int            `json:"incarnation"`
		Subscribers int            `json:"subscribers"`
		Truth       map[string]int `json:"truth"`
	}
	ranks := []rank{}
	for _, r := range e.ranks {
		truth := map[string]int{}
		for h, n := range r.Truth() {
			truth[strconv.FormatUint(h, 10)] = n
		}
		ranks = append(ranks, rank{r.number, r.Endpoint(), r.ReplayEndpoint(), r.NextSeq(), r.Incarnation(), r.Subscribers(), truth})
	}
	answer(w, map[string]any{"block_size": e.o.BlockSize, "ranks": ranks})
}
