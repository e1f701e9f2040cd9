package check

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/kvrelay/kvrelay/membership/etcd"
)

const key = "v1/event_sources/namespace/n/component/c/endpoint/e/topic/kv-events/abc"

// TestRecords: a record is written, replaced, listed and withdrawn, its lease
// is Dynamo's and goes with it.
func TestRecords(t *testing.T) {
	t.Parallel()
	srv := newServer(t)
	c := srv.client()
	s, _ := store(t, srv.url())
	for _, run := range []bool{false, true} {
		if run {
			running(t, s)
		}
		put(t, s, key, "1")
		first, ok := get(t, c, key)
		if !ok || first.value != "1" || first.lease == 0 {
			t.Fatalf("got %+v, %v", first, ok)
		}
		if ttl, err := c.TimeToLive(t.Context(), first.lease); err != nil || ttl.GrantedTTL != 10 {
			t.Errorf("lease %+v, %v", ttl, err)
		}
		put(t, s, key, "2")
		if e, _ := get(t, c, key); e.value != "2" || e.lease != first.lease || e.create != first.create {
			t.Errorf("replaced by %+v", e)
		}
		if _, err := c.Put(t.Context(), "v1/event_sourcesX", "other"); err != nil {
			t.Fatal(err)
		}
		list, err := s.List(t.Context(), "v1/event_sources/")
		if err != nil || len(list) != 1 || list[0].Key != key || string(list[0].Value) != "2" || list[0].Dead {
			t.Errorf("list %+v, %v", list, err)
		}
		for range 2 {
			if err := s.Delete(t.Context(), key); err != nil {
				t.Fatal(err)
			}
			if _, ok := get(t, c, key); ok || leases(t, c) != 0 {
				t.Errorf("left: key %v, %d leases", ok, leases(t, c))
			}
		}
		// Another's record, as of a life that is over.
		if err := s.Delete(t.Context(), "v1/event_sourcesX"); err != nil {
			t.Fatal(err)
		}
		if _, ok := get(t, c, "v1/event_sourcesX"); ok {
			t.Error("another's record stays")
		}
	}
}

