package membership

import (
	"context"
	"net"
	"os"
	"strings"
	"testing"
	"time"
)

// closedAddr is an address of this host at which nobody listens.
func closedAddr(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return ln.Addr().String()
}

// TestGone: only who listened on this host, and does no more, is surely dead.
func TestGone(t *testing.T) {
	r, _ := joined(t, t.TempDir())
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	closed := closedAddr(t)
	source := func(transport string) string {
		return `{"type":"EventSource","metadata":{"recovery_target":{"transport":` + transport + `}}}`
	}
	for value, want := range map[string]bool{
		source(`{"tcp":"` + closed + `/1/n/c/e"}`):                                 true,
		source(`{"tcp":"` + ln.Addr().String() + `/1/n/c/e"}`):                     false, // lives
		source(`{"tcp":"` + r.target + `/1/n/c/e"}`):                               true,  // we have its port
		source(`{"tcp":"203.0.113.1:1/1/n/c/e"}`):                                  false, // elsewhere
		source(`{"tcp":"localhost:1/1/n/c/e"}`):                                    false, // no address
		source(`{"tcp":"/1/n/c/e"}`):                                               false,
		source(`{"nats_tcp":"n_c.e-1"}`):                                           false,
		source(`"tcp"`):                                                            false,
		`{"type":"EventSource","metadata":{}}`:                                     false, // a source that answers nobody
		`{"type":"Endpoint","transport":{"tcp":"` + closed + `/1/n"}}`:             true,
		`{"type":"Endpoint","transport":{"tcp":"` + ln.Addr().String() + `/1/n"}}`: false,
		`nonsense`: false,
	} {
		if got := r.gone(t.Context(), []byte(value)); got != want {
			t.Errorf("%s: %v, want %v", value, got, want)
		}
	}
	// Every host has a loopback. Who is reached by others does not judge by it.
	if elsewhere(r).gone(t.Context(), []byte(source(`{"tcp":"`+closed+`/1/n/c/e"}`))) {
		t.Error("whoever listens on another host's loopback was taken for dead")
	}
}

// TestCrashedPredecessor: the records of a life that crashed on this host are
// not waited for, event source and worker.
func TestCrashedPredecessor(t *testing.T) {
	root := t.TempDir()
	crashed := NewFile(root, testLog(t)) // what a killed process leaves
	p, err := New(Options{Endpoint: Endpoint{"dyn-amo", "backend", "generate"}, Store: crashed, Log: testLog(t)})
	if err != nil {
		t.Fatal(err)
	}
	p.target = closedAddr(t)
	old := fixed{worker: 31, publisher: 1}
	rec := p.record(old)
	instanceKey, _, instanceValue, _ := p.workerRecords(31, card{blockSize: 16, ranks: 1})
	for key, value := range map[string][]byte{rec.Key: rec.Value, instanceKey: instanceValue} {
		if err := crashed.Put(t.Context(), key, value); err != nil {
			t.Fatal(err)
		}
	}
	// Nobody may take them for old: only that nobody listens tells.
	young, busy := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(busy)
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-young:
				return
			case now := <-tick.C:
				for _, key := range []string{rec.Key, instanceKey} {
					_ = os.Chtimes(crashed.path(key), now, now) // it may have gone
				}
			}
		}
	}()
	defer func() { close(young); <-busy }()
	r, _ := joined(t, root, worker1)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	withdraw, err := r.Register(ctx, fixed{worker: 31, publisher: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer withdraw()
	if got := files(t, root); len(got) != 1 || !strings.HasSuffix(got[0], "%2F2") {
		t.Errorf("files %q", got)
	}
}
