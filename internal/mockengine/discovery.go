package mockengine

import (
	"strconv"
)

// Source is one rank's sockets as an engine advertises them.
type Source struct {
	Rank           int
	Endpoint       string // tcp://host:port, the host as bound
	ReplayEndpoint string // empty: none
	Topic          string
}

// Sources are the ranks with sockets; none for the decode role.
func (e *Engine) Sources() []Source {
	out := []Source{}
	for _, r := range e.ranks {
		if ep := r.Endpoint(); ep != "" {
			out = append(out, Source{r.number, ep, r.ReplayEndpoint(), e.o.Topic})
		}
	}
	return out
}

// vllmSources is the answer of vLLM's /kv_event_sources: its KVEventsConfig by
// rank, ports already those of the rank.
func (e *Engine) vllmSources() map[string]any {
	out := map[string]any{}
	for _, s := range e.Sources() {
		out[strconv.Itoa(s.Rank)] = map[string]any{
			"enable_kv_cache_events": true,
			"publisher":              "zmq",
			"endpoint":               s.Endpoint,
			"replay_endpoint":        orNil(s.ReplayEndpoint),
			"buffer_steps":           e.o.BufferSteps,
			"hwm":                    e.o.HWM,
			"max_queue_size":         defaultHWM,
			"topic":                  s.Topic,
		}
	}
	return out
}

// sglangInfo is the part of SGLang's server info that tells of KV events.
func (e *Engine) sglangInfo(newer bool) map[string]any {
	info := map[string]any{
		"kv_events": nil,
		"page_size": e.o.BlockSize,
		"dp_size":   len(e.ranks),
	}
	sources := e.Sources()
	if len(sources) > 0 {
		info["kv_events"] = e.sglangEvents(sources)
	}
	if newer {
		list := []map[string]any{}
		for _, s := range sources {
			entry := map[string]any{"dp_rank": s.Rank, "endpoint": s.Endpoint, "topic": s.Topic, "block_size": e.o.BlockSize}
			if s.ReplayEndpoint != "" {
				entry["replay_endpoint"] = s.ReplayEndpoint
			}
			list = append(list, entry)
		}
		info["kv_event_sources"] = list
	}
	return info
}

// sglangEvents is the kv_events object: the first rank's ports, from which the
// others' follow, or a list where they do not.
func (e *Engine) sglangEvents(sources []Source) map[string]any {
	events, replays := 0, 0
	consecutive := len(sources) == len(e.ranks)
	publishers := []map[string]any{}
	for i, r := range e.ranks {
		if r.Endpoint() == "" {
			continue
		}
		publishers = append(publishers, map[string]any{"dp_rank": r.number, "endpoint": r.Endpoint()})
		if i == 0 {
			events, replays = r.EventPort(), r.ReplayPort()
		}
		consecutive = consecutive && r.EventPort() == events+i && (replays == 0 || r.ReplayPort() == replays+i)
	}
	out := map[string]any{
		"publisher":          "zmq",
		"endpoint_host":      e.o.Host,
		"endpoint_port_base": events,
		"topic":              e.o.Topic,
		"block_size":         e.o.BlockSize,
		"dp_size":            len(e.ranks),
	}
	if !consecutive {
		out["publishers"] = publishers
	}
	if consecutive && replays != 0 {
		out["replay_endpoint_port_base"] = replays
	}
	return out
}

func orNil(s string) any {
	if s == "" {
		return nil
	}
	return s
}
