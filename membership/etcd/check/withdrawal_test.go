package check

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"
)

// far is a lease that no test outlives.
const far = time.Hour

// TestAnothersRecordStays: a key of ours that is another process's by now is not
// removed with our record, when the withdrawal is tried again, or when nothing
// was written in the first place.
func TestAnothersRecordStays(t *testing.T) {
	t.Parallel()
	for _, written := range []bool{true, false} {
		t.Run(fmt.Sprintf("written=%v", written), func(t *testing.T) {
			srv := newServer(t)
			c := srv.client()
			l := newLink(t, srv.addr)
			s, _ := store(t, l.url())
			if written {
				put(t, s, instanceKey, "ours")
			}
			l.block(true)
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			defer cancel()
			if written {
				holds(t, "delete", s.Delete(ctx, instanceKey), "KVRELAY_ETCD_ENDPOINTS")
			} else {
				holds(t, "put", s.Put(ctx, instanceKey, []byte("ours")), "KVRELAY_ETCD_ENDPOINTS")
			}
			another, _ := store(t, srv.url(), lasting(far))
			put(t, another, instanceKey, "theirs")
			l.block(false)
			eventually(t, "it is withdrawn", func() bool { return s.Delete(t.Context(), instanceKey) == nil })
			if e, ok := get(t, c, instanceKey); !ok || e.value != "theirs" {
				t.Errorf("another's record became %+v, %v", e, ok)
			}
		})
	}
}

// TestWithdrawalIsMadeUpFor: a record that could not be withdrawn counts as dead
// for who comes next, and goes as soon as etcd answers, long before its lease.
func TestWithdrawalIsMadeUpFor(t *testing.T) {
	t.Parallel()
	srv := newServer(t)
	c := srv.client()
	l := newLink(t, srv.addr)
	s, log := store(t, l.url(), lasting(far))
	put(t, s, key, "v")
	l.block(true)
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	holds(t, "delete", s.Delete(ctx, key), "KVRELAY_ETCD_ENDPOINTS")
	l.block(false)
	eventually(t, "it is listed as dead", func() bool {
		list, err := s.List(t.Context(), "v1/event_sources/")
		return err == nil && len(list) == 1 && list[0].Dead
	})
	running(t, s)
	eventually(t, "the record is gone", func() bool { _, ok := get(t, c, key); return !ok })
	eventually(t, "and its lease", func() bool { return leases(t, c) == 0 })
	if log.count("cannot be kept alive") > 0 {
		t.Error("the log tells of records that are not there")
	}
}

// TestPutAgainAfterAWithdrawalThatFailed: the record stays, whatever becomes of the old one.
func TestPutAgainAfterAWithdrawalThatFailed(t *testing.T) {
	t.Parallel()
	srv := newServer(t)
	c := srv.client()
	l := newLink(t, srv.addr)
	s, _ := store(t, l.url(), lasting(short))
	running(t, s)
	put(t, s, key, "old")
	l.block(true)
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	holds(t, "delete", s.Delete(ctx, key), "KVRELAY_ETCD_ENDPOINTS")
	l.block(false)
	eventually(t, "it is put", func() bool { return s.Put(t.Context(), key, []byte("new")) == nil })
	during(t, 3*short, "it is there", func() bool { e, ok := get(t, c, key); return ok && e.value == "new" })
	if n := leases(t, c); n != 1 {
		t.Errorf("%d leases", n)
	}
}

// TestFarAway: the records of many ranks are kept alive over a slow way to etcd,
// on which one round trip for each would take longer than the lease.
func TestFarAway(t *testing.T) {
	t.Parallel()
	const ranks = 128
	srv := newServer(t)
	c := srv.client()
	s, log := store(t, newLink(t, srv.addr, 25*time.Millisecond).url())
	var wg sync.WaitGroup
	for i := range ranks {
		wg.Go(func() { put(t, s, fmt.Sprint(key, i), "v") })
	}
	wg.Wait()
	var first [ranks]entry
	for i := range first {
		first[i], _ = get(t, c, fmt.Sprint(key, i))
	}
	running(t, s)
	during(t, 30*time.Second, "no record goes", func() bool {
		for i := range first {
			if e, ok := get(t, c, fmt.Sprint(key, i)); !ok || e != first[i] {
				t.Logf("record %d: %+v, %v", i, e, ok)
				return false
			}
		}
		return true
	})
	if n := log.count("cannot be kept alive"); n > 0 {
		t.Errorf("told %d times of trouble", n)
	}
}

// TestFlapping: an etcd that goes and comes is told of once a minute, not each time.
func TestFlapping(t *testing.T) {
	t.Parallel()
	srv := newServer(t)
	s, log := store(t, srv.url(), lasting(short))
	running(t, s)
	put(t, s, key, "v")
	srv.stop()
	eventually(t, "the log tells", func() bool { return log.count("cannot be kept alive") == 1 })
	srv.start()
	eventually(t, "it ends", func() bool { return log.count("etcd answers again") == 1 })
	for range 2 {
		srv.stop()
		// For as long as several attempts take.
		during(t, 2*time.Second, "it is not told again", func() bool { return log.count("cannot be kept alive") == 1 })
		srv.start()
		c := srv.client()
		eventually(t, "the record is there", func() bool { _, ok := get(t, c, key); return ok })
	}
}
