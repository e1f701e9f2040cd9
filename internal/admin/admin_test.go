package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kvrelay/kvrelay/config"
	"github.com/kvrelay/kvrelay/discovery"
	"github.com/kvrelay/kvrelay/relay"
	"github.com/kvrelay/kvrelay/replay"
	"github.com/kvrelay/kvrelay/sinks"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a relay that says what a test wants.
type world struct {
	mu    sync.Mutex
	st    relay.Status
	disco discovery.State
	stuck chan struct{} // not nil: a look hangs until it is closed
}

func (w *world) status() relay.Status {
	w.mu.Lock()
	stuck, st := w.stuck, w.st
	st.Sources = append([]relay.SourceStatus(nil), st.Sources...)
	for i := range st.Sources { // as a relay does: a snapshot shares nothing
		st.Sources[i].Ranks = append([]relay.RankStatus(nil), st.Sources[i].Ranks...)
	}
	w.mu.Unlock()
	if stuck != nil {
		<-stuck
	}
	return st
}

func (w *world) discovery() discovery.State {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.disco
}

func (w *world) change(f func(*relay.Status)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f(&w.st)
}

// newWorld is a healthy relay of so many ranks.
func newWorld(ranks int) *world {
	w := &world{st: relay.Status{
		Started: time.Now(), WorkerID: 1<<63 + 5, HoldLimit: 64 << 20, OutLimit: 64 << 20,
		Sink: sinks.State{Connected: true, Server: "nats://127.0.0.1:4222", Since: time.Now()},
	}}
	for i := range ranks {
		src := relay.SourceStatus{
			Source: discovery.Source{Rank: uint32(i), Endpoint: fmt.Sprintf("tcp://127.0.0.1:%d", 5557+i), Replay: "tcp://127.0.0.1:9"},
			State:  relay.StateLive, Ready: true, LiveSince: time.Now(), LastMessage: time.Now(), Connects: 1,
		}
		src.Cursor.Begun, src.Cursor.Live, src.Cursor.Epoch = true, true, 1
		src.Cursor.Position = replay.Position{Epoch: 1, Seq: 41, Sum: 0xabc}
		src.Cursor.Applied, src.Cursor.Frames = 42, 42
		src.Ranks = []relay.RankStatus{{Rank: uint32(i), State: relay.StateLive, PublisherID: 77, LastID: 9, Confirmed: 9}}
		w.st.Sources = append(w.st.Sources, src)
	}
	return w
}

// serve runs a Server of w on a free port.
func serve(t *testing.T, w *world, change func(*Options)) (s *Server, url string) {
	t.Helper()
	o := Options{Addr: "127.0.0.1:0", Status: w.status, Discovery: w.discovery, Sink: config.SinkNATS, Settings: []config.Value{{Name: "TOPIC", Text: "kv", Origin: "flag"}}}
	if change != nil {
		change(&o)
	}
	s = New(o)
	if err := s.Listen(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		w.release()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		http.DefaultClient.CloseIdleConnections()
	})
	eventually(t, "it runs", func() bool { // until then /healthz fails
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.running
	})
	return s, "http://" + s.Addr()
}

func (w *world) hang() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stuck = make(chan struct{})
}

func (w *world) release() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stuck != nil {
		close(w.stuck)
		w.stuck = nil
	}
}

func get(t *testing.T, url string) (code int, body string) {
	t.Helper()
	return do(t, http.MethodGet, url, "")
}

func do(t *testing.T, method, url, host string) (code int, body string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Host = host
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

func TestReady(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*world)
		want   []string // in the body; none: ready
	}{
		"all live": {func(*world) {}, nil},
		"engine away after its first replay": {func(w *world) {
			w.st.Sources[0].State, w.st.Sources[0].Reason = relay.StateWaiting, "not connected to the engine"
		}, nil},
		"NATS refuses": {func(w *world) { w.st.Sink.LastError = "not allowed" }, []string{"events are refused: not allowed"}},
		"NATS down":    {func(w *world) { w.st.Sink.Connected, w.st.Sink.LastError = false, "refused" }, []string{"NATS is not connected: refused"}},
		"replaying": {func(w *world) {
			w.st.Sources[1].Ready, w.st.Sources[1].Reason = false, "the first replay has not ended"
		}, []string{"rank 1: the first replay has not ended"}},
		"both": {func(w *world) {
			w.st.Sources[1].Ready, w.st.Sink.Connected = false, false
		}, []string{"rank 1: ", "NATS is not connected"}},
		"no rank":          {func(w *world) { w.st.Sources = nil }, []string{"no rank is known yet"}},
		"no rank, and why": {func(w *world) { w.st.Sources = nil; w.disco.Awaiting = "the engine loads" }, []string{"no rank is known yet: the engine loads"}},
		"no rank, no answer": {func(w *world) {
			w.st.Sources = nil
			w.disco.LastError, w.disco.LastFailed = "refused", time.Now()
		}, []string{"refused"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(2)
			c.change(w)
			_, url := serve(t, w, nil)
			code, body := get(t, url+"/readyz")
			if want := map[bool]int{true: 200, false: 503}[len(c.want) == 0]; code != want {
				t.Errorf("code %d, want %d: %s", code, want, body)
			}
			for _, text := range c.want {
				if !strings.Contains(body, text) {
					t.Errorf("no %q in %q", text, body)
				}
			}
			if code, body := get(t, url+"/healthz"); code != 200 || body != "ok\n" {
				t.Errorf("healthz %d %q: it depends on neither engine nor NATS", code, body)
			}
		})
	}
}

