//go:build integration

package integration

import (
	"fmt"
	"net"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/kvrelay/kvrelay/consumer"
	"github.com/kvrelay/kvrelay/decode"
	"github.com/kvrelay/kvrelay/internal/freeport"
	"github.com/kvrelay/kvrelay/internal/mockengine"
	"github.com/kvrelay/kvrelay/internal/msgpack"
)

// The published values of the golden prompt, from Dynamo's own mock engine,
// with its child removed before the parent.
func TestGoldenPrompt(t *testing.T) {
	p := startPlay(t, "dynamo-mocker-1.6.1-golden", consumer.Dynamo, nil, nil)
	p.run(0, 0)
	const root, child = 4117275816416024698, 5947898228081096063
	prompt := consumer.Event{Rank: p.rank, Kind: consumer.Stored, Domain: "worker", Blocks: []consumer.Block{
		{Hash: root, TokensHash: 4117275816416024698}, {Hash: child, TokensHash: 6081346995852963768},
	}}
	var stores []consumer.Event
	order := []uint64{}
	for _, e := range p.router.all() {
		if e.Kind == consumer.Stored && e.Blocks[0].Hash == root {
			e.ID = 0
			stores = append(stores, e)
		}
		for _, h := range e.Hashes {
			if h == root || h == child {
				order = append(order, h)
			}
		}
	}
	if want := []consumer.Event{prompt, prompt}; !reflect.DeepEqual(stores, want) {
		t.Errorf("the prompt was stored as\n%+v\nwant\n%+v", stores, want)
	}
	if want := []uint64{child, root}; !slices.Equal(order, want) {
		t.Errorf("removed in the order %v, want the child before its parent", order)
	}
}

// A batch of the tests' own: stores of one block each, and whatever else.
func testBatch(ts float64, events ...[]byte) []byte {
	b := msgpack.AppendArrayHeader(nil, 3)
	b = msgpack.AppendFloat(b, ts)
	b = msgpack.AppendArrayHeader(b, len(events))
	for _, e := range events {
		b = append(b, e...)
	}
	return msgpack.AppendUint(b, 0)
}

func storeOf(hash uint64) []byte {
	b := msgpack.AppendArrayHeader(nil, 5)
	b = msgpack.AppendStr(b, "BlockStored")
	b = msgpack.AppendArrayHeader(b, 1)
	b = msgpack.AppendUint(b, hash)
	b = msgpack.AppendNil(b)
	b = msgpack.AppendArrayHeader(b, 4)
	for i := range uint64(4) {
		b = msgpack.AppendUint(b, uint64(uint32(hash+i)))
	}
	return msgpack.AppendUint(b, 4)
}

// firstReplay is what kvrelay says when it has caught up with an engine.
const firstReplay = "first replay has ended"

// newScene is an engine of the tests' own batches with a router and a relay,
// which has said that it is ready.
func newScene(t *testing.T, cfg engineConfig, more settings, ready string) *play {
	t.Helper()
	p := &play{t: t, rank: consumer.Rank{Worker: 42}}
	p.engine = startEngine(t, cfg)
	url := natsServer(t, -1).ClientURL()
	p.router = newRouter(t, url, consumer.Dynamo)
	s := settings{"NATS_URL": url, "ENDPOINTS": p.engine.Pub, "REPLAY_ENDPOINTS": p.engine.Router, "BLOCK_SIZE": "4"}
	for k, v := range more {
		s[k] = v
	}
	p.set = s
	p.kvrelay = startKvrelay(t, s)
	p.kvrelay.says(ready)
	return p
}

func ownEngine() engineConfig {
	return engineConfig{Pub: "tcp://127.0.0.1:*", Router: "tcp://127.0.0.1:*", Shape: "4", BufferSteps: 1000, RouterHWM: 2002, Socket: "XPUB"}
}

// holds waits until the router holds exactly these blocks on the device.
func (p *play) holds(hashes ...uint64) {
	p.t.Helper()
	want := held{consumer.Device: {}}
	for _, h := range hashes {
		want[consumer.Device][h] = true
	}
	p.router.wait(p.t, fmt.Sprintf("the router holds %v", hashes), func(pic *consumer.Picture) bool {
		return want.diff(heldBy(pic, p.rank), nil) == ""
	})
}

