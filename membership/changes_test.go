package membership

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestFileStoreCopies: a copy that somebody made of a record is none, and is not
// waited for, nor removed.
func TestFileStoreCopies(t *testing.T) {
	root := t.TempDir()
	r, _ := joined(t, root)
	rec := elsewhere(r).record(fixed{worker: 7, publisher: 0xbeef})
	for _, name := range []string{".bak", "~", "+f", "%6", "%65"} {
		path := r.o.Store.(*File).path(rec.Key) + name
		if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, rec.Value, 0o666); err != nil {
			t.Fatal(err)
		}
		old := time.Now().Add(-time.Hour)
		if err := os.Chtimes(path, old, old); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	withdraw, err := r.Register(ctx, fixed{worker: 7, publisher: 9})
	if err != nil {
		t.Fatal(err)
	}
	if got := files(t, root); len(got) != 6 {
		t.Errorf("files %q", got)
	}
	withdraw()
	if got := files(t, root); len(got) != 5 {
		t.Errorf("files %q", got)
	}
}

// TestFileStoreClockSetBack: a dead record does not count as alive for as long
// as the clock was set back; one that is kept alive with another clock does.
func TestFileStoreClockSetBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := NewFile(t.TempDir(), testLog(t))
		key := bucketSources + "a"
		if err := f.Put(t.Context(), key, []byte("1")); err != nil {
			t.Fatal(err)
		}
		ahead := time.Now().Add(time.Hour)
		touch := func() {
			t.Helper()
			if err := os.Chtimes(f.path(key), ahead, ahead); err != nil {
				t.Fatal(err)
			}
		}
		dead := func() bool {
			t.Helper()
			list, err := f.List(t.Context(), bucketSources)
			if err != nil || len(list) != 1 {
				t.Fatalf("%+v, %v", list, err)
			}
			return list[0].Dead
		}
		for range 5 { // another host's clock
			touch()
			if dead() {
				t.Fatal("a record that is kept alive is dead")
			}
			time.Sleep(touchEvery) // synctest's
			ahead = ahead.Add(touchEvery)
		}
		time.Sleep(deadFile - touchEvery)
		if dead() {
			t.Error("dead too soon")
		}
		time.Sleep(touchEvery + time.Second)
		if !dead() {
			t.Error("a record that stands still an hour ahead is not dead")
		}
	})
}

// TestFileStoreErrors name the setting.
func TestFileStoreErrors(t *testing.T) {
	root := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(root, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	f := NewFile(root, testLog(t))
	_, list := f.List(t.Context(), bucketSources)
	for what, err := range map[string]error{
		"put":    f.Put(t.Context(), bucketSources+"a", nil),
		"delete": f.Delete(t.Context(), bucketSources+"a"),
		"list":   list,
	} {
		if err == nil || !strings.Contains(err.Error(), "MEMBERSHIP_PATH") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestRivalDuringWait: a publisher that comes on record while the block size is
// waited for is waited for, too.
func TestRivalDuringWait(t *testing.T) {
	root := t.TempDir()
	var l logged
	r, _ := joined(t, root, worker1, func(o *Options) { o.Log = l.log() })
	var size atomic.Uint64
	done := make(chan func())
	go func() {
		withdraw, err := r.Register(t.Context(), fixed{worker: 7, publisher: 9, size: &size})
		if err != nil {
			t.Error(err)
		}
		done <- withdraw
	}()
	eventually(t, "the block size is waited for", func() bool { return strings.Contains(l.text(), "needs the block size") })
	others := NewFile(root, testLog(t))
	rec := elsewhere(r).record(fixed{worker: 7, publisher: 1})
	if err := others.Put(t.Context(), rec.Key, rec.Value); err != nil {
		t.Fatal(err)
	}
	size.Store(16)
	select {
	case <-done:
		t.Fatal("two records of one rank")
	case <-time.After(3 * lookAgain): // it looks again and again
	}
	if err := others.Delete(t.Context(), rec.Key); err != nil {
		t.Fatal(err)
	}
	withdraw := <-done
	withdraw()
	if got := files(t, root); len(got) != 0 {
		t.Errorf("files %q", got)
	}
}

// counting counts what is read of a store.
type counting struct {
	Store
	lists, whole atomic.Int32 // all; those of every source
}

func (c *counting) List(ctx context.Context, prefix string) ([]Entry, error) {
	if c.lists.Add(1); strings.HasSuffix(prefix, "/") {
		c.whole.Add(1)
	}
	return c.Store.List(ctx, prefix)
}

// TestRivalStays: one that stays is looked at seldom, and alone; when it goes
// the others count again.
func TestRivalStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		others := NewFile(t.TempDir(), testLog(t))
		store := &counting{Store: NewFile(others.root, testLog(t))}
		r, err := New(Options{Endpoint: Endpoint{"n", "c", "e"}, Store: store, Log: testLog(t)})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); others.Run(ctx) }()
		defer func() { cancel(); <-done }()
		put := func(publisher uint64) string {
			rec := elsewhere(r).record(fixed{worker: 7, publisher: publisher})
			if err := others.Put(ctx, rec.Key, rec.Value); err != nil {
				t.Fatal(err)
			}
			return rec.Key
		}
		first := put(1)
		alone := make(chan error, 1)
		var why atomic.Pointer[string]
		src := fixed{worker: 7, publisher: 9, why: &why}
		go func() { alone <- r.untilAlone(ctx, src, r.record(src)) }()
		time.Sleep(withinLease + time.Hour) // synctest's
		if all, whole := store.lists.Load(), store.whole.Load(); whole > int32(withinLease/lookAgain)+2 || all > whole+int32(time.Hour/lookSeldom)+2 {
			t.Errorf("%d looks, %d at all sources", all, whole)
		}
		if w := why.Load(); w == nil || !strings.Contains(*w, "another publisher") || !strings.Contains(*w, first) {
			t.Errorf("the rank is told %v", w)
		}
		second := put(2)
		for _, key := range []string{first, second} {
			select {
			case err := <-alone:
				t.Fatalf("alone beside another: %v", err)
			default:
			}
			if err := others.Delete(ctx, key); err != nil {
				t.Fatal(err)
			}
			time.Sleep(lookSeldom)
			synctest.Wait()
		}
		select {
		case err := <-alone:
			if err != nil {
				t.Error(err)
			}
		default:
			t.Error("still waiting")
		}
		if w := *why.Load(); w != "" {
			t.Errorf("alone, and told %q", w)
		}
	})
}

