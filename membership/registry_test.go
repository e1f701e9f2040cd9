package membership

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvrelay/kvrelay/convert"
)

// fixed is a source that publishes nothing.
type fixed struct {
	worker, publisher uint64
	rank              uint32
	size              *atomic.Uint64          // nil: 16
	why               *atomic.Pointer[string] // what it was told last; nil: nobody looks
}

func (f fixed) SetUnregistered(why string) {
	if f.why != nil {
		f.why.Store(&why)
	}
}

func (f fixed) BlockSize() uint64 {
	if f.size == nil {
		return 16
	}
	return f.size.Load()
}

func (f fixed) WorkerID() uint64    { return f.worker }
func (f fixed) Rank() uint32        { return f.rank }
func (f fixed) PublisherID() uint64 { return f.publisher }
func (f fixed) Since(from uint64, _ func(uint64, *convert.RouterEvent)) (uint64, bool) {
	return from - 1, from == 1
}
func (f fixed) Newest() (number, lastID uint64) { return 0, 0 }
func (f fixed) Walk(_, to uint64, _ *convert.Output) (next, lastID uint64) {
	return to + 1, 0
}

// joined is a registry that runs until stop is called, with the folder of its records.
func joined(t *testing.T, root string, change ...func(*Options)) (r *Registry, stop func()) {
	t.Helper()
	o := Options{
		Endpoint: Endpoint{"dyn-amo", "backend", "generate"}, Store: NewFile(root, testLog(t)), RecoveryAddr: "127.0.0.1:0", Log: testLog(t),
	}
	for _, f := range change {
		f(&o)
	}
	r, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	r.lookEvery, r.cardEvery = 20*time.Millisecond, 20*time.Millisecond
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	<-r.up
	return r, stop
}

// onRecord puts src on record, and says how to take it back.
func onRecord(t *testing.T, r *Registry, src Source) (withdraw func()) {
	t.Helper()
	withdraw, err := r.Register(t.Context(), src)
	if err != nil {
		t.Fatal(err)
	}
	return withdraw
}

// elsewhere is a registry like r on another host: whether it lives cannot be seen.
func elsewhere(r *Registry) *Registry { return &Registry{o: r.o, target: "203.0.113.7:1"} }

const sourcesOf = "v1/event_sources"

func files(t *testing.T, root string) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(root, sourcesOf))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// TestRecord: what stands in the folder is what Dynamo 1.6.1 reads, byte for
// byte but for the port, and it goes with the rank.
func TestRecord(t *testing.T) {
	root := t.TempDir()
	r, _ := joined(t, root)
	withdraw := onRecord(t, r, fixed{worker: 1<<63 + 10, publisher: 0xabc, rank: 3})
	const name = "namespace%2Fdyn%2Damo%2Fcomponent%2Fbackend%2Fendpoint%2Fgenerate%2Ftopic%2Fkv%2Devents%2Fabc"
	if got := files(t, root); !slices.Equal(got, []string{name}) {
		t.Fatalf("files %q", got)
	}
	text, err := os.ReadFile(filepath.Join(root, sourcesOf, name))
	if err != nil {
		t.Fatal(err)
	}
	want := `{"type":"EventSource","scope":{"kind":"endpoint","endpoint":{"namespace":"dyn-amo","component":"backend","name":"generate"}},` +
		`"topic":"kv-events","publisher_id":2748,"metadata":{"kv_state_endpoint":{"namespace":"dyn-amo","component":"backend","name":"generate"},` +
		`"worker":{"worker_id":9223372036854775818,"dp_rank":3},"publisher_id":2748,"recovery_target":{"namespace":"dyn-amo","component":"backend",` +
		`"endpoint":"worker_kv_query_source_abc","instance_id":9223372036854775818,` +
		`"transport":{"tcp":"ADDR/800000000000000a/dyn-amo/backend/worker_kv_query_source_abc"}}}}`
	if got := strings.Replace(string(text), r.target, "ADDR", 1); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	// The advertised path is answered.
	a := newAsker(t, r.target)
	path := "800000000000000a/dyn-amo/backend/worker_kv_query_source_abc"
	if !a.send(path, query{Worker: 1<<63 + 10, Rank: 3}) {
		t.Fatal("not acknowledged")
	}
	if got, _, refused := a.answer(); refused != "" || got.Data.TreeDump == nil {
		t.Errorf("answered %+v, %q", got, refused)
	}
	withdraw()
	if got := files(t, root); len(got) != 0 {
		t.Errorf("left %q", got)
	}
	if !a.send(path, query{Worker: 1<<63 + 10, Rank: 3}) {
		t.Fatal("not acknowledged")
	}
	if _, _, refused := a.answer(); refused == "" {
		t.Error("answered after the end")
	}
}

