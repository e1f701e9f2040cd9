//go:build integration

package integration

import (
	"testing"

	"github.com/kvrelay/kvrelay/consumer"
	"github.com/kvrelay/kvrelay/internal/freeport"
)

// loseHistory makes an engine with a buffer of 3 batches lose more than that.
func loseHistory(t *testing.T, more settings) *play {
	t.Helper()
	c := ownEngine()
	c.BufferSteps, c.RouterHWM = 3, 8
	p := newScene(t, c, more, firstReplay)
	p.engine.subscriber()
	p.engine.send(0, testBatch(1, storeOf(100)))
	p.holds(100)
	p.engine.do("replay", map[string]any{"mode": "stall"})
	many := []map[string]any{}
	for i := range 8 {
		many = append(many, map[string]any{"seq": i + 1, "payload": testBatch(float64(i+2), storeOf(uint64(1000*(i+1)))), "withhold": i < 7})
	}
	p.engine.do("many", map[string]any{"messages": many})
	p.engine.do("replay", map[string]any{"mode": "ok"})
	return p
}

// Lost history is declared, and dealt with as LOST says.
func TestLostHistory(t *testing.T) {
	t.Run("clear", func(t *testing.T) {
		p := loseHistory(t, settings{"LOST": "clear"})
		p.kvrelay.says("history is lost")
		p.holds(6000, 7000, 8000) // what the buffer has
		p.router.sound(t)
	})
	t.Run("keep", func(t *testing.T) {
		p := loseHistory(t, settings{"LOST": "keep"})
		p.kvrelay.says("history is lost")
		p.holds(100, 6000, 7000, 8000)
		p.router.sound(t)
	})
	t.Run("exit", func(t *testing.T) {
		p := loseHistory(t, settings{"LOST": "exit"})
		p.kvrelay.want = 3
		if code := p.kvrelay.exit(); code != 3 {
			t.Errorf("exit code %d, want 3", code)
		}
		p.kvrelay.says("history is lost")
	})
}

// CLEAR_ON_EXIT leaves routers with nothing, else they keep what they know.
func TestClearOnExit(t *testing.T) {
	for on, want := range map[string][]uint64{"true": nil, "false": {100}} {
		t.Run(on, func(t *testing.T) {
			p := newScene(t, ownEngine(), settings{"CLEAR_ON_EXIT": on}, firstReplay)
			p.engine.send(0, testBatch(1, storeOf(100)))
			p.holds(100)
			if code := p.kvrelay.stop(); code != 0 {
				t.Errorf("exit code %d", code)
			}
			p.holds(want...)
			p.router.sound(t)
		})
	}
}

// Told to stop while NATS is away: it ends soon, and says with its exit code
// that events remained.
func TestUnconfirmedAtExit(t *testing.T) {
	e := startEngine(t, ownEngine())
	e.send(0, testBatch(1, storeOf(100)))
	k := startKvrelay(t, settings{"NATS_URL": "nats://" + freeport.Addr(t), "ENDPOINTS": e.Pub, "REPLAY_ENDPOINTS": e.Router, "BLOCK_SIZE": "4"})
	k.says(firstReplay)
	k.want = 4
	if code := k.stop(); code != 4 {
		t.Errorf("exit code %d, want 4", code)
	}
}

// A relay that is killed and started again publishes everything anew, behind a
// `cleared` of its own.
func TestKilledAndStartedAgain(t *testing.T) {
	p := newScene(t, ownEngine(), nil, firstReplay)
	p.engine.send(0, testBatch(1, storeOf(100)))
	p.holds(100)
	p.kvrelay.kill()
	p.engine.send(1, testBatch(2, storeOf(200)))
	p.kvrelay = startKvrelay(t, p.set)
	p.holds(100, 200)
	p.router.sound(t)
	if n := len(p.router.pubs[consumer.Rank{Worker: 42}]); n != 2 {
		t.Errorf("%d publishers, want 2", n)
	}
}
