//go:build integration && dynamo

package integration

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/kvrelay/kvrelay/internal/freeport"
)

// etcdBinary is the etcd of the tests, built once. Its module is one of its own.
var etcdBinary = sync.OnceValues(func() (string, error) {
	path := filepath.Join(filepath.Dir(kvrelayBinary), "etcd")
	cmd := exec.Command("go", "build", "-o", path, "./server")
	cmd.Dir = filepath.Join("..", "membership", "etcd", "check")
	cmd.Stderr = os.Stderr
	return path, cmd.Run()
})

// etcdServer is an etcd of one member that can go and come.
type etcdServer struct {
	t          *testing.T
	dir        string
	addr, peer string
	cmd        *exec.Cmd // nil: it is down
	client     *clientv3.Client
}

func newEtcd(t *testing.T) *etcdServer {
	t.Helper()
	e := &etcdServer{t: t, dir: t.TempDir(), addr: freeport.Addr(t), peer: freeport.Addr(t)}
	e.start()
	t.Cleanup(e.stop)
	var err error
	e.client, err = clientv3.New(clientv3.Config{Endpoints: []string{e.addr}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.client.Close() })
	return e
}

func (e *etcdServer) url() string { return "http://" + e.addr }

func (e *etcdServer) start() {
	e.t.Helper()
	binary, err := etcdBinary()
	if err != nil {
		e.t.Fatalf("building etcd from membership/etcd/check: %v", err)
	}
	cmd := exec.Command(binary, e.dir, e.addr, e.peer)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		e.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		e.t.Fatal(err)
	}
	e.cmd = cmd
	if !bufio.NewScanner(out).Scan() {
		e.stop()
		e.t.Fatal("etcd does not start")
	}
}

func (e *etcdServer) stop() {
	if e.cmd != nil {
		_ = e.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		_ = e.cmd.Wait()                          // likewise
		e.cmd = nil
	}
}

// keys are all records.
func (e *etcdServer) keys(prefix string) []string {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	a, err := e.client.Get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		e.t.Fatal(err)
	}
	var keys []string
	for _, kv := range a.Kvs {
		keys = append(keys, string(kv.Key))
	}
	return keys
}

// newEtcdWorld is a world with its records in etcd.
func newEtcdWorld(t *testing.T, ranks int) (*dynamoWorld, *etcdServer) {
	t.Helper()
	t.Parallel() // they wait for leases most of the time
	e := newEtcd(t)
	w := newDynamoWorld(t, ranks)
	w.root = e.url()
	delete(w.set, "MEMBERSHIP_PATH")
	w.set["MEMBERSHIP"], w.set["ETCD_ENDPOINTS"] = "etcd", e.url()
	return w, e
}

// The whole story, with etcd.
func TestDynamoEtcdLife(t *testing.T) {
	w, _ := newEtcdWorld(t, 2)
	dynamoLife(t, w)
}

// What a relay that stops takes along, and a crashed one leaves for a lease: a
// router forgets it then. A new one publishes after that, and tells everything.
func TestDynamoEtcdCrash(t *testing.T) {
	w, e := newEtcdWorld(t, 1)
	r := w.router(w.nats)
	a, b := tokens(11, 8), tokens(100, 12)
	k := startKvrelay(t, w.set)
	w.store(0, a)
	r.sees("stored", a, worker, 0, 2)
	if code := k.stop(); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	if left := e.keys("v1/event_sources/"); len(left) > 0 {
		t.Errorf("left %q", left)
	}
	r.sees("forgotten with the relay", a, worker, 0, -1)
	k = startKvrelay(t, w.set)
	w.store(0, b)
	r.sees("after a restart", b, worker, 0, 3)
	r.sees("from before the restart", a, worker, 0, 2)

	k.kill()
	began := time.Now()
	r.sees("forgotten when the lease of the crashed relay ends", b, worker, 0, -1)
	if d := time.Since(began); d > 15*time.Second {
		t.Errorf("forgotten after %s", d)
	}
	w.evict(0, a) // while nobody relays
	startKvrelay(t, w.set)
	r.sees("after the crash", b, worker, 0, 3)
	r.sees("evicted while there was no relay", a, worker, 0, 0)

	// One that follows at once waits for the lease.
	w.store(0, a)
	r.sees("stored after the crash", a, worker, 0, 2)
}