// Broken input loses itself alone, and no socket is closed over it.
func TestBrokenInput(t *testing.T) {
	c := ownEngine()
	c.HeartbeatMS = 50 // libzmq would close a connection that does not answer
	p := newScene(t, c, nil, firstReplay)
	p.engine.subscriber()
	malformed := msgpack.AppendStr(msgpack.AppendStr(msgpack.AppendArrayHeader(nil, 2), "BlockStored"), "no list of hashes")
	unknown := msgpack.AppendStr(msgpack.AppendArrayHeader(nil, 1), "BlockTeleported")
	p.engine.send(0, testBatch(1, storeOf(100), malformed, unknown, storeOf(200)))
	p.holds(100, 200)
	if l := p.kvrelay.matching("suspect"); len(l) != 0 {
		t.Errorf("a malformed event made the rank suspect: %s", l)
	}
	// Garbage, a truncated batch, a batch that announces 2^32 events.
	whole := testBatch(2, storeOf(300))
	for i, garbage := range [][]byte{[]byte("\xc1garbage"), whole[:len(whole)-9], {0x93, 0xcb, 0, 0, 0, 0, 0, 0, 0, 0, 0xdd, 0xff, 0xff, 0xff, 0xff}, {}} {
		p.engine.send(uint64(2*i+1), garbage)
		p.engine.send(uint64(2*i+2), testBatch(float64(i+3), storeOf(uint64(1000*(i+1)))))
	}
	p.holds(100, 200, 1000, 2000, 3000, 4000)
	p.kvrelay.says("cannot be decoded", "suspect")
	// Messages that are no batch at all in between, and seq 2^64−1.
	p.engine.do("raw", map[string]any{"frames": [][]byte{{}, []byte("12345"), testBatch(9, storeOf(1))}})
	p.engine.do("raw", map[string]any{"frames": [][]byte{{}, {}, {}, {}, {}}})
	p.engine.do("raw", map[string]any{"frames": [][]byte{{}, {255, 255, 255, 255, 255, 255, 255, 255}, testBatch(9, storeOf(1))}})
	p.engine.send(9, testBatch(10, storeOf(5000)))
	p.holds(100, 200, 1000, 2000, 3000, 4000, 5000)
	if l := p.kvrelay.matching("connection ended"); len(l) != 0 {
		t.Errorf("a socket was closed: %s", l)
	}
	if s := p.engine.do("stats", nil); s.Published != 10 {
		t.Errorf("%d published, want 10", s.Published)
	}
	p.router.sound(t)
}

// Reporting modes: with "full" a prefix hit is two stores in one engine batch,
// the reused prefix and the computed blocks behind it; with "incremental" only
// the second. Either way the consumer chains them, and nothing is left over
// when they are evicted.
func TestReportingModes(t *testing.T) {
	for _, mode := range []mockengine.ReportMode{mockengine.Full, mockengine.Incremental} {
		t.Run(string(mode), func(t *testing.T) {
			var mu sync.Mutex
			var stores [][]int // blocks per store, of each batch
			e, err := mockengine.Start(mockengine.Options{BlockSize: 4, Blocks: 16, Duplicates: true, Report: mode,
				Observe: func(p mockengine.Published) {
					var b decode.Batch
					if err := b.Decode(p.Payload); err != nil {
						t.Error(err)
					}
					one := []int{}
					for i := range b.Events {
						if b.Events[i].Type == decode.Stored {
							one = append(one, len(b.Events[i].Hashes))
						}
					}
					mu.Lock()
					stores = append(stores, one)
					mu.Unlock()
				}})
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := e.Close(); err != nil {
					t.Error(err)
				}
			}()
			url := natsServer(t, -1).ClientURL()
			r := newRouter(t, url, consumer.Dynamo)
			startKvrelay(t, settings{"NATS_URL": url, "ENDPOINTS": e.Rank(0).Endpoint(), "REPLAY_ENDPOINTS": e.Rank(0).ReplayEndpoint(), "BLOCK_SIZE": "4"})
			rank := consumer.Rank{Worker: 42}
			equal := func(what string) {
				t.Helper()
				r.wait(t, what, func(p *consumer.Picture) bool {
					want := held{consumer.Device: {}}
					for h := range e.Rank(0).Truth() {
						want[consumer.Device][h] = true
					}
					return want.diff(heldBy(p, rank), nil) == ""
				})
			}
			prompt := func(n uint32) []uint32 {
				var tokens []uint32
				for i := range n {
					tokens = append(tokens, 11*(i+1))
				}
				return tokens
			}
			ask := func(tokens []uint32, wantHit int) {
				t.Helper()
				hit, err := e.Prompt(tokens, mockengine.PromptOptions{})
				if err != nil || hit != wantHit {
					t.Fatalf("hit %d (%v), want %d", hit, err, wantHit)
				}
				e.Step()
			}
			ask(prompt(8), 0)
			equal("the first prompt")
			ask(prompt(16), 8)
			equal("its continuation")
			mu.Lock()
			want := map[mockengine.ReportMode][]int{mockengine.Full: {2, 2}, mockengine.Incremental: {2}}[mode]
			if got := stores[len(stores)-1]; !slices.Equal(got, want) {
				t.Fatalf("the engine stored %v in its batch, want %v", got, want)
			}
			mu.Unlock()
			// root ← child ← third ← fourth, as the consumer sees it.
			const root, child = 4117275816416024698, 5947898228081096063
			if got, ok := r.picture.Lookup(rank, consumer.Device, child); !ok || got.Parent != root || !got.HasParent {
				t.Errorf("second block: %+v", got)
			}
			chained := 0
			for h, b := range r.picture.Blocks(rank, consumer.Device) {
				if b.HasParent && b.Parent == child && h != root {
					chained++
				}
			}
			if chained != 1 {
				t.Errorf("%d blocks hang on the last reused one, want 1", chained)
			}
			// Evict everything: a re-announced block must not stay.
			for i := range uint32(6) {
				var other []uint32
				for j := range uint32(32) {
					other = append(other, 10_000*(i+1)+j)
				}
				ask(other, 0)
			}
			equal("after eviction")
			r.sound(t)
		})
	}
}

