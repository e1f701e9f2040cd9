//go:build integration

package integration

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/kvrelay/kvrelay/consumer"
	"github.com/kvrelay/kvrelay/internal/freeport"
	"github.com/kvrelay/kvrelay/internal/mockengine"
)

// The whole story: an engine is up, kvrelay finds it by itself, and a router
// sees a prompt at 0 %, then 100 %, then, evicted, at 0 % again; in every way
// that engines say where they are.
func TestStory(t *testing.T) {
	for _, c := range []struct{ how, scheme string }{{"vllm", "grpc"}, {"vllm", "http"}, {"sglang", "http"}, {"sglang-old", "grpc"}, {"openengine", "grpc"}} {
		t.Run(c.how+" "+c.scheme, func(t *testing.T) {
			t.Parallel()
			url := natsServer(t, -1).ClientURL()
			r := newRouter(t, url, consumer.Dynamo)
			m := startMock(t, "--discovery="+c.how)
			k := startKvrelay(t, settings{"NATS_URL": url, "DISCOVERY_URL": map[string]string{"grpc": m.grpc, "http": m.http}[c.scheme]})
			k.says("found the engine", strings.TrimSuffix(c.how, "-old"), m.live[0])

			prompt, other := promptOf(1, 3*mockBlock), promptOf(2, 5*mockBlock)
			r.wait(t, "0 % before the prompt", func(p *consumer.Picture) bool { return overlap(p, 42, prompt) == 0 })
			if cached := m.complete(prompt); cached != 0 {
				t.Errorf("the engine had %d tokens of a new prompt", cached)
			}
			r.wait(t, "100 % after the prompt", func(p *consumer.Picture) bool { return overlap(p, 42, prompt) == 100 })
			if cached := m.complete(prompt); cached != 2*mockBlock { // one token is always computed
				t.Errorf("the engine had %d tokens of a known prompt", cached)
			}
			m.complete(other)
			m.sees(r, 42)
			r.wait(t, "the other prompt at 100 %", func(p *consumer.Picture) bool { return overlap(p, 42, other) == 100 })
			m.complete(promptOf(3, 6*mockBlock-1))
			m.sees(r, 42)
			r.wait(t, "0 % after eviction", func(p *consumer.Picture) bool { return overlap(p, 42, prompt) == 0 })
			h := mockengine.BlockHashes(prompt, mockBlock)
			if gone := removals(r); !before(gone, h[2], h[1]) || !before(gone, h[1], h[0]) {
				t.Errorf("blocks %v were removed as %v, not a child before its parent", h, gone)
			}
			r.sound(t)
		})
	}
}

// Of a prefill and a decode engine only the first has events; the relay of the
// other says so and stays.
func TestPrefillAndDecode(t *testing.T) {
	url := natsServer(t, -1).ClientURL()
	r := newRouter(t, url, consumer.Dynamo)
	prefill, decode := startMock(t, "--role=prefill", "--discovery=openengine"), startMock(t, "--role=decode", "--discovery=openengine")
	old := startMock(t, "--role=decode") // vLLM does not tell its role
	startKvrelay(t, settings{"NATS_URL": url, "DISCOVERY_URL": prefill.grpc, "WORKER_ID": "1"}).says("found the engine", "prefill")
	k := startKvrelay(t, settings{"NATS_URL": url, "DISCOVERY_URL": decode.grpc, "WORKER_ID": "2"})
	startKvrelay(t, settings{"NATS_URL": url, "DISCOVERY_URL": old.http, "WORKER_ID": "3"}).says("publishes nothing: it has the decode role, or prefix caching or KV events are off")
	k.says("publishes nothing: it has the decode role")
	prompt := promptOf(1, 3*mockBlock)
	for _, m := range []*mock{decode, old, prefill} {
		m.complete(prompt)
	}
	prefill.sees(r, 1)
	for _, e := range r.all() {
		if e.Rank.Worker != 1 {
			t.Errorf("an event of worker %d", e.Rank.Worker)
		}
	}
	r.sound(t)
}

// hostAddress is an address of this machine that is no loopback.
func hostAddress(t *testing.T) string {
	t.Helper()
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		if ip, ok := a.(*net.IPNet); ok && ip.IP.To4() != nil && !ip.IP.IsLoopback() {
			return ip.IP.String()
		}
	}
	t.Fatal("this test needs an IPv4 address that is no loopback; the machine has none")
	return ""
}

