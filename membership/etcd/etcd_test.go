package etcd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Tests against etcd itself are in check, which is a module of its own.

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const secret = "hunter2"

func newStore(t *testing.T, o Options) *Store {
	t.Helper()
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestOptions: every problem is told, by the setting's name.
func TestOptions(t *testing.T) {
	_, err := New(Options{User: "u", TLSCert: "c", Lease: 1500 * time.Millisecond})
	for _, what := range []string{"KVRELAY_ETCD_ENDPOINTS", "KVRELAY_ETCD_PASSWORD", "KVRELAY_ETCD_TLS_KEY", "whole seconds"} {
		if err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%q is not in: %v", what, err)
		}
	}
}

// mute is a server that takes connections and says nothing.
func mute(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				_, _ = io.Copy(io.Discard, c) // until the client goes
				c.Close()
			})
		}
	})
	t.Cleanup(func() { ln.Close(); wg.Wait() })
	return ln.Addr().String()
}

// nobody is an address where nobody listens.
func nobody(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return ln.Addr().String()
}

// TestNobodyThere: with a server that is down, or that says nothing, with a
// login and without, each call ends in time with a reason that names server and
// setting, and at once when it is given up; and nothing is left of it.
func TestNobodyThere(t *testing.T) {
	for name, addr := range map[string]string{"down": nobody(t), "mute": mute(t)} {
		for _, user := range []string{"", "u"} {
			t.Run(name+user, func(t *testing.T) {
				t.Parallel()
				o := Options{Endpoints: []string{"http://" + addr + "/"}, User: user}
				if user != "" {
					o.Password = secret
				}
				s := newStore(t, o)
				calls := map[string]func(context.Context) error{
					"put":    func(ctx context.Context) error { return s.Put(ctx, "k", nil) },
					"list":   func(ctx context.Context) error { _, err := s.List(ctx, "k"); return err },
					"delete": func(ctx context.Context) error { return s.Delete(ctx, "another's") },
				}
				for what, f := range calls {
					began := time.Now()
					err := f(t.Context())
					if err == nil || !strings.Contains(err.Error(), addr) || !strings.Contains(err.Error(), "KVRELAY_ETCD_ENDPOINTS") || strings.Contains(err.Error(), secret) {
						t.Errorf("%s: %v", what, err)
					}
					if d := time.Since(began); d > 2*tryFor {
						t.Errorf("%s took %s", what, d)
					}
				}
				var wg sync.WaitGroup
				defer wg.Wait()
				for what, f := range calls {
					wg.Go(func() {
						ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
						defer cancel()
						began := time.Now()
						if err := f(ctx); err == nil || time.Since(began) > tryFor/2 {
							t.Errorf("%s, given up, ended after %s with %v", what, time.Since(began), err)
						}
						ctx, cancel = context.WithCancel(t.Context())
						cancel()
						if err := f(ctx); !errors.Is(err, context.Canceled) {
							t.Errorf("%s, given up before: %v", what, err)
						}
					})
				}
				wg.Wait()
				// Nothing was written, so nothing is to be removed, and nobody asked.
				if err := s.Delete(t.Context(), "k"); err != nil {
					t.Error(err)
				}
				if s.client != nil || s.users != 0 || len(s.locked) != 0 || len(s.mine)+len(s.leaving) != 0 {
					t.Errorf("left: client %v, %d users, keys %v, records %v, %v", s.client != nil, s.users, s.locked, s.mine, s.leaving)
				}
			})
		}
	}
}

// TestRunTells: what cannot be kept alive is told of once, with the reason, and
// Run ends at once when it is told to. With nothing on record it does nothing.
func TestRunTells(t *testing.T) {
	var log diary
	addr := mute(t)
	s := newStore(t, Options{Endpoints: []string{addr}, Lease: time.Second, Log: slog.New(slog.NewTextHandler(&log, nil))})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); s.Run(ctx) }()
	// For as long as several attempts would take.
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); <-time.After(10 * time.Millisecond) {
		s.turn <- struct{}{}
		if s.client != nil {
			t.Fatal("a connection for nothing")
		}
		<-s.turn
	}
	s.mu.Lock()
	s.mine["k"] = record{lease: 7, placed: true}
	s.mu.Unlock()
	s.wake <- struct{}{}
	for end := time.Now().Add(time.Minute); log.errors() == 0; <-time.After(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the log never tells")
		}
	}
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); <-time.After(10 * time.Millisecond) {
		if log.errors() != 1 {
			t.Fatal("the log tells again")
		}
	}
	cancel()
	began := time.Now()
	<-done
	if d := time.Since(began); d > time.Second {
		t.Errorf("Run ended after %s", d)
	}
	if text := log.String(); !strings.Contains(text, addr) || !strings.Contains(text, "KVRELAY_ETCD_ENDPOINTS") {
		t.Errorf("the log: %s", text)
	}
	if s.client != nil {
		t.Error("the client is left")
	}
}

