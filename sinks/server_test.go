package sinks

import (
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/kvrelay/kvrelay/convert"
)

// TestReloadLowersMaxPayload: the server does not tell; the message that is
// too long now costs the link, and comes in pieces on the next.
func TestReloadLowersMaxPayload(t *testing.T) {
	s, reload := reloadable(t, nil)
	p := newTest(t, Options{Servers: []string{s.ClientURL()}})
	p.timing = quick
	o := open(t, p, 1, 0, nil)
	c := follow(t, connect(t, s.ClientURL()), o.Subject(), Dynamo)
	run(t, p)
	eventually(t, "a link", func() bool { return p.State().Connected })
	reload(func(o *server.Options) { o.MaxPayload = 4096 })
	e := convert.RouterEvent{Kind: convert.Stored, Blocks: make([]convert.Block, 2000)}
	for i := range e.Blocks {
		e.Blocks[i] = convert.Block{Hash: uint64(i + 1), TokensHash: uint64(i)}
	}
	want := fold{}
	want.apply(&e)
	o.Append(Place{}, []convert.RouterEvent{e})
	drained(t, p)
	arrived(t, c, o, want)
	if st := p.State(); st.MaxPayload != 4096 || st.Reconnects == 0 {
		t.Errorf("%+v", st)
	}
}

// TestOtherServer: when one of the servers goes, the next link is to the other.
func TestOtherServer(t *testing.T) {
	a, b := startServer(t, nil), startServer(t, nil)
	p := newTest(t, Options{Servers: []string{a.ClientURL(), b.ClientURL()}})
	p.timing = quick
	o := open(t, p, 1, 0, nil)
	run(t, p)
	o.Append(Place{}, newWorkload(1).events(5))
	drained(t, p)
	first := p.State().Server
	if first == a.ClientURL() {
		stopServer(a)
	} else {
		stopServer(b)
	}
	o.Append(Place{}, newWorkload(2).events(5))
	drained(t, p)
	if st := p.State(); st.Server == first || !st.Connected {
		t.Errorf("%+v", st)
	}
}

// TestCluster: a seed that goes for good leaves the rest of its cluster, with
// the credentials of the seed's URL.
func TestCluster(t *testing.T) {
	node := func(name string, routes []*url.URL) *server.Server {
		return startServer(t, func(o *server.Options) {
			o.ServerName = name
			o.Username, o.Password = "u", "p"
			o.Cluster = server.ClusterOpts{Name: "c", Host: "127.0.0.1", Port: server.RANDOM_PORT}
			o.Routes = routes
		})
	}
	a := node("a", nil)
	b := node("b", []*url.URL{{Scheme: "nats-route", Host: a.ClusterAddr().String()}})
	eventually(t, "the cluster", func() bool { return a.NumRoutes() > 0 && b.NumRoutes() > 0 })
	seed := strings.Replace(a.ClientURL(), "://", "://u:p@", 1)
	p := newTest(t, Options{Servers: []string{seed}})
	p.timing = quick
	o := open(t, p, 1, 0, nil)
	c := follow(t, connect(t, b.ClientURL(), nats.UserInfo("u", "p")), o.Subject(), Dynamo)
	eventually(t, "the subscription at the seed", func() bool { return a.GlobalAccount().Interest(o.Subject()) > 0 })
	run(t, p)
	want := fold{}
	evs := newWorkload(1).events(20)
	for i := range evs {
		want.apply(&evs[i])
	}
	o.Append(Place{}, evs[:10])
	drained(t, p)
	eventually(t, "the first half", func() bool { return c.lastOf(o.PublisherID()) == 10 })
	stopServer(a)
	o.Append(Place{}, evs[10:])
	drained(t, p)
	arrived(t, c, o, want)
	if st := p.State(); strings.TrimPrefix(st.Server, "nats://") != strings.TrimPrefix(b.ClientURL(), "nats://") {
		t.Errorf("connected to %q, want %q", st.Server, b.ClientURL())
	}
}

// TestRunEndsAtOnce also in the middle of a dial, a handshake or a write.
func TestRunEndsAtOnce(t *testing.T) {
	mute, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer mute.Close()
	s := startServer(t, nil)
	x := startProxy(t, s.Addr().String())
	for _, url := range []string{"nats://" + mute.Addr().String(), x.url()} {
		p := newTest(t, Options{Servers: []string{url}, Dial: smallBuffers}) // usual timing
		o := open(t, p, 1, 0, nil)
		stop := run(t, p)
		if url == x.url() {
			eventually(t, "a link", func() bool { return p.State().Connected })
			x.freeze()
			w := newWorkload(1)
			for range 10_000 {
				o.Append(Place{}, w.events(2))
			}
			eventually(t, "a full link", func() bool { return p.State().Envelopes > 0 })
		}
		start := time.Now()
		if err := stop(); err != nil {
			t.Error(err)
		}
		if d := time.Since(start); d > time.Second {
			t.Errorf("Run ended after %v", d)
		}
	}
}