// Settings that are wrong: all problems at once, exit code 2.
func TestWrongSettings(t *testing.T) {
	k := startKvrelay(t, settings{"ENDPOINTS": "tpc://x:1", "NATS_URLL": "nats://x", "BLOCK_SIZE": "many", "PROFILE": "dynamite"})
	k.want = 2
	if code := k.exit(); code != 2 {
		t.Errorf("exit code %d, want 2", code)
	}
	text := strings.Join(k.log(), "\n")
	for _, want := range []string{"KVRELAY_ENDPOINTS", "tpc://x:1", "KVRELAY_NATS_URLL", "KVRELAY_NATS_URL?", "KVRELAY_BLOCK_SIZE", "KVRELAY_PROFILE", "dynamo-single"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not said in\n%s", want, text)
		}
	}
	if n := len(k.log()); n > 6 {
		t.Errorf("%d lines for 4 problems:\n%s", n, text)
	}
}

// Engine and NATS may come later, in any order: each is waited for, and said
// in one line that names what to look at.
func TestPeersComeLater(t *testing.T) {
	for _, order := range []string{"engine first", "NATS first"} {
		t.Run(order, func(t *testing.T) {
			natsPort := freeport.Next(t, 3)
			pub, replay := natsPort+1, natsPort+2
			k := startKvrelay(t, settings{
				"NATS_URL":  fmt.Sprintf("nats://127.0.0.1:%d", natsPort),
				"ENDPOINTS": fmt.Sprintf("tcp://127.0.0.1:%d", pub), "REPLAY_ENDPOINTS": fmt.Sprintf("tcp://127.0.0.1:%d", replay), "BLOCK_SIZE": "4",
			})
			k.says("waiting for the engine", fmt.Sprint(pub))
			k.says("NATS", fmt.Sprint(natsPort))
			c := ownEngine()
			c.Pub, c.Router = fmt.Sprintf("tcp://127.0.0.1:%d", pub), fmt.Sprintf("tcp://127.0.0.1:%d", replay)
			var r *router
			startNATS := func() {
				r = newRouter(t, natsServer(t, natsPort).ClientURL(), consumer.Dynamo)
			}
			var e *engine
			startEngines := func() {
				e = startEngine(t, c)
				e.send(0, testBatch(1, storeOf(100)))
				e.subscriber()
			}
			if order == "engine first" {
				startEngines()
				k.says(firstReplay)
				startNATS()
			} else {
				startNATS()
				k.says("connected to NATS")
				startEngines()
			}
			e.send(1, testBatch(2, storeOf(200)))
			p := &play{t: t, rank: consumer.Rank{Worker: 42}, router: r}
			p.holds(100, 200)
			for _, line := range [][]string{{"waiting for the engine"}, {"no connection to NATS"}} {
				if n := len(k.matching(line...)); n != 1 {
					t.Errorf("%q was said %d times, want once", line, n)
				}
			}
			if code := k.stop(); code != 0 { // before NATS, which began after it
				t.Errorf("exit code %d", code)
			}
		})
	}
}

// An address that is taken is said, with the address; the process goes on.
func TestOccupiedPort(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	url := natsServer(t, -1).ClientURL()
	k := startKvrelay(t, settings{"NATS_URL": url, "ENDPOINTS": "listen:tcp://" + l.Addr().String(), "BLOCK_SIZE": "4"})
	k.says("cannot listen", l.Addr().String(), "in use")
}