// TestRivalComes: a publisher that comes on record beside ours is told of, one
// of another rank or a dead one is not.
func TestRivalComes(t *testing.T) {
	root := t.TempDir()
	var l logged
	r, stop := joined(t, root, func(o *Options) { o.Log = l.log() })
	withdraw := onRecord(t, r, fixed{worker: 7, publisher: 9})
	defer withdraw()
	others := NewFile(root, testLog(t))
	put := func(publisher, worker uint64, rank uint32) record {
		rec := elsewhere(r).record(fixed{worker: worker, publisher: publisher, rank: rank})
		if err := others.Put(t.Context(), rec.Key, rec.Value); err != nil {
			t.Fatal(err)
		}
		return rec
	}
	put(1, 7, 1)
	put(2, 8, 0)
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(others.path(put(3, 7, 0).Key), old, old); err != nil {
		t.Fatal(err)
	}
	put(0xbeef, 7, 0)
	const line = "another publisher has come on record"
	eventually(t, "the log tells", func() bool { return strings.Contains(l.text(), line) })
	stop()
	if text := l.text(); strings.Count(text, line) != 1 || !strings.Contains(text, "kv-events/beef") {
		t.Errorf("the log: %s", text)
	}
}

// TestCardFollows: the model card is what the engine and its ranks are by now.
func TestCardFollows(t *testing.T) {
	root := t.TempDir()
	r, _ := joined(t, root, worker1)
	card := func(want string) {
		t.Helper()
		eventually(t, want, func() bool {
			_, model := onFile(t, r, root)
			return strings.Contains(model, want)
		})
	}
	var size atomic.Uint64
	size.Store(16)
	r.SetEngine(Engine{FirstRank: 0, Ranks: 2})
	a := onRecord(t, r, fixed{worker: 31, publisher: 1, size: &size})
	b := onRecord(t, r, fixed{worker: 31, publisher: 2, rank: 1, size: &atomic.Uint64{}}) // idle: the other one knows
	card(`"data_parallel_start_rank":0,"data_parallel_size":2`)
	size.Store(0) // restarted, nothing stored yet
	r.SetEngine(Engine{FirstRank: 0, Ranks: 3})
	size.Store(32)
	card(`"kv_cache_block_size":32,`)
	card(`"data_parallel_size":3`)
	r.SetEngine(Engine{FirstRank: 0, Ranks: 1})
	card(`"data_parallel_size":2`) // a rank that is on record is covered
	b()
	card(`"data_parallel_size":1`)
	a()
	if instance, model := onFile(t, r, root); instance != "" || model != "" {
		t.Errorf("left %s %s", instance, model)
	}
}

// TestRequestTexts: what a request says of itself is logged, so it is bounded.
func TestRequestTexts(t *testing.T) {
	long := strings.Repeat("x", 5000)
	parse := func(id, address string) (request, error) {
		info := mustJSON(map[string]string{"address": address, "subject": "s"})
		control := mustJSON(map[string]any{"id": id, "connection_info": map[string]string{"info": string(info)}})
		return parseBody("p", appendParts(nil, string(control), `{"worker_id":1,"dp_rank":0}`))
	}
	if r, err := parse(long, "127.0.0.1:1"); err != nil || r.ID != long[:maxID] {
		t.Errorf("an id of %d bytes, %v", len(r.ID), err)
	}
	if r, err := parse("a", "127.0.0.1:1"); err != nil || r.ID != "a" {
		t.Errorf("%+v, %v", r, err)
	}
	if _, err := parse("a", long); err == nil || len(err.Error()) > 200 {
		t.Errorf("a long address: %.300v", err)
	}
}
