package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/kvrelay/kvrelay/config"
	"github.com/kvrelay/kvrelay/consumer"
	"github.com/kvrelay/kvrelay/consumer/index"
	"github.com/kvrelay/kvrelay/discovery"
	"github.com/kvrelay/kvrelay/internal/admin"
	"github.com/kvrelay/kvrelay/internal/logging"
	"github.com/kvrelay/kvrelay/internal/mockengine"
	"github.com/kvrelay/kvrelay/internal/natsd"
	"github.com/kvrelay/kvrelay/relay"
	"github.com/kvrelay/kvrelay/replay"
	"github.com/kvrelay/kvrelay/sinks"
)

const demoHelp = `
Usage: kvrelay demo [flags]

Everything in one process, for a first look: a mock engine under load that drops
events on purpose, kvrelay, a NATS server, and a router's view of the cache beside
the engine's own. A sample prompt is cached and evicted again and again: what the
router believes of it must follow.

It shows the address of kvrelay's status page, for a browser, and of NATS, for
another terminal:

  kvrelay tail --nats-url nats://127.0.0.1:PORT

Exit codes: 0 the router's picture equalled the engine's cache at the end, 1 it did
not or something failed, 2 bad usage.`

const (
	demoBlockSize = 16
	demoBlocks    = 512
	demoWorker    = 1
	sampleBlocks  = 8
	// The sample prompt is left alone for so long in each state.
	sampleRest = 2 * time.Second
	// How long the end may take to become equal.
	demoSettle = 10 * time.Second
)

// runDemo is `kvrelay demo`.
func runDemo(ctx context.Context, args []string, _ io.Reader, stdout, stderr io.Writer) int {
	fs := flag.NewFlagSet("demo", flag.ContinueOnError)
	length := lengthFlag(fs)
	rate := fs.Float64("rate", 50, "scheduler steps of the mock engine a second, at most 10000; each is about one batch")
	seed := fs.Uint64("seed", 1, "of requests and faults: the same seed does the same again")
	fault := fs.String("fault", "drop=0.1", "faults, comma separated, each with a value if wanted; empty: none. "+faultList())
	rest, code, done := ownFlags(fs, demoHelp, args, stdout, stderr)
	if done {
		return code
	}
	faults, err := mockengine.ParseFaults(*fault)
	switch {
	case len(rest) > 0:
		err = fmt.Errorf("%q: demo takes no arguments", rest[0])
	case !(*rate > 0 && *rate <= 10_000):
		err = fmt.Errorf("--rate=%v: want more than 0, at most 10000", *rate)
	}
	if err != nil {
		fmt.Fprintf(stderr, "kvrelay demo: %v\n", err)
		return exitUsage
	}
	d := &demo{rate: *rate, faults: *fault, picture: consumer.NewPicture(), index: index.New(index.Options{BlockSize: demoBlockSize})}
	ctx, stop := bounded(ctx, *length)
	defer stop()
	if err := d.run(ctx, mockengine.Options{
		BlockSize: demoBlockSize, Blocks: demoBlocks, Seed: *seed, Faults: faults,
		// Slow enough that the sample prompt stays cached for a moment by itself.
		Workload: &mockengine.Workload{Arrivals: 0.5}, Observe: d.observe,
	}, stdout, stderr); err != nil {
		return fail(stderr, "demo", err)
	}
	return exitOK
}

// demo is one run: the parts, and what the view tells of them.
type demo struct {
	rate    float64
	faults  string
	engine  *mockengine.Engine
	nats    *natsd.Server
	relay   *relay.Relay
	sample  []uint32
	started time.Time

	batches, withheld, garbage atomic.Uint64 // of the engine
	events                     atomic.Uint64 // router events that the router has applied
	missed                     atomic.Uint64 // event ids that the router missed

	mu      sync.Mutex // guards picture's and index's order, and what follows
	picture *consumer.Picture
	index   *index.Index
	equalAt time.Time // when picture and cache were last seen equal
	cycles  int       // times that the sample prompt went from 0 % to 100 % and back
}

// observe counts what the engine does; it runs under the rank's lock.
func (d *demo) observe(p mockengine.Published) {
	switch {
	case p.Payload == nil:
	case p.Garbage:
		d.garbage.Add(1)
	default:
		d.batches.Add(1)
	}
	if p.Withheld {
		d.withheld.Add(1)
	}
}

// run starts the parts, shows them until ctx ends, then lets the engine rest and
// compares the router's picture with its cache.
func (d *demo) run(ctx context.Context, o mockengine.Options, stdout, stderr io.Writer) (err error) {
	if d.engine, err = mockengine.Start(o); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.engine.Close()) }()
	if d.nats, err = natsd.Start(ctx, natsd.Options{}); err != nil {
		return err
	}
	defer d.nats.Close()
	nc, err := d.subscribe()
	if err != nil {
		return err
	}
	defer nc.Close()

	// What the relay would log goes to the view's last lines, not between them.
	lines := &lastLines{keep: 4}
	log, repeats, err := logging.New(lines, logging.Options{Level: "info", Format: "text", NoColor: true})
	if err != nil {
		return err
	}
	if d.relay, err = d.newRelay(log); err != nil {
		return err
	}
	info, _ := debug.ReadBuildInfo()
	page := admin.New(admin.Options{Addr: "127.0.0.1:0", Status: d.relay.Status, Sink: config.SinkNATS, Build: info, Log: log})
	if err := page.Listen(ctx); err != nil {
		return err
	}
	rctx, stopRelay := context.WithCancel(context.WithoutCancel(ctx))
	defer stopRelay()
	relayed, shown := make(chan error, 1), make(chan error, 1)
	var wg sync.WaitGroup
	wg.Go(func() { shown <- page.Run(rctx) })
	wg.Go(func() { repeats.Run(rctx) })
	wg.Go(func() { relayed <- d.relay.Run(rctx) })

	d.started = time.Now()
	view := newDemoView(stdout, d.nats.URL(), "http://"+page.Addr(), os.Getenv("NO_COLOR") != "")
	wg.Go(func() { d.work(ctx) })
	d.show(ctx, view, lines)
	equal := d.settle(demoSettle)
	stopRelay()
	err = errors.Join(<-relayed, <-shown)
	wg.Wait()
	view.end(d.facts(time.Now(), lines), equal)
	if err == nil && !equal {
		err = errors.New("the router's picture does not equal the engine's cache: please report it with the seed and the faults")
	}
	return err
}