func TestReasonsAreBounded(t *testing.T) {
	w := newWorld(64)
	for i := range w.st.Sources {
		w.st.Sources[i].Ready = false
	}
	_, url := serve(t, w, nil)
	if code, body := get(t, url+"/readyz"); code != 503 || strings.Count(body, "\n") > maxReasons+2 || !strings.Contains(body, "and 56 more") {
		t.Errorf("%d %s", code, body)
	}
}

func TestStatus(t *testing.T) {
	w := newWorld(2)
	w.st.Sources[0].Ranks[0].Convert.Events.Dropped[3] = 7
	w.st.Sources[0].Ranks[0].Convert.Present = 12
	_, url := serve(t, w, nil)
	code, body := get(t, url+"/status?since=-1")
	var st statusJSON
	if err := json.Unmarshal([]byte(body), &st); err != nil || code != 200 {
		t.Fatalf("%d, %v: %s", code, err, body)
	}
	r := st.Ranks[0]
	switch {
	case st.Worker != "9223372036854775813", !st.Healthy, !st.Ready, len(st.Ranks) != 2, len(st.Settings) != 1 || st.Settings[0].Text != "kv":
		t.Errorf("status %+v", st)
	case r.State != "live", r.Position != (position{1, 41, "0000000000000abc", true}), r.Blocks != 12, r.Drops["ignored_event"] != 7, len(r.Drops) != 1, r.Since == nil, r.ErrorAt != nil:
		t.Errorf("rank %+v", r)
	case st.History == nil || len(st.History.Rows) != 2 || st.History.Rows[r.Row].State == "":
		t.Errorf("history %+v", st.History)
	}
	if _, plain := get(t, url+"/status"); strings.Contains(plain, `"history"`) {
		t.Error("history was not asked for")
	}
	for _, q := range []string{"since=x", "since=", "since=1&rev=-1", "since=1&rev=", "since=99999999999999999999"} {
		if code, _ := get(t, url+"/status?"+q); code != 400 {
			t.Errorf("%s: code %d", q, code)
		}
	}
	for _, q := range []string{"since=-9223372036854775808", "since=9223372036854775807&rev=18446744073709551615"} {
		if code, body := get(t, url+"/status?"+q); code != 200 {
			t.Errorf("%s: code %d %s", q, code, body)
		}
	}
}

func TestMethodsAndPaths(t *testing.T) {
	_, url := serve(t, newWorld(1), nil)
	for _, path := range []string{"/", "/metrics", "/healthz", "/readyz", "/status"} {
		for method, want := range map[string]int{"GET": 200, "HEAD": 200, "POST": 405, "DELETE": 405, "OPTIONS": 405} {
			if code, _ := do(t, method, url+path, ""); code != want {
				t.Errorf("%s %s: %d, want %d", method, path, code, want)
			}
		}
	}
	for _, path := range []string{"/x", "/status/", "/index.html", "/../etc/passwd"} {
		if code, _ := get(t, url+path); code != 404 {
			t.Errorf("%s: %d", path, code)
		}
	}
}

