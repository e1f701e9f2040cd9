package kube

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"math"
	"net"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"

	"github.com/kvrelay/kvrelay/convert"
	"github.com/kvrelay/kvrelay/internal/fuzzlimit"
	"github.com/kvrelay/kvrelay/membership"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const aKey = "v1/event_sources/namespace/n/component/c/endpoint/e/topic/kv-events/1"

func newStore(t *testing.T, config *rest.Config, log *slog.Logger) *Store {
	t.Helper()
	s, err := New(Options{Config: config, Namespace: "ns", Name: "p-0", Pod: "p-0", PodUID: "u-0", Create: true, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestOptions(t *testing.T) {
	good := Options{Config: &rest.Config{Host: "http://127.0.0.1:1"}, Namespace: "n", Name: "w", Pod: "p", PodUID: "u"}
	if _, err := New(good); err != nil {
		t.Error(err)
	}
	for i, spoil := range []func(*Options){
		func(o *Options) { o.Config = nil }, func(o *Options) { o.Namespace = "" }, func(o *Options) { o.Name = "" },
		func(o *Options) { o.Pod = "" }, func(o *Options) { o.PodUID = "" },
	} {
		o := good
		spoil(&o)
		if _, err := New(o); err == nil {
			t.Errorf("%d: taken", i)
		}
	}
}

// verb is what a request needs the right to do.
func verb(r *http.Request) string {
	switch {
	case r.URL.Query().Get("watch") != "":
		return "watch"
	case r.Method == http.MethodPatch:
		return "patch"
	case r.Method == http.MethodPost:
		return "create"
	case strings.HasSuffix(r.URL.Path, "/"+resource.Resource):
		return "list"
	}
	return "get"
}

func status(w http.ResponseWriter, code int, reason string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": "the server's own words"})
}

// TestForbidden: a right that is missing is named, each of them; and once it is
// granted all goes on.
func TestForbidden(t *testing.T) {
	for _, missing := range []string{"get", "create", "patch", "list", "watch"} {
		t.Run(missing, func(t *testing.T) {
			f, config := newFake(t)
			var said lines
			s := newStore(t, config, slog.New(slog.NewTextHandler(&said, nil)))
			f.failing(func(w http.ResponseWriter, r *http.Request) bool {
				if verb(r) != missing {
					return false
				}
				status(w, http.StatusForbidden, "Forbidden")
				return true
			})
			err := s.Put(t.Context(), aKey, []byte(`{}`))
			if missing == "list" || missing == "watch" {
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan struct{})
				go func() { defer close(done); s.Run(ctx) }()
				defer func() { cancel(); <-done }()
				waitFor(t, "it is told", func() bool { return strings.Contains(said.String(), "cannot be watched") })
				err = errors.New(strings.ReplaceAll(said.String(), `\"`, `"`))
			}
			for _, want := range []string{`the verb "` + missing + `"`, "dynamoworkermetadatas", "nvidia.com", "namespace ns"} {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%q is not in: %v", want, err)
				}
			}
			f.failing(nil)
			if err := s.Put(t.Context(), aKey, []byte(`{"a":1}`)); err != nil {
				t.Errorf("afterwards: %v", err)
			}
		})
	}
}

// TestTrouble: what else can be wrong is told so that a person knows what to do.
func TestTrouble(t *testing.T) {
	for what, c := range map[string]struct {
		fault func(w http.ResponseWriter, r *http.Request)
		want  string
	}{
		"no such type": {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "404 page not found", http.StatusNotFound) }, "CustomResourceDefinition"},
		"token":        {func(w http.ResponseWriter, _ *http.Request) { status(w, http.StatusUnauthorized, "Unauthorized") }, "service account"},
		"broken": {func(w http.ResponseWriter, _ *http.Request) {
			status(w, http.StatusInternalServerError, "InternalError")
		}, "the server's own words"},
		"a proxy":      {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "<html>", http.StatusBadGateway) }, "get"},
		"noise":        {func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte(`{"kind":`)) }, ""},
		"another type": {func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte(`[1,2]`)) }, ""},
		"cut off":      {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, "API server at"},
	} {
		t.Run(what, func(t *testing.T) {
			f, config := newFake(t)
			s := newStore(t, config, nil)
			f.failing(func(w http.ResponseWriter, r *http.Request) bool { c.fault(w, r); return true })
			// The client itself tries again what may be well the next time.
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			_, lerr := s.List(ctx, "v1/event_sources/")
			for _, err := range []error{lerr, s.Put(ctx, aKey, []byte(`{}`)), s.Delete(ctx, aKey)} {
				if err == nil || !strings.Contains(err.Error(), c.want) && ctx.Err() == nil {
					t.Errorf("%q is not in: %v", c.want, err)
				}
			}
		})
	}
	t.Run("nobody listens", func(t *testing.T) {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		ln.Close()
		s := newStore(t, &rest.Config{Host: "http://" + ln.Addr().String(), Transport: &http.Transport{}}, nil)
		err = s.Put(t.Context(), aKey, []byte(`{}`))
		if err == nil || !strings.Contains(err.Error(), ln.Addr().String()) || !strings.Contains(err.Error(), "NetworkPolicy") {
			t.Error(err)
		}
	})
}