// An engine that advertises 127.0.0.1, where only it is reached: said, and with
// REWRITE_LOOPBACK dialled where it was found.
func TestAdvertisedLoopback(t *testing.T) {
	host := hostAddress(t)
	url := natsServer(t, -1).ClientURL()
	r := newRouter(t, url, consumer.Dynamo)
	m := startMock(t, "--http="+host+":0", "--grpc="+host+":0", "--host="+host, "--advertise-host=127.0.0.1")
	k := startKvrelay(t, settings{"NATS_URL": url, "DISCOVERY_URL": m.grpc, "WORKER_ID": "1"})
	k.says("reaches it only from its own pod or host, and was asked at "+host, "REWRITE_LOOPBACK=true")
	k.says("waiting for the engine: its event endpoint cannot be reached yet")
	m.complete(promptOf(1, 3*mockBlock))
	fixed := startKvrelay(t, settings{"NATS_URL": url, "DISCOVERY_URL": m.grpc, "REWRITE_LOOPBACK": "true", "WORKER_ID": "2"})
	m.sees(r, 2)
	if lines := fixed.matching("REWRITE_LOOPBACK"); len(lines) > 0 {
		t.Errorf("still said: %q", lines)
	}
	r.sound(t)
}

// An engine whose ranks come, move and go while kvrelay runs: their streams
// are started, moved and ended, and what they published is cleared.
func TestSourcesComeAndGo(t *testing.T) {
	url := natsServer(t, -1).ClientURL()
	r := newRouter(t, url, consumer.Dynamo)
	m := startMock(t, "--data-parallel-size=2")
	k := startKvrelay(t, settings{"NATS_URL": url, "DISCOVERY_URL": m.http})
	again := func(args ...string) {
		t.Helper()
		m.kill()
		m = startMock(t, append([]string{"--http=" + strings.TrimPrefix(m.http, "http://"), "--grpc=" + strings.TrimPrefix(m.grpc, "grpc://")}, args...)...)
	}
	for i := range 6 {
		m.complete(promptOf(i, 2*mockBlock))
	}
	m.sees(r, 42)
	again("--data-parallel-size=3") // other ports, and one rank more
	for i := range 6 {
		m.complete(promptOf(10+i, 2*mockBlock))
	}
	m.sees(r, 42)
	again()
	m.complete(promptOf(20, 2*mockBlock))
	m.sees(r, 42)
	r.wait(t, "ranks that are gone are empty", func(p *consumer.Picture) bool {
		return len(hashes(p, consumer.Rank{Worker: 42, DP: 1}, consumer.Device))+len(hashes(p, consumer.Rank{Worker: 42, DP: 2}, consumer.Device)) == 0
	})
	again("--role=decode")
	k.says("publishes nothing")
	r.wait(t, "nothing is left", func(p *consumer.Picture) bool { return len(hashes(p, consumer.Rank{Worker: 42}, consumer.Device)) == 0 })
	r.sound(t)
}

// An engine that names hundreds of sources that are not there, others each
// time, makes few lines: each kind of trouble is told, then counted.
func TestSourcesThatLie(t *testing.T) {
	const sources = 300
	var asked atomic.Int32
	enough := make(chan struct{})
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		n := asked.Add(1)
		lies := map[string]any{}
		for i := range sources {
			lies[fmt.Sprint(i)] = map[string]string{
				"publisher": []string{"zmq", fmt.Sprint("x", n)}[i%2],
				"endpoint":  fmt.Sprintf("tcp://127.%d.%d.%d:9", 1+n%250, i>>8, i&255),
			}
		}
		_ = json.NewEncoder(w).Encode(lies)
		if n == 6 {
			close(enough)
		}
	}))
	t.Cleanup(engine.Close)
	k := startKvrelay(t, settings{"NATS_URL": natsServer(t, -1).ClientURL(), "DISCOVERY_URL": engine.URL})
	select {
	case <-enough:
	case <-time.After(time.Minute):
		t.Fatal("it was not asked often enough")
	}
	if code := k.stop(); code != 0 {
		t.Errorf("code %d", code)
	}
	lines := k.log()
	if len(lines) > 250 {
		t.Errorf("%d lines, the first of them:\n%s", len(lines), strings.Join(lines[:100], "\n"))
	}
	for _, want := range []string{"cannot be reached yet (", "of many engines or ranks", "not used: more sources", "no longer has this source ("} {
		if len(k.matching(want)) == 0 {
			t.Errorf("no line says %q", want)
		}
	}
}

// A port that is taken: the engine serves without KV events, as engines do,
// and kvrelay says that it publishes nothing.
func TestEngineCannotBind(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	m := startMock(t, "--event-port", fmt.Sprint(l.Addr().(*net.TCPAddr).Port))
	k := startKvrelay(t, settings{"SINK": "stdout", "DISCOVERY_URL": m.grpc})
	k.says("publishes nothing")
}

