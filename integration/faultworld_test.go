//go:build integration

package integration

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/kvrelay/kvrelay/consumer"
	"github.com/kvrelay/kvrelay/convert"
	"github.com/kvrelay/kvrelay/decode"
	"github.com/kvrelay/kvrelay/internal/capture"
	"github.com/kvrelay/kvrelay/internal/mockengine"
	"github.com/kvrelay/kvrelay/internal/msgpack"
)

// workload makes the batches of one rank of an engine, and knows what must be
// held after them.
type workload struct {
	t    testing.TB
	r    *rand.Rand
	rank uint32
	size int // tokens per block

	// One of: a mock engine's pool, or a recorded stream while it lasts.
	pool     *mockengine.Pool
	enc      mockengine.Encoder
	families [][]uint32 // prompts that share prefixes
	recorded []capture.Message

	seq uint64
	ts  float64
	// What exists of this incarnation, in order, without burned numbers and
	// garbage.
	batches [][]byte
}

// recordings are streams of one rank that need no settings but a block size.
var recordings = []string{"vllm-0.33.0-evict", "vllm-0.33.0-dup", "vllm-0.18.1-dup", "vllm-0.33.0-full-report", "vllm-0.33.0-clear", "sglang-0.5.23-page16"}

func newWorkload(t testing.TB, r *rand.Rand, rank uint32) *workload {
	w := &workload{t: t, r: r, rank: rank, size: 16, ts: 1_790_000_000}
	if rank == 0 && r.IntN(3) == 0 {
		w.recorded = loadCapture(t, recordings[r.IntN(len(recordings))]).Messages
	}
	w.begin()
	return w
}

// begin is a new incarnation of a mock engine.
func (w *workload) begin() {
	pick := func(of ...mockengine.Encoding) mockengine.Encoding { return of[w.r.IntN(len(of))] }
	w.pool = mockengine.NewPool(w.size, 40+w.r.IntN(60), w.r.IntN(2) == 0)
	w.enc = mockengine.Encoder{
		Batch: pick(mockengine.Array, mockengine.Map), Event: pick(mockengine.Array, mockengine.Map), BlockSize: w.size, Rank: int(w.rank),
		Hashes: []mockengine.HashEncoding{mockengine.Unsigned, mockengine.Signed, mockengine.BytesHash}[w.r.IntN(3)],
	}
	w.seq, w.batches = 0, nil
	w.families = nil
	for range 6 {
		var f []uint32
		for range w.size * 12 {
			f = append(f, w.r.Uint32N(150_000))
		}
		w.families = append(w.families, f)
	}
}

// restart is another process of the engine, with an empty cache.
func (w *workload) restart() {
	w.recorded = nil
	w.begin()
}

// next is the next batch's payload.
func (w *workload) next() []byte {
	var payload []byte
	if len(w.recorded) > 0 {
		payload = w.recorded[0].Payload()
		w.recorded = w.recorded[1:]
		w.ts, _ = decode.PeekTS(payload)
	} else {
		w.ts += 0.01
		payload = w.enc.Encode(nil, w.ts, w.step())
	}
	w.batches = append(w.batches, payload)
	w.seq++
	return payload
}

// step runs a few requests through the pool.
func (w *workload) step() []mockengine.Event {
	if len(w.batches) > 0 && w.r.IntN(200) == 0 {
		if err := w.pool.Clear(); err != nil {
			w.t.Fatal(err)
		}
	}
	for range 1 + w.r.IntN(3) {
		f := w.families[w.r.IntN(len(w.families))]
		prompt := append([]uint32{}, f[:w.size*(1+w.r.IntN(11))]...)
		for range w.r.IntN(40) {
			prompt = append(prompt, w.r.Uint32N(150_000))
		}
		mode := mockengine.Incremental
		if w.r.IntN(4) == 0 {
			mode = mockengine.Full
		}
		req, _, err := w.pool.Admit(prompt, mode)
		if err != nil {
			w.t.Fatal(err)
		}
		for range w.r.IntN(30) {
			if err := w.pool.Extend(req, w.r.Uint32N(150_000)); err != nil {
				break // full: the request ends here
			}
		}
		w.pool.Free(req)
	}
	return w.pool.Take()
}

// mark is a batch that stores a block nobody else has.
func (w *workload) mark(hash uint64) []byte {
	w.ts += 0.01
	m := &capture.Meta{BlockSize: []uint32{uint32(w.size)}, DPRank: w.rank}
	payload := markBatch(m, hash, w.ts)
	w.batches = append(w.batches, payload)
	w.seq++
	return payload
}

// fold is what a router must hold after some batches of one incarnation.
func (w *workload) fold(batches [][]byte) held {
	out := held{consumer.Device: {}, consumer.HostPinned: {}}
	conv := convert.New(convert.Config{WorkerID: 42, Rank: w.rank, BlockSize: uint64(w.size)})
	var b decode.Batch
	var o convert.Output
	for _, payload := range batches {
		if err := b.Decode(payload); err != nil {
			w.t.Fatal(err)
		}
		o.Reset()
		conv.Convert(&b, &o)
		for _, e := range o.Events {
			tier := consumer.Tier(e.Tier)
			switch e.Kind {
			case convert.Cleared:
				for _, hs := range out {
					clear(hs)
				}
			case convert.Removed:
				for _, h := range e.Hashes {
					delete(out[tier], h)
				}
			case convert.Stored:
				for _, bl := range e.Blocks {
					out[tier][bl.Hash] = true
				}
			}
		}
	}
	return out
}

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

// startProxy runs a proxy until the test ends.
func startProxy(t testing.TB, endpoint string) *mockengine.Proxy {
	t.Helper()
	p := mockengine.NewProxy("127.0.0.1:0", strings.TrimPrefix(endpoint, "tcp://"))
	if err := p.Listen(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return p
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
