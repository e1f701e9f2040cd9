//go:build integration

package integration

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvrelay/kvrelay/internal/mockengine"
	"github.com/kvrelay/kvrelay/internal/natsd"
)

// hung is a server that takes connections and never says a word.
func hung(t *testing.T) (addr string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var held []net.Conn // owned by the goroutine until it has ended
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			held = append(held, c)
		}
	})
	t.Cleanup(func() {
		ln.Close()
		wg.Wait()
		for _, c := range held {
			c.Close()
		}
	})
	return ln.Addr().String()
}

// The built program, told to stop while one of its peers takes connections and
// says nothing: it ends within 5 s, and says so where events stayed unconfirmed.
func TestEndsWhateverHangs(t *testing.T) {
	for name, c := range map[string]struct {
		set   func(addr string) settings
		says  string
		codes []int // 4: NATS, or the record before it, was waited for
	}{
		"engine": {func(a string) settings { return settings{"ENDPOINTS": "tcp://" + a} }, "waiting for the engine", []int{0}},
		"replay": {func(a string) settings { return settings{"REPLAY_ENDPOINTS": "tcp://" + a} }, "connected to NATS", []int{0}},
		"discovery": {func(a string) settings {
			return settings{"ENDPOINTS": "", "REPLAY_ENDPOINTS": "", "DISCOVERY_URL": "http://" + a}
		}, "connected to NATS", []int{0}},
		"NATS":      {func(a string) settings { return settings{"NATS_URL": "nats://" + a} }, "no connection to NATS", []int{4}},
		"JetStream": {func(a string) settings { return settings{"NATS_URL": "nats://" + a, "SINK": "jetstream"} }, "no connection to NATS", []int{0, 4}},
		"etcd": {func(a string) settings {
			return settings{"MEMBERSHIP": "etcd", "ETCD_ENDPOINTS": "http://" + a}
		}, "cannot be told", []int{4}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e, err := mockengine.Start(mockengine.Options{BlockSize: 16, Blocks: 64, Workload: &mockengine.Workload{}})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = e.Close() }) // it is not what is tested
			for range 50 {
				e.Step()
			}
			all := settings{"ENDPOINTS": e.Rank(0).Endpoint(), "REPLAY_ENDPOINTS": e.Rank(0).ReplayEndpoint()}
			for key, value := range c.set(hung(t)) {
				all[key] = value
			}
			k := startKvrelay(t, all)
			k.says(c.says)
			start := time.Now()
			k.want = k.stop()
			if took := time.Since(start); took > 5*time.Second {
				t.Errorf("the end took %v", took)
			}
			if !slices.Contains(c.codes, k.want) {
				t.Errorf("exit code %d, want %v", k.want, c.codes)
			}
		})
	}
}

// The same where NATS, on whose word everything waits, events, heartbeats and
// recovery requests, freezes while the program runs.
func TestEndsWhereNATSFreezes(t *testing.T) {
	e, err := mockengine.Start(mockengine.Options{BlockSize: 16, Blocks: 64, Ranks: 4, Workload: &mockengine.Workload{}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() }) // it is not what is tested
	s, err := natsd.Start(t.Context(), natsd.Options{Port: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	gate := mockengine.NewProxy("127.0.0.1:0", strings.TrimPrefix(s.URL(), "nats://"))
	if err := gate.Listen(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { gate.Run(ctx) })
	t.Cleanup(func() { cancel(); wg.Wait() })
	var live, replay []string
	for _, r := range e.Ranks() {
		live, replay = append(live, r.Endpoint()), append(replay, r.ReplayEndpoint())
	}
	k := startKvrelay(t, settings{
		"ENDPOINTS": strings.Join(live, ","), "REPLAY_ENDPOINTS": strings.Join(replay, ","), "NATS_URL": "nats://" + gate.Addr(),
		"MEMBERSHIP": "file", "MEMBERSHIP_PATH": t.TempDir(), "REQUEST_PLANE": "nats", "REGISTER_WORKER": "true", "BLOCK_SIZE": "16",
		"CLEAR_ON_EXIT": "true",
	})
	for rank := range live {
		k.says("on record for Dynamo routers", fmt.Sprintf(`"dp_rank":%d`, rank))
	}
	gate.Freeze()
	start := time.Now()
	k.want = k.stop()
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("the end took %v", took)
	}
	if k.want != 4 {
		t.Errorf("exit code %d, want 4", k.want)
	}
}
