package check

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/kvrelay/kvrelay/convert"
	"github.com/kvrelay/kvrelay/membership"
	"github.com/kvrelay/kvrelay/membership/etcd"
)

// rank is a source that publishes nothing.
type rank struct{ worker, publisher uint64 }

func (r rank) WorkerID() uint64     { return r.worker }
func (r rank) Rank() uint32         { return 0 }
func (rank) SetUnregistered(string) {}
func (r rank) PublisherID() uint64  { return r.publisher }
func (r rank) BlockSize() uint64    { return 16 }
func (r rank) Since(from uint64, _ func(uint64, *convert.RouterEvent)) (uint64, bool) {
	return from - 1, from == 1
}
func (r rank) Newest() (number, lastID uint64) { return 0, 0 }
func (r rank) Walk(_, to uint64, _ *convert.Output) (next, lastID uint64) {
	return to + 1, 0
}

// life is a relay's registry, until crash is called or the test ends.
func life(t testing.TB, endpoint string, lease time.Duration) (r *membership.Registry, log *diary, crash func()) {
	t.Helper()
	s, log := store(t, endpoint, lasting(lease))
	r, err := membership.New(membership.Options{
		Endpoint: membership.Endpoint{Namespace: "n", Component: "c", Name: "e"},
		Store:    s, RecoveryAddr: "127.0.0.1:0", RegisterWorker: true, Log: log.logger(),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := r.Run(ctx); err != nil {
			t.Error(err)
		}
	}()
	crash = sync.OnceFunc(func() { cancel(); <-done })
	t.Cleanup(crash)
	return r, log, crash
}

func register(t testing.TB, r *membership.Registry, publisher uint64) (withdraw func()) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	withdraw, err := r.Register(ctx, rank{31, publisher})
	if err != nil {
		t.Fatal(err)
	}
	return withdraw
}

