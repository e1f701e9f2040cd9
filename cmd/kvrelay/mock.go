package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/kvrelay/kvrelay/config"
	"github.com/kvrelay/kvrelay/internal/mockengine"
)

const mockHelp = `
Usage: kvrelay mock [flags]

A mock engine: a KV block pool with prefix caching and eviction, that publishes
its events as vLLM does, on ZMQ PUB with a replay ROUTER, and says where over
HTTP and, with --grpc, over gRPC. Cache and evict a prompt by hand:

  curl -s 127.0.0.1:8000/v1/completions -d '{"prompt":[11,22,33,44,55,66,77,88]}'

usage.prompt_tokens_details.cached_tokens is the hit. max_tokens is 1 unless
given; "vllm_xargs":{"kv_cache_report_mode":"full"} announces reused blocks too.
POST /reset_prefix_cache clears the cache, GET /mock/state shows it.

With --rate it makes up requests of its own. It runs until it is interrupted.
Exit codes: 0 stopped as asked, 1 failed, 2 bad usage.`

// mockSettings is a mock engine and how it is reached.
type mockSettings struct {
	engine    mockengine.Options
	http      string
	grpc      string // "": none
	discovery mockengine.Discovery
	length    time.Duration
}

// runMock is `kvrelay mock`.
func runMock(ctx context.Context, args []string, _ io.Reader, stdout, stderr io.Writer) int {
	s, code, done := mockFlags(args, stdout, stderr)
	if done {
		return code
	}
	s.engine.Log = slog.New(slog.NewTextHandler(stderr, nil))
	e, err := mockengine.New(s.engine)
	if err != nil {
		fmt.Fprintf(stderr, "kvrelay mock: %v\n", err)
		return exitUsage
	}
	ctx, stop := bounded(ctx, s.length)
	defer stop()
	if err := serveMock(ctx, e, s, stdout); err != nil {
		return fail(stderr, "mock", err)
	}
	return exitOK
}

