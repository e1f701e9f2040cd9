package sinks

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	reference "github.com/kvrelay/kvrelay/consumer"
	"github.com/kvrelay/kvrelay/decode"
)

// startRouter runs the reference consumer.
func startRouter(t testing.TB, nc *nats.Conn, o reference.Options) *router {
	t.Helper()
	x := &router{f: fold{}}
	o.Conn, o.OnEvent = nc, x.apply
	var err error
	if x.c, err = reference.New(o); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- x.c.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return x
}

// TestConsumersEndEqual: consumers that start late, are cut off, or lose
// messages, the last one before silence too, end with what is published.
func TestConsumersEndEqual(t *testing.T) {
	slots := make(chan struct{}, 8)
	for seed := range uint64(*seeds) {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			t.Parallel()
			slots <- struct{}{}
			defer func() { <-slots }()
			consumersEndEqual(t, seed)
		})
	}
}

func consumersEndEqual(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 5))
	pr := []Profile{Dynamo, JSON, DynamoSingle}[r.IntN(3)]
	s := startServer(t, func(o *server.Options) { o.MaxPayload = []int32{minMaxPayload, 4096, 1 << 20}[r.IntN(3)] })
	p := newTest(t, Options{Servers: []string{s.ClientURL()}, Profile: pr, RecentEvents: 20 + r.IntN(300)})
	p.timing = brisk
	k := openRank(t, p, 7, seed, 10+r.Uint64N(300))
	run(t, p)
	nc := connect(t, s.ClientURL())
	var routers []*router
	var lines []*lossy
	add := func() {
		l := &lossy{r: rand.New(rand.NewPCG(seed, uint64(len(lines)))), one: []int{0, 3, 20}[r.IntN(3)]}
		to := fmt.Sprintf("line%d.events", len(lines))
		l.start(t, nc, k.o.Subject(), to)
		lines = append(lines, l)
		routers = append(routers, startRouter(t, connect(t, s.ClientURL()), reference.Options{
			Profile: reference.Profile(pr), Namespace: "dynamo", Worker: 7, Subject: to,
		}))
	}
	add()
	end := time.Now().Add(time.Duration(500+r.IntN(1500)) * time.Millisecond)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for time.Now().Before(end) {
		<-tick.C
		for range r.IntN(3) {
			k.step(k.events())
		}
		switch r.IntN(100) {
		case 0:
			if len(lines) < 4 {
				add()
			}
		case 1:
			l := lines[r.IntN(len(lines))]
			l.set(0, r.IntN(2) == 0)
		}
	}
	for _, l := range lines { // the last ones before silence
		l.set(0, r.IntN(3) > 0)
	}
	for range 1 + r.IntN(3) {
		k.step(k.events())
	}
	drained(t, p)
	want := k.published()
	for i, x := range routers {
		eventually(t, fmt.Sprintf("router %d as published (%d blocks): %+v", i, len(want), x.c.Ranks()), func() bool { return maps.Equal(x.state(), want) })
	}
	if k.most > chunkBlocks {
		t.Errorf("%d blocks under one lock", k.most)
	}
}

// ask asks and returns the answer.
func ask(t testing.TB, nc *nats.Conn, subject string, q any) *nats.Msg {
	t.Helper()
	b, ok := q.([]byte)
	if !ok {
		var err error
		if b, err = json.Marshal(q); err != nil {
			t.Fatal(err)
		}
	}
	m, err := nc.Request(subject, b, patience)
	if err != nil {
		t.Fatalf("asking %s: %v", b, err)
	}
	return m
}

type obj = map[string]any

// served waits until the rank's service answers.
func served(t testing.TB, nc *nats.Conn, subject string) {
	t.Helper()
	eventually(t, "the recovery service", func() bool {
		m, err := nc.Request(subject, nil, patience)
		return err == nil && m.Header.Get("Nats-Service-Error-Code") == ""
	})
}

