package integration

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/kvrelay/kvrelay/consumer"
	"github.com/kvrelay/kvrelay/internal/freeport"
	"github.com/kvrelay/kvrelay/internal/mockengine"
	"github.com/kvrelay/kvrelay/sinks"
)

// natsWith is a nats-server with options of the test's own.
func natsWith(t *testing.T, o *server.Options) *server.Server {
	t.Helper()
	o.Host, o.NoSigs, o.NoLog = "127.0.0.1", true, true
	if o.Port == 0 {
		o.Port = freeport.Next(t, 1)
	}
	s, err := server.NewServer(o)
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	if !s.ReadyForConnections(patience) {
		t.Fatal("nats-server is not ready")
	}
	t.Cleanup(func() { stopNATS(s) })
	return s
}

// natsBed is a relay that has caught up with an engine.
func natsBed(t *testing.T, o bedOptions) (*bed, *bedRank) {
	t.Helper()
	b := newBed(t, rand.New(rand.NewPCG(7, 7)), o)
	b.alone = true
	b.router.allowRepeats()
	b.start()
	k := b.ranks[0]
	k.publish(20, 0)
	return b, k
}

// A subscriber that does not read is NATS's to get rid of; the relay and the
// other subscribers go on.
func TestFaultsSlowSubscriber(t *testing.T) {
	t.Parallel()
	s := natsWith(t, &server.Options{WriteDeadline: 500 * time.Millisecond, MaxPending: 4 << 20})
	b, k := natsBed(t, bedOptions{nats: s})
	k.settle()
	deaf, err := net.Dial("tcp", s.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer deaf.Close()
	if err := deaf.(*net.TCPConn).SetReadBuffer(4096); err != nil {
		t.Fatal(err)
	}
	before := s.NumSubscriptions()
	if _, err := fmt.Fprint(deaf, "CONNECT {\"verbose\":false}\r\nSUB > 1\r\nPING\r\n"); err != nil {
		t.Fatal(err)
	}
	if !eventually(patience, func() bool { return s.NumSubscriptions() > before }) {
		t.Fatal("NATS has not taken the subscription")
	}
	b.strikes("NATS drops the subscriber that does not read", func() bool {
		k.publish(100, .01)
		return s.NumSlowConsumers() > 0
	})
	k.settle()
	b.end()
}

// When its server ends the relay goes on at another one of the cluster.
func TestFaultsAnotherServerOfTheCluster(t *testing.T) {
	t.Parallel()
	first := natsWith(t, &server.Options{ServerName: "first", Cluster: server.ClusterOpts{Name: "c", Host: "127.0.0.1", Port: -1}})
	second := natsWith(t, &server.Options{
		ServerName: "second", Cluster: server.ClusterOpts{Name: "c", Host: "127.0.0.1", Port: -1},
		Routes: server.RoutesFromStr(fmt.Sprintf("nats://127.0.0.1:%d", first.ClusterAddr().Port)),
	})
	if !eventually(patience, func() bool { return first.NumRoutes() > 0 && second.NumRoutes() > 0 }) {
		t.Fatal("the two servers are no cluster")
	}
	b := newBed(t, rand.New(rand.NewPCG(7, 8)), bedOptions{nats: second}) // where the router is and stays
	b.router.allowRepeats()
	b.nats.SetTarget(first.Addr().String())
	routed(t, first, second)
	b.start()
	k := b.ranks[0]
	k.publish(20, 0)
	k.settle()
	stopNATS(first)
	k.publish(30, .1)
	k.settle()
	if st := b.relay.Status().Sink; st.Reconnects == 0 || !strings.Contains(st.Server, second.Addr().String()) {
		t.Errorf("the relay is not at the second server: %+v", st)
	}
	b.end()
}

// routed waits until what is published at one server reaches who has subscribed
// at the other: what was subscribed there earlier is then known as well.
func routed(t *testing.T, from, to *server.Server) {
	t.Helper()
	connect := func(s *server.Server) *nats.Conn {
		nc, err := nats.Connect(s.ClientURL(), nats.Timeout(patience))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(nc.Close)
		return nc
	}
	there, here := connect(to), connect(from)
	sub, err := there.SubscribeSync("probe")
	if err == nil {
		err = there.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
	if !eventually(patience, func() bool {
		if err := here.Publish("probe", nil); err != nil {
			t.Fatal(err)
		}
		_, err := sub.NextMsg(20 * time.Millisecond)
		return err == nil
	}) {
		t.Fatal("the two servers do not route to each other")
	}
}

// max_payload that shrinks under a live connection costs the connection; what
// was too large goes out in pieces.
func TestFaultsMaxPayloadShrinks(t *testing.T) {
	t.Parallel()
	o := &server.Options{MaxPayload: 1 << 20}
	s := natsWith(t, o)
	b, k := natsBed(t, bedOptions{nats: s})
	k.settle()
	small := o.Clone()
	small.MaxPayload = 4 << 10
	if err := s.ReloadOptions(small); err != nil {
		t.Fatal(err)
	}
	k.wide(2000)
	k.publish(5, .2)
	k.settle()
	if st := b.relay.Status().Sink; st.MaxPayload != 4<<10 || st.Split == 0 || st.TooLarge != 0 {
		t.Errorf("nothing was split: %+v", st)
	}
	b.end()
}

// wide publishes a store of n blocks.
func (k *bedRank) wide(n int) {
	k.w.pure = false // these are in no pool
	e := mockengine.Event{Kind: mockengine.Stored}
	for i := range n {
		e.Hashes = append(e.Hashes, uint64(1<<40+i))
		for j := range k.w.size {
			e.Tokens = append(e.Tokens, uint32(i*k.w.size+j))
		}
	}
	k.w.ts += 0.01
	payload := k.w.enc.Encode(nil, k.w.ts, []mockengine.Event{e})
	k.w.batches = append(k.w.batches, payload)
	k.put(payload, false)
}

// A server that refuses the credentials is tried again; nothing grows
// meanwhile, and nothing is missing when it lets us in.
func TestFaultsAuthFailure(t *testing.T) {
	t.Parallel()
	users := func(password string) []*server.User {
		return []*server.User{{Username: "router", Password: "router"}, {Username: "relay", Password: password}}
	}
	o := &server.Options{Users: users("old"), NoAuthUser: "router"}
	s := natsWith(t, o)
	b, k := natsBed(t, bedOptions{nats: s, auth: sinks.Auth{User: "relay", Password: "a-new-secret"}})
	b.strikes("NATS refuses", func() bool { return b.said("refuses the user or password") > 0 })
	k.publish(50, .1)
	if st := b.relay.Status(); st.Sink.Connected || st.Unconfirmed == 0 {
		t.Errorf("sink: %+v", st.Sink)
	}
	rotated := o.Clone()
	rotated.Users = users("a-new-secret")
	if err := s.ReloadOptions(rotated); err != nil {
		t.Fatal(err)
	}
	k.settle()
	b.end()
	if b.said("a-new-secret") > 0 {
		t.Error("the log has the password")
	}
}

// The whole server is killed for longer than OUT_BYTES lasts, and routers with
// it: package consumer gets back what they missed.
func TestFaultsNATSKilled(t *testing.T) {
	t.Parallel()
	o := bedOptions{nats: natsWith(t, &server.Options{})}
	smallOut(nil, &o)
	b, k := natsBed(t, o)
	port := o.nats.Addr().(*net.TCPAddr).Port
	nc, err := nats.Connect(o.nats.ClientURL(), nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond), nats.Timeout(patience),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {})) // silent about the outage
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	picture := consumer.NewPicture()
	c, err := consumer.New(consumer.Options{Conn: nc, Profile: b.form, OnEvent: picture.Apply})
	if err != nil {
		t.Fatal(err)
	}
	background(t, c.Run)
	same := func(when string) {
		t.Helper()
		k.mark(false)
		d := ""
		if !eventually(patience, func() bool {
			d = k.from(0).diff(heldBy(picture, k.id), nil)
			return d == ""
		}) {
			t.Fatalf("%s: %s; the consumer: %+v", when, d, c.Ranks())
		}
	}
	same("before")
	for range 2 {
		stopNATS(o.nats)
		k.fillOut()
		o.nats = natsWith(t, &server.Options{Port: port})
		same("after an outage")
	}
	if err := b.stop(); err != nil {
		t.Errorf("the relay ended with: %v", err)
	}
}
