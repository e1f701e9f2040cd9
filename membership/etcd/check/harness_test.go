package check

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/kvrelay/kvrelay/internal/freeport"
	"github.com/kvrelay/kvrelay/membership/etcd"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	// patience is how long anything may take before a test gives up on it.
	patience = time.Minute
	// short is a lease for tests that wait until it ends.
	short = 3 * time.Second
	// slack is what a busy machine and etcd's own clock add to a lease.
	slack = 5 * time.Second
)

// eventually waits until ok.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); !ok(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

// during checks ok again and again for so long.
func during(t testing.TB, d time.Duration, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(d); time.Now().Before(end); <-tick.C {
		if !ok() {
			t.Fatalf("not: %s", what)
		}
	}
}

// server is an etcd of one member, in this process.
type server struct {
	t      testing.TB
	config func(*embed.Config)
	dir    string
	scheme string
	addr   string // of clients
	peer   string
	etcd   *embed.Etcd // nil: it is down
}

func newServer(t testing.TB, config ...func(*embed.Config)) *server {
	t.Helper()
	s := &server{t: t, dir: t.TempDir(), scheme: "http", addr: freeport.Addr(t), peer: freeport.Addr(t)}
	s.config = func(c *embed.Config) {
		for _, f := range config {
			f(c)
		}
	}
	c := embed.NewConfig()
	s.config(c)
	if !c.ClientTLSInfo.Empty() {
		s.scheme = "https"
	}
	s.start()
	t.Cleanup(s.stop)
	return s
}

func (s *server) url() string { return s.scheme + "://" + s.addr }

func (s *server) start() {
	s.t.Helper()
	c := embed.NewConfig()
	client, peer := []url.URL{{Scheme: s.scheme, Host: s.addr}}, []url.URL{{Scheme: "http", Host: s.peer}}
	c.Dir, c.LogLevel, c.UnsafeNoFsync = s.dir, "fatal", true
	c.ListenClientUrls, c.AdvertiseClientUrls, c.ListenPeerUrls, c.AdvertisePeerUrls = client, client, peer, peer
	c.InitialCluster = c.InitialClusterFromName(c.Name)
	s.config(c)
	e, err := embed.StartEtcd(c)
	if err != nil {
		s.t.Fatal(err)
	}
	s.etcd = e
	select {
	case <-e.Server.ReadyNotify():
	case err := <-e.Err():
		s.t.Fatal(err)
	case <-time.After(patience):
		s.t.Fatal("etcd does not start")
	}
}

func (s *server) stop() {
	if s.etcd != nil {
		s.etcd.Close()
		s.etcd = nil
	}
}

// forget removes the data of a server that is down.
func (s *server) forget() {
	s.t.Helper()
	if err := os.RemoveAll(s.dir); err != nil {
		s.t.Fatal(err)
	}
}

// client looks at the server past whatever is between it and the store.
func (s *server) client() *clientv3.Client {
	s.t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{s.addr}, Logger: zap.NewNop(), DialTimeout: patience})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = c.Close() })
	return c
}

// entry is a key in etcd.
type entry struct {
	value  string
	lease  clientv3.LeaseID
	create int64 // the revision that made it
}

// get reads a key; ok is false when it is not there.
func get(t testing.TB, c *clientv3.Client, key string) (e entry, ok bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	a, err := c.Get(ctx, key)
	if err != nil {
		t.Fatal(err)
	}
	if len(a.Kvs) == 0 {
		return entry{}, false
	}
	kv := a.Kvs[0]
	return entry{string(kv.Value), clientv3.LeaseID(kv.Lease), kv.CreateRevision}, true
}

func leases(t testing.TB, c *clientv3.Client) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	a, err := c.Leases(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return len(a.Leases)
}

// diary is a log to look into.
type diary struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (d *diary) Write(b []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.b.Write(b)
}

func (d *diary) count(text string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return strings.Count(d.b.String(), text)
}