func TestRecoveryAnswers(t *testing.T) {
	s := startServer(t, nil)
	p := newTest(t, Options{Servers: []string{s.ClientURL()}, RecentEvents: 100})
	p.timing = brisk
	k := openRank(t, p, 7, 1, 50)
	run(t, p)
	nc := connect(t, s.ClientURL())
	const subject = "kvrelay.dynamo.7.0.recover"
	served(t, nc, subject)
	for k.o.LastID() < 300 {
		k.step(k.events())
	}
	drained(t, p)
	pub, last := k.o.PublisherID(), k.o.LastID()
	code := func(want string, q any) {
		t.Helper()
		m := ask(t, nc, subject, q)
		if got := m.Header.Get("Nats-Service-Error-Code"); got != want {
			t.Errorf("%v: code %q, want %q", q, got, want)
		}
		if m.Header.Get("Kvrelay-Publisher") != strconv.FormatUint(pub, 10) {
			t.Errorf("%v: no publisher", q)
		}
	}
	kind := func(want string, q any) *nats.Msg {
		t.Helper()
		m := ask(t, nc, subject, q)
		if got := m.Header.Get("Kvrelay-Kind"); got != want {
			t.Errorf("%v: kind %q, want %q (%v)", q, got, want, m.Header)
		}
		return m
	}
	code("400", []byte("{"))
	code("400", []byte(`[1]`))
	code("400", []byte(" null\n"))
	code("400", make([]byte, maxRequest+1))
	code("400", obj{"snapshot": "x"})
	code("400", obj{"part": 1})
	code("400", obj{"snapshot": "x", "part": -1})
	code("404", obj{"snapshot": "x", "part": 0})
	m := kind("events", obj{"publisher_id": pub, "from": last + 1})
	if m.Header.Get("Kvrelay-Last") != strconv.FormatUint(last, 10) || m.Header.Get("Kvrelay-More") != "false" || len(m.Data) != 1 {
		t.Errorf("behind the newest: %v %x", m.Header, m.Data)
	}
	m = kind("events", obj{"publisher_id": pub, "from": last - 9})
	if evs, err := reference.ParseEvents("", m.Data); err != nil || len(evs) != 10 || evs[0].ID != last-9 || evs[9].ID != last {
		t.Errorf("the last ten: %v, %v", evs, err)
	}
	kind("snapshot", obj{"publisher_id": pub, "from": 1})
	kind("snapshot", obj{"publisher_id": pub, "from": last + 2})
	kind("snapshot", obj{"publisher_id": pub})
	kind("snapshot", obj{"publisher_id": pub + 1, "from": last})
	m = kind("snapshot", []byte{})
	token := m.Header.Get("Kvrelay-Snapshot")
	code("400", obj{"snapshot": token, "part": 99})
	kind("snapshot", obj{"snapshot": token, "part": 0}) // may be asked again
	m = kind("snapshot", obj{"snapshot": token, "part": 1})
	if m.Header.Get("Kvrelay-Done") != strconv.FormatUint(last, 10) || m.Header.Get("Kvrelay-More") != "false" {
		t.Errorf("the last part: %v", m.Header)
	}
	for k.o.LastID() < last+200 { // the ring loses what the snapshot needs
		k.step(k.events())
	}
	drained(t, p)
	code("404", obj{"snapshot": token, "part": 1})
	k.mu.Lock()
	k.rebuild = true
	k.mu.Unlock()
	code("503", obj{"publisher_id": pub, "from": 1})
}

// TestMicroSeesIt: info and stats, as the nats command asks for them.
func TestMicroSeesIt(t *testing.T) {
	s := startServer(t, nil)
	p := newTest(t, Options{Servers: []string{s.ClientURL()}, Version: "1.2.3"})
	p.timing = brisk
	openRank(t, p, 7, 1, 50)
	run(t, p)
	nc := connect(t, s.ClientURL())
	served(t, nc, "kvrelay.dynamo.7.0.recover")
	var info micro.Info
	m, err := nc.Request("$SRV.INFO.kvrelay", nil, patience)
	if err == nil {
		err = json.Unmarshal(m.Data, &info)
	}
	if err != nil || info.Version != "1.2.3" || len(info.Endpoints) != 1 || info.Endpoints[0].Subject != "kvrelay.dynamo.7.0.recover" {
		t.Errorf("%+v, %v", info, err)
	}
	var stats micro.Stats
	m, err = nc.Request("$SRV.STATS.kvrelay", nil, patience)
	if err == nil {
		err = json.Unmarshal(m.Data, &stats)
	}
	if err != nil || len(stats.Endpoints) != 1 || stats.Endpoints[0].NumRequests == 0 {
		t.Errorf("%+v, %v", stats, err)
	}
}