// hang answers nothing until the client goes or the test ends.
func hang(stop <-chan struct{}) func(http.ResponseWriter, *http.Request) bool {
	return func(_ http.ResponseWriter, r *http.Request) bool {
		select {
		case <-r.Context().Done():
		case <-stop:
		}
		return true
	}
}

// TestSlow: nothing waits longer than its context for a server that does not
// answer, nor for others who wait for it, and the reason is told.
func TestSlow(t *testing.T) {
	f, config := newFake(t)
	s := newStore(t, config, nil)
	f.failing(hang(f.stop))
	var wg sync.WaitGroup
	began := time.Now()
	for i := range 4 {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			var err error
			switch i {
			case 0:
				err = s.Put(ctx, aKey, []byte(`{}`))
			case 1:
				err = s.Delete(ctx, aKey)
			case 2:
				_, err = s.List(ctx, "v1/mdc/")
			case 3:
				err = s.Put(ctx, aKey+"2", []byte(`{}`))
			}
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%d: %v", i, err)
			}
		})
	}
	wg.Wait()
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("waited %v", took)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := s.List(ctx, "v1/mdc/"); err == nil || !strings.Contains(err.Error(), "did not answer in time") {
		t.Error(err)
	}
}

// TestRepairGivesWay: a withdrawal does not wait for a repair that hangs.
func TestRepairGivesWay(t *testing.T) {
	f, config := newFake(t)
	s := newStore(t, config, nil)
	if err := s.Put(t.Context(), aKey, []byte(`{}`)); err != nil {
		t.Fatal(err)
	}
	hanging := make(chan struct{}, 1)
	f.failing(func(w http.ResponseWriter, r *http.Request) bool {
		if verb(r) != "get" {
			return false
		}
		select {
		case hanging <- struct{}{}:
			return hang(f.stop)(w, r) // the first: the repair's
		default:
			return false
		}
	})
	f.mu.Lock()
	clear(f.objects) // Run finds that it is gone
	f.version++
	f.mu.Unlock()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); s.Run(ctx) }()
	defer func() { cancel(); <-done }()
	waitFor(t, "the repair hangs", func() bool { return len(hanging) == 1 })
	began := time.Now()
	if err := s.Delete(t.Context(), aKey); err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > callFor/2 {
		t.Errorf("waited %v for the repair", took)
	}
}

// TestEndInTime: an orderly end with an API server that hangs, or refuses, takes
// no longer than what is left of 5 s when NATS has had its 3.
func TestEndInTime(t *testing.T) {
	for _, how := range []string{"hangs", "refuses"} {
		t.Run(how, func(t *testing.T) {
			f, config := newFake(t)
			s := newStore(t, config, nil)
			r, err := membership.New(membership.Options{
				Endpoint: membership.Endpoint{Namespace: "n", Component: "c", Name: "e"}, Store: s, RecoveryAddr: "127.0.0.1:0", RegisterWorker: true,
			})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() {
				defer close(done)
				if err := r.Run(ctx); err != nil {
					t.Error(err)
				}
			}()
			var withdraw []func()
			for rank := range uint32(4) {
				w, err := r.Register(ctx, source{rank})
				if err != nil {
					t.Fatal(err)
				}
				withdraw = append(withdraw, w)
			}
			if how == "hangs" {
				f.failing(hang(f.stop))
			} else {
				f.failing(func(w http.ResponseWriter, _ *http.Request) bool { status(w, 500, "InternalError"); return true })
			}
			began := time.Now()
			var wg sync.WaitGroup
			for _, w := range withdraw {
				wg.Go(w)
			}
			wg.Wait()
			cancel()
			<-done
			if took := time.Since(began); took > 2*time.Second {
				t.Errorf("took %v", took)
			}
		})
	}
}

// source is a rank that publishes nothing.
type source struct{ rank uint32 }