// startOrder is when each of the three was there: up, late or restarted.
type startOrder struct{ engine, nats, relay string }

// world is the three of them, and a router that misses nothing: the relay
// reaches NATS through a door, which opens when the router has subscribed.
type world struct {
	t       *testing.T
	o       startOrder
	server  *server.Server
	door    *mockengine.Proxy
	router  *router
	mock    *mock
	kvrelay *kvrelay
	set     settings
	args    []string
	prompts int
}

// All start orders of engine, NATS and relay end in the same picture: the
// engine's.
func TestStartOrders(t *testing.T) {
	states := []string{"up", "late", "restarted"}
	n := 0
	for _, engine := range states {
		for _, nats := range states {
			for _, relay := range states {
				o, overHTTP := startOrder{engine, nats, relay}, n%2 == 0
				n++
				t.Run(fmt.Sprintf("engine %s, NATS %s, relay %s", engine, nats, relay), func(t *testing.T) {
					t.Parallel()
					newWorld(t, o, overHTTP).run()
				})
			}
		}
	}
}

func newWorld(t *testing.T, o startOrder, overHTTP bool) *world {
	w := &world{t: t, o: o, server: natsServer(t, -1)}
	w.router = newRouter(t, w.server.ClientURL(), consumer.Dynamo)
	w.door = startProxy(t, strings.Replace(w.server.ClientURL(), "nats://", "tcp://", 1))
	web := freeport.Next(t, 2)
	rpc := web + 1
	w.args = []string{fmt.Sprintf("--http=127.0.0.1:%d", web), fmt.Sprintf("--grpc=127.0.0.1:%d", rpc)}
	w.set = settings{"NATS_URL": "nats://" + w.door.Addr(), "DISCOVERY_URL": fmt.Sprintf("grpc://127.0.0.1:%d", rpc)}
	if overHTTP {
		w.set["DISCOVERY_URL"] = fmt.Sprintf("http://127.0.0.1:%d", web)
	}
	return w
}

func (w *world) run() {
	// Those that are up come first, then those that are late.
	if w.o.nats == "late" {
		w.door.Refuse()
	}
	if w.o.engine != "late" {
		w.startEngine()
	}
	if w.o.relay != "late" {
		w.startRelay()
	}
	if w.o.engine == "late" {
		if w.kvrelay != nil {
			w.kvrelay.says("waiting for the engine to say where its KV events are")
		}
		w.startEngine()
	}
	if w.o.nats == "late" {
		if w.kvrelay != nil {
			w.kvrelay.says("NATS", w.door.Addr())
		}
		w.open()
	}
	if w.o.relay == "late" {
		w.startRelay()
	}
	w.prompt(4)
	w.mock.sees(w.router, 42)

	if w.o.engine == "restarted" {
		w.mock.kill()
		w.startEngine()
	}
	if w.o.nats == "restarted" {
		w.restartNATS()
	}
	if w.o.relay == "restarted" {
		w.kvrelay.kill()
		w.startRelay()
	}
	w.prompt(4)
	w.mock.sees(w.router, 42)
	w.router.sound(w.t)
	if code := w.kvrelay.stop(); code != 0 { // before NATS, which may have begun after it
		w.t.Errorf("kvrelay ended with %d", code)
	}
}

func (w *world) startRelay() { w.kvrelay = startKvrelay(w.t, w.set) }

// startEngine starts it at the same address, its event sockets at others, and
// with something in its cache.
func (w *world) startEngine() {
	w.mock = startMock(w.t, w.args...)
	w.prompt(2)
}

func (w *world) prompt(n int) {
	for range n {
		w.prompts++
		w.mock.complete(promptOf(w.prompts, 2*mockBlock+1))
	}
}

func (w *world) open() {
	if err := w.door.Admit(); err != nil {
		w.t.Fatal(err)
	}
}

// restartNATS restarts the server; the relay finds it when the router is back.
func (w *world) restartNATS() {
	w.router.allowRepeats()
	w.door.Refuse()
	w.door.Cut(false)
	port := w.server.Addr().(*net.TCPAddr).Port
	stopNATS(w.server)
	w.server = natsServer(w.t, port)
	deadline := time.Now().Add(patience)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for w.server.GlobalAccount().Interest(consumer.Dynamo.Subject("dynamo", "backend", "generate", false)) == 0 {
		if time.Now().After(deadline) {
			w.t.Fatal("the router does not come back")
		}
		<-tick.C
	}
	w.open()
}