// readSnapshot reads a whole snapshot, and returns what it says, the id that it
// is exact as of, and its parts. between is called before each part but the first.
func readSnapshot(t testing.TB, nc *nats.Conn, subject string, between func()) (f fold, done uint64, parts int) {
	t.Helper()
	x := &router{f: fold{}}
	m := ask(t, nc, subject, obj{})
	token := m.Header.Get("Kvrelay-Snapshot")
	for {
		if c := m.Header.Get("Nats-Service-Error-Code"); c != "" {
			t.Fatalf("part %d: %s %s", parts, c, m.Header.Get("Nats-Service-Error"))
		}
		if int64(len(m.Data)) > nc.MaxPayload() {
			t.Fatalf("%d bytes", len(m.Data))
		}
		evs, err := reference.ParseEvents("", m.Data)
		if err != nil {
			t.Fatal(err)
		}
		for i := range evs {
			x.apply(&evs[i])
		}
		parts++
		if m.Header.Get("Kvrelay-More") != "true" {
			break
		}
		if between != nil {
			between()
		}
		m = ask(t, nc, subject, obj{"snapshot": token, "part": parts})
	}
	done, err := strconv.ParseUint(m.Header.Get("Kvrelay-Done"), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return x.f, done, parts
}

// TestSnapshotUnderChange: a snapshot read while everything changes is exact.
func TestSnapshotUnderChange(t *testing.T) {
	for seed := range uint64(10) {
		r := rand.New(rand.NewPCG(seed, 5))
		pr := []Profile{Dynamo, JSON}[seed%2]
		s := startServer(t, func(o *server.Options) { o.MaxPayload = []int32{1024, 4096, 1 << 16}[r.IntN(3)] })
		p := newTest(t, Options{Servers: []string{s.ClientURL()}, Profile: pr})
		p.timing = brisk
		k := openRank(t, p, 7, seed, 3000)
		for range 1000 {
			k.step(k.events())
		}
		stop := run(t, p)
		nc := connect(t, s.ClientURL())
		served(t, nc, "kvrelay.dynamo.7.0.recover")
		got, done, _ := readSnapshot(t, nc, "kvrelay.dynamo.7.0.recover", func() {
			if r.IntN(3) == 0 {
				k.step(k.events())
			}
		})
		if done != k.o.LastID() {
			t.Errorf("seed %d: done %d, newest %d", seed, done, k.o.LastID())
		}
		if want := k.published(); !maps.Equal(got, want) {
			t.Errorf("seed %d: the snapshot has %d blocks, published are %d", seed, len(got), len(want))
		}
		stop()
	}
}

// TestLargeSnapshot: a million blocks under both usual limits, 1024 a lock at most.
func TestLargeSnapshot(t *testing.T) {
	blocks := uint64(100_000)
	if *seeds >= 200 {
		blocks = 1_000_000
	}
	for _, limit := range []int32{64 << 10, 1 << 20} {
		s := startServer(t, func(o *server.Options) { o.MaxPayload = limit })
		p := newTest(t, Options{Servers: []string{s.ClientURL()}, RecentEvents: 10})
		p.timing = brisk
		k := openRank(t, p, 7, 1, blocks)
		stop := run(t, p)
		for h := uint64(1); h <= blocks; h += 1000 {
			e := decode.Event{}
			for i := range uint64(1000) {
				e.Hashes = append(e.Hashes, h+i)
			}
			k.step([]decode.Event{store(e)})
			if h%10_000 == 1 {
				drained(t, p)
			}
		}
		drained(t, p)
		nc := connect(t, s.ClientURL())
		served(t, nc, "kvrelay.dynamo.7.0.recover")
		k.mu.Lock()
		k.walks = 0
		k.mu.Unlock()
		got, done, parts := readSnapshot(t, nc, "kvrelay.dynamo.7.0.recover", nil)
		if want := k.published(); done != k.o.LastID() || !maps.Equal(got, want) {
			t.Errorf("%d blocks of %d", len(got), len(want))
		}
		if k.most > chunkBlocks || k.walks > 4*parts {
			t.Errorf("%d blocks under one lock, %d locks for %d parts", k.most, k.walks, parts)
		}
		t.Logf("%d blocks under %d bytes: %d parts, %d reads", blocks, limit, parts, k.walks)
		stop()
	}
}

// TestTokensAreFew: the ninth snapshot at once is refused, until one's log is too old.
func TestTokensAreFew(t *testing.T) {
	s := startServer(t, nil)
	p := newTest(t, Options{Servers: []string{s.ClientURL()}, RecentEvents: 1000})
	p.timing = brisk
	p.timing.token = time.Minute
	k := openRank(t, p, 7, 1, 50)
	run(t, p)
	nc := connect(t, s.ClientURL())
	const subject = "kvrelay.dynamo.7.0.recover"
	served(t, nc, subject)
	tokens := map[string]bool{}
	token := func() *nats.Msg { return ask(t, nc, subject, obj{}) }
	for range maxTokens {
		m := token()
		if tokens[m.Header.Get("Kvrelay-Snapshot")] {
			t.Fatal("an old token for a new asker")
		}
		tokens[m.Header.Get("Kvrelay-Snapshot")] = true
		if got := token().Header.Get("Kvrelay-Snapshot"); !tokens[got] {
			t.Fatal("a young snapshot is not shared")
		}
		for first := k.o.LastID(); k.o.LastID() < first+500; {
			k.step(k.events())
		}
		drained(t, p)
		// Keep all logs at hand: the ring holds 1000 confirmed events, so only two snapshots live.
		if len(tokens) > 2 {
			break
		}
	}
	if c := token().Header.Get("Nats-Service-Error-Code"); c != "" {
		t.Errorf("dead snapshots take room: %s", c)
	}
}
