package admin

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvrelay/kvrelay/config"
	"github.com/kvrelay/kvrelay/discovery"
	"github.com/kvrelay/kvrelay/internal/sdnotify"
	"github.com/kvrelay/kvrelay/relay"
	"github.com/kvrelay/kvrelay/sinks"
)

// jam is a log that, once shut, holds up whoever writes to it. A stream writes
// under its lock: so it makes a real stream stuck.
type jam struct {
	slog.Handler
	mu   *sync.Mutex
	open *chan struct{} // nil: it flows
}

func newJam() jam {
	return jam{slog.DiscardHandler, &sync.Mutex{}, new(chan struct{})}
}

func (j jam) Enabled(context.Context, slog.Level) bool { return true }
func (j jam) WithAttrs([]slog.Attr) slog.Handler       { return j }
func (j jam) WithGroup(string) slog.Handler            { return j }
func (j jam) Handle(_ context.Context, _ slog.Record) error {
	j.mu.Lock()
	open := *j.open
	j.mu.Unlock()
	if open != nil {
		<-open
	}
	return nil
}

func (j jam) shut() {
	j.mu.Lock()
	defer j.mu.Unlock()
	*j.open = make(chan struct{})
}

func (j jam) free() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if *j.open != nil {
		close(*j.open)
		*j.open = nil
	}
}

// A stream that holds its lock fails /healthz and stops the watchdog's pings;
// free again, both come back. That its engine is not there does neither.
func TestStuckStreamStopsWatchdog(t *testing.T) {
	dir, err := os.MkdirTemp("", "notify")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(dir, "s"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer manager.Close()
	t.Setenv("NOTIFY_SOCKET", filepath.Join(dir, "s"))
	t.Setenv("WATCHDOG_USEC", "300000")
	t.Setenv("WATCHDOG_PID", "")
	os.Unsetenv("WATCHDOG_PID")
	hear := func(d time.Duration) string {
		if err := manager.SetReadDeadline(time.Now().Add(d)); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 4096)
		n, _ := manager.Read(b) // nothing within d
		return string(b[:n])
	}

	log := newJam()
	publisher, err := sinks.New(sinks.Options{Kind: sinks.Stdout, Stdout: &lines{}})
	if err != nil {
		t.Fatal(err)
	}
	r := relay.New(relay.Options{
		WorkerID: 1, Publisher: publisher, Log: slog.New(log), HoldBytes: 1 << 20, OutBytes: 1 << 20, Replays: 1,
		Watch: func(ctx context.Context, update func([]discovery.Source)) error {
			update([]discovery.Source{{Endpoint: "tcp://127.0.0.1:1", Replay: "tcp://127.0.0.1:1"}})
			<-ctx.Done()
			return nil
		},
	})
	s := New(Options{Addr: "127.0.0.1:0", Status: r.Status, Sink: config.SinkStdout})
	s.stuck = 3 * time.Second
	if err := s.Listen(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	defer log.free()
	wg.Go(func() {
		if err := r.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	wg.Go(func() {
		if err := s.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	wg.Go(func() { (&sdnotify.Notifier{Health: s.Health}).Run(ctx) })

	pings := func() bool { return hear(100*time.Millisecond) == "WATCHDOG=1" }
	eventually(t, "pings beside an engine that is not there", pings)
	eventually(t, "a look at the stream", func() bool { return strings.HasPrefix(s.Line(), "0 of 1 rank live") })
	log.shut()
	eventually(t, "health's failure", func() bool { return s.Health() != nil })
	eventually(t, "silence", func() bool { return hear(500*time.Millisecond) == "" })
	if code, body := get(t, "http://"+s.Addr()+"/healthz"); code != 503 || !strings.Contains(body, "stuck") {
		t.Errorf("healthz %d %s", code, body)
	}
	log.free()
	eventually(t, "pings again", pings)
}