// TestWithdrawnWhileRestored: a withdrawal does not wait for Run, which tries to
// write the record again, and has it give up.
func TestWithdrawnWhileRestored(t *testing.T) {
	s := newStore(t, Options{Endpoints: []string{mute(t)}})
	s.mine["k"] = record{value: []byte("v"), lease: 7, placed: true}
	looked := make(chan error, 1)
	look := func() error { _, err := s.look(context.Background(), held{key: "k", lease: 7}, false); return err }
	began := time.Now()
	go func() { looked <- look() }()
	for busy := false; !busy; <-time.After(time.Millisecond) {
		s.mu.Lock()
		busy = s.restoring == "k"
		s.mu.Unlock()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := s.Delete(ctx, "k"); err == nil {
		t.Error("withdrawn by nobody")
	}
	if err := <-looked; err != nil || time.Since(began) > tryFor/2 {
		t.Errorf("Run goes on for %s, then %v", time.Since(began), err)
	}
	if len(s.mine) != 0 || s.restoring != "" || len(s.locked) != 0 || s.leaving["k"] != 7 {
		t.Errorf("left: %v, %q, %v, %v", s.mine, s.restoring, s.locked, s.leaving)
	}
}

// diary is a log to look into.
type diary struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (d *diary) Write(b []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.b.Write(b)
}

func (d *diary) String() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.b.String()
}

func (d *diary) errors() int { return strings.Count(d.String(), "level=ERROR") }

// TestExplain: what etcd answers is told in the words of the settings, once.
func TestExplain(t *testing.T) {
	s := newStore(t, Options{Endpoints: []string{"http://a:1", "http://b:2"}, User: "u", Password: secret})
	dial := func(text string) error {
		return status.Error(codes.Unavailable, `last connection error: connection error: desc = "transport: `+text+`"`)
	}
	for _, x := range []struct {
		err  error
		want string
	}{
		{rpctypes.ErrGRPCAuthFailed, "refuses the login"},
		{rpctypes.ErrGRPCUserEmpty, "wants a login"},
		{rpctypes.ErrGRPCPermissionDenied, "--prefix=true"},
		{rpctypes.ErrGRPCNoSpace, "etcdctl alarm disarm"},
		{rpctypes.ErrGRPCCorrupt, "etcd at http://a:1,http://b:2: "},
		{rpctypes.ErrGRPCNoLeader, "http://b:2: etcdserver: no leader"},
		{context.DeadlineExceeded, "does not answer"},
		{status.Error(codes.DeadlineExceeded, "x"), "does not answer"},
		{dial("Error while dialing: dial tcp 127.0.0.1:1: connect: connection refused"), "(dial tcp 127.0.0.1:1: connect: connection refused)"},
		{dial("authentication handshake failed: tls: failed to verify certificate: x509: certificate signed by unknown authority"), "not trusted"},
		{dial("authentication handshake failed: tls: first record does not look like a TLS handshake"), "does not speak TLS"},
		{dial("authentication handshake failed: EOF"), "does not speak TLS"},
		{dial("authentication handshake failed: remote error: tls: certificate required"), "KVRELAY_ETCD_TLS_CERT"},
	} {
		err := s.explain(x.err)
		if err == nil || !strings.Contains(err.Error(), x.want) || strings.Count(err.Error(), "http://a:1,http://b:2") != 1 || strings.Contains(err.Error(), secret) {
			t.Errorf("%v: %v, want %q", x.err, err, x.want)
		}
	}
	file := &FileError{"KVRELAY_ETCD_TLS_CA", errors.New("x")}
	for _, err := range []error{nil, file, fmt.Errorf("wrapped: %w", context.Canceled)} {
		if got := s.explain(err); got != err {
			t.Errorf("%v became %v", err, got)
		}
	}
}
