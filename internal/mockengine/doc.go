// Package mockengine is an inference engine's KV-cache side without the
// inference: a block pool with prefix caching and eviction, the publisher of
// its KV events (PUB and replay ROUTER over real sockets), a workload, and
// faults that strike by a seed. It exists to test and to demonstrate kvrelay
// and must not be imported by the relay.
//
// The layers, each usable alone:
//
//	Pool       pure: tokens in, events out; no socket, clock or randomness
//	Encoder    pure: events → msgpack batches in every wire form
//	Publisher  numbers batches, remembers them, serves PUB and ROUTER
//	Gate       a listener that can cut, freeze, half-open and refuse
//	Proxy      a Gate before another process, such as a real libzmq peer
//	Rank       Pool + Publisher + workload + faults: one data-parallel rank
//	Engine     its ranks, the clock, and the HTTP side
//
// Typical use in a test:
//
//	e, err := mockengine.Start(mockengine.Options{BlockSize: 4, Blocks: 64})
//	defer e.Close()
//	r := e.Rank(0)
//	... connect to r.Endpoint() and r.ReplayEndpoint() ...
//	hit, err := e.Prompt(tokens, mockengine.PromptOptions{})
//	e.Step()                 // publishes one batch
//	held := r.Truth()        // block hash → physical blocks
package mockengine
