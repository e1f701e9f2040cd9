package relay_test

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/kvrelay/kvrelay/discovery"
	"github.com/kvrelay/kvrelay/internal/load"
	"github.com/kvrelay/kvrelay/internal/natsd"
	"github.com/kvrelay/kvrelay/relay"
	"github.com/kvrelay/kvrelay/replay"
	"github.com/kvrelay/kvrelay/sinks"
)

// fleet is a relay of many ranks: publishers → relay → NATS in this process.
type fleet struct {
	publishers []*load.Publisher
	relay      *relay.Relay
	sink       *sinks.Publisher
	stop       func()
}

// startFleet starts everything; each rank has preload batches to be replayed.
// change, which may be nil, adapts the relay's options.
func startFleet(t testing.TB, ranks int, shape load.Shape, preload uint64, change func(*relay.Options)) *fleet {
	t.Helper()
	server, err := natsd.Start(t.Context(), natsd.Options{Port: -1})
	if err != nil {
		t.Fatal(err)
	}
	f := &fleet{}
	ctx, cancel := context.WithCancel(context.Background())
	serving, hangUp := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	var sources []discovery.Source
	for rank := range ranks {
		shape.Rank = rank
		g, err := load.NewGenerator(shape)
		if err != nil {
			t.Fatal(err)
		}
		p := load.NewPublisher(g)
		if err := p.Listen(); err != nil {
			t.Fatal(err)
		}
		p.Preload(preload)
		wg.Go(func() { p.Run(serving) })
		f.publishers = append(f.publishers, p)
		sources = append(sources, discovery.Source{
			Engine: "load", Kind: "static", Rank: uint32(rank), Ranks: uint32(ranks),
			Endpoint: p.Endpoint(), Replay: p.ReplayEndpoint(), BlockSize: uint32(shape.BlockSize),
		})
	}
	log := slog.New(slog.DiscardHandler)
	if f.sink, err = sinks.New(sinks.Options{
		Servers: []string{server.URL()}, Namespace: "test", Component: "c", Endpoint: "e", Logger: log, Listen: 10 * time.Millisecond,
	}); err != nil {
		t.Fatal(err)
	}
	o := relay.Options{
		WorkerID: worker, Publisher: f.sink, Log: log,
		Replay:    replay.Config{Heartbeat: 5 * time.Second, Idle: 30 * time.Second, Attempts: 4, DeadAfter: time.Minute},
		HoldBytes: 64 << 20, OutBytes: 64 << 20, Replays: 2,
		Watch: func(ctx context.Context, update func([]discovery.Source)) error {
			update(sources)
			<-ctx.Done()
			return nil
		},
	}
	if change != nil {
		change(&o)
	}
	f.relay = relay.New(o)
	wg.Go(func() {
		if err := f.relay.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	var once sync.Once
	f.stop = func() {
		once.Do(func() {
			cancel()
			hangUp()
			wg.Wait()
			server.Close()
		})
	}
	t.Cleanup(f.stop)
	return f
}

// until polls the relay's status.
func (f *fleet) until(t testing.TB, what string, ok func(relay.Status) bool) {
	t.Helper()
	poll := time.NewTicker(2 * time.Millisecond)
	defer poll.Stop()
	for deadline := time.Now().Add(5 * time.Minute); ; <-poll.C {
		st := f.relay.Status()
		if ok(st) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not yet", what)
		}
	}
}

// applied is how many batches of a source have been applied.
func applied(s relay.SourceStatus) uint64 {
	if !s.Cursor.Begun {
		return 0
	}
	return s.Cursor.Next
}

// 64 ranks that all have a full replay buffer when the relay starts, and few
// slots: turns are given in order. So no rank is asked for a third time before
// all have had their first turn, and every rank ends with all its batches.
func TestStartOfManyRanks(t *testing.T) {
	const ranks, slots = 64, 2
	n := uint64(10_000)
	if raceEnabled {
		n = 1000
	}
	for name, out := range map[string]int64{"credit for all": 1 << 30, "little credit": 1 << 20} {
		t.Run(name, func(t *testing.T) {
			f := startFleet(t, ranks, load.Shape{Blocks: 1, BlockSize: 4, Keep: 100}, n, func(o *relay.Options) {
				o.Replays, o.OutBytes = slots, out
			})
			widest := uint64(0)
			f.until(t, "everything is applied", func(st relay.Status) bool {
				done, least, most := 0, ^uint64(0), uint64(0)
				for i := range f.publishers {
					requests, _ := f.publishers[i].Replays()
					most = max(most, requests)
					least = min(least, requests)
				}
				for _, s := range st.Sources {
					if applied(s) == n && s.Ready {
						done++
					}
				}
				if least == 0 { // somebody still waits for its first turn
					widest = max(widest, most)
				}
				return done == ranks
			})
			f.until(t, "everything is confirmed", func(st relay.Status) bool { return st.Sink.UnconfirmedEvents == 0 })
			st := f.relay.Status()
			for _, s := range st.Sources {
				c := s.Cursor.Counters
				if c.Applied != n || s.Undecodable > 0 || s.Cursor.Epoch != st.Sources[0].Cursor.Epoch {
					t.Errorf("%s: %+v", s.Source.Name(), c)
				}
			}
			requests, batches := uint64(0), uint64(0)
			for _, p := range f.publishers {
				r, b := p.Replays()
				requests, batches = requests+r, batches+b
			}
			t.Logf("%d requests, %d batches sent for %d", requests, batches, ranks*n)
			if widest > 2 {
				t.Errorf("a rank had %d turns while another waited for its first", widest)
			}
		})
	}
}
