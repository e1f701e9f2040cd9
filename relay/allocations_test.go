//go:build !race

package relay

import (
	"context"
	"encoding/binary"
	"io"
	"log/slog"
	"runtime"
	"testing"
	"time"

	"github.com/kvrelay/kvrelay/discovery"
	"github.com/kvrelay/kvrelay/internal/load"
	"github.com/kvrelay/kvrelay/replay"
	"github.com/kvrelay/kvrelay/sinks"
)

// A batch that is next in order goes from the socket's buffer to the outbox and
// out of it without a copy of its bytes, and in the long run without an allocation.
func TestAllocations(t *testing.T) {
	const (
		warm     = 4000
		measured = 20_000
	)
	log := slog.New(slog.DiscardHandler)
	sink, err := sinks.New(sinks.Options{Kind: sinks.Stdout, Stdout: io.Discard, Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	published := make(chan error, 1)
	go func() { published <- sink.Run(ctx) }()
	defer func() { stop(); <-published }()
	r := New(Options{
		WorkerID: 1, Publisher: sink, Log: log, HoldBytes: 1 << 20, OutBytes: 16 << 20,
		Replay: replay.Config{Heartbeat: time.Minute, Idle: time.Minute, Attempts: 1, DeadAfter: time.Hour},
	})
	s := newStream(r, discovery.Source{Endpoint: "tcp://127.0.0.1:1", BlockSize: 16}) // without replay a connection needs no proof
	s.ctx, s.fatal = context.WithCancelCause(ctx)
	r.credit.join(s)
	s.begin()
	s.cursor.LiveUp(s.now)
	s.finish(0)

	g, err := load.NewGenerator(load.Shape{Blocks: 64, BlockSize: 16, Keep: 6400})
	if err != nil {
		t.Fatal(err)
	}
	var payload []byte
	seq := make([]byte, 8)
	frames := make([][]byte, 3)
	next := uint64(0)
	send := func(n int) {
		for range n {
			payload = g.Append(payload[:0], next)
			binary.BigEndian.PutUint64(seq, next)
			frames[0], frames[1], frames[2] = nil, seq, payload
			if !s.message(0, frames) {
				t.Fatal("the connection is no longer the stream's")
			}
			next++
			for sink.State().UnconfirmedBytes > 4<<20 { // as if NATS kept up
				runtime.Gosched()
			}
		}
	}
	send(warm)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	send(measured)
	runtime.ReadMemStats(&after)
	c := s.cursor.State().Counters
	if c.Applied != warm+measured {
		t.Fatalf("%+v", c)
	}
	allocs := float64(after.Mallocs-before.Mallocs) / measured
	bytes := float64(after.TotalAlloc-before.TotalAlloc) / measured
	t.Logf("%.3f allocations and %.0f bytes for a batch of %d bytes", allocs, bytes, g.Size())
	if allocs > 0.5 {
		t.Errorf("%.2f allocations for each batch, want none", allocs)
	}
	if bytes > float64(g.Size())/4 {
		t.Errorf("%.0f bytes allocated for each batch of %d: is it copied?", bytes, g.Size())
	}
}
