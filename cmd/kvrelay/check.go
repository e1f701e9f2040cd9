package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"

	"github.com/kvrelay/kvrelay/config"
	"github.com/kvrelay/kvrelay/discovery"
	"github.com/kvrelay/kvrelay/internal/check"
	"github.com/kvrelay/kvrelay/internal/logging"
	"github.com/kvrelay/kvrelay/internal/zmtp"
)

const checkHelp = `
Usage: kvrelay check [FILE] [flags] [settings]

The first thing to run when routing hits are low: connects to the engine as
kvrelay would, or reads a recording (kvrelay record), reports what it sees –
encodings, ranks, groups, block sizes, tiers, drops with an example each, gaps,
replay – and ends with a verdict: what is wrong, and what to do about it. It
publishes nothing and disturbs nobody; run it beside a working kvrelay.

  kvrelay check
  kvrelay check --endpoints tcp://127.0.0.1:5557 --replay-endpoints tcp://127.0.0.1:5558
  kvrelay check x.jsonl.gz --duplicates count

Let the engine serve requests meanwhile. No token id, salt or prompt is shown.

Exit codes: 0 healthy, 1 problems found, 2 bad usage.`

// checkSettings are the settings about the engine.
var checkSettings = []string{
	"ENGINE", "DISCOVERY_URL", "DISCOVERY_TOKEN", "DISCOVERY_TOKEN_FILE", "ENDPOINTS", "REPLAY_ENDPOINTS", "RANKS", "FIRST_RANK",
	"TOPIC", "TOPIC_EXACT", "BLOCK_SIZE", "REWRITE_LOOPBACK", "EAGLE", "IMAGE_TOKEN_ID", "VIDEO_TOKEN_ID", "DUPLICATES",
	"MAX_FRAME_BYTES", "REPLAY_IDLE", "HEARTBEAT", "PEER_TIMEOUT",
}

// runCheck is `kvrelay check`.
func runCheck(ctx context.Context, args []string, _ io.Reader, stdout, stderr io.Writer) int {
	fs := flag.NewFlagSet("check", flag.ContinueOnError)
	length := fs.Duration("for", 20*time.Second, "how long to look at the engine; an interrupt ends it sooner")
	asJSON := fs.Bool("json", false, "the report as JSON")
	var file []string
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		file, args = args[:1], args[1:]
	}
	cfg, code, done := settings(fs, checkHelp, args, stdout, stderr, checkSettings...)
	if done {
		return code
	}
	file = append(file, fs.Args()...)
	switch {
	case len(file) > 1:
		fmt.Fprintf(stderr, "kvrelay check: %d files; want one at most\n", len(file))
		return exitUsage
	case *length <= 0:
		fmt.Fprintf(stderr, "kvrelay check: --for=%v: want more than 0\n", *length)
		return exitUsage
	}
	var rep *check.Report
	var err error
	if len(file) == 1 {
		if rep, err = check.File(file[0], convertConfig(cfg)); err != nil {
			fmt.Fprintf(stderr, "kvrelay check: %v\n", err)
			return exitUsage
		}
	} else if rep, err = checkEngine(ctx, cfg, *length, stderr); err != nil {
		fmt.Fprintf(stderr, "kvrelay check: %v\n", err)
		return exitUsage
	}
	if *asJSON {
		enc := json.NewEncoder(stdout)
		enc.SetIndent("", "  ")
		err = enc.Encode(rep)
	} else {
		err = rep.Text(stdout, check.Style{Width: widthOf(stdout), Color: logging.IsTerminal(stdout) && os.Getenv("NO_COLOR") == ""})
	}
	if err != nil {
		return fail(stderr, "check", fmt.Errorf("writing: %w", err))
	}
	if !rep.Healthy {
		return exitFailed
	}
	return exitOK
}

// widthOf is the width of a terminal, 80 for everything else.
func widthOf(w io.Writer) int {
	if f, ok := w.(*os.File); ok {
		if width, _, err := term.GetSize(int(f.Fd())); err == nil && width > 20 {
			return width
		}
	}
	return 80
}

// checkEngine looks at the engine that the settings describe. Sources that
// appear later than the first ones are not looked at.
func checkEngine(ctx context.Context, cfg *config.Config, length time.Duration, stderr io.Writer) (*check.Report, error) {
	disco, err := discovery.New(discoveryOptions(cfg, nil))
	if err != nil {
		return nil, err
	}
	began := time.Now()
	ctx, stop := context.WithTimeout(ctx, length)
	defer stop()
	found := make(chan []discovery.Source, 1)
	var wg sync.WaitGroup
	wg.Go(func() {
		_ = disco.Watch(ctx, func(list []discovery.Source) { // ends with ctx
			select {
			case found <- list:
			default:
			}
		})
	})
	rep := &check.Report{Target: cfg.EngineAddress()}
	var sources []discovery.Source
	select {
	case sources = <-found:
		fmt.Fprintf(stderr, "looking at %s for %v …\n", sourcesText(sources), length.Round(time.Millisecond))
		rep.Streams = check.Watch(ctx, sources, check.Options{
			Convert: convertConfig(cfg),
			ZMTP: zmtp.Options{
				MaxFrame: int64(cfg.MaxFrameBytes), Heartbeat: cfg.Heartbeat, PeerTimeout: cfg.PeerTimeout,
			},
			Idle: cfg.ReplayIdle, Silence: min(cfg.Heartbeat, length/4), NoReplay: cfg.ReplayEndpoints.None,
		})
	case <-ctx.Done():
	}
	stop()
	wg.Wait()
	st := disco.State()
	rep.Version, rep.Target = st.Version, orText(st.Engine, rep.Target)
	if st.Kind != discovery.KindStatic {
		rep.Engine = st.Kind
	}
	switch {
	case len(sources) > 0:
	case st.Awaiting != "":
		rep.Discovery = append(rep.Discovery, "no source of KV events was found: "+st.Awaiting)
	case st.LastError != "":
		rep.Discovery = append(rep.Discovery, "the engine does not say where its events are: "+st.LastError)
	default:
		rep.Discovery = append(rep.Discovery, fmt.Sprintf("no engine answered within %v", length))
	}
	for _, r := range st.Refused {
		rep.Discovery = append(rep.Discovery, "advertised, but of no use: "+r.String())
	}
	rep.Doubts = st.Warnings
	rep.Seconds = time.Since(began).Seconds()
	rep.Judge()
	return rep, nil
}

func orText(text, other string) string {
	if text == "" {
		return other
	}
	return text
}

func sourcesText(list []discovery.Source) string {
	if len(list) == 1 {
		return list[0].Name()
	}
	return fmt.Sprintf("%d sources", len(list))
}
