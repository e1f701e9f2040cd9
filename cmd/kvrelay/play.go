package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"strconv"

	"github.com/kvrelay/kvrelay/internal/capture"
	"github.com/kvrelay/kvrelay/internal/mockengine"
)

const playHelp = `
Usage: kvrelay play [flags] FILE

Plays a capture (see kvrelay record) as its engine: the messages on a ZMQ PUB,
and a replay ROUTER that answers as that engine version does. Where the numbers
of a file begin again the engine restarts. Prints both endpoints, and after the
last message goes on serving replays until it is interrupted.

  kvrelay play x.jsonl.gz --rate 50 --drop 0.3 --seed 1

Exit codes: 0 stopped as asked, 1 failed, 2 bad usage.`

// runPlay is `kvrelay play`.
func runPlay(ctx context.Context, args []string, _ io.Reader, stdout, stderr io.Writer) int {
	fs := flag.NewFlagSet("play", flag.ContinueOnError)
	var o mockengine.PlayOptions
	host := fs.String("host", "127.0.0.1", "address to bind to; * for all")
	eventPort := fs.Uint("event-port", 0, "port of the PUB; 0: a free one")
	replayPort := fs.Uint("replay-port", 0, "port of the ROUTER; 0: a free one")
	replay := fs.String("replay", "", "replies of the ROUTER: 4frame, 3frame, atom, atom-noend, or none; empty: as the file's engine version")
	steps := fs.Int("buffer-steps", 10_000, "batches remembered for replay")
	fs.Float64Var(&o.Rate, "rate", 10, "messages a second; 0: as fast as they can be read")
	fs.Float64Var(&o.Drop, "drop", 0, "probability that a message is not on PUB; the replay has it")
	fs.Uint64Var(&o.Seed, "seed", 1, "of --drop: the same seed withholds the same messages")
	fs.BoolVar(&o.Loop, "loop", false, "play again and again, each time as a restarted engine")
	fs.BoolVar(&o.Wait, "wait", true, "wait for a subscriber before the first message")
	length := lengthFlag(fs)
	rest, code, done := ownFlags(fs, playHelp, args, stdout, stderr)
	if done {
		return code
	}
	usage := func(format string, a ...any) int {
		fmt.Fprintf(stderr, "kvrelay play: "+format+"\n", a...)
		return exitUsage
	}
	shape := mockengine.ReplayShape(*replay)
	switch shape {
	case "", mockengine.Reply4, mockengine.Reply3, mockengine.ReplyATOM, mockengine.ReplyATOMNoEnd, mockengine.NoReplay:
	default:
		return usage("--replay=%q: want 4frame, 3frame, atom, atom-noend or none", *replay)
	}
	switch {
	case len(rest) != 1:
		return usage("%d arguments; want one file", len(rest))
	case !(o.Drop >= 0 && o.Drop <= 1):
		return usage("--drop=%v: want a probability, 0 to 1", o.Drop)
	case !(o.Rate >= 0):
		return usage("--rate=%v: want 0 or more", o.Rate)
	case *steps < 1:
		return usage("--buffer-steps=%d: want 1 or more", *steps)
	case *eventPort > 65535 || *replayPort > 65535:
		return usage("ports end at 65535")
	}
	ctx, stop := bounded(ctx, *length)
	defer stop()
	p := playSettings{
		path: rest[0], shape: shape, play: o, stdout: stdout, host: *host,
		publisher: mockengine.PublisherOptions{
			BufferSteps: *steps,
			EventAddr:   bindAddr(*host, *eventPort),
			ReplayAddr:  bindAddr(*host, *replayPort),
		},
	}
	if err := p.run(ctx); err != nil {
		return fail(stderr, "play", err)
	}
	return exitOK
}

func bindAddr(host string, port uint) string {
	if host == "*" {
		host = "" // as ZMQ writes it, and as net does
	}
	return net.JoinHostPort(host, strconv.Itoa(int(port)))
}

type playSettings struct {
	path, host string
	shape      mockengine.ReplayShape // empty: as the file's engine
	play       mockengine.PlayOptions
	publisher  mockengine.PublisherOptions
	stdout     io.Writer
}

// run plays the file and then serves replays until ctx ends.
func (s playSettings) run(ctx context.Context) error {
	open := func() (*capture.Reader, error) { return capture.Open(s.path) }
	r, err := open() // what is wrong with the file is said before anything is bound
	if err != nil {
		return err
	}
	meta := r.Meta()
	if err := r.Close(); err != nil {
		return err
	}
	s.publisher.Replay, s.publisher.ReplayHWM = mockengine.ReplayShapeOf(meta.Engine, meta.Version, s.publisher.BufferSteps)
	if s.shape != "" {
		s.publisher.Replay = s.shape
	}
	s.publisher.Topic, s.publisher.Rank = meta.Topic, int(meta.DPRank)
	p := mockengine.NewPublisher(s.publisher)
	if err := p.Listen(); err != nil {
		return fmt.Errorf("%w; choose other ports, or 0 for free ones", err)
	}
	fmt.Fprintf(s.stdout, "events %s\n", s.endpoint(p.EventPort()))
	if port := p.ReplayPort(); port != 0 {
		fmt.Fprintf(s.stdout, "replay %s (%s)\n", s.endpoint(port), s.publisher.Replay)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	served := make(chan error, 1)
	go func() {
		served <- p.Run(ctx)
		cancel()
	}()
	stats, err := mockengine.Play(ctx, p, open, s.play)
	fmt.Fprintf(s.stdout, "played %d messages, %d of them not on PUB, %d restarts\n", stats.Messages, stats.Withheld, stats.Restarts)
	if stats.Torn != nil {
		fmt.Fprintln(s.stdout, stats.Torn)
	}
	if err == nil {
		<-ctx.Done()
	}
	cancel()
	return errors.Join(err, <-served)
}

func (s playSettings) endpoint(port int) string {
	return "tcp://" + net.JoinHostPort(s.host, strconv.Itoa(port))
}
