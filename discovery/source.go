// Package discovery finds where an engine publishes its KV-cache events: it
// asks the engine, in each of the ways that engines answer, and turns what
// they advertise into Sources that can be dialled.
package discovery

import "fmt"

// Kinds of engines, by how they tell where their events are. They are the
// values of Options.Kind and of Source.Kind, which is never KindAuto.
const (
	KindAuto       = "auto"       // whatever the address answers to
	KindVLLM       = "vllm"       // gRPC vllm.Control, or HTTP /kv_event_sources
	KindSGLang     = "sglang"     // HTTP /server_info, or gRPC SglangService
	KindOpenEngine = "openengine" // gRPC OpenEngine
	KindStatic     = "static"     // not asked: Options.Static
)

// Source is one PUB socket of an engine: one stream of batches, usually of one
// data-parallel rank. It is comparable: two equal Sources are the same stream.
type Source struct {
	Engine     string // what logs call the engine: the address it was found at
	Rank       uint32 // the rank of batches that name none
	Endpoint   string // tcp://host:port, ipc://path, listen:tcp://host:port
	Replay     string // ROUTER endpoint; "": none
	Topic      string // subscription prefix
	TopicExact bool   // drop what only begins with Topic
	BlockSize  uint32 // tokens per block; 0: unknown
	Ranks      uint32 // data-parallel ranks of the whole engine as far as known; 0: unknown
	Kind       string // vllm, sglang, openengine, static
	Version    string // engine version where it says so
}

// Name is how logs and errors call the source.
func (s Source) Name() string { return fmt.Sprintf("rank %d at %s", s.Rank, s.Endpoint) }