func (d *diary) logger() *slog.Logger { return slog.New(slog.NewTextHandler(d, nil)) }

// store is one for an endpoint, and its log.
func store(t testing.TB, endpoint string, change ...func(*etcd.Options)) (*etcd.Store, *diary) {
	t.Helper()
	d := &diary{}
	o := etcd.Options{Endpoints: []string{endpoint}, Log: d.logger()}
	for _, f := range change {
		f(&o)
	}
	s, err := etcd.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the store's log:\n%s", d.b.String())
		}
	})
	return s, d
}

func lasting(d time.Duration) func(*etcd.Options) { return func(o *etcd.Options) { o.Lease = d } }

// running runs a store until the test ends, or crash is called.
func running(t testing.TB, s *etcd.Store) (crash func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); s.Run(ctx) }()
	crash = sync.OnceFunc(func() { cancel(); <-done })
	t.Cleanup(crash)
	return crash
}

func put(t testing.TB, s *etcd.Store, key, value string) {
	t.Helper()
	if err := s.Put(t.Context(), key, []byte(value)); err != nil {
		t.Fatal(err)
	}
}

// link is a way to a server that can be blocked: connections stay, and nothing
// passes.
type link struct {
	ln     net.Listener
	target string
	delay  time.Duration // of what passes, each way
	wg     sync.WaitGroup

	mu      sync.Mutex
	open    chan struct{} // closed while the link passes
	blocked bool
	conns   []net.Conn
	ended   bool
}

func newLink(t testing.TB, target string, delay ...time.Duration) *link {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &link{ln: ln, target: target, open: make(chan struct{})}
	if len(delay) > 0 {
		l.delay = delay[0]
	}
	close(l.open)
	l.wg.Go(l.accept)
	t.Cleanup(func() {
		ln.Close()
		l.mu.Lock()
		l.ended = true
		if l.blocked {
			close(l.open)
		}
		for _, c := range l.conns {
			c.Close()
		}
		l.mu.Unlock()
		l.wg.Wait()
	})
	return l
}

func (l *link) url() string { return "http://" + l.ln.Addr().String() }

func (l *link) block(on bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if on == l.blocked {
		return
	}
	if l.blocked = on; on {
		l.open = make(chan struct{})
	} else {
		close(l.open)
	}
}

func (l *link) accept() {
	for {
		in, err := l.ln.Accept()
		if err != nil {
			return
		}
		if !l.add(in) {
			return
		}
		l.wg.Go(func() {
			defer in.Close()
			l.pass()
			out, err := net.Dial("tcp", l.target)
			if err != nil || !l.add(out) {
				return
			}
			defer out.Close()
			var both sync.WaitGroup
			both.Go(func() { l.pipe(out, in) })
			both.Go(func() { l.pipe(in, out) })
			both.Wait()
		})
	}
}

func (l *link) add(c net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		c.Close()
		return false
	}
	l.conns = append(l.conns, c)
	return true
}

// pass waits while the link is blocked.
func (l *link) pass() {
	l.mu.Lock()
	open := l.open
	l.mu.Unlock()
	<-open
}

func (l *link) pipe(to, from net.Conn) {
	defer to.Close()
	defer from.Close()
	b := make([]byte, 1<<16)
	for {
		n, err := from.Read(b)
		l.pass()
		time.Sleep(l.delay)
		if _, werr := to.Write(b[:n]); err != nil || werr != nil {
			return
		}
	}
}

var _ io.Writer = (*diary)(nil)

// holds fails unless err's text has all of these, and none of the secrets.
func holds(t testing.TB, what string, err error, texts ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("%s: no error", what)
		return
	}
	if i := slices.IndexFunc(texts, func(x string) bool { return !strings.Contains(err.Error(), x) }); i >= 0 {
		t.Errorf("%s: %q is not in: %v", what, texts[i], err)
	}
	if strings.Contains(err.Error(), secret) {
		t.Errorf("%s: the password is in: %v", what, err)
	}
}

const secret = "hunter2"
