package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/kvrelay/kvrelay/config"
	"github.com/kvrelay/kvrelay/internal/capture"
	"github.com/kvrelay/kvrelay/internal/capture/record"
)

const recordHelp = `
Usage: kvrelay record [flags] ENDPOINT FILE

Writes an engine's event stream into a capture: a JSON line about it, then one
per message, {"frames": [topic, seq, payload]} in hex. A FILE that ends in .gz
is compressed; one that exists is not overwritten.

  kvrelay record tcp://127.0.0.1:5557 x.jsonl.gz --replay tcp://127.0.0.1:5558

ENDPOINT is that of the engine's PUB (tcp:// or ipc://). With --replay the file
begins with what the engine still remembers, and gaps are filled. It waits for
the engine, connects again when it is gone, and runs until it is interrupted.
Captures hold prompts, as token ids.
Exit codes: 0 stopped as asked, 1 failed, 2 bad usage.`

// runRecord is `kvrelay record`.
func runRecord(ctx context.Context, args []string, _ io.Reader, stdout, stderr io.Writer) int {
	fs := flag.NewFlagSet("record", flag.ContinueOnError)
	var o record.Options
	var meta capture.Meta
	fs.StringVar(&o.ReplayEndpoint, "replay", "", "endpoint of the engine's replay ROUTER")
	fs.StringVar(&o.Topic, "topic", "", "subscription prefix")
	fs.Uint64Var(&o.Count, "count", 0, "stop after so many messages; 0: when interrupted")
	length := lengthFlag(fs)
	exchanges := fs.String("transcript", "", "write every exchange with the ROUTER to this file")
	fs.StringVar(&meta.Engine, "engine", "", "name of the engine, for the file: vllm, sglang …")
	fs.StringVar(&meta.Version, "engine-version", "", "its version, for the file; play answers replays as that version does")
	rank := fs.Uint("rank", 0, "data-parallel rank, for the file")
	rest, code, done := ownFlags(fs, recordHelp, args, stdout, stderr)
	if done {
		return code
	}
	usage := func(err error) int {
		fmt.Fprintf(stderr, "kvrelay record: %v\n", err)
		return exitUsage
	}
	switch {
	case len(rest) != 2:
		return usage(fmt.Errorf("%d arguments; want the engine's endpoint and a file", len(rest)))
	case rest[1] == "-" || *exchanges == "-":
		return usage(errors.New("- is no file; want the name of one, which is made"))
	case *exchanges != "" && o.ReplayEndpoint == "":
		return usage(errors.New("--transcript needs --replay"))
	case *rank > 65535:
		return usage(fmt.Errorf("--rank=%d: want 0 to 65535", *rank))
	}
	if err := cmp.Or(config.CheckLogin(rest[0]), config.CheckLogin(o.ReplayEndpoint)); err != nil {
		return usage(err)
	}
	o.Endpoint, o.Log = rest[0], slog.New(slog.NewTextHandler(stderr, nil))
	if err := record.Check(o); err != nil { // before there are files
		return usage(err)
	}
	meta.Topic, meta.DPRank = o.Topic, uint32(*rank)
	ctx, stop := bounded(ctx, *length)
	defer stop()
	stats, err := recordTo(ctx, o, &meta, rest[1], *exchanges)
	if err != nil {
		return fail(stderr, "record", err)
	}
	fmt.Fprintf(stdout, "%d messages in %s: %d of them from replays; %d repeated and left out, %d missing, %d restarts\n",
		stats.Messages, rest[1], stats.Replayed, stats.Repeated, stats.Missing, stats.Restarts)
	return exitOK
}

// recordTo records into the files, which are whole afterwards whatever ended it.
// Of its errors the first is returned: after a failed write the others repeat it.
func recordTo(ctx context.Context, o record.Options, meta *capture.Meta, path, exchanges string) (stats record.Stats, err error) {
	w, err := capture.Create(path, meta)
	if err != nil {
		return stats, err
	}
	defer func() { err = cmp.Or(err, w.Close()) }()
	var transcript *capture.Writer
	if exchanges != "" {
		if transcript, err = capture.Create(exchanges, meta); err != nil {
			_ = os.Remove(path) // nothing is in it yet, and it would be in the way of the next try
			return stats, err
		}
		defer func() { err = cmp.Or(err, transcript.Close()) }()
	}
	began := time.Now()
	stats, err = record.Run(ctx, o, w, transcript)
	o.Log.Info("recorded", "messages", stats.Messages, "seconds", int(time.Since(began).Seconds()))
	return stats, err
}
