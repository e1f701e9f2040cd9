package sinks

import (
	"context"
	"maps"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/kvrelay/kvrelay/convert"
)

// quick is a timing for tests that break links.
var quick = timing{dial: time.Second, write: 300 * time.Millisecond, ping: 200 * time.Millisecond,
	minBackoff: 2 * time.Millisecond, maxBackoff: 50 * time.Millisecond, deaf: 100 * time.Millisecond}

// feed appends random events to o until stop is closed and returns their fold.
func feed(o *Outbox, seed uint64, batches int, pause func()) fold {
	w := newWorkload(seed)
	want := fold{}
	for range batches {
		evs := w.events(1 + w.r.IntN(6))
		for i := range evs {
			want.apply(&evs[i])
		}
		o.Append(Place{}, evs)
		if pause != nil {
			pause()
		}
	}
	return want
}

// arrived waits until c has what o has, and compares.
func arrived(t *testing.T, c *consumer, o *Outbox, want fold) {
	t.Helper()
	eventually(t, "the last event", func() bool { return c.lastOf(o.PublisherID()) == o.LastID() })
	c.mu.Lock()
	defer c.mu.Unlock()
	if !maps.Equal(c.state, want) {
		t.Error("the consumer ends elsewhere")
	}
}

func TestPublish(t *testing.T) {
	for _, pr := range []Profile{Dynamo, DynamoSingle, JSON} {
		t.Run(pr.String(), func(t *testing.T) {
			s := startServer(t, nil)
			var freed atomic.Int64
			p := newTest(t, Options{Servers: []string{s.ClientURL()}, Profile: pr})
			o := open(t, p, 42, 3, func(n int) { freed.Add(int64(n)) })
			c := follow(t, connect(t, s.ClientURL()), o.Subject(), pr)
			before := o.Append(Place{}, []convert.RouterEvent{{Kind: convert.Cleared, NoDomain: true}}) // before Run
			stop := run(t, p)
			want := feed(o, 1, 2000, nil)
			drained(t, p)
			if o.Confirmed() != o.LastID() {
				t.Errorf("confirmed %d of %d", o.Confirmed(), o.LastID())
			}
			arrived(t, c, o, want)
			st := p.State()
			if !st.Connected || st.Server != s.ClientURL() || st.MaxPayload != 1<<20 || st.LastError != "" || st.Outboxes != 1 ||
				st.UnconfirmedEvents != 0 || st.UnconfirmedBytes != 0 || st.ConfirmedEvents != o.LastID() ||
				int64(st.ConfirmedBytes) != freed.Load() || before <= 0 || st.Resent != 0 || st.Reconnects != 0 {
				t.Errorf("%+v, freed %d", st, freed.Load())
			}
			if c.repeats != 0 {
				t.Errorf("%d repeats without a fault", c.repeats)
			}
			if err := stop(); err != nil {
				t.Error(err)
			}
			if st := p.State(); st.Connected {
				t.Error("connected after Run")
			}
			if err := p.Run(context.Background()); err != ErrRunning {
				t.Errorf("a second Run: %v", err)
			}
		})
	}
}

// TestIdleEventLeavesAtOnce: one event on an idle publisher comes without
// anything that follows it.
func TestIdleEventLeavesAtOnce(t *testing.T) {
	s := startServer(t, nil)
	p := newTest(t, Options{Servers: []string{s.ClientURL()}})
	o := open(t, p, 42, 0, nil)
	c := follow(t, connect(t, s.ClientURL()), o.Subject(), Dynamo)
	run(t, p)
	for i := range uint64(50) {
		o.Append(Place{}, []convert.RouterEvent{{Kind: convert.Removed, Hashes: []uint64{i}}})
		eventually(t, "the event", func() bool { return c.lastOf(o.PublisherID()) == i+1 })
		eventually(t, "its confirmation", func() bool { return o.Confirmed() == i+1 })
	}
	if n := p.State().Envelopes; n != 50 {
		t.Errorf("%d envelopes", n)
	}
}

// TestCuts: links are cut at random moments under load, several ranks at once.
// Behind the ids that a consumer knows there is no gap, no inversion, and all arrives.
func TestCuts(t *testing.T) {
	const ranks = 3
	cutsOf := map[Profile]int{Dynamo: 300, JSON: 100}
	for _, pr := range []Profile{Dynamo, JSON} {
		t.Run(pr.String(), func(t *testing.T) {
			s := startServer(t, nil)
			x := startProxy(t, s.Addr().String())
			p := newTest(t, Options{Servers: []string{x.url()}, Profile: pr, Subject: "ev.{dp_rank}", RecentEvents: 100})
			p.timing = quick
			nc := connect(t, s.ClientURL())
			run(t, p)
			var stop atomic.Bool
			var wg sync.WaitGroup
			var os [ranks]*Outbox
			var cs [ranks]*consumer
			var want [ranks]fold
			var freed, charged [ranks]atomic.Int64
			for i := range ranks {
				os[i] = open(t, p, 42, uint32(i), func(n int) { freed[i].Add(int64(n)) })
				cs[i] = follow(t, nc, os[i].Subject(), pr)
				wg.Go(func() {
					w := newWorkload(uint64(i))
					want[i] = fold{}
					for !stop.Load() {
						evs := w.events(1 + w.r.IntN(6))
						for k := range evs {
							want[i].apply(&evs[k])
						}
						charged[i].Add(int64(os[i].Append(Place{}, evs)))
						if w.r.IntN(4) == 0 {
							<-time.After(time.Duration(w.r.IntN(300)) * time.Microsecond)
						}
						for p.State().UnconfirmedBytes > 1<<18 && !stop.Load() { // what credit does
							<-time.After(time.Millisecond)
						}
					}
				})
			}
			r := rand.New(rand.NewPCG(7, uint64(pr)))
			for i := range cutsOf[pr] {
				eventually(t, "a link", func() bool { return x.accepted() > i })
				<-time.After(time.Duration(r.IntN(6000)) * time.Microsecond)
				x.cut()
			}
			stop.Store(true)
			wg.Wait()
			drained(t, p)
			repeats := 0
			for i := range ranks {
				arrived(t, cs[i], os[i], want[i])
				repeats += cs[i].repeats
				if freed[i].Load() != charged[i].Load() {
					t.Errorf("rank %d: released %d of %d", i, freed[i].Load(), charged[i].Load())
				}
			}
			st := p.State()
			t.Logf("%d events, %d envelopes, %d resent, %d reconnects, %d events repeated", st.ConfirmedEvents, st.Envelopes, st.Resent, st.Reconnects, repeats)
			if st.Resent == 0 || repeats == 0 {
				t.Error("the cuts hit nothing")
			}
		})
	}
}

