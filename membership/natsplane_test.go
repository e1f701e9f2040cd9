package membership

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	natsd "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/kvrelay/kvrelay/internal/freeport"
	"github.com/kvrelay/kvrelay/internal/fuzzlimit"
	"github.com/kvrelay/kvrelay/sinks"
)

// natsServer is a real nats-server in this process.
func natsServer(t testing.TB, change ...func(*natsd.Options)) *natsd.Server {
	t.Helper()
	o := &natsd.Options{Host: "127.0.0.1", Port: freeport.Next(t, 1), NoSigs: true, NoLog: true}
	for _, f := range change {
		f(o)
	}
	s, err := natsd.NewServer(o)
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	if !s.ReadyForConnections(patience) {
		t.Fatal("nats-server is not ready")
	}
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	return s
}

// overNATS has routers ask at a server.
func overNATS(url string) func(*Options) {
	return func(o *Options) {
		so := sinks.Options{Servers: []string{url}}
		o.NATS = func(ctx context.Context, trouble func(error)) (*nats.Conn, <-chan struct{}, error) {
			return sinks.Connect(ctx, so, "recovery", trouble)
		}
	}
}

// natsAsker is a router that asks over NATS and is called home.
type natsAsker struct {
	*asker
	nc *nats.Conn
}

func newNATSAsker(t testing.TB, url string) natsAsker {
	t.Helper()
	nc, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	home, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close(); home.Close() })
	return natsAsker{&asker{t: t, home: home}, nc}
}

// body is a request's: two parts.
func (a natsAsker) body(q query) []byte {
	b := frame("p", a.home.Addr().String(), "s", q)
	return b[2+1+2+len(`{"traceparent":"00-0-0-00"}`)+4:]
}

// ask sends a message; false: nobody acknowledges it, or nobody is there.
func (a natsAsker) ask(subject string, body []byte, within time.Duration) bool {
	a.t.Helper()
	m := nats.NewMsg(subject)
	m.Header.Set("request-id", "ctx") // as Dynamo 1.6.1 sends them
	m.Header.Set("x-frontend-send-ts-ns", "1795987641854367454")
	m.Data = body
	reply, err := a.nc.RequestMsg(m, within)
	switch {
	case errors.Is(err, nats.ErrNoResponders), errors.Is(err, nats.ErrTimeout):
		return false
	case err != nil:
		a.t.Fatal(err)
	}
	if len(reply.Data) != 0 || len(reply.Header) != 0 {
		a.t.Fatalf("acknowledged with %q %v", reply.Data, reply.Header)
	}
	return true
}

// logged gathers a log.
type logged struct {
	b  bytes.Buffer
	mu sync.Mutex
}

func (l *logged) log() *slog.Logger { return slog.New(slog.NewTextHandler(locked{&l.b, &l.mu}, nil)) }

func (l *logged) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

const natsSubject = "dyn-amo_back%2Eend.worker_kv_query_source_abc-800000000000000a"

// dotted has a component that cannot stand in a subject as it is.
func dotted(o *Options) { o.Endpoint.Component = "back.end" }

// TestNATSPlane: the record names a subject, requests there are acknowledged and
// answered, and nobody listens there any more when the rank has gone.
func TestNATSPlane(t *testing.T) {
	url := natsServer(t).ClientURL()
	root := t.TempDir()
	r, _ := joined(t, root, overNATS(url), dotted)
	a := newNATSAsker(t, url)
	src := fixed{worker: 1<<63 + 10, publisher: 0xabc, rank: 3}
	withdraw := onRecord(t, r, src)
	names := files(t, root)
	if len(names) != 1 {
		t.Fatalf("files %q", names)
	}
	text, err := os.ReadFile(filepath.Join(root, sourcesOf, names[0]))
	if err != nil {
		t.Fatal(err)
	}
	if want := `"transport":{"nats_tcp":"` + natsSubject + `"}}}}`; !strings.HasSuffix(string(text), want) {
		t.Errorf("got %s, want %s at its end", text, want)
	}
	for _, q := range []query{{Worker: src.worker, Rank: 3}, {Worker: src.worker, Rank: 3, Start: at(1)}} {
		if !a.ask(natsSubject, a.body(q), patience) {
			t.Fatal("not acknowledged")
		}
		got, subject, refused := a.answer()
		if refused != "" || subject != "s" || (q.Start == nil) != (got.Data.TreeDump != nil) || (q.Start != nil) != (got.Data.Events != nil) {
			t.Errorf("answered %+v, %q, %q", got, subject, refused)
		}
	}
	// Another rank's question is refused with a reason.
	if !a.ask(natsSubject, a.body(query{Worker: src.worker, Rank: 4}), patience) {
		t.Fatal("not acknowledged")
	}
	if _, _, refused := a.answer(); refused == "" {
		t.Error("another rank's question was answered")
	}
	withdraw()
	if got := files(t, root); len(got) != 0 {
		t.Errorf("left %q", got)
	}
	if _, err := a.nc.Request(natsSubject, a.body(query{}), patience); !errors.Is(err, nats.ErrNoResponders) {
		t.Errorf("after the end: %v", err)
	}
}

