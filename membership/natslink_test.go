package membership

import (
	"context"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

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
	gone := onRecord(t, r, fixed{worker: 5, publisher: 0xdef})
	src := fixed{worker: 1<<63 + 10, publisher: 0xabc}
	withdraw := onRecord(t, r, src)
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
	withdraw2 := onRecord(t, r, fixed{worker: 6, publisher: 0xabd})
	withdraw2()
	withdraw()
	if a.ask(natsSubject, a.body(query{}), patience) {
		t.Error("acknowledged after the end")
	}
}

// listener is a server's user who may not subscribe to some subjects.
func listener(deny ...string) []*natsd.User {
	return []*natsd.User{{Username: "u", Password: "p", Permissions: &natsd.Permissions{Subscribe: &natsd.SubjectPermission{Deny: deny}}}}
}

// reloadable is a server whose options, those of its start, can be changed while it runs.
func reloadable(t *testing.T, change func(*natsd.Options)) (s *natsd.Server, reload func(func(*natsd.Options))) {
	t.Helper()
	var o *natsd.Options
	s = natsServer(t, func(opts *natsd.Options) { change(opts); o = opts.Clone() })
	return s, func(change func(*natsd.Options)) {
		t.Helper()
		next := o.Clone()
		change(next)
		if err := s.ReloadOptions(next); err != nil {
			t.Fatal(err)
		}
	}
}

// TestNATSLinkRefused: a subject that is refused on a new link is tried again,
// and does not keep the others out.
func TestNATSLinkRefused(t *testing.T) {
	s, reload := reloadable(t, func(o *natsd.Options) { o.Users = listener() })
	url := strings.Replace(s.ClientURL(), "nats://", "nats://u:p@", 1)
	var l logged
	var made links
	r, _ := joined(t, t.TempDir(), dotted, made.to(url), func(o *Options) { o.Log = l.log() })
	a := newNATSAsker(t, url)
	sources := []fixed{{worker: 1<<63 + 10, publisher: 0xabc}, {worker: 5, publisher: 0xdef}}
	subjects := []string{natsSubject, "dyn-amo_back%2Eend.worker_kv_query_source_def-5"}
	for _, src := range sources {
		withdraw := onRecord(t, r, src)
		defer withdraw()
	}
	heard := func(i int) {
		t.Helper()
		eventually(t, subjects[i], func() bool { return a.ask(subjects[i], a.body(query{Worker: sources[i].worker}), patience/10) })
		if got, _, _ := a.answer(); got == nil || got.Data.TreeDump == nil {
			t.Errorf("answered %+v", got)
		}
	}
	reload(func(o *natsd.Options) { o.MaxPayload, o.Users = 1024, listener(natsSubject) })
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

// TestNATSRefusedLater: a subject that the server takes back from a link that lives,
// and a subscription above its limit, are heard when they may be.
func TestNATSRefusedLater(t *testing.T) {
	s, reload := reloadable(t, func(o *natsd.Options) { o.Users = listener("nothing") })
	url := strings.Replace(s.ClientURL(), "nats://", "nats://u:p@", 1)
	var l logged
	r, _ := joined(t, t.TempDir(), dotted, overNATS(url), func(o *Options) { o.Log = l.log() })
	a := newNATSAsker(t, url)
	src := fixed{worker: 1<<63 + 10, publisher: 0xabc}
	withdraw := onRecord(t, r, src)
	defer withdraw()
	heard := func() bool { return a.ask(natsSubject, a.body(query{Worker: src.worker}), patience/10) }
	for range 2 {
		reload(func(o *natsd.Options) { o.Users = listener(natsSubject) })
		eventually(t, "it is refused", func() bool { return !heard() })
		reload(func(o *natsd.Options) { o.Users = listener("nothing") })
		eventually(t, "it is heard again", heard)
		if got, _, _ := a.answer(); got == nil || got.Data.TreeDump == nil {
			t.Errorf("answered %+v", got)
		}
	}
	if text := l.text(); !strings.Contains(text, natsSubject) {
		t.Errorf("the log says %s", text)
	}
	withdraw()
	if heard() {
		t.Error("heard after the end")
	}
}

// TestNATSSubscriptionLimit: a rank for which NATS takes no subscription any more is
// not put on record, since nobody would answer for it; it is when there is room.
func TestNATSSubscriptionLimit(t *testing.T) {
	full, roomy := natsServer(t, func(o *natsd.Options) { o.MaxSubs = 1 }), natsServer(t)
	var url atomic.Value
	url.Store(full.ClientURL())
	root := t.TempDir()
	r, _ := joined(t, root, dotted, func(o *Options) {
		o.NATS = func(ctx context.Context, trouble func(error)) (*nats.Conn, <-chan struct{}, error) {
			return sinks.Connect(ctx, sinks.Options{Servers: []string{url.Load().(string)}}, "recovery", trouble)
		}
	})
	withdraw := onRecord(t, r, fixed{worker: 5, publisher: 0xdef})
	defer withdraw()
	src := fixed{worker: 1<<63 + 10, publisher: 0xabc, why: new(atomic.Pointer[string])}
	registered := make(chan func(), 1)
	go func() {
		withdraw, err := r.Register(t.Context(), src)
		if err != nil {
			t.Error(err)
		}
		registered <- withdraw
	}()
	told := func() string {
		if why := src.why.Load(); why != nil {
			return *why
		}
		return ""
	}
	eventually(t, "the limit is told", func() bool { return strings.Contains(told(), "raise max_subscriptions") })
	if names := files(t, root); len(names) != 1 {
		t.Errorf("on record: %q", names)
	}
	url.Store(roomy.ClientURL())
	r.nats.lmu.Lock()
	r.nats.link.began = time.Time{} // long ago: it is given up for another, on which there is room
	r.nats.lmu.Unlock()
	eventually(t, "it is on record", func() bool { return len(registered) == 1 })
	defer (<-registered)()
	if why := told(); why != "" {
		t.Errorf("still: %s", why)
	}
	a := newNATSAsker(t, roomy.ClientURL())
	for _, subject := range []string{natsSubject, "dyn-amo_back%2Eend.worker_kv_query_source_def-5"} {
		eventually(t, subject, func() bool { return a.ask(subject, a.body(query{}), patience/10) })
	}
}