// A web site whose name points to 127.0.0.1 gets nothing; nor does anyone get
// a profile from another host.
func TestOnlyThisHost(t *testing.T) {
	_, url := serve(t, newWorld(1), nil)
	for host, want := range map[string]int{"": 200, "localhost": 200, "LocalHost:9558": 200, "127.0.0.1": 200, "[::1]:9558": 200, "evil.example": 421, "evil.example:9558": 421, "localhost.evil.example": 421} {
		if code, _ := do(t, "GET", url+"/status", host); code != want {
			t.Errorf("host %q: %d, want %d", host, code, want)
		}
	}
	if code, body := get(t, url+"/debug/pprof/goroutine?debug=1"); code != 200 || !strings.Contains(body, "goroutine profile") {
		t.Errorf("pprof on loopback: %d", code)
	}
	if code, _ := get(t, url+"/debug/pprof/cmdline"); code != 404 { // it may hold a secret
		t.Errorf("the command line: %d", code)
	}
	s, _ := serve(t, newWorld(1), func(o *Options) { o.Addr = "0.0.0.0:0" })
	_, port, _ := net.SplitHostPort(s.Addr())
	url = "http://127.0.0.1:" + port
	if code, _ := get(t, url+"/debug/pprof/"); code != 404 {
		t.Errorf("pprof on all addresses: %d", code)
	}
	if code, _ := do(t, "GET", url+"/metrics", "kvrelay.pod"); code != 200 {
		t.Errorf("a name on all addresses: %d", code)
	}
}

func TestHostileRequests(t *testing.T) {
	s, url := serve(t, newWorld(1), nil)
	conn, err := net.Dial("tcp", s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: localhost\r\nX: %s\r\n\r\n", strings.Repeat("x", 3*maxHeader))
	_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
	answer, _ := io.ReadAll(conn) // a reset is an answer, too
	if strings.Contains(string(answer), " 200 ") {
		t.Errorf("a giant header was answered: %.80s", answer)
	}
	if code, _ := get(t, url+"/healthz"); code != 200 {
		t.Errorf("afterwards %d", code)
	}
}

func TestTakenPort(t *testing.T) {
	s, _ := serve(t, newWorld(1), nil)
	o := Options{Addr: s.Addr(), Status: newWorld(1).status}
	if err := New(o).Listen(t.Context()); err == nil || !strings.Contains(err.Error(), "KVRELAY_ADMIN_ADDR="+s.Addr()+" is taken") {
		t.Errorf("error %v", err)
	}
	var log lines
	_, url := serve(t, newWorld(1), func(o *Options) {
		o.Addr, o.Fallback, o.Log = s.Addr(), true, slog.New(slog.NewTextHandler(&log, nil))
	})
	if code, _ := get(t, url+"/healthz"); code != 200 || url == "http://"+s.Addr() {
		t.Errorf("beside it: %d at %s", code, url)
	}
	if text := log.String(); !strings.Contains(text, "is taken") || !strings.Contains(text, url) {
		t.Errorf("the log does not tell where it is: %s", text)
	}
	for _, addr := range []string{"nonsense", "127.0.0.1:99999", "192.0.2.1:0"} {
		if err := New(Options{Addr: addr, Status: newWorld(1).status, Fallback: true}).Listen(t.Context()); err == nil || !strings.Contains(err.Error(), "KVRELAY_ADMIN_ADDR="+addr) {
			t.Errorf("%s: %v", addr, err)
		}
	}
}

type lines struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// The page asks nobody else: its policy forbids it, and it names no other host.
func TestPageIsSelfContained(t *testing.T) {
	_, url := serve(t, newWorld(1), nil)
	resp, err := http.Get(url + "/")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	csp := resp.Header.Get("Content-Security-Policy")
	if !strings.HasPrefix(csp, "default-src 'none'; connect-src 'self'") || strings.Contains(csp, "unsafe") || strings.Count(csp, "'sha256-") != 2 {
		t.Errorf("policy %s", csp)
	}
	text := strings.ReplaceAll(string(b), "http://www.w3.org/2000/svg", "")
	for _, foreign := range []string{"http:", "https:", "//cdn", "@import", "<script src", "<link rel=\"stylesheet", "/*reasons*/"} {
		if strings.Contains(text, foreign) {
			t.Errorf("the page has %q", foreign)
		}
	}
	for reason := range DropReasons() {
		if !strings.Contains(text, `"`+reason+`":"`) {
			t.Errorf("the page does not explain %s", reason)
		}
	}
}

func TestOff(t *testing.T) {
	s, _ := serve(t, newWorld(1), func(o *Options) { o.Addr = config.Off })
	if s.Addr() != "" {
		t.Errorf("listens on %s", s.Addr())
	}
	eventually(t, "health without a port", func() bool { return s.Health() == nil && strings.HasPrefix(s.Line(), "1 of 1 rank live") })
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(20 * time.Second); !ok(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("waited for: %s", what)
		}
	}
}