// TestNATSPlaneWorker: requests for the engine, where kvrelay registered it, are
// refused with a reason.
func TestNATSPlaneWorker(t *testing.T) {
	url := natsServer(t).ClientURL()
	root := t.TempDir()
	r, _ := joined(t, root, overNATS(url), worker1)
	a := newNATSAsker(t, url)
	for range 2 { // and again, after it was withdrawn
		withdraw := onRecord(t, r, fixed{worker: 31, publisher: 1})
		const subject = "dyn-amo_backend.generate-1f"
		if instance, _ := onFile(t, r, root); !strings.HasSuffix(instance, `"transport":{"nats_tcp":"`+subject+`"}}`) {
			t.Errorf("got %s", instance)
		}
		if !a.ask(subject, a.body(query{}), patience) {
			t.Fatal("not acknowledged")
		}
		if _, _, refused := a.answer(); !strings.Contains(refused, "recovery requests alone") {
			t.Errorf("refused with %q", refused)
		}
		withdraw()
		if a.ask(subject, a.body(query{}), patience) {
			t.Error("acknowledged after the end")
		}
	}
}

// TestNATSPlaneHostile: what is no request is answered by nothing, counted and
// told of once; and does not disturb requests.
func TestNATSPlaneHostile(t *testing.T) {
	url := natsServer(t).ClientURL()
	var l logged
	r, _ := joined(t, t.TempDir(), overNATS(url), dotted, func(o *Options) { o.Log = l.log() })
	a := newNATSAsker(t, url)
	src := fixed{worker: 1<<63 + 10, publisher: 0xabc}
	withdraw := onRecord(t, r, src)
	defer withdraw()
	good := a.body(query{Worker: src.worker})
	lies := bytes.Clone(good)
	lies[0] = 0x80
	bad := map[string][]byte{
		"empty": nil, "short": good[:partHead-1], "cut": good[:len(good)-1], "longer": append(bytes.Clone(good), 'x'), "lengths that lie": lies,
		"huge": make([]byte, maxBody+1), "no JSON": appendParts(nil, "secret-text", "x"),
		"no address": appendParts(nil, `{"id":"x","connection_info":{"info":"{\"subject\":\"s\"}"}}`, "{}"),
		"TCP's":      frame(natsSubject, a.home.Addr().String(), "s", query{Worker: src.worker}),
	}
	replies, err := a.nc.SubscribeSync("replies")
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range bad {
		if err := a.nc.PublishRequest(natsSubject, "replies", b); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.nc.Publish(natsSubject, good); err != nil { // without a way to acknowledge it
		t.Fatal(err)
	}
	// One subject's messages are read one after the other: behind this one all others were.
	if !a.ask(natsSubject, good, patience) {
		t.Fatal("a good one is not acknowledged")
	}
	if got, _, _ := a.answer(); got == nil || got.Data.TreeDump == nil {
		t.Errorf("answered %+v", got)
	}
	if n, _, err := replies.Pending(); err != nil || n != 0 {
		t.Errorf("%d replies, %v", n, err)
	}
	r.nats.mu.Lock()
	n := r.nats.ignored
	r.nats.mu.Unlock()
	if n != len(bad)+1 {
		t.Errorf("%d are counted, want %d", n, len(bad)+1)
	}
	if text := l.text(); strings.Count(text, "is ignored: it is not what a Dynamo router sends") != 1 || strings.Contains(text, "secret") {
		t.Errorf("the log says %s", text)
	}
}

// TestNATSPlaneTooMany: what is too much is not acknowledged, and what hangs
// costs nothing but its answer.
func TestNATSPlaneTooMany(t *testing.T) {
	url := natsServer(t).ClientURL()
	r, stop := joined(t, t.TempDir(), overNATS(url), dotted)
	a := newNATSAsker(t, url)
	src := fixed{worker: 1<<63 + 10, publisher: 0xabc}
	withdraw := onRecord(t, r, src)
	defer withdraw()
	body := a.body(query{Worker: src.worker})
	for range maxAnswers {
		r.server.answers <- struct{}{}
	}
	if a.ask(natsSubject, body, 100*time.Millisecond) {
		t.Error("one more was acknowledged")
	}
	for range maxAnswers {
		<-r.server.answers
	}
	for range 3 { // nobody takes these answers
		if !a.ask(natsSubject, body, patience) {
			t.Fatal("not acknowledged")
		}
	}
	began := time.Now()
	stop()
	if d := time.Since(began); d > patience/2 {
		t.Errorf("stopping took %v", d)
	}
	if n := len(r.server.answers); n != 0 {
		t.Errorf("%d answers are left", n)
	}
	if a.ask(natsSubject, body, patience) {
		t.Error("acknowledged after the end")
	}
}

// TestNATSPlaneForbidden: a rank whose subject may not be subscribed to is not
// put on record: routers would ask in vain. The log says what to allow.
func TestNATSPlaneForbidden(t *testing.T) {
	s := natsServer(t, func(o *natsd.Options) {
		o.Users = []*natsd.User{{Username: "u", Password: "p", Permissions: &natsd.Permissions{
			Subscribe: &natsd.SubjectPermission{Deny: []string{"dyn-amo_backend.*"}},
		}}}
	})
	root := t.TempDir()
	var l logged
	r, _ := joined(t, root, func(o *Options) {
		overNATS(strings.Replace(s.ClientURL(), "nats://", "nats://u:p@", 1))(o)
		o.Log = l.log()
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := r.Register(ctx, fixed{worker: 1, publisher: 1})
		done <- err
	}()
	eventually(t, "the log tells", func() bool { return strings.Contains(l.text(), "allow the relay's NATS user to subscribe") })
	if got := files(t, root); len(got) != 0 {
		t.Errorf("on record: %q", got)
	}
	cancel()
	if err := <-done; err == nil {
		t.Error("registered")
	}
}

// TestNATSPlaneAllowed: what was forbidden once and is allowed since, on the
// same link, is heard.
func TestNATSPlaneAllowed(t *testing.T) {
	var o *natsd.Options
	s := natsServer(t, func(opts *natsd.Options) {
		opts.Users = []*natsd.User{{Username: "u", Password: "p", Permissions: &natsd.Permissions{
			Subscribe: &natsd.SubjectPermission{Deny: []string{"dyn-amo_backend.*"}},
		}}}
		o = opts.Clone()
	})
	var l logged
	root := t.TempDir()
	r, _ := joined(t, root, func(o *Options) {
		overNATS(strings.Replace(s.ClientURL(), "nats://", "nats://u:p@", 1))(o)
		o.Log = l.log()
	})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		withdraw, err := r.Register(ctx, fixed{worker: 1, publisher: 1})
		if err == nil {
			withdraw()
		}
		done <- err
	}()
	eventually(t, "it is refused thrice", func() bool { return strings.Count(l.text(), "have trouble") >= 3 })
	if got := files(t, root); len(got) != 0 {
		t.Errorf("on record: %q", got)
	}
	o.Users = []*natsd.User{{Username: "u", Password: "p"}}
	o.Port = s.Addr().(*net.TCPAddr).Port
	if err := s.ReloadOptions(o); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	if n := r.nats.link.nc.Stats().Reconnects; n != 0 {
		t.Errorf("%d reconnects: the error went with the link", n)
	}
}

// frozen is a store whose records cannot be taken back.
type frozen struct{ Store }

func (frozen) Delete(ctx context.Context, _ string) error { <-ctx.Done(); return ctx.Err() }

// TestNATSPlaneFrozen: where neither store nor server answers any more, leaving
// takes no longer than it may, so that a process ends in time.
func TestNATSPlaneFrozen(t *testing.T) {
	s := natsServer(t)
	wire := newWire(t, s.Addr().String())
	r, _ := joined(t, t.TempDir(), overNATS("nats://"+wire.addr()), worker1, func(o *Options) { o.Store = frozen{o.Store} })
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	withdraw, err := r.Register(ctx, fixed{worker: 31, publisher: 1})
	if err != nil {
		t.Fatal(err)
	}
	wire.freeze()
	cancel()
	began := time.Now()
	withdraw()
	if took := time.Since(began); took > withdrawFor*3/2 {
		t.Errorf("it took %v, %v are allowed", took, withdrawFor)
	}
}

// wire is a way to a server that can stop to carry answers.
type wire struct {
	ln     net.Listener
	frozen chan struct{}
}

func newWire(t *testing.T, to string) *wire {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{ln: ln, frozen: make(chan struct{})}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			near, err := ln.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", to)
			if err != nil {
				near.Close()
				continue
			}
			wg.Go(func() { _, _ = io.Copy(far, near); far.Close() })
			wg.Go(func() {
				defer near.Close()
				for b := make([]byte, 4096); ; {
					n, err := far.Read(b)
					if err != nil {
						return
					}
					select {
					case <-w.frozen:
						continue
					default:
					}
					if _, err := near.Write(b[:n]); err != nil {
						return
					}
				}
			})
		}
	})
	t.Cleanup(func() { ln.Close(); wg.Wait() })
	return w
}

