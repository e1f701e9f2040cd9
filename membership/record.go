package membership

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// topic is the one that KV-cache events have.
const topic = "kv-events"

// Keys of records begin with their bucket.
const bucketSources = "v1/event_sources/"

// worker is (worker, data-parallel rank) as records name it.
type worker struct {
	WorkerID uint64 `json:"worker_id"`
	Rank     uint32 `json:"dp_rank"`
}

// record is one event source on record.
type record struct {
	Key    string
	Prefix string // of the keys of all sources of the endpoint
	Value  []byte
	Worker worker
	Path   string // of its recovery requests: the subject, over NATS
}

// eventSource is the value of an event source's record.
type eventSource struct {
	Type      string `json:"type"` // EventSource
	Scope     scope  `json:"scope"`
	Topic     string `json:"topic"`
	Publisher uint64 `json:"publisher_id"`
	Metadata  struct {
		State     Endpoint  `json:"kv_state_endpoint"`
		Worker    worker    `json:"worker"`
		Publisher uint64    `json:"publisher_id"`
		Recovery  *instance `json:"recovery_target,omitempty"`
	} `json:"metadata"`
}

type scope struct {
	Kind     string   `json:"kind"` // endpoint
	Endpoint Endpoint `json:"endpoint"`
}

// instance is who serves a Dynamo endpoint, and where.
type instance struct {
	Type      string            `json:"type,omitempty"` // Endpoint, in records of their own
	Namespace string            `json:"namespace"`
	Component string            `json:"component"`
	Endpoint  string            `json:"endpoint"`
	ID        uint64            `json:"instance_id"`
	Transport map[string]string `json:"transport"`
}

// record is what routers read of src.
func (r *Registry) record(src Source) record {
	e, id := r.o.Endpoint, src.PublisherID()
	rec := record{
		Worker: worker{src.WorkerID(), src.Rank()},
		Prefix: fmt.Sprintf("%snamespace/%s/component/%s/endpoint/%s/topic/%s/", bucketSources, e.Namespace, e.Component, e.Name, topic),
	}
	rec.Key = rec.Prefix + strconv.FormatUint(id, 16)
	query := "worker_kv_query_source_" + strconv.FormatUint(id, 16)
	var transport map[string]string
	rec.Path, transport = r.way(src.WorkerID(), query)
	v := eventSource{Type: "EventSource", Scope: scope{"endpoint", e}, Topic: topic, Publisher: id}
	v.Metadata.State, v.Metadata.Worker, v.Metadata.Publisher = e, rec.Worker, id
	v.Metadata.Recovery = &instance{
		Namespace: e.Namespace, Component: e.Component, Endpoint: query, ID: src.WorkerID(),
		Transport: transport,
	}
	rec.Value = mustJSON(v)
	return rec
}

// way is how routers reach an endpoint of a worker's component here: the path
// or subject of their requests, and what a record says of it.
func (r *Registry) way(id uint64, endpoint string) (path string, transport map[string]string) {
	e := r.o.Endpoint
	if r.o.NATS != nil {
		path = fmt.Sprintf("%s_%s.%s-%x", segment(e.Namespace), segment(e.Component), segment(endpoint), id)
		return path, map[string]string{"nats_tcp": path}
	}
	path = fmt.Sprintf("%x/%s/%s/%s", id, e.Namespace, e.Component, endpoint)
	return path, map[string]string{"tcp": r.target + "/" + path}
}

// workerOf reads which rank a record is about; false: it is no event source.
func workerOf(value []byte) (worker, bool) {
	var v struct {
		Type     string
		Metadata struct {
			Worker *worker `json:"worker"`
		} `json:"metadata"`
	}
	if json.Unmarshal(value, &v) != nil || v.Type != "EventSource" || v.Metadata.Worker == nil {
		return worker{}, false
	}
	return *v.Metadata.Worker, true
}

// mustJSON encodes what is made of strings and numbers alone.
func mustJSON(v any) []byte {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		panic(err)
	}
	return []byte(strings.TrimSuffix(b.String(), "\n"))
}
