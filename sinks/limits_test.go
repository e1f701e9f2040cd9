package sinks

import (
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
)

// says waits until the state's trouble has all of the texts.
func says(t *testing.T, p *Publisher, want ...string) {
	t.Helper()
	eventually(t, strings.Join(want, ", "), func() bool {
		for _, w := range want {
			if !strings.Contains(p.State().LastError, w) {
				return false
			}
		}
		return true
	})
}

// TestMaxConnections: a server that is full is told of as such, at the first
// connection and at a later one, and what waits goes out when there is room.
func TestMaxConnections(t *testing.T) {
	s, reload := reloadable(t, func(o *server.Options) { o.MaxConn = 1 })
	nc := connect(t, s.ClientURL())
	p := newTest(t, Options{Servers: []string{s.ClientURL()}})
	p.timing = quick
	o := open(t, p, 1, 0, nil)
	c := follow(t, nc, o.Subject(), Dynamo)
	run(t, p)
	w, want := newWorkload(1), fold{}
	add := func() {
		evs := w.events(50)
		for i := range evs {
			want.apply(&evs[i])
		}
		o.Append(Place{}, evs)
	}
	add()
	says(t, p, "takes no more connections", "raise max_connections")
	reload(func(o *server.Options) { o.MaxConn = 10 })
	drained(t, p)
	arrived(t, c, o, want)
	nc.Close()
	reload(func(o *server.Options) { o.MaxConn = -1 }) // none
	add()
	says(t, p, "takes no more connections", "raise max_connections")
	reload(func(o *server.Options) { o.MaxConn = 10 })
	drained(t, p)
}