func (s source) WorkerID() uint64     { return 7 }
func (s source) Rank() uint32         { return s.rank }
func (source) SetUnregistered(string) {}
func (s source) PublisherID() uint64  { return uint64(s.rank) + 1 }
func (s source) BlockSize() uint64    { return 16 }
func (s source) Since(from uint64, _ func(uint64, *convert.RouterEvent)) (uint64, bool) {
	return from - 1, true
}
func (s source) Newest() (number, lastID uint64)                            { return 0, 0 }
func (s source) Walk(_, to uint64, _ *convert.Output) (next, lastID uint64) { return to + 1, 0 }

// lines is a log that is read while it is written.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(30 * time.Second); !ok(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

// FuzzParse: whatever stands in an object is read or passed over, and what was
// read can be written again.
func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"metadata":{"uid":"u","ownerReferences":[{"uid":"p"}],"managedFields":[{"manager":"kvrelay","operation":"Apply","fieldsType":"FieldsV1",` +
		`"fieldsV1":{"f:spec":{"f:data":{"f:event_sources":{".":{},"f:a/1":{".":{},"f:x":{}}}}}}}]},"spec":{"data":{"event_sources":{"a/1":{"x":1},"b":null},"endpoints":null}}}`))
	f.Add([]byte(`{"spec":[]}`))
	f.Add([]byte(`{"spec":{"data":{"event_sources":[1]}},"metadata":{"managedFields":[{"manager":"kvrelay","operation":"Apply","fieldsV1":{"f:spec":7}}]}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		var m map[string]any
		if json.Unmarshal(text, &m) != nil {
			return
		}
		fuzzlimit.Run(t, len(text), func() { parse(&unstructured.Unstructured{Object: m}) })
		o := parse(&unstructured.Unstructured{Object: m})
		for key := range o.applied {
			if o.records[key] == nil {
				t.Errorf("%q was applied and is not there", key)
			}
		}
		if !o.has(o.records) {
			t.Error("it lacks what it has")
		}
		if _, err := body(map[string]any{}, o.records); err != nil {
			t.Error(err)
		}
	})
}

// FuzzDecode: a record that is taken holds the same numbers afterwards.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"a":[9223372036854775807,-1,{"b":null}],"c":"x","d":true}`))
	f.Add([]byte(`9223372036854775808`))
	f.Add([]byte(`1.0`))
	f.Add([]byte(`{} {}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		fuzzlimit.Run(t, len(text), func() { _, _ = decode(text) })
		v, err := decode(text)
		if err != nil {
			return
		}
		again, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		w, err := decode(again)
		if err != nil || !reflect.DeepEqual(v, w) {
			t.Errorf("%s became %s: %v", text, again, err)
		}
	})
}

func TestWhole(t *testing.T) {
	if v, err := decode([]byte(`9223372036854775807`)); err != nil || v != int64(math.MaxInt64) {
		t.Errorf("%v, %v", v, err)
	}
}

// TestTwoAtOnce: two processes that write to one object are told of it, and keep
// the server no busier than one repair a second each.
func TestTwoAtOnce(t *testing.T) {
	f, config := newFake(t)
	var said lines
	patches := 0
	f.failing(func(_ http.ResponseWriter, r *http.Request) bool {
		if verb(r) == "patch" {
			f.mu.Lock()
			patches++
			f.mu.Unlock()
		}
		return false
	})
	began := time.Now()
	for _, key := range []string{aKey, aKey + "2"} {
		s := newStore(t, config, slog.New(slog.NewTextHandler(&said, nil)))
		if err := s.Put(t.Context(), key, []byte(`{}`)); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() { defer close(done); s.Run(ctx) }()
		t.Cleanup(func() { cancel(); <-done })
	}
	waitFor(t, "it is told", func() bool { return strings.Contains(said.String(), "a second kvrelay") })
	// The third repair of one comes two pauses after its first. Each is two patches:
	// the other's records go, ours come.
	took := time.Since(began)
	f.mu.Lock()
	defer f.mu.Unlock()
	if most := 6 + 4*int(took/time.Second+1); took < 1500*time.Millisecond || patches > most {
		t.Errorf("%d patches in %v", patches, took)
	}
}

// TestBeingDeleted: an object that only waits for its finalizers is not written to.
func TestBeingDeleted(t *testing.T) {
	f, config := newFake(t)
	s := newStore(t, config, nil)
	if err := s.Put(t.Context(), aKey, []byte(`{}`)); err != nil {
		t.Fatal(err)
	}
	now := metav1.Now()
	f.mu.Lock()
	f.objects["ns/p-0"].SetDeletionTimestamp(&now)
	f.mu.Unlock()
	if err := s.Put(t.Context(), aKey+"2", []byte(`{}`)); err == nil || !strings.Contains(err.Error(), "being deleted") {
		t.Errorf("put: %v", err)
	}
	if err := s.Delete(t.Context(), aKey); err != nil {
		t.Errorf("delete: %v", err)
	}
}
