package membership

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// upkept is a store whose Run runs until the test ends, and its log.
func upkept(t *testing.T) (*File, *logged) {
	t.Helper()
	l := &logged{}
	f := NewFile(t.TempDir(), l.log())
	f.every = time.Millisecond
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); f.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return f, l
}

// TestFileStoreOverwritten: a record that somebody overwrites is written again,
// whatever stands there now, and told of once a minute.
func TestFileStoreOverwritten(t *testing.T) {
	f, l := upkept(t)
	source, instance := bucketSources+"a", bucketInstances+"n/c/e/1f"
	for _, key := range []string{source, instance} {
		if err := f.Put(t.Context(), key, []byte(key)); err != nil {
			t.Fatal(err)
		}
	}
	is := func(key, want string) func() bool {
		return func() bool { b, err := os.ReadFile(f.path(key)); return err == nil && string(b) == want }
	}
	for key, texts := range map[string][]string{
		source:   {"", "nonsense", `{"type":"EventSource"}`, `{"type":"Endpoint"}`, strings.Repeat("x", maxRecord+1)},
		instance: {"", "nonsense", `{"type":"EventSource"}`},
	} {
		for _, text := range texts {
			if err := os.WriteFile(f.path(key), []byte(text), 0o666); err != nil {
				t.Fatal(err)
			}
			eventually(t, "it is written again", is(key, key))
		}
	}
	if err := errors.Join(os.Symlink("/dev/null", f.root+"/link"), os.Rename(f.root+"/link", f.path(source))); err != nil {
		t.Fatal(err)
	}
	eventually(t, "what is no file is replaced", is(source, source))
	if text := l.text(); strings.Count(text, "had overwritten are there again") != 1 || !strings.Contains(text, "records=1") || strings.Contains(text, "level=ERROR") {
		t.Errorf("the log says %s", text)
	}
}

// TestFileStoreTaken: a Dynamo process that puts itself in the worker's place is
// left there, also at the end, and told of.
func TestFileStoreTaken(t *testing.T) {
	f, l := upkept(t)
	for key, text := range map[string]string{bucketInstances + "n/c/e/1f": `{"type":"Endpoint","instance_id":31}`, bucketModels + "n/c/e/1f": `{"type":"Model"}`} {
		if err := f.Put(t.Context(), key, []byte("ours")); err != nil {
			t.Fatal(err)
		}
		if err := write(f.path(key), []byte(text)); err != nil {
			t.Fatal(err)
		}
		eventually(t, "it is told of", func() bool { return strings.Contains(l.text(), TakenOver) })
		if err := f.Delete(t.Context(), key); err != nil {
			t.Fatal(err)
		}
		if b, err := os.ReadFile(f.path(key)); err != nil || string(b) != text {
			t.Errorf("%s became %q, %v", key, b, err)
		}
	}
	if text := l.text(); strings.Count(text, "level=") != 1 {
		t.Errorf("the log says %s", text)
	}
}

// TestFileStoreHangs: a folder that does not answer, as that of a network whose
// server is away, keeps nobody waiting for longer than he wants, nor Run; it is
// told of, and when it answers again all goes on.
func TestFileStoreHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l logged
		f := NewFile(t.TempDir(), l.log())
		key := bucketSources + "a"
		if err := f.Put(t.Context(), key, []byte("1")); err != nil {
			t.Fatal(err)
		}
		back := make(chan struct{})
		hang := func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if _, err := inFolder(ctx, f, func() (int, error) { <-back; return 0, nil }); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("it answers: %v", err)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		hang()
		go func() { defer close(done); f.Run(ctx) }()
		for what, op := range map[string]func(context.Context) error{
			"put":    func(ctx context.Context) error { return f.Put(ctx, key, []byte("2")) },
			"delete": func(ctx context.Context) error { return f.Delete(ctx, bucketSources+"b") },
			"list":   func(ctx context.Context) error { _, err := f.List(ctx, bucketSources); return err },
		} {
			began := time.Now()
			if err := op(t.Context()); err == nil || !strings.Contains(err.Error(), "has not answered for 10s") || !strings.Contains(err.Error(), "MEMBERSHIP_PATH") {
				t.Errorf("%s: %v", what, err)
			}
			if d := time.Since(began); d != folderTime {
				t.Errorf("%s took %v", what, d)
			}
			ctx, cancel := context.WithTimeout(t.Context(), withdrawFor)
			began = time.Now()
			if err := op(ctx); err == nil || time.Since(began) != withdrawFor {
				t.Errorf("%s with a second: %v after %v", what, err, time.Since(began))
			}
			cancel()
		}
		if n := strings.Count(l.text(), "records cannot be kept alive"); n != 1 {
			t.Errorf("told %d times: %s", n, l.text())
		}
		close(back)
		synctest.Wait()
		if err := f.Put(t.Context(), key, []byte("3")); err != nil {
			t.Error(err)
		}
		old := time.Now().Add(-time.Hour)
		if err := os.Chtimes(f.path(key), old, old); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * touchEvery) // synctest's
		if list, err := f.List(t.Context(), bucketSources); err != nil || len(list) != 1 || list[0].Dead || string(list[0].Value) != "3" {
			t.Errorf("%+v, %v", list, err)
		}
		const again = "the folder can be written to again: the records are kept alive"
		if n := strings.Count(l.text(), again); n != 1 {
			t.Errorf("told %d times that it is over: %s", n, l.text())
		}
		back = make(chan struct{})
		hang()
		time.Sleep(touchEvery + folderTime + time.Second)
		if n := strings.Count(l.text(), "records cannot be kept alive"); n != 2 {
			t.Errorf("new trouble told %d times: %s", n-1, l.text())
		}
		began := time.Now()
		cancel()
		<-done
		if d := time.Since(began); d > 0 {
			t.Errorf("the end took %v", d)
		}
		close(back)
	})
}