// TestFullServerAtOnce: a full server closes right behind its reason, so that the login
// fails before nats.go reads that. It is the reason that is told, each time.
func TestFullServerAtOnce(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	t.Cleanup(func() { _ = l.Close(); wg.Wait() })
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte("INFO {\"server_id\":\"X\",\"max_payload\":1048576}\r\n-ERR 'maximum connections exceeded'\r\n"))
			_ = c.Close()
		}
	})
	var log logLines
	p := newTest(t, Options{Servers: []string{"nats://" + l.Addr().String()}, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	p.timing = quick
	stop := run(t, p)
	eventually(t, "many tries", func() bool { return p.failures.Load() > 30 })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	for _, line := range log.lines() {
		if strings.Contains(line, "level=WARN") && !strings.Contains(line, "raise max_connections") {
			t.Error(line)
		}
	}
}

// TestLameDuck: a server that is about to go hands its link to another, in order.
func TestLameDuck(t *testing.T) {
	node := func(name string, routes []*url.URL) *server.Server {
		return startServer(t, func(o *server.Options) {
			o.ServerName = name
			o.Cluster = server.ClusterOpts{Name: "c", Host: "127.0.0.1", Port: server.RANDOM_PORT}
			o.Routes = routes
			o.LameDuckDuration, o.LameDuckGracePeriod = 200*time.Millisecond, -20*time.Millisecond
		})
	}
	a := node("a", nil)
	b := node("b", []*url.URL{{Scheme: "nats-route", Host: a.ClusterAddr().String()}})
	eventually(t, "the cluster", func() bool { return a.NumRoutes() > 0 && b.NumRoutes() > 0 })
	p := newTest(t, Options{Servers: []string{a.ClientURL()}})
	p.timing = brisk
	k := openRank(t, p, 7, 1, 200)
	nc := connect(t, b.ClientURL())
	c := follow(t, nc, k.o.Subject(), Dynamo)
	eventually(t, "the subscription at the seed", func() bool { return a.GlobalAccount().Interest(k.o.Subject()) > 0 })
	run(t, p)
	served(t, nc, "kvrelay.dynamo.7.0.recover")
	gone := make(chan struct{})
	go func() { defer close(gone); a.LameDuckShutdown() }()
	for over := false; !over; {
		k.step(k.events())
		select {
		case <-gone:
			over = true
		case <-time.After(5 * time.Millisecond):
		}
	}
	k.step(k.events())
	drained(t, p)
	arrived(t, c, k.o, k.published())
	served(t, nc, "kvrelay.dynamo.7.0.recover")
}

// operator is a server whose accounts and users are JWTs.
type operator struct {
	t       *testing.T
	s       *server.Server
	account *jwt.AccountClaims
	key     nkeys.KeyPair // signs accounts
	acc     nkeys.KeyPair // signs users
}

func newOperator(t *testing.T, limit func(*jwt.AccountClaims)) *operator {
	t.Helper()
	x := &operator{t: t}
	x.key, x.acc = x.pair(nkeys.CreateOperator()), x.pair(nkeys.CreateAccount())
	x.account = jwt.NewAccountClaims(x.public(x.acc))
	limit(x.account)
	r := &server.MemAccResolver{}
	if err := r.Store(x.public(x.acc), x.sign(x.account)); err != nil {
		t.Fatal(err)
	}
	x.s = startServer(t, func(o *server.Options) {
		o.TrustedKeys, o.AccountResolver = []string{x.public(x.key)}, r
	})
	return x
}

func (x *operator) pair(k nkeys.KeyPair, err error) nkeys.KeyPair {
	x.t.Helper()
	if err != nil {
		x.t.Fatal(err)
	}
	return k
}

func (x *operator) public(k nkeys.KeyPair) string {
	x.t.Helper()
	p, err := k.PublicKey()
	if err != nil {
		x.t.Fatal(err)
	}
	return p
}

func (x *operator) sign(c *jwt.AccountClaims) string {
	x.t.Helper()
	s, err := c.Encode(x.key)
	if err != nil {
		x.t.Fatal(err)
	}
	return s
}

// update changes the account while the server runs.
func (x *operator) update(change func(*jwt.AccountClaims)) {
	x.t.Helper()
	change(x.account)
	x.sign(x.account)
	acc, err := x.s.LookupAccount(x.public(x.acc))
	if err != nil {
		x.t.Fatal(err)
	}
	x.s.UpdateAccountClaims(acc, x.account)
}

// creds writes a user's credentials that end at end; zero: never.
func (x *operator) creds(path string, end time.Time) {
	x.t.Helper()
	user := x.pair(nkeys.CreateUser())
	c := jwt.NewUserClaims(x.public(user))
	if !end.IsZero() {
		c.Expires = end.Unix()
	}
	token, err := c.Encode(x.acc)
	if err != nil {
		x.t.Fatal(err)
	}
	seed, err := user.Seed()
	if err != nil {
		x.t.Fatal(err)
	}
	b, err := jwt.FormatUserConfig(token, seed)
	if err != nil {
		x.t.Fatal(err)
	}
	if err := os.WriteFile(path+".new", b, 0o600); err != nil {
		x.t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		x.t.Fatal(err)
	}
}

// TestCredentialsEnd: credentials that end cost the link; it is said that they
// have ended, not only that they are refused, and new ones are taken up.
func TestCredentialsEnd(t *testing.T) {
	t.Parallel() // they end after three to four seconds
	x := newOperator(t, func(*jwt.AccountClaims) {})
	path := filepath.Join(t.TempDir(), "relay.creds")
	end := time.Now().Add(4 * time.Second)
	x.creds(path, end)
	var log logLines
	p := newTest(t, Options{Servers: []string{x.s.ClientURL()}, Auth: Auth{CredsFile: path}, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	p.timing = quick
	o := open(t, p, 1, 0, nil)
	run(t, p)
	o.Append(Place{}, newWorkload(1).events(5))
	drained(t, p)
	says(t, p, "refuses the credentials in KVRELAY_NATS_CREDS_FILE "+path+", which ended at "+end.UTC().Truncate(time.Second).Format(time.RFC3339), "put new ones there")
	o.Append(Place{}, newWorkload(2).events(5))
	x.creds(path, time.Time{})
	drained(t, p)
	if text := strings.Join(log.lines(), "\n"); strings.Contains(text, "SUAA") || strings.Count(text, "level=WARN") > 2 {
		t.Error(text)
	}
}

// TestAccountLimits of connections and subscriptions, and their lifting.
func TestAccountLimits(t *testing.T) {
	x := newOperator(t, func(a *jwt.AccountClaims) { a.Limits.Conn = 1 })
	path := filepath.Join(t.TempDir(), "relay.creds")
	x.creds(path, time.Time{})
	nc := connect(t, x.s.ClientURL(), nats.UserCredentials(path))
	var log logLines
	p := newTest(t, Options{Servers: []string{x.s.ClientURL()}, Auth: Auth{CredsFile: path}, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	p.timing = brisk
	k := openRank(t, p, 7, 1, 200)
	run(t, p)
	says(t, p, "takes no more connections of this account", "raise the account's limit")
	x.update(func(a *jwt.AccountClaims) { a.Limits.Conn, a.Limits.Subs = 10, 1 })
	drained(t, p)
	eventually(t, "the subscriptions told of", func() bool {
		return strings.Contains(strings.Join(log.lines(), "\n"), "takes no more subscriptions")
	})
	x.update(func(a *jwt.AccountClaims) { a.Limits.Subs = jwt.NoLimit })
	nc.Close() // its limit was that of its beginning
	nc = connect(t, x.s.ClientURL(), nats.UserCredentials(path))
	served(t, nc, "kvrelay.dynamo.7.0.recover")
	k.step(k.events())
	drained(t, p)
}

// TestSubscriptionsAllowedLater: heartbeats are heard, and the recovery service is
// there, once they may be, though the server does not tell.
func TestSubscriptionsAllowedLater(t *testing.T) {
	s, reload := reloadable(t, func(o *server.Options) { o.Users = deafening("kvrelay.*.*.*.recover") })
	var log logLines
	p := newTest(t, Options{Servers: []string{s.ClientURL()}, Auth: Auth{User: "u", Password: "p"}, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	p.timing = brisk
	k := openRank(t, p, 7, 1, 200)
	nc := connect(t, s.ClientURL(), nats.UserInfo("reader", "p"))
	run(t, p)
	k.step(k.events())
	drained(t, p)
	eventually(t, "the refusal", func() bool { return strings.Contains(strings.Join(log.lines(), "\n"), "kvrelay.dynamo.7.0.recover") })
	reload(func(o *server.Options) { o.Users = deafening("nothing") })
	served(t, nc, "kvrelay.dynamo.7.0.recover")
	// What is allowed stays on its link; $SRV alone is not worth another.
	reload(func(o *server.Options) { o.Users = deafening("$SRV.>") })
	k.step(k.events())
	drained(t, p)
	total := func() uint64 {
		v, err := s.Varz(nil)
		if err != nil {
			t.Fatal(err)
		}
		return v.TotalConnections
	}
	n := total()
	heard := beats(t, nc)
	eventually(t, "ten heartbeats", func() bool { return len(heard()) > 10 })
	if m := total(); m != n {
		t.Errorf("%d new connections", m-n)
	}
}

// TestAnswersAllowedLater: a stream's answers that may not be heard for a while
// are heard again when they may.
func TestAnswersAllowedLater(t *testing.T) {
	t.Parallel() // the silence takes five seconds
	s, reload := reloadable(t, func(o *server.Options) {
		o.JetStream, o.StoreDir, o.NoSystemAccount = true, t.TempDir(), false
		o.Users = deafening("nothing")
	})
	p := newStreamTest(t, s, Options{Auth: Auth{User: "u", Password: "p"}})
	k := openRank(t, p, 7, 1, 200)
	run(t, p)
	k.step(k.events())
	drained(t, p)
	reload(func(o *server.Options) { o.Users = deafening("_INBOX.>") })
	k.step(k.events())
	says(t, p, "does not let the user or password subscribe", "_INBOX")
	reload(func(o *server.Options) { o.Users = deafening("nothing") })
	drained(t, p)
}