// TestRival: a record that another life left is waited for while it is kept
// alive, and removed when it is not. Other ranks, workers and topics are left alone.
func TestRival(t *testing.T) {
	root := t.TempDir()
	r, _ := joined(t, root)
	others := NewFile(root, testLog(t))
	put := func(publisher, worker uint64, rank uint32) string {
		rec := elsewhere(r).record(fixed{worker: worker, publisher: publisher, rank: rank})
		if err := others.Put(t.Context(), rec.Key, rec.Value); err != nil {
			t.Fatal(err)
		}
		return others.path(rec.Key)
	}
	rival := put(1, 7, 0)
	for _, path := range []string{put(2, 7, 1), put(3, 8, 0)} {
		old := time.Now().Add(-time.Hour)
		if err := os.Chtimes(path, old, old); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, sourcesOf, "namespace%2Fdyn%2Damo%2Fcomponent%2Fjunk"), []byte("junk"), 0o666); err != nil {
		t.Fatal(err)
	}
	done := make(chan func())
	go func() {
		withdraw, err := r.Register(context.Background(), fixed{worker: 7, publisher: 9, rank: 0})
		if err != nil {
			t.Error(err)
		}
		done <- withdraw
	}()
	select {
	case <-done:
		t.Fatal("two records of one rank")
	case <-time.After(3 * lookAgain): // it looks again and again
	}
	old := time.Now().Add(-deadFile - time.Second)
	if err := os.Chtimes(rival, old, old); err != nil {
		t.Fatal(err)
	}
	withdraw := <-done
	defer withdraw()
	if got := files(t, root); len(got) != 4 {
		t.Errorf("files %q", got)
	}
	if _, err := os.Stat(rival); !os.IsNotExist(err) {
		t.Errorf("the old record: %v", err)
	}
}

// TestRegisterEnds: nothing is left of a registration that was given up.
func TestRegisterEnds(t *testing.T) {
	root := t.TempDir()
	r, _ := joined(t, root)
	others := NewFile(root, testLog(t))
	rec := elsewhere(r).record(fixed{worker: 7, publisher: 1, rank: 0})
	if err := others.Put(t.Context(), rec.Key, rec.Value); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := r.Register(ctx, fixed{worker: 7, publisher: 2, rank: 0}); err == nil {
		t.Error("registered beside another")
	}
	if got := files(t, root); len(got) != 1 {
		t.Errorf("files %q", got)
	}
}

