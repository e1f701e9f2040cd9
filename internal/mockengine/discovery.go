package mockengine

import (
	"net"
	"strconv"
	"strings"
)

// Source is one rank's sockets as an engine advertises them.
type Source struct {
	Rank           int
	Endpoint       string // tcp://host:port, the host as bound, or Options.Advertise
	ReplayEndpoint string // empty: none
	Topic          string
}

// Sources are the ranks with sockets; none for the decode role.
func (e *Engine) Sources() []Source {
	out := []Source{}
	for _, r := range e.ranks {
		if ep := r.Endpoint(); ep != "" {
			out = append(out, Source{r.number, e.advertise(ep), e.advertise(r.ReplayEndpoint()), e.o.Topic})
		}
	}
	return out
}

// advertise is an endpoint with the host that the engine tells others.
func (e *Engine) advertise(endpoint string) string {
	if e.o.Advertise == "" || endpoint == "" {
		return endpoint
	}
	return "tcp://" + net.JoinHostPort(e.o.Advertise, endpoint[strings.LastIndexByte(endpoint, ':')+1:])
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
		"dp_size":   e.o.FirstRank + len(e.ranks),
		"version":   mockVersion,
	}
	if e.o.Role != Aggregated {
		info["disaggregation_mode"] = e.o.Role
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

// sglangEvents is the kv_events object: the ports of rank 0, from which the
// others' follow, or a list where they do not.
func (e *Engine) sglangEvents(sources []Source) map[string]any {
	events, replays := 0, 0
	consecutive := len(sources) == len(e.ranks)
	publishers := []map[string]any{}
	for i, r := range e.ranks {
		if r.Endpoint() == "" {
			continue
		}
		publishers = append(publishers, map[string]any{"dp_rank": r.number, "endpoint": e.advertise(r.Endpoint())})
		if i == 0 {
			events, replays = r.EventPort(), r.ReplayPort()
		}
		consecutive = consecutive && r.EventPort() == events+i && (replays == 0 || r.ReplayPort() == replays+i)
	}
	host := e.o.Host
	if e.o.Advertise != "" {
		host = e.o.Advertise
	}
	out := map[string]any{
		"publisher":          "zmq",
		"endpoint_host":      host,
		"endpoint_port_base": max(events-e.o.FirstRank, 1),
		"topic":              e.o.Topic,
		"block_size":         e.o.BlockSize,
		"dp_size":            e.o.FirstRank + len(e.ranks),
	}
	if !consecutive || e.o.FirstRank > 0 {
		out["publishers"] = publishers
	}
	if consecutive && replays > e.o.FirstRank {
		out["replay_endpoint_port_base"] = replays - e.o.FirstRank
	}
	return out
}

func orNil(s string) any {
	if s == "" {
		return nil
	}
	return s
}
