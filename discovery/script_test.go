package discovery

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// script is an address whose ways of asking are told by the test. Time is
// synctest's: nothing really waits.
type script struct {
	t      *testing.T
	d      *Discoverer
	began  time.Time
	cancel context.CancelFunc
	ended  chan struct{}

	mu      sync.Mutex
	say     map[string]func() (*answer, error) // by prober
	asked   []string                           // "vllm 250ms": who was asked when
	updates []string
	log     bytes.Buffer
}

func (s *script) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.log.Write(p)
}

// logged are the log lines since the last call, without time.
func (s *script) logged() (lines []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for l := range strings.Lines(s.log.String()) {
		lines = append(lines, strings.TrimSpace(l))
	}
	s.log.Reset()
	return lines
}

func (s *script) tells(name string, f func() (*answer, error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.say[name] = f
}

func refuses(c class, text string) func() (*answer, error) {
	return func() (*answer, error) { return nil, failf(c, "%s", text) }
}

func has(a answer) func() (*answer, error) {
	return func() (*answer, error) { b := a; return &b, nil }
}

// counts is how often each was asked since the last call.
func (s *script) counts() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := map[string]int{}
	for _, a := range s.asked {
		n[strings.Fields(a)[0]]++
	}
	s.asked = nil
	return n
}

// asks holds the number of times that one was asked since the last call to a range.
func (s *script) asks(name string, low, high int) {
	s.t.Helper()
	if n := s.counts(); n[name] < low || n[name] > high {
		s.t.Errorf("asked %v times, want %d to %d", n, low, high)
	}
}

func (s *script) told() (updates []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	updates, s.updates = s.updates, nil
	return updates
}

// watch runs a Discoverer with probers of these names against s.
func watch(t *testing.T, o Options, names ...string) *script {
	s := &script{t: t, began: time.Now(), say: map[string]func() (*answer, error){}, ended: make(chan struct{})}
	o.Log = slog.New(slog.NewTextHandler(s, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
	d, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	d.probers = nil
	for _, name := range names {
		kind, url, _ := strings.Cut(name, "@")
		s.say[name] = refuses(unreachable, "connection refused")
		d.probers = append(d.probers, prober{kind: kind, target: target{url: or(url, "u"), host: "10.0.0.1"}, asks: "Q", ask: func(ctx context.Context) (*answer, error) {
			s.mu.Lock()
			s.asked = append(s.asked, fmt.Sprintf("%s %v", name, time.Since(s.began)))
			f := s.say[name]
			s.mu.Unlock()
			return f()
		}})
	}
	s.d = d
	ctx, cancel := context.WithCancel(t.Context())
	s.cancel = cancel
	go func() {
		defer close(s.ended)
		if err := d.Watch(ctx, func(list []Source) {
			var l []string
			for _, src := range list {
				l = append(l, short(src))
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			s.updates = append(s.updates, strings.Join(l, ", "))
		}); err != nil {
			t.Errorf("Watch: %v", err)
		}
	}()
	synctest.Wait()
	return s
}

func (s *script) stop() {
	s.cancel()
	<-s.ended
}

func (s *script) after(d time.Duration) {
	time.Sleep(d) // synctest's: takes no time
	synctest.Wait()
}

func (s *script) updated(want ...string) {
	s.t.Helper()
	if got := s.told(); len(got)+len(want) > 0 && !reflect.DeepEqual(got, want) {
		s.t.Errorf("told %q, want %q", got, want)
	}
}

func (s *script) says(want ...string) {
	s.t.Helper()
	if got := s.logged(); len(got)+len(want) > 0 && !reflect.DeepEqual(got, want) {
		s.t.Errorf("said\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
