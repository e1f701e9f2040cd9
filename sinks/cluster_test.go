package sinks

import (
	"fmt"
	"maps"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	reference "github.com/kvrelay/kvrelay/consumer"
	"github.com/kvrelay/kvrelay/decode"
	"github.com/kvrelay/kvrelay/internal/freeport"
)

// TestClusterNodes: each node of three goes in turn, in the middle of publishing.
func TestClusterNodes(t *testing.T) {
	var nodes []*server.Server
	var opts []*server.Options
	node := func(i int) *server.Server {
		srv, err := server.NewServer(opts[i].Clone())
		if err != nil {
			t.Fatal(err)
		}
		srv.Start()
		t.Cleanup(func() { stopServer(srv) })
		return srv
	}
	var routes []*url.URL
	ports := freeport.Next(t, 6)
	for i := range 3 {
		port := ports + 3 + i
		opts = append(opts, &server.Options{Host: "127.0.0.1", Port: ports + i, NoSigs: true, NoLog: true, ServerName: fmt.Sprint("n", i),
			JetStream: true, StoreDir: t.TempDir(), Cluster: server.ClusterOpts{Name: "c", Host: "127.0.0.1", Port: port}})
		routes = append(routes, &url.URL{Scheme: "nats-route", Host: fmt.Sprint("127.0.0.1:", port)})
	}
	for i := range opts {
		opts[i].Routes = routes
		nodes = append(nodes, node(i))
	}
	// Votes are split again and again on a machine that is busy.
	elected := time.Now().Add(4 * patience)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !nodes[0].JetStreamIsLeader() && !nodes[1].JetStreamIsLeader() && !nodes[2].JetStreamIsLeader() {
		if time.Now().After(elected) {
			t.Fatal("no meta leader")
		}
		<-tick.C
	}
	var urls []string
	for _, n := range nodes {
		urls = append(urls, n.ClientURL())
	}
	nc, err := nats.Connect(strings.Join(urls, ","), nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	cfg := jetstream.StreamConfig{Name: "KVRELAY", Subjects: []string{"kvrelay.*.*.*.events"}, Replicas: 3}
	eventually(t, "the stream", func() bool { _, err := js.CreateOrUpdateStream(t.Context(), cfg); return err == nil })
	p := newTest(t, Options{Kind: JetStream, Servers: urls, CreateStream: true})
	p.timing = brisk
	k := openRank(t, p, 7, 1, 200)
	run(t, p)
	for i := range nodes {
		for range 50 {
			k.step(k.events())
		}
		stopServer(nodes[i])
		for range 50 {
			k.step(k.events())
		}
		nodes[i] = node(i)
		drained(t, p)
		eventually(t, "all three nodes", func() bool {
			s, err := js.Stream(t.Context(), "KVRELAY")
			if err != nil || s.CachedInfo().Cluster == nil || s.CachedInfo().Cluster.Leader == "" || len(s.CachedInfo().Cluster.Replicas) != 2 {
				return false
			}
			for _, r := range s.CachedInfo().Cluster.Replicas {
				if !r.Current {
					return false
				}
			}
			return true
		})
	}
	f, ids := stored(t, js, "KVRELAY")
	contiguous(t, ids, 1)
	if !maps.Equal(f, k.published()) || uint64(len(ids)) != k.o.LastID() {
		t.Errorf("%d events of %d", len(ids), k.o.LastID())
	}
}

// TestHugeStore: one store of 100 000 blocks under 64 KiB arrives chained and complete.
func TestHugeStore(t *testing.T) {
	for _, kind := range []Kind{NATS, JetStream} {
		s := streamServer(t, func(o *server.Options) { o.MaxPayload = 64 << 10 })
		p := newTest(t, Options{Kind: kind, Servers: []string{s.ClientURL()}, CreateStream: true})
		p.timing = brisk
		k := openRank(t, p, 7, 1, 10)
		x := startRouter(t, connect(t, s.ClientURL()), reference.Options{
			Namespace: "dynamo", Worker: 7, JetStream: map[Kind]string{JetStream: "KVRELAY"}[kind],
		})
		run(t, p)
		e := decode.Event{}
		for h := range uint64(100_000) {
			e.Hashes = append(e.Hashes, h+1)
		}
		k.step([]decode.Event{store(e)})
		drained(t, p)
		want := k.published()
		if len(want) != 100_000 {
			t.Fatalf("%d blocks published", len(want))
		}
		eventually(t, fmt.Sprint(kind, ": all blocks"), func() bool {
			x.mu.Lock()
			defer x.mu.Unlock()
			return len(x.f) == len(want)
		})
		if !maps.Equal(x.state(), want) {
			t.Errorf("%v: the blocks are chained otherwise", kind)
		}
	}
}
