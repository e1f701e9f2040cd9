//go:build integration

package integration

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/kvrelay/kvrelay/consumer"
	"github.com/kvrelay/kvrelay/internal/load"
	"github.com/kvrelay/kvrelay/internal/zmtp"
	"github.com/kvrelay/kvrelay/replay"
)

// 10 000 batches of 4 KB from libzmq's ROUTER: how long a loop takes that only reads
// them, and how long the relay takes until all are applied. With the high-water
// mark that engines leave at 1000 there is nothing to compare with, because a single
// request does not bring all; completeness counts there.
func TestReplaySpeed(t *testing.T) {
	const n, blocks, size = 10_000, 48, 16
	g, err := load.NewGenerator(load.Shape{Blocks: blocks, BlockSize: size})
	if err != nil {
		t.Fatal(err)
	}
	var messages []map[string]any
	for seq := range uint64(n) {
		messages = append(messages, map[string]any{"seq": seq, "payload": g.Append(nil, seq), "withhold": true})
	}
	for _, hwm := range []int{2 * (n + 1), 1000} {
		c := ownEngine()
		c.Shape, c.BufferSteps, c.RouterHWM = "3", n, hwm
		e := startEngine(t, c)
		e.do("many", map[string]any{"messages": messages})
		var bare time.Duration
		if hwm > n {
			bare = readReplay(t, e.Router, n)
		}
		url := natsServer(t, -1).ClientURL()
		r := newRouter(t, url, consumer.Dynamo)
		start := time.Now()
		k := startKvrelay(t, settings{"NATS_URL": url, "ENDPOINTS": e.Pub, "REPLAY_ENDPOINTS": e.Router, "BLOCK_SIZE": "16"})
		rank := consumer.Rank{Worker: 42}
		r.wait(t, "the last batch arrives", func(p *consumer.Picture) bool {
			_, ok := p.Lookup(rank, consumer.Device, load.Hash(0, n-1, blocks-1))
			return ok
		})
		if got := r.picture.Len(rank, consumer.Device); got != n*blocks {
			t.Errorf("high-water mark %d: %d blocks, want %d", hwm, got, n*blocks)
		}
		r.sound(t)
		arrived := time.Since(start).Round(time.Millisecond)
		var line struct{ Took string } // of the newest round: all, where one brings all
		if err := json.Unmarshal([]byte(k.says("the first replay has ended")), &line); err != nil {
			t.Error(err)
		}
		if hwm > n {
			whole, err := time.ParseDuration(line.Took)
			if err != nil {
				t.Error(err)
			}
			t.Logf("%d batches of %d bytes: a bare reader %v, the relay %v, %.2f times that", n, g.Size(), bare.Round(time.Millisecond), whole, float64(whole)/float64(bare))
		} else {
			t.Logf("high-water mark %d: %v from the relay's start to the last batch, %d requests", hwm, arrived, len(e.do("stats", nil).Requests))
		}
		k.stop()
	}
}

// readReplay is how long reading n batches takes.
func readReplay(t *testing.T, endpoint string, n int) time.Duration {
	t.Helper()
	c, err := replay.DialRouter(t.Context(), endpoint, zmtp.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	began := time.Now()
	if err := c.Ask(0); err != nil {
		t.Fatal(err)
	}
	for got := 0; ; got++ {
		r, err := c.Next()
		if err != nil {
			t.Fatal(err)
		}
		if r.End {
			if got != n {
				t.Errorf("%d replies, want %d", got, n)
			}
			return time.Since(began)
		}
	}
}
