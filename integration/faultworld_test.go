//go:build integration

package integration

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/kvrelay/kvrelay/consumer"
	"github.com/kvrelay/kvrelay/internal/mockengine"
	"github.com/kvrelay/kvrelay/internal/msgpack"
)

// faultRank is one rank: its workload, its libzmq process, and the TCP proxies
// through which kvrelay reaches it.
type faultRank struct {
	f            *faultWorld
	w            *workload
	id           consumer.Rank
	cfg          engineConfig
	engine       *engine
	live, replay *mockengine.Proxy
	marks        uint64
	mayLose      bool // history may have been lost: older batches need not be known
}

// faultWorld is a running scenario.
type faultWorld struct {
	t       *testing.T
	r       *rand.Rand
	ranks   []*faultRank
	nats    *mockengine.Proxy
	router  *router
	kvrelay *kvrelay
	earlier []string // log of those that were killed
	set     settings
}

// newFaultWorld starts engines and NATS, but not yet kvrelay.
func newFaultWorld(t *testing.T, r *rand.Rand, ranks int, cfg engineConfig, set settings) *faultWorld {
	t.Helper()
	f := &faultWorld{t: t, r: r}
	url := natsServer(t, -1).ClientURL()
	f.router = newRouter(t, url, consumer.Dynamo)
	f.nats = startProxy(t, strings.TrimPrefix(url, "nats://"))
	var live, replay []string
	for i := range ranks {
		k := &faultRank{f: f, cfg: cfg, w: newWorkload(t, r, uint32(i)), id: consumer.Rank{Worker: 42, DP: uint32(i)}}
		k.engine = startEngine(t, cfg)
		k.live, k.replay = startProxy(t, k.engine.Pub), startProxy(t, k.engine.Router)
		live = append(live, "tcp://"+k.live.Addr())
		replay = append(replay, "tcp://"+k.replay.Addr())
		f.ranks = append(f.ranks, k)
	}
	f.set = settings{
		"NATS_URL": "nats://" + f.nats.Addr(), "ENDPOINTS": strings.Join(live, ","), "REPLAY_ENDPOINTS": strings.Join(replay, ","),
		"BLOCK_SIZE": "16", "HEARTBEAT": "300ms", "REPLAY_IDLE": "250ms", "PEER_TIMEOUT": "1s",
	}
	maps.Copy(f.set, set)
	return f
}

// logs is everything that was said.
func (f *faultWorld) logs() []string { return append(f.kvrelay.log(), f.earlier...) }

func (f *faultWorld) start() { f.kvrelay = startKvrelay(f.t, f.set) }

// publish makes n batches, a share of them withheld from the live stream.
func (k *faultRank) publish(n int, share float64) {
	k.f.t.Helper()
	ms := []map[string]any{}
	for range n {
		seq := k.w.seq
		ms = append(ms, map[string]any{"seq": seq, "payload": k.w.next(), "withhold": k.f.r.Float64() < share})
	}
	k.engine.do("many", map[string]any{"messages": ms})
}

// putMark publishes a mark, live or only into the replay buffer.
func (k *faultRank) putMark(withhold bool) {
	k.f.t.Helper()
	k.marks++
	seq := k.w.seq
	payload := k.w.mark(k.markHash())
	k.engine.do("send", map[string]any{"seq": seq, "payload": payload, "withhold": withhold})
}

func (k *faultRank) markHash() uint64 { return markOf(int(k.marks)) }

// settle publishes a mark and waits for it; then the router must hold what the
// engine holds.
func (k *faultRank) settle() {
	k.f.t.Helper()
	k.putMark(false)
	k.settled()
}

func (k *faultRank) settled() {
	t := k.f.t
	t.Helper()
	k.f.router.wait(t, fmt.Sprintf("mark %d of rank %d", k.marks, k.id.DP), func(p *consumer.Picture) bool {
		_, ok := p.Lookup(k.id, consumer.Device, k.markHash())
		return ok
	})
	k.check()
}

// check compares what the router holds with what it must.
func (k *faultRank) check() {
	t := k.f.t
	t.Helper()
	got := heldBy(k.f.router.picture, k.id)
	d := k.w.fold(k.w.batches).diff(got, nil)
	if d == "" {
		return
	}
	// After lost history: exact from some batch on.
	for from := 1; k.mayLose && from < len(k.w.batches); from++ {
		if k.w.fold(k.w.batches[from:]).diff(got, nil) == "" {
			return
		}
	}
	t.Errorf("rank %d, %d batches: %s", k.id.DP, len(k.w.batches), d)
}

// restart is a new process of the engine on the same addresses.
func (k *faultRank) restart() {
	k.f.t.Helper()
	k.w.restart()
	k.engine.do("restart", nil)
}

// cut is a network that is gone: nothing connects, open connections end.
func (k *faultRank) cut() {
	for _, p := range []*mockengine.Proxy{k.live, k.replay} {
		p.Refuse()
		p.Cut(false)
	}
}

func (k *faultRank) uncut() {
	k.f.t.Helper()
	for _, p := range []*mockengine.Proxy{k.live, k.replay} {
		if err := p.Admit(); err != nil {
			k.f.t.Fatal(err)
		}
	}
}

// polled waits for the next replay request.
func (k *faultRank) polled() {
	t := k.f.t
	t.Helper()
	before := len(k.engine.do("stats", nil).Requests)
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for len(k.engine.do("stats", nil).Requests) == before {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatal("never: a quiet stream is polled")
		}
	}
}

// garbage is a payload that is no batch, with a number of its own.
func (k *faultRank) garbage() {
	k.f.t.Helper()
	b := msgpack.AppendArrayHeader(nil, 3)
	b = append(b, 0xc1)
	k.engine.do("send", map[string]any{"seq": k.w.seq, "payload": b})
	k.w.seq++
}