// TestKeptAndCrash: many records outlive their leases while Run runs, and go
// with them when it has crashed.
func TestKeptAndCrash(t *testing.T) {
	t.Parallel()
	const ranks = 64
	srv := newServer(t)
	c := srv.client()
	s, _ := store(t, srv.url())
	crash := running(t, s)
	for i := range ranks {
		put(t, s, fmt.Sprintf("%s%d", key, i), "v")
	}
	count := func() int64 {
		a, err := c.Get(context.Background(), key, clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err != nil {
			t.Fatal(err)
		}
		return a.Count
	}
	first, _ := get(t, c, key+"63")
	during(t, 21*time.Second, "all records are there", func() bool { return count() == ranks })
	if e, _ := get(t, c, key+"63"); e != first {
		t.Errorf("%+v became %+v", first, e)
	}
	crash()
	began := time.Now()
	eventually(t, "the records are gone", func() bool { return count() == 0 })
	if d := time.Since(began); d > 10*time.Second+slack {
		t.Errorf("the records outlived their process by %s", d)
	}
	if n := leases(t, c); n != 0 {
		t.Errorf("%d leases left", n)
	}
}

// TestLostFromOutside: a record comes again when its lease was revoked, or the
// key deleted; so does every one of several.
func TestLostFromOutside(t *testing.T) {
	t.Parallel()
	srv := newServer(t)
	c := srv.client()
	s, log := store(t, srv.url(), lasting(short))
	running(t, s)
	keys := []string{key, key + "2", "v1/mdc/n/c/e/1f"}
	for _, k := range keys {
		put(t, s, k, "v"+k)
	}
	lose := map[string]func(){
		"revoked": func() {
			e, _ := get(t, c, key)
			if _, err := c.Revoke(t.Context(), e.lease); err != nil {
				t.Fatal(err)
			}
		},
		"all deleted": func() {
			if _, err := c.Delete(t.Context(), "v1/", clientv3.WithPrefix()); err != nil {
				t.Fatal(err)
			}
		},
		"all revoked": func() {
			for _, k := range keys {
				e, _ := get(t, c, k)
				if _, err := c.Revoke(t.Context(), e.lease); err != nil {
					t.Fatal(err)
				}
			}
		},
	}
	for what, f := range lose {
		f()
		for _, k := range keys {
			eventually(t, k+" is there again: "+what, func() bool { e, ok := get(t, c, k); return ok && e.value == "v"+k && e.lease != 0 })
		}
		during(t, 2*short, what+", and stays", func() bool { _, ok := get(t, c, key); return ok })
	}
	if n := log.count("are there again"); n != 1 { // within a minute
		t.Errorf("the log tells %d times of records that came again", n)
	}
	for _, k := range keys {
		if err := s.Delete(t.Context(), k); err != nil {
			t.Error(err)
		}
	}
	if n := leases(t, c); n > 3 { // of keys that were deleted from outside none, of revoked ones none
		t.Errorf("%d leases left", n)
	}
}

// TestOverwritten: what somebody overwrites is written again under our lease, and
// told of; but not what another process has put in the worker's place.
func TestOverwritten(t *testing.T) {
	t.Parallel()
	srv := newServer(t)
	c := srv.client()
	s, log := store(t, srv.url(), lasting(short))
	running(t, s)
	const instance, model = "v1/instances/n/c/e/1f", "v1/mdc/n/c/e/1f"
	keys := []string{key, instance, model}
	leased := map[string]clientv3.LeaseID{}
	for _, k := range keys {
		put(t, s, k, "v"+k)
		e, _ := get(t, c, k)
		leased[k] = e.lease
	}
	overwrite := func(k, v string) {
		if _, err := c.Put(t.Context(), k, v); err != nil {
			t.Fatal(err)
		}
	}
	for _, v := range []string{"", "nonsense", "v" + key} { // the last: only the lease has gone
		for _, k := range keys {
			overwrite(k, v)
			eventually(t, k+" is written again", func() bool {
				e, ok := get(t, c, k)
				return ok && e.value == "v"+k && e.lease == leased[k]
			})
		}
	}
	overwrite(key, `{"type":"EventSource"}`)
	overwrite(instance, `{"type":"Endpoint"}`)
	overwrite(model, `{"type":"Model"}`)
	eventually(t, "the source is written again", func() bool { e, ok := get(t, c, key); return ok && e.value == "v"+key })
	during(t, 2*short, "the worker's stay", func() bool {
		e, _ := get(t, c, instance)
		m, _ := get(t, c, model)
		return e.value == `{"type":"Endpoint"}` && m.value == `{"type":"Model"}`
	})
	if again, taken := log.count("had overwritten are there again"), log.count("another process has put itself on record"); again != 1 || taken != 1 {
		t.Errorf("the log tells %d and %d times", again, taken)
	}
	for _, k := range keys {
		if err := s.Delete(t.Context(), k); err != nil {
			t.Error(err)
		}
	}
	for _, k := range keys {
		if _, ok := get(t, c, k); ok == (k == key) {
			t.Errorf("%s is there at the end: %v", k, ok)
		}
	}
}

// TestRestart: etcd is away for longer than the lease, and comes back with its
// data or without. The record is there again, and is kept alive.
func TestRestart(t *testing.T) {
	for _, kept := range []bool{true, false} {
		t.Run(fmt.Sprintf("kept=%v", kept), func(t *testing.T) {
			t.Parallel()
			srv := newServer(t)
			s, log := store(t, srv.url(), lasting(short))
			running(t, s)
			put(t, s, key, "v")
			before, _ := get(t, srv.client(), key)
			srv.stop()
			eventually(t, "the log tells", func() bool { return log.count("cannot be kept alive") == 1 })
			if n := log.count("KVRELAY_ETCD_ENDPOINTS"); n != 1 {
				t.Errorf("the setting is named %d times", n)
			}
			away := time.Now()
			_, err := s.List(t.Context(), "v1/")
			holds(t, "list while etcd is away", err, srv.addr, "KVRELAY_ETCD_ENDPOINTS", "refused")
			// Long after the lease has ended; so long that pauses between attempts have grown.
			eventually(t, "it was away long enough", func() bool { return time.Since(away) > 25*time.Second })
			if !kept {
				srv.forget()
			}
			srv.start()
			back := time.Now()
			c := srv.client()
			eventually(t, "the record is there", func() bool { e, ok := get(t, c, key); return ok && e.value == "v" })
			if d := time.Since(back); d > slack {
				t.Errorf("it took %s", d)
			}
			e, _ := get(t, c, key)
			during(t, 3*short, "the record stays", func() bool { now, ok := get(t, c, key); return ok && now.create == e.create })
			if kept && e.create != before.create {
				t.Errorf("it was gone meanwhile: %+v, %+v", before, e)
			}
			eventually(t, "the log tells", func() bool { return log.count("etcd answers again") == 1 })
			if err := s.Delete(t.Context(), key); err != nil {
				t.Error(err)
			}
			if _, ok := get(t, c, key); ok {
				t.Error("the record stays")
			}
		})
	}
}

// TestPartition: what is asked for meanwhile ends in time with a reason; the
// record expires, and is there again when the way is free.
func TestPartition(t *testing.T) {
	t.Parallel()
	srv := newServer(t)
	c := srv.client()
	l := newLink(t, srv.addr)
	s, log := store(t, l.url(), lasting(short))
	running(t, s)
	put(t, s, key, "v")
	l.block(true)
	for what, f := range map[string]func(ctx context.Context) error{
		"put":    func(ctx context.Context) error { return s.Put(ctx, key+"2", []byte("v")) },
		"list":   func(ctx context.Context) error { _, err := s.List(ctx, "v1/"); return err },
		"delete": func(ctx context.Context) error { return s.Delete(ctx, key+"3") },
	} {
		began := time.Now()
		holds(t, what, f(t.Context()), l.ln.Addr().String(), "KVRELAY_ETCD_ENDPOINTS")
		if d := time.Since(began); d > 3*time.Second+slack {
			t.Errorf("%s took %s", what, d)
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(100*time.Millisecond, cancel)
		began = time.Now()
		// It may have a reason at once, from an attempt to connect before.
		if err := f(ctx); err == nil || !errors.Is(err, context.Canceled) && !strings.Contains(err.Error(), "KVRELAY_ETCD_ENDPOINTS") || time.Since(began) > 2*time.Second {
			t.Errorf("%s, given up, ended after %s with %v", what, time.Since(began), err)
		}
	}
	eventually(t, "the record expires", func() bool { _, ok := get(t, c, key); return !ok })
	eventually(t, "the log tells", func() bool { return log.count("cannot be kept alive") == 1 })
	l.block(false)
	eventually(t, "the record is there again", func() bool { _, ok := get(t, c, key); return ok })
	during(t, 2*short, "it stays", func() bool { _, ok := get(t, c, key); return ok })
	eventually(t, "the other, which was given up, is gone", func() bool { _, ok := get(t, c, key+"2"); return !ok })
}

// TestWithdrawnInPartition: a record whose withdrawal failed is kept alive by
// nobody, and never comes again.
func TestWithdrawnInPartition(t *testing.T) {
	t.Parallel()
	srv := newServer(t)
	c := srv.client()
	l := newLink(t, srv.addr)
	s, _ := store(t, l.url(), lasting(short))
	running(t, s)
	put(t, s, key, "v")
	put(t, s, key+"2", "v")
	l.block(true)
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	holds(t, "delete", s.Delete(ctx, key), "KVRELAY_ETCD_ENDPOINTS")
	l.block(false)
	eventually(t, "the record is gone", func() bool { _, ok := get(t, c, key); return !ok })
	during(t, 3*short, "it stays away, and the other there", func() bool {
		_, gone := get(t, c, key)
		_, ok := get(t, c, key+"2")
		return !gone && ok
	})
}

// TestOneOfTwoHangs: a server that hangs costs no record, while there is another.
func TestOneOfTwoHangs(t *testing.T) {
	t.Parallel()
	srv := newServer(t)
	c := srv.client()
	links := []*link{newLink(t, srv.addr), newLink(t, srv.addr)}
	s, _ := store(t, links[0].url(), func(o *etcd.Options) { o.Endpoints = append(o.Endpoints, links[1].url()) })
	running(t, s)
	put(t, s, key, "v")
	first, _ := get(t, c, key)
	for i := range 2 {
		links[i].block(true)
		during(t, 12*time.Second, "the record is there", func() bool { e, ok := get(t, c, key); return ok && e.create == first.create })
		links[i].block(false)
		eventually(t, "it can be deleted and put", func() bool { _, err := s.List(t.Context(), "v1/"); return err == nil })
	}
}

// TestWithdrawnAtAnyTime: what is withdrawn while a round of renewals is at it
// never comes again.
func TestWithdrawnAtAnyTime(t *testing.T) {
	t.Parallel()
	srv := newServer(t)
	c := srv.client()
	s, _ := store(t, srv.url(), lasting(time.Second))
	running(t, s)
	for range 5 {
		var wg sync.WaitGroup
		for i := range 64 {
			wg.Go(func() {
				k := fmt.Sprintf("%s%d", key, i)
				if err := s.Put(t.Context(), k, []byte("v")); err != nil {
					t.Error(err)
				}
				time.Sleep(rand.N(700 * time.Millisecond)) // two rounds
				if err := s.Delete(t.Context(), k); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	}
	during(t, 3*time.Second, "nothing is there", func() bool {
		a, err := c.Get(context.Background(), key, clientv3.WithPrefix(), clientv3.WithCountOnly())
		return err == nil && a.Count == 0
	})
	if n := leases(t, c); n != 0 {
		t.Errorf("%d leases left", n)
	}
}

// TestTogether: whatever is lost and withdrawn at once, nothing is left that
// was withdrawn, and everything is there that was not.
func TestTogether(t *testing.T) {
	t.Parallel()
	srv := newServer(t)
	c := srv.client()
	s, _ := store(t, srv.url(), lasting(time.Second))
	running(t, s)
	const keys = 8
	want := make([]bool, keys)
	stop := make(chan struct{})
	var vandal sync.WaitGroup
	vandal.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if a, err := c.Leases(context.Background()); err == nil && len(a.Leases) > 0 {
				_, _ = c.Revoke(context.Background(), a.Leases[rand.IntN(len(a.Leases))].ID) // it may have gone
			}
			_, _ = c.Delete(context.Background(), fmt.Sprintf("%s%d", key, rand.IntN(keys)))
		}
	})
	var wg sync.WaitGroup
	for i := range keys {
		wg.Go(func() {
			k := fmt.Sprintf("%s%d", key, i)
			for end := time.Now().Add(8 * time.Second); time.Now().Before(end); {
				if want[i] = rand.IntN(2) > 0; want[i] {
					for s.Put(t.Context(), k, []byte("v")) != nil { // its lease was revoked before
					}
				} else if err := s.Delete(t.Context(), k); err != nil {
					t.Error(err)
				}
				time.Sleep(rand.N(20 * time.Millisecond)) // so that Run finds what the vandal did
			}
		})
	}
	wg.Wait()
	close(stop)
	vandal.Wait()
	right := func() bool {
		for i := range keys {
			if _, ok := get(t, c, fmt.Sprintf("%s%d", key, i)); ok != want[i] {
				return false
			}
		}
		return true
	}
	for i := range keys {
		eventually(t, fmt.Sprintf("%d is there: %v", i, want[i]), func() bool {
			_, ok := get(t, c, fmt.Sprintf("%s%d", key, i))
			return ok == want[i]
		})
	}
	during(t, 4*time.Second, "all stay so", right)
	n := strings.Count(fmt.Sprint(want), "true")
	eventually(t, "there is a lease a record", func() bool { return leases(t, c) == n })
}
