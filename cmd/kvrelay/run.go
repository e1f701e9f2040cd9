package main

import (
	"context"
	"errors"
	"flag"
	"io"
	"log/slog"
	"os"
	"runtime/debug"
	"time"

	"github.com/kvrelay/kvrelay/config"
	"github.com/kvrelay/kvrelay/discovery"
	"github.com/kvrelay/kvrelay/internal/filepages"
	"github.com/kvrelay/kvrelay/internal/logging"
	"github.com/kvrelay/kvrelay/internal/natsd"
	"github.com/kvrelay/kvrelay/relay"
	"github.com/kvrelay/kvrelay/sinks"
)

const runHelp = `
Usage: kvrelay [run] [settings]

Subscribes to an engine's KV-cache events, fetches what it missed, and publishes
router events until SIGTERM, SIGINT or SIGHUP. Engine and NATS may start later:
it waits for both. It asks the engine where its events are; one on this host with
its usual port needs no settings, another one its address, and one that cannot
say the endpoints themselves:

  kvrelay
  kvrelay --discovery-url grpc://10.0.0.5:50051
  kvrelay --endpoints tcp://127.0.0.1:5557 --replay-endpoints tcp://127.0.0.1:5558`

// runRun relays until it is told to stop.
func runRun(ctx context.Context, args []string, _ io.Reader, stdout, stderr io.Writer) int {
	cfg, code, done := settings(flag.NewFlagSet("run", flag.ContinueOnError), runHelp, args, stdout, stderr)
	if done {
		return code
	}
	log, stopLog, err := startLog(cfg, stderr)
	if err != nil {
		return fail(stderr, "run", err)
	}
	err = relayEvents(ctx, cfg, log, stdout)
	stopLog() // its last counts come before the last line
	code = exitCode(err)
	if err != nil {
		log.Error("ended", "err", err, "exit_code", code)
	} else {
		log.Info("ended as asked, everything is confirmed")
	}
	return code
}

// startLog makes the logger of a long-running command. stop says the last
// counts of repeated trouble; nothing is held back after it.
func startLog(cfg *config.Config, stderr io.Writer) (log *slog.Logger, stop func(), err error) {
	log, repeats, err := logging.New(stderr, logging.Options{
		Level:   cfg.LogLevel,
		Format:  cfg.LogFormat,
		NoColor: os.Getenv("NO_COLOR") != "", // what no-color.org asks of every program
	})
	if err != nil {
		return nil, nil, err
	}
	return log, background(context.Background(), repeats.Run), nil
}

// gcPercent is GOGC, unless the environment has it. Held batches, unconfirmed and recent
// events and ledgers hold no pointers, so a collection of 200 MB takes 2 to 4 ms of CPU;
// with Go's own 100 a flood took twice the memory that the settings add up to, with 25
// a quarter more.
const gcPercent = 25

// startOver is when start-up has touched all that it will: every package's init, the
// first connections, the first replay.
const startOver = 10 * time.Second

// shrink gives back what only the start needed: half of a process that only waits.
func shrink(log *slog.Logger) {
	if err := filepages.Drop(); err != nil {
		log.Debug("the pages of the program's file stay in memory", "err", err)
	}
}

// relayEvents wires the rooms together and runs until ctx ends.
func relayEvents(ctx context.Context, cfg *config.Config, log *slog.Logger, stdout io.Writer) error {
	info, _ := debug.ReadBuildInfo()
	log.Info("starting", "version", versionText(info))
	if os.Getenv("GOGC") == "" {
		defer debug.SetGCPercent(debug.SetGCPercent(gcPercent))
	}
	defer time.AfterFunc(startOver, func() { shrink(log) }).Stop()
	var servers []string
	var embedded *natsd.Server
	if cfg.Sink != config.SinkStdout && len(cfg.NATSURL) == 0 {
		var err error
		if embedded, err = startEmbedded(ctx, log); err != nil {
			return err
		}
		defer embedded.Close()
		servers = []string{embedded.URL()}
	}
	so, err := sinkOptions(cfg, servers, log)
	if err != nil {
		return err
	}
	so.Stdout = stdout
	ctx, routers, err := joinDynamo(ctx, cfg, &so, log)
	if err != nil {
		return err
	}
	defer routers.done()
	publisher, err := sinks.New(so)
	if err != nil {
		return err
	}
	ro, err := relayOptions(cfg, publisher, so.Profile, log)
	if err != nil {
		return err
	}
	if embedded != nil {
		subject := publisher.Subject(ro.WorkerID, uint32(cfg.FirstRank))
		defer background(ctx, func(ctx context.Context) { remindUnheard(ctx, embedded, subject, log) })()
	}
	disco, err := discovery.New(discoveryOptions(cfg, log))
	if err != nil {
		return err
	}
	ro.Watch, ro.SourceLost = routers.watch(disco.Watch), disco.Lost
	return runShown(ctx, ro, disco, cfg, log)
}

// background runs f beside the caller, who ends it and waits with stop.
func background(ctx context.Context, f func(context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(ctx)
	}()
	return func() { cancel(); <-done }
}

// exitCode is what a Relay's end means to who started it.
func exitCode(err error) int {
	var lost *relay.LostError
	var unconfirmed *relay.UnconfirmedError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &lost):
		return exitLost
	case errors.As(err, &unconfirmed):
		return exitUnconfirmed
	}
	return exitFailed
}
