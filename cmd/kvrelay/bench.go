package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/kvrelay/kvrelay/config"
	"github.com/kvrelay/kvrelay/consumer"
	"github.com/kvrelay/kvrelay/internal/load"
	"github.com/kvrelay/kvrelay/internal/natsd"
)

const benchHelp = `
Usage: kvrelay bench [flags] [settings]

Measures what a relay does on this machine, to size a pod: an engine's publisher
as fast as the socket takes it → a kvrelay in a process of its own → NATS →
a subscriber that counts. Prints batches a second, what they cost in CPU and
memory, what was lost (nothing should be), and with --rate how late events come.

  kvrelay bench                        as fast as it goes
  kvrelay bench --rate 1000            latency at 1000 batches a second
  kvrelay bench --nats-url nats://nats:4222 --ranks 4 --blocks 4
  kvrelay bench --cpu-profile cpu.out  what the relay does, for go tool pprof

Without NATS_URL the server runs in this process. Publisher, server and
subscriber use the same cores as the relay: with few of them, it is they that
end the climb. Other settings of the relay come from KVRELAY_… variables.

Exit codes: 0 everything arrived, 1 something was lost or failed, 2 bad usage.`

// benchSettings are the settings that both ends need.
var benchSettings = []string{
	"NATS_URL", "NATS_CREDS_FILE", "NATS_NKEY_FILE", "NATS_USER", "NATS_PASSWORD", "NATS_PASSWORD_FILE",
	"NATS_TOKEN", "NATS_TOKEN_FILE", "NATS_TLS_CA", "NATS_TLS_CERT", "NATS_TLS_KEY", "PROFILE",
}

// benchStart is how long the relay may take to be ready, and benchQuiet how long
// nothing may arrive at the end until the rest counts as lost.
const (
	benchStart = 30 * time.Second
	benchQuiet = 10 * time.Second
)

// bench is one measurement.
type bench struct {
	cfg               *config.Config
	ranks             int
	blocks, blockSize int
	keep              int
	rate              float64
	length            time.Duration
	namespace         string // random: nobody else's events are counted
	profile           string // file for the relay's CPU profile; "": none
	admin             string // the relay's ADMIN_ADDR

	publishers []*load.Publisher
	gens       []*load.Generator
	meter      *benchMeter
}

// runBench is `kvrelay bench`.
func runBench(ctx context.Context, args []string, _ io.Reader, stdout, stderr io.Writer) int {
	fs := flag.NewFlagSet("bench", flag.ContinueOnError)
	b := &bench{namespace: fmt.Sprintf("bench-%08x", rand.Uint32()), admin: "off"}
	fs.IntVar(&b.ranks, "ranks", 1, "data-parallel ranks")
	fs.IntVar(&b.blocks, "blocks", 64, "blocks that each batch stores")
	fs.IntVar(&b.blockSize, "block-size", 16, "tokens per block")
	fs.IntVar(&b.keep, "keep", 100_000, "blocks that each rank's cache holds: from then on batches remove as many as they store; 0: all")
	fs.Float64Var(&b.rate, "rate", 0, "batches a second, all ranks together; 0: as fast as it goes, without latencies")
	fs.DurationVar(&b.length, "for", 10*time.Second, "how long to send")
	fs.StringVar(&b.profile, "cpu-profile", "", "write the relay's CPU profile to this file, for go tool pprof")
	asJSON := fs.Bool("json", false, "the result as JSON")
	cfg, code, done := settings(fs, benchHelp, args, stdout, stderr, benchSettings...)
	if done {
		return code
	}
	b.cfg = cfg
	var err error
	switch {
	case fs.NArg() > 0:
		err = errors.New("bench takes no arguments")
	case b.ranks < 1 || b.ranks > 256:
		err = fmt.Errorf("--ranks=%d: want 1 to 256", b.ranks)
	case !(b.rate >= 0 && b.rate <= 1e6):
		err = fmt.Errorf("--rate=%v: want 0 to 1000000", b.rate)
	case b.length <= 0:
		err = fmt.Errorf("--for=%v: want more than 0", b.length)
	default:
		err = b.generate()
	}
	if err != nil {
		fmt.Fprintf(stderr, "kvrelay bench: %v\n", err)
		return exitUsage
	}
	r, err := b.run(ctx, stderr)
	if err != nil {
		return fail(stderr, "bench", err)
	}
	if *asJSON {
		err = json.NewEncoder(stdout).Encode(r)
	} else {
		err = r.text(stdout)
	}
	if err != nil {
		return fail(stderr, "bench", fmt.Errorf("writing: %w", err))
	}
	if r.Lost > 0 || r.Cleared > 0 {
		return exitFailed
	}
	return exitOK
}

// generate makes the generators and publishers of all ranks.
func (b *bench) generate() error {
	ts := float64(time.Now().UnixMilli()) / 1e3
	for rank := range b.ranks {
		g, err := load.NewGenerator(load.Shape{Rank: rank, Blocks: b.blocks, BlockSize: b.blockSize, Keep: b.keep, TS: ts})
		if err != nil {
			return err
		}
		if g.Size() > 32<<20 {
			return fmt.Errorf("batches of %d bytes: want 32 MiB at most; fewer --blocks or a smaller --block-size", g.Size())
		}
		b.gens = append(b.gens, g)
		b.publishers = append(b.publishers, load.NewPublisher(g))
	}
	return nil
}

