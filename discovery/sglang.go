package discovery

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strconv"

	"github.com/kvrelay/kvrelay/internal/enginepb/sglangpb"
)

// askSGLang asks SGLang's gRPC server, by default at its HTTP port + 10000.
func askSGLang(ctx context.Context, t target, o *Options) (*answer, error) {
	l, err := connect(t, o, maxAnswer)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	info, err := ask(ctx, l, sglangpb.NewSglangServiceClient(l).GetServerInfo, &sglangpb.GetServerInfoRequest{})
	if err != nil {
		return nil, err
	}
	return parseSGLang([]byte(info.GetJsonInfo()), "SglangService/GetServerInfo")
}

// askSGLangOverHTTP asks /server_info, and an SGLang that does not have it
// /get_server_info, about which newer ones complain in their log.
func askSGLangOverHTTP(ctx context.Context, t target, o *Options) (*answer, error) {
	path := "/server_info"
	body, err := get(ctx, t, o, path)
	var f *failure
	if errors.As(err, &f) && f.class == unsupported {
		path = "/get_server_info"
		body, err = get(ctx, t, o, path)
	}
	if err != nil {
		return nil, err
	}
	return parseSGLang(body, path)
}

// sglangInfo is what of SGLang's server info tells of KV events.
type sglangInfo struct {
	Version string          `json:"version"`
	Mode    string          `json:"disaggregation_mode"` // null (a string), prefill, decode
	DPSize  *uint32         `json:"dp_size"`
	Events  json.RawMessage `json:"kv_events"`        // null: publishes nothing
	Sources json.RawMessage `json:"kv_event_sources"` // newer
}

// sglangEvents is kv_events: the ports of rank 0, from which the others count
// up, or an endpoint for each.
type sglangEvents struct {
	Publisher  string          `json:"publisher"`
	Host       string          `json:"endpoint_host"`
	Port       *uint32         `json:"endpoint_port_base"`
	Topic      string          `json:"topic"`
	BlockSize  *uint32         `json:"block_size"` // tokens: page size × decode context parallel size
	DPSize     *uint32         `json:"dp_size"`
	ReplayPort *uint32         `json:"replay_endpoint_port_base"`
	Publishers json.RawMessage `json:"publishers"`
}

// sglangSource is an entry of kv_event_sources or of publishers.
type sglangSource struct {
	Rank      *uint32 `json:"dp_rank"`
	Endpoint  string  `json:"endpoint"`
	Topic     *string `json:"topic"`
	BlockSize *uint32 `json:"block_size"`
	Replay    *string `json:"replay_endpoint"`
	Transport *string `json:"transport"`
	Encoding  string  `json:"encoding"`
}

// parseSGLang reads SGLang's server info. from is where it is from, for errors.
func parseSGLang(body []byte, from string) (*answer, error) {
	var info sglangInfo
	body = finite(body)
	if !json.Valid(body) {
		return nil, failf(broken, "its answer to %s is no JSON", from)
	}
	if err := json.Unmarshal(body, &info); err != nil {
		return nil, failf(broken, "its answer to %s: %s", from, jsonText(err))
	}
	if info.Events == nil && info.Sources == nil {
		return nil, failf(unsupported, "%s says nothing of kv_events", from)
	}
	a := &answer{kind: KindSGLang, version: clean(info.Version)}
	if info.Mode == rolePrefill || info.Mode == roleDecode {
		a.role = info.Mode
	}
	events, err := a.sglangEvents(info.Events)
	if err != nil {
		a.refuse("kv_events", "%s", jsonText(err))
	}
	switch {
	case events.DPSize != nil:
		a.ranks = *events.DPSize
	case info.DPSize != nil:
		a.ranks = *info.DPSize
	}
	a.dp = span{0, a.ranks}
	if a.sglangList("kv_event_sources", info.Sources, events) || events.Publisher == "" {
		return a, nil
	}
	if !a.sglangList("kv_events.publishers", events.Publishers, events) {
		a.sglangRanks(events)
	}
	return a, nil
}