// TestUnregistered: a rank that cannot be put on record is told why, and when it
// can that there is no trouble any more.
func TestUnregistered(t *testing.T) {
	base := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(base, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	root := filepath.Join(base, "kv")
	r, _ := joined(t, root)
	var why atomic.Pointer[string]
	done := make(chan func(), 1)
	go func() {
		withdraw, err := r.Register(context.Background(), fixed{worker: 7, publisher: 9, why: &why})
		if err != nil {
			t.Error(err)
		}
		done <- withdraw
	}()
	eventually(t, "it is told", func() bool {
		w := why.Load()
		return w != nil && strings.HasPrefix(*w, "not on record for Dynamo routers, so nothing is published: ") && strings.Contains(*w, "MEMBERSHIP_PATH")
	})
	if err := os.Remove(base); err != nil {
		t.Fatal(err)
	}
	withdraw := <-done
	defer withdraw()
	if w := *why.Load(); w != "" {
		t.Errorf("on record, and told %q", w)
	}
	if got := files(t, root); len(got) != 1 {
		t.Errorf("files %q", got)
	}
}

// TestListenFails: an address that cannot be had ends Run with the setting's name.
func TestListenFails(t *testing.T) {
	r, err := New(Options{Endpoint: Endpoint{"n", "c", "e"}, Store: NewFile(t.TempDir(), testLog(t)), RecoveryAddr: "203.0.113.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "RECOVERY_ADDR") {
		t.Errorf("got %v", err)
	}
}

// TestOptions: every problem is told.
func TestOptions(t *testing.T) {
	_, err := New(Options{RecoveryAddr: "host"})
	for _, what := range []string{"store", "namespace", "RECOVERY_ADDR"} {
		if err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%q is not in: %v", what, err)
		}
	}
}

// TestAdvertised: what is advertised is an IP address that can be dialled, also
// where all addresses are listened on.
func TestAdvertised(t *testing.T) {
	for _, addr := range []string{":0", "0.0.0.0:0", "localhost:0", "[::]:0"} {
		ln, target, err := listen(t.Context(), addr)
		if err != nil {
			t.Fatal(err)
		}
		a := newAsker(t, target)
		if a.c.RemoteAddr().String() != target {
			t.Errorf("%s is advertised as %s", addr, target)
		}
		ln.Close()
	}
}

// TestFileStore: names, replacement, upkeep.
func TestFileStore(t *testing.T) {
	root := t.TempDir()
	f := NewFile(root, testLog(t))
	f.every = 10 * time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); f.Run(ctx) }()
	defer func() { cancel(); <-done }()

	key := bucketSources + "a/ü-_.%2F~"
	path := filepath.Join(root, sourcesOf, "a%2F%C3%BC%2D%5F%2E%252F%7E")
	for _, v := range []string{"1", "2"} {
		if err := f.Put(t.Context(), key, []byte(v)); err != nil {
			t.Fatal(err)
		}
		if b, err := os.ReadFile(path); err != nil || string(b) != v {
			t.Fatalf("%q, %v", b, err)
		}
	}
	list, err := f.List(t.Context(), bucketSources+"a/")
	if err != nil || len(list) != 1 || list[0].Key != key || string(list[0].Value) != "2" || list[0].Dead {
		t.Fatalf("%+v, %v", list, err)
	}
	if list, err := f.List(t.Context(), bucketSources+"b/"); err != nil || len(list) != 0 {
		t.Fatalf("%+v, %v", list, err)
	}
	if list, err := f.List(t.Context(), "v1/none/"); err != nil || len(list) != 0 {
		t.Fatalf("%+v, %v", list, err)
	}
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(path, old, old); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the file is touched", func() bool {
		info, err := os.Stat(path)
		return err == nil && time.Since(info.ModTime()) < time.Minute
	})
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the file is there again", func() bool { b, err := os.ReadFile(path); return err == nil && string(b) == "2" })
	for range 2 {
		if err := f.Delete(t.Context(), key); err != nil {
			t.Fatal(err)
		}
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(entries) != 0 {
		t.Errorf("left %v, %v", entries, err)
	}
}

func TestWorkerOf(t *testing.T) {
	for text, want := range map[string]bool{
		`{"type":"EventSource","metadata":{"worker":{"worker_id":18446744073709551615,"dp_rank":1}}}`: true,
		`{"type":"EventSource","metadata":{}}`:                                                        false,
		`{"type":"Endpoint","metadata":{"worker":{"worker_id":1,"dp_rank":1}}}`:                       false,
		`{"type":"EventSource","metadata":{"worker":{"worker_id":-1,"dp_rank":1}}}`:                   false,
		`nonsense`: false,
	} {
		if w, ok := workerOf([]byte(text)); ok != want || ok && w != (worker{1<<64 - 1, 1}) {
			t.Errorf("%s: %v %v", text, w, ok)
		}
	}
	if !json.Valid(mustJSON(eventSource{})) {
		t.Error("no JSON")
	}
}

// TestFileStoreTrouble: a folder that has gone bad is told of once, with the
// setting, for all records; and when it is well again they are there.
func TestFileStoreTrouble(t *testing.T) {
	var l logged
	root := filepath.Join(t.TempDir(), "kv")
	f := NewFile(root, l.log())
	f.every = time.Millisecond
	for _, key := range []string{bucketSources + "a", bucketSources + "b"} {
		if err := f.Put(t.Context(), key, []byte("1")); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.RemoveAll(root), os.WriteFile(root, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); f.Run(ctx) }()
	defer func() { cancel(); <-done }()
	told := func() int { return strings.Count(l.text(), "level=ERROR") }
	eventually(t, "the log tells", func() bool { return told() > 0 })
	for end := time.Now().Add(200 * time.Millisecond); time.Now().Before(end); <-time.After(time.Millisecond) { // many rounds
		if told() != 1 {
			t.Fatalf("the log tells %d times: %s", told(), l.text())
		}
	}
	if !strings.Contains(l.text(), "MEMBERSHIP_PATH") || !strings.Contains(l.text(), "records=2") {
		t.Errorf("the log: %s", l.text())
	}
	if err := os.Remove(root); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the records are there again", func() bool {
		list, err := f.List(t.Context(), bucketSources)
		return err == nil && len(list) == 2
	})
}
