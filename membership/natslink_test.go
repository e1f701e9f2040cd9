package membership

import (
	"context"
	"net"
	"strings"
	"sync"
	"testing"

	natsd "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/kvrelay/kvrelay/sinks"
)

// links gathers the connections that a registry makes.
type links struct {
	mu   sync.Mutex
	made []*nats.Conn
}

func (l *links) to(url string) func(*Options) {
	return func(o *Options) {
		o.NATS = func(ctx context.Context, trouble func(error)) (*nats.Conn, <-chan struct{}, error) {
			nc, dead, err := sinks.Connect(ctx, sinks.Options{Servers: []string{url}}, "recovery", trouble)
			if err == nil {
				l.mu.Lock()
				l.made = append(l.made, nc)
				l.mu.Unlock()
			}
			return nc, dead, err
		}
	}
}

func (l *links) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.made)
}

// kill has the server end the newest connection with an error that nats.go does
// not come back from: it is made to say more than the server takes by now.
func (l *links) kill(t *testing.T) {
	t.Helper()
	l.mu.Lock()
	nc := l.made[len(l.made)-1]
	l.mu.Unlock()
	if err := nc.Publish("much", make([]byte, 2048)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the connection is closed for good", nc.IsClosed)
}

// TestNATSLinkClosed: a connection that is closed for good is followed by
// another, where every rank that is on record is heard, and no other.
func TestNATSLinkClosed(t *testing.T) {
	var o *natsd.Options
	s := natsServer(t, func(opts *natsd.Options) { o = opts.Clone() })
	var l logged
	var made links
	r, _ := joined(t, t.TempDir(), dotted, made.to(s.ClientURL()), func(o *Options) { o.Log = l.log() })
	a := newNATSAsker(t, s.ClientURL())
	gone, err := r.Register(t.Context(), fixed{worker: 5, publisher: 0xdef})
	if err != nil {
		t.Fatal(err)
	}
	src := fixed{worker: 1<<63 + 10, publisher: 0xabc}
	withdraw, err := r.Register(t.Context(), src)
	if err != nil {
		t.Fatal(err)
	}
	defer withdraw()
	gone()
	o.Port, o.MaxPayload = s.Addr().(*net.TCPAddr).Port, 1024
	if err := s.ReloadOptions(o); err != nil {
		t.Fatal(err)
	}
	made.kill(t)
	eventually(t, "it is heard on another link", func() bool { return a.ask(natsSubject, a.body(query{Worker: src.worker}), patience/10) })
	if got, _, _ := a.answer(); got == nil || got.Data.TreeDump == nil {
		t.Errorf("answered %+v", got)
	}
	if n := made.count(); n != 2 {
		t.Errorf("%d links", n)
	}
	if a.ask("dyn-amo_back%2Eend.worker_kv_query_source_def-5", a.body(query{}), patience) {
		t.Error("a rank that had gone is heard again")
	}
	if text := l.text(); strings.Count(text, "was closed for good") != 1 || !strings.Contains(text, "Maximum Payload Violation") {
		t.Errorf("the log says %s", text)
	}
	// A rank that comes later is heard there too.
	withdraw2, err := r.Register(t.Context(), fixed{worker: 6, publisher: 0xabd})
	if err != nil {
		t.Fatal(err)
	}
	withdraw2()
	withdraw()
	if a.ask(natsSubject, a.body(query{}), patience) {
		t.Error("acknowledged after the end")
	}
}

// TestNATSLinkRefused: a subject that is refused on a new link is tried again,
// and does not keep the others out.
func TestNATSLinkRefused(t *testing.T) {
	user := func(deny ...string) []*natsd.User {
		return []*natsd.User{{Username: "u", Password: "p", Permissions: &natsd.Permissions{Subscribe: &natsd.SubjectPermission{Deny: deny}}}}
	}
	var o *natsd.Options
	s := natsServer(t, func(opts *natsd.Options) { opts.Users = user(); o = opts.Clone() })
	reload := func(change func(*natsd.Options)) {
		t.Helper()
		next := o.Clone()
		change(next)
		if err := s.ReloadOptions(next); err != nil {
			t.Fatal(err)
		}
	}
	url := strings.Replace(s.ClientURL(), "nats://", "nats://u:p@", 1)
	var l logged
	var made links
	r, _ := joined(t, t.TempDir(), dotted, made.to(url), func(o *Options) { o.Log = l.log() })
	a := newNATSAsker(t, url)
	sources := []fixed{{worker: 1<<63 + 10, publisher: 0xabc}, {worker: 5, publisher: 0xdef}}
	subjects := []string{natsSubject, "dyn-amo_back%2Eend.worker_kv_query_source_def-5"}
	for _, src := range sources {
		withdraw, err := r.Register(t.Context(), src)
		if err != nil {
			t.Fatal(err)
		}
		defer withdraw()
	}
	heard := func(i int) {
		t.Helper()
		eventually(t, subjects[i], func() bool { return a.ask(subjects[i], a.body(query{Worker: sources[i].worker}), patience/10) })
		if got, _, _ := a.answer(); got == nil || got.Data.TreeDump == nil {
			t.Errorf("answered %+v", got)
		}
	}
	reload(func(o *natsd.Options) { o.MaxPayload, o.Users = 1024, user(natsSubject) })
	made.kill(t)
	heard(1)
	if a.ask(natsSubject, a.body(query{}), patience) {
		t.Error("heard though it is refused")
	}
	eventually(t, "the log tells", func() bool { return strings.Contains(l.text(), "allow the relay's NATS user") })
	n := made.count()
	reload(func(o *natsd.Options) { o.MaxPayload = 1024 })
	heard(0)
	heard(1)
	if made.count() != n {
		t.Error("it took another link")
	}
}
