package discovery

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/kvrelay/kvrelay/internal/enginepb/vllmpb"
)

// askVLLM asks vLLM's gRPC control service.
func askVLLM(ctx context.Context, t target, o *Options) (*answer, error) {
	l, err := connect(t, o, maxSourceList)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	client := vllmpb.NewControlClient(l)
	sources, err := ask(ctx, l, client.GetKvEventSources, &vllmpb.GetKvEventSourcesRequest{})
	if err != nil {
		return nil, err
	}
	a := &answer{kind: KindVLLM}
	for _, s := range sources.GetSources() {
		a.list = append(a.list, advertised{
			rank: s.GetDataParallelRank(), hasRank: s.DataParallelRank != nil,
			transport: s.GetTransport(), encoding: s.GetEncoding(),
			endpoint: s.GetEndpoint(), replay: s.GetReplayEndpoint(), topic: s.GetTopic(),
		})
	}
	info, err := ask(ctx, l, client.GetServerInfo, &vllmpb.GetServerInfoRequest{})
	if err != nil {
		a.without("vllm.Control/GetServerInfo", "block size and ranks", asFailure(err))
		return a, nil
	}
	a.version, a.instance, a.blockSize = clean(info.GetEngineVersion()), clean(info.GetInstanceId()), info.GetKvBlockSize()
	p := info.GetParallelism()
	a.ranks, a.own = p.GetDataParallelSize(), p.GetDataParallelRank()
	switch {
	case p.GetDataParallelSizeLocal() > 0:
		a.dp = span{a.own, p.GetDataParallelSizeLocal()}
	case a.own < a.ranks:
		a.dp = span{0, a.ranks}
	default: // it counts the ranks of this server
		a.dp = span{a.own, a.ranks}
	}
	return a, nil
}

// without notes that a question beside the one for sources was not answered.
// A server that does not know it is older, and complete without.
func (a *answer) without(call, what string, f *failure) {
	switch {
	case f.class == unsupported:
	case f.later():
		a.partial = fmt.Sprintf("%s: %s", call, f.text)
	default:
		a.warnings = append(a.warnings, fmt.Sprintf("%s fails, so %s stay unknown: %s", call, what, f.text))
	}
}

// vllmSource is a source in the answer of /kv_event_sources: the publisher's
// configuration, the port already that of the rank.
type vllmSource struct {
	Enabled   *bool   `json:"enable_kv_cache_events"` // absent: true
	Publisher *string `json:"publisher"`              // absent: zmq
	Endpoint  string  `json:"endpoint"`
	Replay    string  `json:"replay_endpoint"`
	Topic     string  `json:"topic"`
	Rank      *uint32 `json:"data_parallel_rank"` // in a list only
	Encoding  string  `json:"encoding"`
}

func askVLLMOverHTTP(ctx context.Context, t target, o *Options) (*answer, error) {
	body, err := get(ctx, t, o, "/kv_event_sources")
	if err != nil {
		return nil, err
	}
	return parseVLLM(body)
}

// parseVLLM reads the answer of /kv_event_sources: {"0": source, …}, or a list
// of sources that name their rank. Both are seen.
func parseVLLM(body []byte) (*answer, error) {
	a := &answer{kind: KindVLLM}
	body = finite(body)
	if !json.Valid(body) {
		return nil, failf(broken, "its answer to /kv_event_sources is no JSON")
	}
	switch trimmed := bytes.TrimSpace(body); {
	case string(trimmed) == "null":
		return a, nil
	case trimmed[0] == '[':
		more, err := elements(body, func(i int, raw json.RawMessage) {
			a.vllmSource(fmt.Sprintf("source %d of /kv_event_sources", i+1), nil, raw)
		})
		if err != nil {
			return nil, failf(broken, "its answer to /kv_event_sources: %s", jsonText(err))
		}
		if more {
			a.furtherSources()
		}
		return a, nil
	case trimmed[0] != '{':
		return nil, failf(broken, "its answer to /kv_event_sources is neither an object nor a list")
	}
	// Token by token, since a rank may be there twice.
	dec := json.NewDecoder(bytes.NewReader(body))
	_, _ = dec.Token() // the brace
	for n := 0; dec.More(); n++ {
		if n == maxSources {
			a.furtherSources()
			break
		}
		key, err := dec.Token()
		var raw json.RawMessage
		if err == nil {
			err = dec.Decode(&raw)
		}
		if err != nil {
			return nil, failf(broken, "its answer to /kv_event_sources: %s", jsonText(err))
		}
		name, _ := key.(string)
		rank, err := strconv.ParseUint(name, 10, 32)
		if err != nil {
			a.refuse("source "+show(name), "want the number of a data-parallel rank as its name")
			continue
		}
		r := uint32(rank)
		a.vllmSource("rank "+name, &r, raw)
	}
	return a, nil
}

// vllmSource adds a source to the answer, or says why not.
func (a *answer) vllmSource(name string, rank *uint32, raw json.RawMessage) {
	var s vllmSource
	if string(raw) == "null" {
		return // this rank publishes nothing
	}
	if err := json.Unmarshal(raw, &s); err != nil {
		a.refuse(name, "%s", jsonText(err))
		return
	}
	if rank == nil {
		rank = s.Rank
	}
	transport := "zmq"
	if s.Publisher != nil {
		transport = *s.Publisher
	}
	if s.Enabled != nil && !*s.Enabled || transport == "null" {
		return
	}
	adv := advertised{transport: transport, encoding: s.Encoding, endpoint: s.Endpoint, replay: s.Replay, topic: s.Topic}
	if rank != nil {
		adv.rank, adv.hasRank = *rank, true
	}
	a.list = append(a.list, adv)
}
