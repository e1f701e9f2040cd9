//go:build integration

package integration

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kvrelay/kvrelay/consumer"
	"github.com/kvrelay/kvrelay/internal/msgpack"
)

// numbered are n batches of one block each; padded ones have a fourth element,
// which is left to be appended.
func numbered(n int, rank uint32, padded, withhold bool) []map[string]any {
	var out []map[string]any
	for i := range n {
		elements := 3
		if padded {
			elements++
		}
		b := msgpack.AppendArrayHeader(nil, elements)
		b = msgpack.AppendFloat(b, 1.79e9+float64(i))
		b = msgpack.AppendArrayHeader(b, 1)
		b = append(b, storeOf(blockOf(rank, i))...)
		b = msgpack.AppendUint(b, uint64(rank))
		out = append(out, map[string]any{"seq": i, "payload": b, "withhold": withhold})
	}
	return out
}

func blockOf(rank uint32, i int) uint64 { return uint64(rank+1)<<32 + uint64(i) }

// A ROUTER drops replies beyond its high-water mark, the end marker too: here
// libzmq itself does, with 10 000 batches of 16 KB behind the mark of 1000 that
// vLLM up to 0.32 and SGLang leave it. All must arrive, by asking again.
func TestRouterDropsAtItsHighWaterMark(t *testing.T) {
	const n = 10_000
	c := ownEngine()
	c.Shape, c.BufferSteps, c.RouterHWM = "3", n, 1000
	e := startEngine(t, c)
	e.do("many", map[string]any{"messages": numbered(n, 0, true, true), "pad": 16 << 10})
	url := natsServer(t, -1).ClientURL()
	r := newRouter(t, url, consumer.Dynamo)
	start := time.Now()
	startKvrelay(t, settings{"NATS_URL": url, "ENDPOINTS": e.Pub, "REPLAY_ENDPOINTS": e.Router, "BLOCK_SIZE": "4"})
	rank := consumer.Rank{Worker: 42}
	r.wait(t, "the last batch arrives", func(p *consumer.Picture) bool {
		_, ok := p.Lookup(rank, consumer.Device, blockOf(0, n-1))
		return ok
	})
	if got := r.picture.Len(rank, consumer.Device); got != n {
		t.Errorf("%d blocks, want %d", got, n)
	}
	r.sound(t)
	t.Logf("%d batches of 16 KB in %v and %d requests", n, time.Since(start).Round(time.Millisecond), len(e.do("stats", nil).Requests))
}

// Many ranks that all have a full buffer when kvrelay starts: all are
// replayed, none waits for ever behind the others.
func TestManyRanks(t *testing.T) {
	const ranks, n = 16, 10_000
	var engines []*engine
	var live, replay []string
	for i := range uint32(ranks) {
		e := startEngine(t, ownManyEngine(n))
		e.do("many", map[string]any{"messages": numbered(n, i, false, true)})
		engines = append(engines, e)
		live, replay = append(live, e.Pub), append(replay, e.Router)
	}
	url := natsServer(t, -1).ClientURL()
	r := newRouter(t, url, consumer.Dynamo)
	start := time.Now()
	startKvrelay(t, settings{"NATS_URL": url, "ENDPOINTS": strings.Join(live, ","), "REPLAY_ENDPOINTS": strings.Join(replay, ","), "BLOCK_SIZE": "4", "RANKS": fmt.Sprint(ranks)})
	var first, last time.Duration
	requests := 0
	for i := range uint32(ranks) {
		k := consumer.Rank{Worker: 42, DP: i}
		r.wait(t, fmt.Sprintf("rank %d arrives", i), func(p *consumer.Picture) bool {
			_, ok := p.Lookup(k, consumer.Device, blockOf(i, n-1))
			return ok
		})
		last = time.Since(start)
		if i == 0 {
			first = last
		}
		if got := r.picture.Len(k, consumer.Device); got != n {
			t.Errorf("rank %d: %d blocks, want %d", i, got, n)
		}
		requests += len(engines[i].do("stats", nil).Requests)
	}
	r.sound(t)
	t.Logf("%d ranks × %d batches: rank 0 after %v, all after %v, %d requests", ranks, n, first.Round(time.Millisecond), last.Round(time.Millisecond), requests)
}

func ownManyEngine(n int) engineConfig {
	c := ownEngine()
	c.BufferSteps, c.RouterHWM = n, 2*(n+1)
	return c
}