// run measures once.
func (b *bench) run(ctx context.Context, stderr io.Writer) (*benchReport, error) {
	url, nc, stopNATS, err := b.nats(ctx)
	if err != nil {
		return nil, err
	}
	defer stopNATS()
	defer nc.Close()
	b.meter = newBenchMeter(b.ranks, b.rate > 0)
	p, err := consumer.ParseProfile(b.cfg.Profile)
	if err != nil {
		return nil, err
	}
	sub, err := b.meter.subscribe(nc, p.Subject(b.namespace, "bench", "bench", false))
	if err != nil {
		return nil, err
	}

	var wg sync.WaitGroup
	defer wg.Wait()
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var live, replays []string
	for _, p := range b.publishers {
		if err := p.Listen(); err != nil {
			return nil, err
		}
		live, replays = append(live, p.Endpoint()), append(replays, p.ReplayEndpoint())
		wg.Go(func() { p.Run(serving) })
	}
	if b.profile != "" {
		if b.admin, err = benchAdmin(); err != nil {
			return nil, err
		}
	}
	child, err := startBenchRelay(b.relayArgs(live, replays), b.relayEnv(url), stderr)
	if err != nil {
		return nil, err
	}
	defer child.end()
	switch err := b.meter.ready(ctx, child.ended, benchStart); {
	case err != nil && ctx.Err() != nil:
		return nil, errors.New("interrupted before there was anything to measure")
	case err != nil:
		return nil, err
	}

	before, beforeErr := processUsage(child.pid())
	began := time.Now()
	profiled := make(chan error, 1)
	if b.profile != "" {
		go func() { profiled <- benchProfile(ctx, b.admin, b.profile, b.length) }()
	} else {
		profiled <- nil
	}
	b.publish(ctx)
	if err := <-profiled; err != nil {
		return nil, err
	}
	want := uint64(0)
	for i, p := range b.publishers {
		for seq := range p.Published() {
			want += uint64(b.gens[i].Events(seq))
		}
	}
	// Also when interrupted: what was sent is on its way then, not lost.
	b.meter.drain(context.WithoutCancel(ctx), child.ended, want, benchQuiet)
	after, afterErr := processUsage(child.pid())
	r := b.report(began, want)
	if err := errors.Join(beforeErr, afterErr); err == nil {
		r.usage(before, after, time.Since(began))
	}
	if n, err := sub.Dropped(); err == nil {
		r.Unread = uint64(n)
	}
	return r, nil
}

// nats is the server: the one of the settings, or one in this process.
func (b *bench) nats(ctx context.Context) (url string, nc *nats.Conn, stop func(), err error) {
	stop = func() {}
	cfg := *b.cfg
	if len(cfg.NATSURL) == 0 {
		s, err := natsd.Start(ctx, natsd.Options{Port: -1})
		if err != nil {
			return "", nil, nil, err
		}
		stop = s.Close
		cfg.NATSURL = config.URLs{s.URL()}
	}
	if nc, err = connectNATS(&cfg); err != nil {
		stop()
		return "", nil, nil, err
	}
	return strings.Join(cfg.NATSURL, ","), nc, stop, nil
}

// publish sends on all ranks until the time is over.
func (b *bench) publish(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, b.length)
	defer cancel()
	var wg sync.WaitGroup
	for rank, p := range b.publishers {
		var sending func(uint64)
		if b.rate > 0 {
			sending = func(seq uint64) { b.meter.sent(rank, seq) }
		}
		wg.Go(func() {
			_ = p.Publish(ctx, b.rate/float64(b.ranks), 0, sending) // it ends for want of numbers only, in a year
		})
	}
	wg.Wait()
}

// relayArgs is the command line of the relay that is measured.
func (b *bench) relayArgs(live, replays []string) []string {
	return []string{
		"run", "--engine=static", "--endpoints=" + strings.Join(live, ","), "--replay-endpoints=" + strings.Join(replays, ","),
		fmt.Sprintf("--ranks=%d", b.ranks), "--first-rank=0", fmt.Sprintf("--block-size=%d", b.blockSize), "--topic=",
		"--sink=nats", "--profile=" + b.cfg.Profile, "--subject=",
		"--namespace=" + b.namespace, "--component=bench", "--endpoint-name=bench", "--worker-id=1",
		"--membership=off", "--admin-addr=" + b.admin, "--log-level=warn",
	}
}

// relayEnv is how the relay gets what must not be on a command line, and what
// was given to bench as flags.
func (b *bench) relayEnv(url string) []string {
	c := b.cfg
	var env []string
	for name, value := range map[string]string{
		"NATS_URL":        url, // which may hold a login
		"NATS_CREDS_FILE": c.NATSCredsFile, "NATS_NKEY_FILE": c.NATSNkeyFile,
		"NATS_USER": c.NATSUser, "NATS_PASSWORD": string(c.NATSPassword), "NATS_TOKEN": string(c.NATSToken),
		"NATS_TLS_CA": c.NATSTLSCA, "NATS_TLS_CERT": c.NATSTLSCert, "NATS_TLS_KEY": c.NATSTLSKey,
		"NATS_PASSWORD_FILE": "", "NATS_TOKEN_FILE": "", // read already
		"DISCOVERY_URL": "",
	} {
		env = append(env, config.Prefix+"_"+name+"="+value)
	}
	return env
}