// A router that watches sees what happens while etcd is away and after.
func TestDynamoEtcdRestart(t *testing.T) {
	w, e := newEtcdWorld(t, 1)
	r := w.router(w.nats)
	a, b, c := tokens(11, 8), tokens(100, 12), tokens(200, 4)
	k := startKvrelay(t, w.set)
	w.store(0, a)
	r.sees("stored", a, worker, 0, 2)
	e.stop()
	w.store(0, b)
	r.sees("stored while etcd is away", b, worker, 0, 3)
	e.start()
	w.evict(0, a)
	w.store(0, c)
	r.sees("stored after etcd's restart", c, worker, 0, 1)
	r.sees("evicted after etcd's restart", a, worker, 0, 0)

	// Away for longer than the lease: a router that starts after it believes the relay.
	e.stop()
	k.says("records in etcd cannot be kept alive", "KVRELAY_ETCD_ENDPOINTS")
	away := time.NewTimer(12 * time.Second)
	defer away.Stop()
	w.store(0, a)
	<-away.C
	e.start()
	k.says("etcd answers again")
	late := w.router(w.nats)
	late.sees("stored while etcd was away", a, worker, 0, 2)
	late.sees("stored before", b, worker, 0, 3)
}

// A second relay for the rank waits while the first one has it, and has it then.
func TestDynamoEtcdSuccessor(t *testing.T) {
	w, _ := newEtcdWorld(t, 1)
	r := w.router(w.nats)
	a := tokens(11, 8)
	k := startKvrelay(t, w.set)
	w.store(0, a)
	r.sees("stored", a, worker, 0, 2)
	k.kill()
	startKvrelay(t, w.set) // at once, before the lease has ended
	b := tokens(100, 12)
	w.store(0, b)
	r.sees("from before the crash", a, worker, 0, 2)
	r.sees("stored for the next relay", b, worker, 0, 3)
}

// Beside a Dynamo worker whose records are in etcd.
func TestDynamoEtcdWorkerBeside(t *testing.T) {
	w, e := newEtcdWorld(t, 1)
	beside := dynamoPython(t, "dynamo_worker.py", w.root, w.nats, "dynamo.backend.generate", strconv.Itoa(dynamoBlock))
	beside.line()
	const prefix = "v1/instances/dynamo/backend/generate/"
	var keys []string
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); len(keys) == 0; <-tick.C {
		if keys = e.keys(prefix); time.Now().After(end) {
			t.Fatalf("the worker is never on record; there are %q", e.keys("v1/"))
		}
	}
	id, err := strconv.ParseUint(strings.TrimPrefix(keys[0], prefix), 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	r := w.router(w.nats)
	w.set["REGISTER_WORKER"], w.set["WORKER_ID"] = "false", strconv.FormatUint(id, 10)
	startKvrelay(t, w.set)
	a := tokens(11, 8)
	w.store(0, a)
	r.sees("stored", a, id, 0, 2)
	w.evict(0, a)
	r.sees("evicted", a, id, 0, 0)
}

// A relay that is told to stop while etcd hangs stops in time, also with NATS gone.
func TestDynamoEtcdHangsAtEnd(t *testing.T) {
	t.Run("etcd", func(t *testing.T) { etcdHangsAtEnd(t, false) })
	t.Run("etcd and NATS", func(t *testing.T) { etcdHangsAtEnd(t, true) })
}

func etcdHangsAtEnd(t *testing.T, natsToo bool) {
	t.Helper()
	w, e := newEtcdWorld(t, 2)
	r := w.router(w.nats)
	link := newCable(t, w.nats)
	admin := freeport.Addr(t)
	w.set["NATS_URL"], w.set["ADMIN_ADDR"] = link.url(), admin
	k := startKvrelay(t, w.set)
	a := tokens(11, 8)
	w.store(0, a)
	r.sees("stored", a, worker, 0, 2)
	if natsToo {
		link.set(true)
		k.want = 4 // what comes now is never confirmed, and NATS gets its time for it
		w.store(0, tokens(100, 12))
		waits := func() bool {
			resp, err := http.Get("http://" + admin + "/metrics")
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			text, err := io.ReadAll(resp.Body)
			return err == nil && strings.Contains(string(text), "\nkvrelay_unconfirmed_events ") && !strings.Contains(string(text), "\nkvrelay_unconfirmed_events 0\n")
		}
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for end := time.Now().Add(patience); !waits(); <-tick.C {
			if time.Now().After(end) {
				t.Fatal("the event is never there")
			}
		}
		http.DefaultClient.CloseIdleConnections()
	}
	if err := e.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	code := k.stop()
	if d := time.Since(began); code != k.want || d > 5*time.Second {
		t.Errorf("exit code %d after %s", code, d)
	}
	if len(k.matching("could not be withdrawn", "KVRELAY_ETCD_ENDPOINTS")) == 0 {
		t.Error("the log does not tell")
	}
	if err := e.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	r.sees("forgotten when the leases end", a, worker, 0, -1)
}