// sglangEvents reads kv_events. Without a publisher there are none.
func (a *answer) sglangEvents(raw json.RawMessage) (sglangEvents, error) {
	var e sglangEvents
	if raw == nil || string(raw) == "null" {
		return e, nil
	}
	if err := json.Unmarshal(raw, &e); err != nil {
		return sglangEvents{}, err
	}
	if e.Publisher == "null" {
		return sglangEvents{DPSize: e.DPSize}, nil
	}
	if e.Publisher == "" {
		e.Publisher = "zmq"
	}
	if e.BlockSize != nil {
		a.blockSize = *e.BlockSize
	}
	return e, nil
}

// sglangList adds sources that name their endpoints, and says whether there
// are any. What one does not say is as kv_events says it.
func (a *answer) sglangList(what string, list json.RawMessage, events sglangEvents) (some bool) {
	if list == nil || string(list) == "null" {
		return false
	}
	more, err := elements(list, func(i int, raw json.RawMessage) {
		some = true
		a.sglangSource(fmt.Sprintf("entry %d of %s", i+1, what), raw, events)
	})
	if err != nil {
		a.refuse(what, "%s", jsonText(err))
	}
	if more {
		a.furtherSources()
	}
	return some
}

func (a *answer) sglangSource(name string, raw json.RawMessage, events sglangEvents) {
	var s sglangSource
	if err := json.Unmarshal(raw, &s); err != nil {
		a.refuse(name, "%s", jsonText(err))
		return
	}
	adv := advertised{transport: "zmq", encoding: s.Encoding, endpoint: s.Endpoint, topic: events.Topic}
	if events.Publisher != "" {
		adv.transport = events.Publisher
	}
	if s.Transport != nil {
		adv.transport = *s.Transport
	}
	if s.Rank != nil {
		adv.rank, adv.hasRank = *s.Rank, true
	}
	if s.Topic != nil {
		adv.topic = *s.Topic
	}
	if s.BlockSize != nil {
		adv.blockSize = *s.BlockSize
	}
	if s.Replay != nil {
		adv.replay = *s.Replay
	} else if e, err := parseEndpoint(s.Endpoint); err == nil && e.path == "" && events.ReplayPort != nil {
		adv.replay = portOf(e.host, *events.ReplayPort, adv.rank)
	}
	a.list = append(a.list, adv)
}

// sglangRanks adds a source for each rank, by port.
func (a *answer) sglangRanks(e sglangEvents) {
	n := uint32(1)
	if e.DPSize != nil {
		n = *e.DPSize
	}
	switch {
	case e.Port == nil:
		a.refuse("kv_events", "it has no endpoint_port_base")
		return
	case n == 0:
		a.refuse("kv_events", "its dp_size is 0")
		return
	case n > maxSources:
		a.refuse(fmt.Sprintf("ranks %d to %d", maxSources, n-1), "at most %d are used", maxSources)
		n = maxSources
	}
	for rank := range n {
		adv := advertised{rank: rank, hasRank: true, transport: e.Publisher, topic: e.Topic, endpoint: portOf(e.Host, *e.Port, rank)}
		if e.ReplayPort != nil {
			adv.replay = portOf(e.Host, *e.ReplayPort, rank)
		}
		a.list = append(a.list, adv)
	}
}

// portOf is a rank's endpoint where base is that of rank 0. A port that does
// not exist is written as it comes out: the rules refuse it by its number.
func portOf(host string, base, rank uint32) string {
	if host == "" {
		host = "*"
	}
	port := uint64(base) + uint64(rank)
	if base == 0 {
		port = 0 // not known, so no rank's is
	}
	return "tcp://" + net.JoinHostPort(trimBrackets(host), strconv.FormatUint(port, 10))
}
