package membership

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func worker1(o *Options) { o.RegisterWorker = true }

// onFile reads the worker's records, without the port; "" where there is none.
func onFile(t *testing.T, r *Registry, root string) (instance, model string) {
	t.Helper()
	read := func(bucket string) string {
		b, err := os.ReadFile(filepath.Join(root, "v1", bucket, "dyn%2Damo%2Fbackend%2Fgenerate%2F1f"))
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		return strings.Replace(string(b), r.target, "ADDR", 1)
	}
	return read("instances"), read("mdc")
}

// TestRegisterWorker: worker and model card stand before the first event
// source, cover every rank, and go with the last.
func TestRegisterWorker(t *testing.T) {
	root := t.TempDir()
	r, _ := joined(t, root, worker1)
	r.SetEngine(Engine{BlockSize: 32, FirstRank: 2, Ranks: 2})
	a := onRecord(t, r, fixed{worker: 31, publisher: 1, rank: 2})
	const instanceWant = `{"type":"Endpoint","namespace":"dyn-amo","component":"backend","endpoint":"generate","instance_id":31,"transport":{"tcp":"ADDR/1f/dyn-amo/backend/generate"}}`
	const runtime = `"runtime_config":{"total_kv_blocks":null,"data_parallel_start_rank":2,"data_parallel_size":2,"enable_local_indexer":true,"enable_eagle":false}}}`
	instance, model := onFile(t, r, root)
	if instance != instanceWant {
		t.Errorf("got  %s\nwant %s", instance, instanceWant)
	}
	if !strings.HasPrefix(model, `{"type":"Model","namespace":"dyn-amo","component":"backend","endpoint":"generate","instance_id":31,"card_json":{`) ||
		!strings.Contains(model, `"kv_cache_block_size":32,`) || !strings.HasSuffix(model, runtime) {
		t.Errorf("got %s", model)
	}
	// A rank that nobody spoke of widens the card.
	b := onRecord(t, r, fixed{worker: 31, publisher: 2, rank: 5})
	if _, model := onFile(t, r, root); !strings.Contains(model, `"data_parallel_start_rank":2,"data_parallel_size":4`) {
		t.Errorf("got %s", model)
	}
	// Requests for the engine are refused with a reason.
	q := newAsker(t, r.target)
	if !q.send("1f/dyn-amo/backend/generate", query{}) {
		t.Fatal("not acknowledged")
	}
	if _, _, refused := q.answer(); !strings.Contains(refused, "recovery requests alone") {
		t.Errorf("refused with %q", refused)
	}
	a()
	if instance, model := onFile(t, r, root); instance == "" || model == "" {
		t.Error("the worker went with its first rank")
	}
	b()
	if instance, model := onFile(t, r, root); instance != "" || model != "" {
		t.Errorf("left %s %s", instance, model)
	}
}

// TestWorkerWaits: for the block size, and for another process's record of the worker.
func TestWorkerWaits(t *testing.T) {
	root := t.TempDir()
	r, _ := joined(t, root, worker1)
	other := NewFile(root, testLog(t))
	const key = "v1/instances/dyn-amo/backend/generate/1f"
	if err := other.Put(t.Context(), key, []byte("{}")); err != nil {
		t.Fatal(err)
	}
	var size atomic.Uint64
	done := make(chan func())
	go func() {
		withdraw, err := r.Register(t.Context(), fixed{worker: 31, publisher: 1, size: &size})
		if err != nil {
			t.Error(err)
		}
		done <- withdraw
	}()
	waits := func(what string) {
		t.Helper()
		select {
		case <-done:
			t.Fatal("registered without waiting for " + what)
		case <-time.After(3 * lookAgain): // it looks again and again
		}
		if _, model := onFile(t, r, root); model != "" {
			t.Fatalf("on record without waiting for %s: %s", what, model)
		}
	}
	waits("the block size")
	size.Store(8)
	waits("the other process")
	if instance, _ := onFile(t, r, root); instance != "{}" {
		t.Errorf("the other's record became %s", instance)
	}
	old := time.Now().Add(-deadFile - time.Second)
	if err := os.Chtimes(other.path(key), old, old); err != nil {
		t.Fatal(err)
	}
	withdraw := <-done
	if _, model := onFile(t, r, root); !strings.Contains(model, `"kv_cache_block_size":8,`) || !strings.Contains(model, `"data_parallel_start_rank":0,"data_parallel_size":1`) {
		t.Errorf("got %s", model)
	}
	withdraw()
}

// TestWorkerNobodyKnows: a worker id that is no Dynamo worker's is told of,
// with those that are, and not again while nothing changes.
func TestWorkerNobodyKnows(t *testing.T) {
	root := t.TempDir()
	var log bytes.Buffer
	var mu sync.Mutex
	said := func() int {
		mu.Lock()
		defer mu.Unlock()
		return strings.Count(log.String(), "no Dynamo process has this worker on record")
	}
	other := NewFile(root, testLog(t))
	if err := other.Put(t.Context(), "v1/instances/dyn-amo/backend/elsewhere/ff", []byte("{}")); err != nil {
		t.Fatal(err)
	}
	r, stop := joined(t, root, func(o *Options) { o.Log = slog.New(slog.NewTextHandler(locked{&log, &mu}, nil)) })
	withdraw := onRecord(t, r, fixed{worker: 31, publisher: 1})
	defer withdraw()
	known := onRecord(t, r, fixed{worker: 255, publisher: 2})
	defer known()
	eventually(t, "the log tells", func() bool { return said() > 0 })
	stop()
	text := log.String()
	if n := said(); n != 1 || !strings.Contains(text, "worker_id=31") || !strings.Contains(text, "on_record=[255]") || strings.Contains(text, "worker_id=255 on_record") {
		t.Errorf("said %d times: %s", n, text)
	}
}

// locked is a buffer for a log.
type locked struct {
	b  *bytes.Buffer
	mu *sync.Mutex
}

func (l locked) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}