// mockFlags reads the command line; done: there is nothing to run.
func mockFlags(args []string, stdout, stderr io.Writer) (s mockSettings, code int, done bool) {
	fs := flag.NewFlagSet("mock", flag.ContinueOnError)
	var o mockengine.Options
	fs.StringVar(&s.http, "http", "127.0.0.1:8000", "address of the HTTP side; port 0: a free one; off: none")
	fs.StringVar(&s.grpc, "grpc", "", "address of gRPC discovery, such as 127.0.0.1:50051; port 0: a free one; none unless given")
	discovery := fs.String("discovery", "vllm", "how HTTP and gRPC say where the events are: vllm, sglang, sglang-old, openengine (gRPC alone), none")
	fs.IntVar(&o.BlockSize, "block-size", 16, "tokens per block")
	fs.IntVar(&o.Blocks, "blocks", 1024, "physical blocks per rank")
	fs.BoolVar(&o.Duplicates, "duplicates", false, "keep several physical blocks under one hash, as vLLM does")
	fs.StringVar(&o.Host, "host", "127.0.0.1", "address to bind the event sockets to and to advertise; * for all")
	fs.StringVar(&o.Advertise, "advertise-host", "", "address to advertise instead of --host, as an engine does that sees another network")
	fs.IntVar(&o.EventPort, "event-port", 0, "port of the first rank's PUB, the other ranks' follow; 0: free ports")
	fs.IntVar(&o.ReplayPort, "replay-port", 0, "likewise of the replay ROUTERs")
	fs.StringVar(&o.Topic, "topic", "", "topic of every message")
	role := fs.String("role", string(mockengine.Aggregated), "aggregated, prefill, or decode, which publishes nothing")
	fs.IntVar(&o.Ranks, "data-parallel-size", 1, "data-parallel ranks, each with its own pool and sockets")
	fs.IntVar(&o.FirstRank, "data-parallel-start-rank", 0, "number of the first rank")
	report := fs.String("kv-cache-report-mode", string(mockengine.Incremental), "of requests that ask for none: incremental or full")
	encoding := fs.String("encoding", string(mockengine.Map), "of events: array (vLLM to 0.23) or map")
	batches := fs.String("batch-encoding", string(mockengine.Array), "of batches: array or map")
	hashes := fs.String("hashes", string(mockengine.Unsigned), "block hashes as unsigned, signed or bytes")
	replay := fs.String("replay", string(mockengine.Reply4), "replies of the ROUTER: 4frame, 3frame (vLLM to 0.25), atom, atom-noend, or none")
	fs.IntVar(&o.BufferSteps, "buffer-steps", 10_000, "batches remembered for replay")
	fs.IntVar(&o.HWM, "hwm", 100_000, "messages waiting per subscriber; more are dropped")
	fs.IntVar(&o.ReplayHWM, "replay-hwm", 0, "replies waiting per requester, more are dropped; 0: as the engines with these replies")
	fs.Float64Var(&o.Rate, "rate", 0, "scheduler steps a second with made-up requests; 0: only what comes over HTTP")
	fs.Uint64Var(&o.Seed, "seed", 1, "of requests and faults: the same seed does the same again")
	faults := fs.String("fault", "", "faults, comma separated, each with a value if wanted (drop=0.5): "+faultList())
	length := lengthFlag(fs)
	rest, code, done := ownFlags(fs, mockHelp, args, stdout, stderr)
	if done {
		return s, code, true
	}
	refuse := func(err error) (mockSettings, int, bool) {
		fmt.Fprintf(stderr, "kvrelay mock: %v\n", err)
		return s, exitUsage, true
	}
	s.discovery = mockengine.Discovery(*discovery)
	switch s.discovery {
	case mockengine.DiscoverVLLM, mockengine.DiscoverSGLang, mockengine.DiscoverSGLangOld, mockengine.DiscoverOpenEngine, mockengine.DiscoverNone:
	default:
		return refuse(fmt.Errorf("--discovery=%q: want vllm, sglang, sglang-old, openengine or none", *discovery))
	}
	if len(rest) > 0 {
		return refuse(fmt.Errorf("%q: mock takes no arguments", rest[0]))
	}
	for _, n := range []struct {
		flag  string
		given int
	}{
		{"block-size", o.BlockSize}, {"blocks", o.Blocks}, {"data-parallel-size", o.Ranks}, {"buffer-steps", o.BufferSteps}, {"hwm", o.HWM},
	} {
		if n.given == 0 { // which Options take for not given
			return refuse(fmt.Errorf("--%s=0: want 1 or more", n.flag))
		}
	}
	for _, text := range []struct{ flag, given string }{
		{"host", o.Host}, {"role", *role}, {"kv-cache-report-mode", *report}, {"encoding", *encoding}, {"batch-encoding", *batches}, {"hashes", *hashes}, {"replay", *replay},
	} {
		if text.given == "" { // likewise
			return refuse(fmt.Errorf("--%s=: want a value, or leave the flag out", text.flag))
		}
	}
	var err error
	if o.Faults, err = mockengine.ParseFaults(*faults); err != nil {
		return refuse(err)
	}
	o.Role, o.Report = mockengine.Role(*role), mockengine.ReportMode(*report)
	o.Encoding, o.BatchEncoding = mockengine.Encoding(*encoding), mockengine.Encoding(*batches)
	o.Hashes, o.Replay = mockengine.HashEncoding(*hashes), mockengine.ReplayShape(*replay)
	if o.Rate > 0 {
		o.Workload = &mockengine.Workload{}
	}
	s.engine, s.length = o, *length
	return s, exitOK, false
}

func faultList() string {
	var names []string
	for _, f := range mockengine.Faults() {
		names = append(names, fmt.Sprintf("%s=%v (%s)", f.Kind, f.Default, f.Doc))
	}
	return strings.Join(names, ", ")
}