// history watches what is written from here on: puts as "+ key", deletions as "- key".
func history(t testing.TB, c *clientv3.Client) (lines func() []string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	a, err := c.Get(ctx, "v1/", clientv3.WithCountOnly())
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var list []string
	var wg sync.WaitGroup
	wg.Go(func() {
		for w := range c.Watch(ctx, "v1/", clientv3.WithPrefix(), clientv3.WithRev(a.Header.Revision+1)) {
			mu.Lock()
			for _, e := range w.Events {
				sign := "+ "
				if e.Type == clientv3.EventTypeDelete {
					sign = "- "
				}
				list = append(list, sign+string(e.Kv.Key))
			}
			mu.Unlock()
		}
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return append([]string(nil), list...)
	}
}

const (
	instanceKey = "v1/instances/n/c/e/1f"
	modelKey    = "v1/mdc/n/c/e/1f"
	sourceKey   = "v1/event_sources/namespace/n/component/c/endpoint/e/topic/kv-events/"
)

// TestLives: the worker stands before its source and goes after it; a rank's
// next publisher comes after the one before has gone, also when a life has
// crashed. No two are ever on record.
func TestLives(t *testing.T) {
	t.Parallel()
	srv := newServer(t)
	c := srv.client()
	lines := history(t, c)
	r, _, crash := life(t, srv.url(), short)
	register(t, r, 1)()
	register(t, r, 2)
	crash()
	next, _, _ := life(t, srv.url(), short)
	register(t, next, 3)()
	eventually(t, "all leases are gone", func() bool { return leases(t, c) == 0 })
	if a, err := c.Get(t.Context(), "v1/", clientv3.WithPrefix(), clientv3.WithCountOnly()); err != nil || a.Count > 0 {
		t.Fatalf("%d keys left, %v", a.Count, err)
	}
	come := func(p string) []string { return []string{"+ " + instanceKey, "+ " + modelKey, "+ " + sourceKey + p} }
	leave := func(p string) []string { return []string{"- " + sourceKey + p, "- " + modelKey, "- " + instanceKey} }
	begin, end := slices.Concat(come("1"), leave("1"), come("2")), leave("3")
	eventually(t, "the history ends", func() bool { l := lines(); return len(l) > 0 && l[len(l)-1] == end[2] })
	got := lines()
	if !slices.Equal(got[:len(begin)], begin) {
		t.Errorf("the first life, and the begin of the second: %q", got)
	}
	if !slices.Equal(got[len(got)-len(end):], end) {
		t.Errorf("the end of the third: %q", got)
	}
	on := 0
	for i, l := range got {
		if strings.HasPrefix(l, "+ "+sourceKey) {
			on++
		} else if strings.HasPrefix(l, "- "+sourceKey) {
			on--
		}
		if on > 1 {
			t.Errorf("two sources after %q", got[:i+1])
		}
	}
}

// TestRivalElsewhere: a record whose address is still listened at is waited for,
// as long as its lease.
func TestRivalElsewhere(t *testing.T) {
	t.Parallel()
	srv := newServer(t)
	c := srv.client()
	there := newLink(t, srv.addr) // something that listens
	rival, _ := store(t, srv.url(), lasting(short))
	stop := running(t, rival)
	put(t, rival, sourceKey+"1", `{"type":"EventSource","metadata":{"worker":{"worker_id":31,"dp_rank":0},"recovery_target":{"transport":{"tcp":"`+there.ln.Addr().String()+`/1f/n/c/x"}}}}`)
	r, _, _ := life(t, srv.url(), short)
	registered := make(chan func(), 1)
	go func() { registered <- register(t, r, 2) }()
	during(t, 3*short, "the rank waits for the rival", func() bool {
		_, first := get(t, c, sourceKey+"1")
		_, second := get(t, c, sourceKey+"2")
		return first && !second
	})
	stop()
	began := time.Now()
	(<-registered)()
	if d := time.Since(began); d > short+slack {
		t.Errorf("the lease took %s", d)
	}
}

// TestExitWhileEtcdHangs: taking a rank back takes the time for it, with its
// worker; so does giving up a registration that etcd keeps waiting. Then the
// records go with their leases.
func TestExitWhileEtcdHangs(t *testing.T) {
	t.Parallel()
	srv := newServer(t)
	c := srv.client()
	l := newLink(t, srv.addr)
	r, log, crash := life(t, l.url(), short)
	withdraw := register(t, r, 1)
	l.block(true)
	began := time.Now()
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(time.Second, cancel)
	if _, err := r.Register(ctx, rank{32, 2}); err == nil {
		t.Error("registered with nobody")
	}
	if d := time.Since(began); d > 1500*time.Millisecond {
		t.Errorf("giving up took %s", d-time.Second)
	}
	began = time.Now()
	withdraw()
	crash()
	if d := time.Since(began); d > 1900*time.Millisecond {
		t.Errorf("the end took %s", d)
	}
	if log.count("could not be withdrawn") != 3 || log.count("KVRELAY_ETCD_ENDPOINTS") < 3 {
		t.Error("the log does not tell what stays")
	}
	eventually(t, "all is gone", func() bool {
		a, err := c.Get(t.Context(), "v1/", clientv3.WithPrefix(), clientv3.WithCountOnly())
		return err == nil && a.Count == 0
	})
}

// TestEtcdDownAtStart: a registration waits for etcd, and says why.
func TestEtcdDownAtStart(t *testing.T) {
	t.Parallel()
	srv := newServer(t)
	srv.stop()
	r, log, _ := life(t, srv.url(), short)
	done := make(chan struct{})
	go func() {
		defer close(done)
		withdraw, err := r.Register(context.Background(), rank{31, 1})
		if err != nil {
			t.Error(err)
			return
		}
		withdraw()
	}()
	eventually(t, "the log tells", func() bool {
		return log.count("Dynamo routers cannot be told of this engine yet") == 1 && log.count("KVRELAY_ETCD_ENDPOINTS") == 1 && log.count(srv.addr) > 0
	})
	srv.start()
	select {
	case <-done:
	case <-time.After(patience): // pauses between attempts grow
		t.Error("etcd is there, and the registration still waits")
		<-done
	}
}

var _ membership.Store = (*etcd.Store)(nil)
