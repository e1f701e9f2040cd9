//go:build integration && dynamo

package integration

import (
	"context"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// signal has the server stop where it is, or go on.
func (e *etcdServer) signal(s syscall.Signal) {
	e.t.Helper()
	if err := e.cmd.Process.Signal(s); err != nil {
		e.t.Fatal(err)
	}
}

// Routers find an endpoint by names with all that settings allow them but dots (Python's path has
// dots between names).
func TestDynamoOddNames(t *testing.T) {
	oddName(t, newDynamoWorld(t, 1), "Dyn-a_b1")
}

func oddName(t *testing.T, w *dynamoWorld, name string) {
	t.Helper()
	w.path, w.set["COMPONENT"] = "dynamo."+name+".generate", name
	r := w.router(w.nats)
	k := startKvrelay(t, w.set)
	a := tokens(11, 8)
	w.store(0, a)
	r.sees("stored", a, worker, 0, 2)
	late := w.router(w.nats)
	late.sees("a router that starts late", a, worker, 0, 2)
	k.says("a router has recovered", "blocks")
}

// An etcd that hangs while kvrelay starts: it ends in time, or goes on when etcd does.
func TestDynamoEtcdHangsAtStart(t *testing.T) {
	w, e := newEtcdWorld(t, 1)
	r := w.router(w.nats)
	a := tokens(11, 8)
	e.signal(syscall.SIGSTOP)
	k := startKvrelay(t, w.set)
	w.store(0, a)
	k.says("Dynamo routers cannot be told of this engine yet", "KVRELAY_ETCD_ENDPOINTS")
	k.want = 4 // what waits for etcd was never confirmed
	began := time.Now()
	if code, d := k.stop(), time.Since(began); code != k.want || d > 5*time.Second {
		t.Errorf("exit code %d after %s", code, d)
	}
	k = startKvrelay(t, w.set)
	k.says("Dynamo routers cannot be told of this engine yet", "KVRELAY_ETCD_ENDPOINTS")
	e.signal(syscall.SIGCONT)
	r.sees("once etcd goes on", a, worker, 0, 2)
	if keys := e.keys("v1/event_sources/"); len(keys) != 1 {
		t.Errorf("on record: %q", keys)
	}
}

// What etcd loses while routers watch is there again, and they know everything.
func TestDynamoEtcdLoses(t *testing.T) {
	w, e := newEtcdWorld(t, 1)
	r := w.router(w.nats)
	a := tokens(11, 8)
	k := startKvrelay(t, w.set)
	w.store(0, a)
	r.sees("stored", a, worker, 0, 2)
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	lose := []struct {
		what string
		how  func()
	}{
		{"keys deleted", func() {
			if _, err := e.client.Delete(ctx, "v1/", clientv3.WithPrefix()); err != nil {
				t.Fatal(err)
			}
		}},
		{"leases revoked", func() {
			list, err := e.client.Leases(ctx)
			if err != nil {
				t.Fatal(err)
			}
			for _, l := range list.Leases {
				_, _ = e.client.Revoke(ctx, l.ID) // it may have gone: the router has one too
			}
		}},
	}
	for _, x := range lose {
		x.how()
		r.sees(x.what+": forgotten", a, worker, 0, -1)
		r.sees(x.what+": there again", a, worker, 0, 2)
	}
	k.says("records that etcd had lost are there again")

	e.stop()
	if err := os.RemoveAll(e.dir); err != nil {
		t.Fatal(err)
	}
	e.start()
	late := w.router(w.nats)
	late.sees("data lost: a router that starts then", a, worker, 0, 2)
}

// A crash and a new life within the lease, where nobody can knock whether the old
// one still is: the new one waits for the lease, publishes nothing before, and
// never are two on record.
func TestDynamoEtcdCrashNATSPlane(t *testing.T) {
	w, e := newEtcdWorld(t, 1)
	w.overNATS()
	r := w.router(w.nats)
	a, b := tokens(11, 8), tokens(100, 12)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	watch := e.client.Watch(ctx, "v1/event_sources/", clientv3.WithPrefix())
	k := startKvrelay(t, w.set)
	w.store(0, a)
	r.sees("stored", a, worker, 0, 2)
	k.kill()
	k = startKvrelay(t, w.set)
	w.store(0, b)
	r.sees("for the next life", b, worker, 0, 3)
	r.sees("from before the crash", a, worker, 0, 2)
	if code := k.stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	var order []string
	for len(order) < 4 {
		select {
		case resp := <-watch:
			for _, ev := range resp.Events {
				order = append(order, map[bool]string{true: "-", false: "+"}[ev.Type == clientv3.EventTypeDelete])
			}
		case <-time.After(patience):
			t.Fatalf("records came and went: %q", order)
		}
	}
	if got := strings.Join(order, ""); got != "+-+-" {
		t.Errorf("records came and went: %s", got)
	}
}