// serveMock runs the engine, its HTTP and its gRPC side until ctx ends.
func serveMock(ctx context.Context, e *mockengine.Engine, s mockSettings, stdout io.Writer) error {
	listen := func(scheme, addr string) (net.Listener, error) {
		if addr == "off" || addr == "" {
			return nil, nil
		}
		ln, err := net.Listen("tcp", addr)
		if err != nil {
			return nil, fmt.Errorf("--%s=%s: %w; choose another address, or port 0 for a free one", scheme, addr, err)
		}
		fmt.Fprintf(stdout, "%s %s://%s\n", scheme, scheme, ln.Addr())
		return ln, nil
	}
	web, err := listen("http", s.http)
	if err != nil {
		return err
	}
	rpc, err := listen("grpc", s.grpc)
	if err != nil {
		if web != nil {
			web.Close()
		}
		return err
	}
	if err := e.Listen(); err != nil {
		// As the engines: said, not advertised, and the service goes on.
		s.engine.Log.Error("no KV events: cannot bind; free the port, choose another with --event-port and --replay-port, or correct --host", "err", err)
	}
	for _, src := range e.Sources() {
		fmt.Fprintf(stdout, "rank %d events %s replay %s\n", src.Rank, src.Endpoint, orNone(src.ReplayEndpoint))
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	served := make(chan error, 2)
	go func() {
		served <- serveHTTP(ctx, web, e.Handler(s.discovery))
		cancel() // without its HTTP side the engine ends, too
	}()
	go func() {
		served <- serveGRPC(ctx, rpc, e, s.discovery)
		cancel()
	}()
	err = e.Run(ctx)
	cancel()
	return errors.Join(err, <-served, <-served)
}

func serveGRPC(ctx context.Context, ln net.Listener, e *mockengine.Engine, d mockengine.Discovery) error {
	if ln == nil {
		<-ctx.Done()
		return nil
	}
	if err := e.ServeGRPC(ctx, ln, d); err != nil {
		return fmt.Errorf("gRPC: %w", err)
	}
	return nil
}

// serveHTTP serves until ctx ends, then lets running requests finish for a moment.
func serveHTTP(ctx context.Context, ln net.Listener, h http.Handler) error {
	if ln == nil {
		<-ctx.Done()
		return nil
	}
	srv := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		<-ctx.Done()
		grace, done := context.WithTimeout(context.Background(), 2*time.Second)
		defer done()
		err := srv.Shutdown(grace)
		if err != nil {
			err = srv.Close() // a client that holds its request open is not waited for
		}
		ended <- err
	}()
	err := srv.Serve(ln)
	cancel()
	if shutdown := <-ended; errors.Is(err, http.ErrServerClosed) {
		err = shutdown
	}
	if err != nil {
		return fmt.Errorf("HTTP: %w", err)
	}
	return nil
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

// lengthFlag is --for of a command that else runs until it is interrupted; see bounded.
func lengthFlag(fs *flag.FlagSet) *time.Duration {
	length := new(time.Duration)
	fs.Func("for", "stop after so long; 0, as without it: when interrupted", func(text string) (err error) {
		if *length, err = time.ParseDuration(text); err != nil || *length < 0 {
			return errors.New("want a duration of 0 or more with its unit, such as 500ms, 2s or 1m30s")
		}
		return nil
	})
	return length
}

// bounded ends ctx after length; 0: it is not bounded.
func bounded(ctx context.Context, length time.Duration) (context.Context, context.CancelFunc) {
	if length == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, length)
}

// ownFlags reads the flags of a command that has no settings; they may come
// before, between and after the arguments, which it returns. It answers -h and bad usage: done.
func ownFlags(fs *flag.FlagSet, help string, args []string, stdout, stderr io.Writer) (rest []string, code int, done bool) {
	fs.SetOutput(io.Discard)
	for {
		err := fs.Parse(args)
		switch {
		case errors.Is(err, flag.ErrHelp):
			own := map[string]bool{}
			fs.VisitAll(func(f *flag.Flag) { own[f.Name] = true })
			fmt.Fprintln(stdout, strings.TrimSpace(help))
			printFlags(stdout, fs, own)
			return nil, exitOK, true
		case err != nil:
			fmt.Fprintf(stderr, "kvrelay %s: %v; `kvrelay help %s` lists the flags\n", fs.Name(), config.FlagProblem(fs, err), fs.Name())
			return nil, exitUsage, true
		case fs.NArg() == 0:
			return rest, exitOK, false
		}
		rest, args = append(rest, fs.Arg(0)), fs.Args()[1:]
	}
}
