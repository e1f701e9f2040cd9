//go:build integration

package integration

import (
	"path/filepath"
	"testing"

	"github.com/kvrelay/kvrelay/consumer"
)

// The same over ipc.
func TestIPC(t *testing.T) {
	dir := t.TempDir()
	p := startPlay(t, "vllm-0.18.1-dup", consumer.DynamoSingle, func(c *engineConfig) {
		c.Pub, c.Router = "ipc://"+filepath.Join(dir, "pub"), "ipc://"+filepath.Join(dir, "router")
	}, nil)
	p.run(.3, 1)
}

// ATOM's publishers: replies that echo the request, with and without an end
// marker; and, before it had sequence numbers, messages of two frames and one.
func TestATOM(t *testing.T) {
	for _, shape := range []string{"atom", "atom-silent"} {
		t.Run(shape, func(t *testing.T) {
			p := startPlay(t, "vllm-0.33.0-base", consumer.Dynamo, func(c *engineConfig) { c.Shape = shape }, nil)
			p.run(.3, 2)
		})
	}
	t.Run("no seq", func(t *testing.T) {
		c := ownEngine()
		c.Topic = "kv@10.0.0.1@model"
		p := newScene(t, c, settings{"REPLAY_ENDPOINTS": "none"}, "live without replay")
		p.engine.subscriber()
		p.engine.do("send", map[string]any{"payload": testBatch(1, storeOf(100))})
		p.engine.do("raw", map[string]any{"frames": [][]byte{testBatch(2, storeOf(200))}})
		p.holds(100, 200)
		p.router.sound(t)
	})
}

// A topic is a prefix; TOPIC_EXACT leaves others out.
func TestTopics(t *testing.T) {
	for exact, want := range map[string][]uint64{"false": {100, 200}, "true": {100}} {
		t.Run("exact="+exact, func(t *testing.T) {
			p := newScene(t, ownEngine(), settings{"TOPIC": "kv@a", "TOPIC_EXACT": exact, "REPLAY_ENDPOINTS": "none"}, "live without replay")
			p.engine.subscriber()
			for i, topic := range []string{"kv@a", "other", "kv@a@b", "kv@a"} {
				hash := []uint64{100, 300, 200, 400}[i]
				p.engine.do("raw", map[string]any{"frames": [][]byte{[]byte(topic), testBatch(float64(i), storeOf(hash))}})
			}
			p.holds(append(want, 400)...)
		})
	}
}