func (w *wire) addr() string { return w.ln.Addr().String() }
func (w *wire) freeze()      { close(w.frozen) }

// TestNATSPlaneLate: a server that is not there yet is waited for, and ended
// while it is waited for.
func TestNATSPlaneLate(t *testing.T) {
	port := freeport.Next(t, 1)
	o := Options{Endpoint: Endpoint{"dyn-amo", "back.end", "generate"}, Store: NewFile(t.TempDir(), testLog(t)), Log: testLog(t)}
	overNATS(fmt.Sprintf("nats://127.0.0.1:%d", port))(&o)
	run := func(r *Registry) (stop func()) {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- r.Run(ctx) }()
		return func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	}
	never, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	run(never)()

	r, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	defer run(r)()
	s := natsServer(t, func(o *natsd.Options) { o.Port = port })
	src := fixed{worker: 1<<63 + 10, publisher: 0xabc}
	withdraw := onRecord(t, r, src)
	defer withdraw()
	// It is heard on a new link too.
	s.Shutdown()
	s.WaitForShutdown()
	s = natsServer(t, func(o *natsd.Options) { o.Port = port })
	a := newNATSAsker(t, s.ClientURL())
	eventually(t, "acknowledged on a new link", func() bool {
		return a.ask(natsSubject, a.body(query{Worker: src.worker}), time.Second)
	})
	a.answer()
}

// FuzzMessage: what is understood of a message has all that an answer needs.
func FuzzMessage(f *testing.F) {
	f.Add("r", appendParts(nil, `{"id":"x","connection_info":{"info":"{\"address\":\"a\",\"subject\":\"s\"}"}}`, `{"worker_id":1,"dp_rank":2,"start_event_id":null}`))
	f.Add("", []byte{})
	f.Fuzz(func(t *testing.T, reply string, b []byte) {
		fuzzlimit.Run(t, len(b), func() { _, _ = parseMessage(&nats.Msg{Subject: "x", Reply: reply, Data: b}) })
		q, err := parseMessage(&nats.Msg{Subject: "x", Reply: reply, Data: b})
		switch {
		case err != nil && !errors.Is(err, errRequest):
			t.Fatalf("error %v", err)
		case err == nil && (reply == "" || len(b) > maxBody || q.Path != "x" || q.Home.Address == "" || q.Home.Subject == ""):
			t.Fatalf("understood %+v", q)
		}
	})
}