func (d *demo) newRelay(log *slog.Logger) (*relay.Relay, error) {
	p, err := sinks.New(sinks.Options{
		Servers: []string{d.nats.URL()}, Namespace: "dynamo", Component: "backend", Endpoint: "generate", Logger: log,
	})
	if err != nil {
		return nil, err
	}
	r := d.engine.Rank(0)
	src := discovery.Source{
		Engine: "mock", Kind: "static", Endpoint: r.Endpoint(), Replay: r.ReplayEndpoint(), BlockSize: demoBlockSize, Ranks: 1,
	}
	return relay.New(relay.Options{
		WorkerID: demoWorker, Publisher: p, Log: log,
		Replay:    replay.Config{DeadAfter: 5 * time.Second},
		HoldBytes: 64 << 20, OutBytes: 64 << 20, Replays: 8,
		Watch: func(ctx context.Context, update func([]discovery.Source)) error {
			update([]discovery.Source{src})
			<-ctx.Done()
			return nil
		},
	}), nil
}

// subscribe is the router's side: fold every event, notice every missing one.
func (d *demo) subscribe() (*nats.Conn, error) {
	nc, err := nats.Connect(d.nats.URL())
	if err != nil {
		return nil, err
	}
	_, err = nc.Subscribe(consumer.Dynamo.Subject("dynamo", "backend", "generate", false), func(m *nats.Msg) {
		msg, err := consumer.ParseMessage(m.Subject, m.Header, m.Data)
		if err != nil {
			d.missed.Add(1)
			return
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		_, last := d.picture.Place(msg.Events[0].Rank)
		out := d.picture.Fold(msg)
		for i := range msg.Events {
			if out.NewPublisher || msg.Events[i].ID > last {
				d.index.Apply(&msg.Events[i])
			}
		}
		d.events.Add(uint64(out.Applied))
		d.missed.Add(out.Missing)
	})
	if err == nil {
		err = nc.Flush()
	}
	if err != nil {
		nc.Close()
		return nil, err
	}
	return nc, nil
}

// work steps the engine, and caches and evicts the sample prompt in turns.
func (d *demo) work(ctx context.Context) {
	for i := range sampleBlocks*demoBlockSize + 1 { // engines never hit the last token of a prompt
		d.sample = append(d.sample, uint32(100_000+i))
	}
	tick := time.NewTicker(time.Duration(float64(time.Second) / d.rate))
	defer tick.Stop()
	rest := time.Now().Add(sampleRest)
	cached, filler := false, uint32(1_000_000)
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			hit := d.engine.Rank(0).Hit(d.sample)
			switch {
			case now.Before(rest):
				if cached && hit == 0 { // the load, or a restart, has evicted it already
					cached, rest = false, now.Add(sampleRest)
					d.thereAndBack()
				}
			case !cached:
				if _, err := d.engine.Prompt(d.sample, mockengine.PromptOptions{}); err == nil {
					cached, rest = true, now.Add(sampleRest)
				}
			case hit == 0:
				cached, rest = false, now.Add(sampleRest)
				d.thereAndBack()
			default: // other prompts push it out
				other := make([]uint32, 4*demoBlockSize)
				for i := range other {
					other[i] = filler
					filler++
				}
				_, _ = d.engine.Prompt(other, mockengine.PromptOptions{}) // a faulty engine may be down: the next step tries again
			}
			d.engine.Step()
		}
	}
}

// thereAndBack counts a sample prompt that was cached and is no more.
func (d *demo) thereAndBack() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.cycles++
}

// show draws until ctx ends.
func (d *demo) show(ctx context.Context, view *demoView, lines *lastLines) {
	tick := time.NewTicker(view.every)
	defer tick.Stop()
	check := time.NewTicker(50 * time.Millisecond)
	defer check.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-check.C:
			d.equal()
		case now := <-tick.C:
			view.draw(d.facts(now, lines))
		}
	}
}

// settle waits for the picture to become equal now that the engine rests.
func (d *demo) settle(most time.Duration) bool {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(most); time.Now().Before(end); <-tick.C {
		if d.equal() {
			return true
		}
	}
	return d.equal()
}

// equal compares the router's picture with the engine's cache.
func (d *demo) equal() bool {
	truth := d.engine.Rank(0).Truth()
	d.mu.Lock()
	defer d.mu.Unlock()
	n := 0
	for h := range d.picture.Blocks(consumer.Rank{Worker: demoWorker}, consumer.Device) {
		if truth[h] == 0 {
			return false
		}
		n++
	}
	if n != len(truth) {
		return false
	}
	d.equalAt = time.Now()
	return true
}