// TestMaxPayloadShrinks from server to server while events wait.
func TestMaxPayloadShrinks(t *testing.T) {
	first := startServer(t, nil)
	x := startProxy(t, first.Addr().String())
	p := newTest(t, Options{Servers: []string{x.url()}})
	p.timing = quick
	o := open(t, p, 42, 0, nil)
	run(t, p)
	eventually(t, "a link", func() bool { return p.State().Connected })
	w := newWorkload(8)
	w.large = 4000
	c := follow(t, connect(t, first.ClientURL()), o.Subject(), Dynamo)
	want := fold{}
	for _, limit := range []int32{1 << 20, 200_000, 64 << 10, 4096, 1 << 16, minMaxPayload} {
		x.freeze()
		for range 40 {
			evs := w.events(3)
			for i := range evs {
				want.apply(&evs[i])
			}
			o.Append(Place{}, evs)
		}
		s := startServer(t, func(o *server.Options) { o.MaxPayload = limit })
		next := follow(t, connect(t, s.ClientURL()), o.Subject(), Dynamo)
		x.set(s.Addr().String(), 0)
		x.cut()
		eventually(t, "the link's end", func() bool { return !p.State().Connected })
		eventually(t, "what was confirmed", func() bool { return c.lastOf(o.PublisherID()) >= o.Confirmed() })
		c.mu.Lock()
		next.last[o.PublisherID()] = c.last[o.PublisherID()]
		next.order = []uint64{o.PublisherID()}
		next.state = maps.Clone(c.state)
		c.mu.Unlock()
		c = next
		x.thaw()
		eventually(t, "the server", func() bool { st := p.State(); return st.Connected && st.MaxPayload == int64(limit) })
		drained(t, p)
		arrived(t, c, o, want)
	}
	if st := p.State(); st.Split == 0 || st.TooLarge != 0 {
		t.Errorf("%+v", st)
	}
}

// TestSuccessor: a rank that is opened anew publishes behind all of its
// predecessor, also when links break in between; and only once that is closed.
func TestSuccessor(t *testing.T) {
	s := startServer(t, nil)
	x := startProxy(t, s.Addr().String())
	p := newTest(t, Options{Servers: []string{x.url()}})
	p.timing = quick
	c := follow(t, connect(t, s.ClientURL()), "namespace.>", Dynamo)
	run(t, p)
	var want fold
	var last *Outbox
	for i := range uint64(60) {
		o := open(t, p, 42, 0, nil)
		if _, err := p.Open(42, 0, nil); err == nil {
			t.Fatal("opened twice")
		}
		o.Append(Place{}, []convert.RouterEvent{{Kind: convert.Cleared, NoDomain: true}})
		want = feed(o, i, 30, nil)
		o.Close()
		if o.Append(Place{}, []convert.RouterEvent{{Kind: convert.Cleared}}) != 0 {
			t.Fatal("appended after Close")
		}
		if i%5 == 0 {
			x.cut()
		}
		if i%7 == 0 { // one that is closed empty must not let the next pass by
			open(t, p, 42, 0, nil).Close()
		}
		last = o
	}
	drained(t, p)
	arrived(t, c, last, want)
	if n := len(c.order); n != 60 {
		t.Errorf("%d publishers", n)
	}
	eventually(t, "the outboxes forgotten", func() bool { return p.State().Outboxes == 0 })
}

// TestDrain returns what is unconfirmed when its time is over, or Run is.
func TestDrain(t *testing.T) {
	p := newTest(t, Options{})
	p.timing = quick
	o := open(t, p, 42, 0, nil)
	o.Append(Place{}, newWorkload(1).events(5))
	stop := run(t, p)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
	defer cancel()
	if n := p.Drain(ctx); n != 5 {
		t.Errorf("%d unconfirmed", n)
	}
	res := make(chan int, 1)
	go func() { res <- p.Drain(context.Background()) }()
	if err := stop(); err != nil {
		t.Error(err)
	}
	if n := <-res; n != 5 {
		t.Errorf("%d unconfirmed", n)
	}
}
