package sdnotify

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// manager is the socket of a service manager.
type manager struct {
	t    *testing.T
	conn *net.UnixConn
}

func newManager(t *testing.T, watchdog time.Duration) *manager {
	t.Helper()
	dir, err := os.MkdirTemp("", "notify") // t.TempDir may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	name := filepath.Join(dir, "s")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	t.Setenv("NOTIFY_SOCKET", name)
	t.Setenv("WATCHDOG_PID", strconv.Itoa(os.Getpid()))
	t.Setenv("WATCHDOG_USEC", "")
	if watchdog > 0 {
		t.Setenv("WATCHDOG_USEC", strconv.FormatInt(watchdog.Microseconds(), 10))
	} else {
		os.Unsetenv("WATCHDOG_USEC")
	}
	return &manager{t, conn}
}

// hear is the next message within d, "" when there is none.
func (m *manager) hear(d time.Duration) string {
	m.t.Helper()
	if err := m.conn.SetReadDeadline(time.Now().Add(d)); err != nil {
		m.t.Fatal(err)
	}
	b := make([]byte, 4096)
	n, err := m.conn.Read(b)
	if err != nil {
		return ""
	}
	return string(b[:n])
}

// expect waits for a message, passing over others.
func (m *manager) expect(want string) {
	m.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); {
		if got := m.hear(time.Second); got == want {
			return
		}
	}
	m.t.Fatalf("no %q", want)
}

func run(t *testing.T, n *Notifier) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); n.Run(ctx) }()
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)
	return stop
}

func TestLife(t *testing.T) {
	m := newManager(t, 0)
	stop := run(t, &Notifier{Health: func() error { return nil }, Status: func() string { return "2 ranks are live" }})
	if got := m.hear(20 * time.Second); got != "READY=1" {
		t.Errorf("first %q", got)
	}
	if got := m.hear(20 * time.Second); got != "STATUS=2 ranks are live" {
		t.Errorf("then %q: no watchdog was asked for", got)
	}
	stop()
	if got := m.hear(20 * time.Second); got != "STOPPING=1" {
		t.Errorf("last %q", got)
	}
}

// A stuck process stops the pings, says why, and goes on when it is free again.
func TestStuckStopsPings(t *testing.T) {
	m := newManager(t, 90*time.Millisecond)
	var stuck atomic.Bool
	var logs bytes.Buffer
	stop := run(t, &Notifier{Health: func() error {
		if stuck.Load() {
			return errors.New("a lock is held")
		}
		return nil
	}, Log: slog.New(slog.NewTextHandler(&logs, nil))})
	m.expect("WATCHDOG=1")
	m.expect("WATCHDOG=1")
	stuck.Store(true)
	m.expect("STATUS=a lock is held") // pings sent before are passed over
	if got := m.hear(300 * time.Millisecond); got != "" {
		t.Errorf("%q from a stuck process", got)
	}
	stuck.Store(false)
	m.expect("WATCHDOG=1")
	stop()
	m.expect("STOPPING=1")
	if !strings.Contains(logs.String(), "makes no progress") {
		t.Errorf("the log does not tell: %s", logs.String())
	}
}

// Without a manager nothing is said, and nothing fails.
func TestNoManager(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	asked := make(chan struct{}, 1)
	stop := run(t, &Notifier{Health: func() error { asked <- struct{}{}; return nil }})
	stop()
	if len(asked) > 0 {
		t.Error("health was asked for nobody")
	}
}

// A socket that is gone is told once in the log, and is no reason to end early.
func TestDeafManager(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", filepath.Join(t.TempDir(), "none"))
	var logs bytes.Buffer
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	(&Notifier{Health: func() error { return nil }, Log: slog.New(slog.NewTextHandler(&logs, nil))}).Run(ctx)
	if !strings.Contains(logs.String(), "cannot be told") {
		t.Errorf("log: %s", logs.String())
	}
}

// The watchdog of another process is not ours.
func TestOthersWatchdog(t *testing.T) {
	m := newManager(t, 30*time.Millisecond)
	t.Setenv("WATCHDOG_PID", strconv.Itoa(os.Getpid()+1))
	stop := run(t, &Notifier{Health: func() error { return nil }})
	m.expect("READY=1")
	if got := m.hear(200 * time.Millisecond); got != "" {
		t.Errorf("said %q", got)
	}
	stop()
	m.expect("STOPPING=1")
}
