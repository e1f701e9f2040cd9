package suite

import (
	"context"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kvrelay/kvrelay/convert"
	"github.com/kvrelay/kvrelay/membership"
	"github.com/kvrelay/kvrelay/membership/kube"
)

// dead says of each event source on record whether s takes it for dead.
func (p *place) dead(s *kube.Store) map[string]bool {
	p.t.Helper()
	list, err := s.List(p.t.Context(), "v1/event_sources/")
	if err != nil {
		p.t.Fatal(err)
	}
	out := map[string]bool{}
	for _, e := range list {
		out[e.Key] = e.Dead
	}
	return out
}

// repair: what somebody takes away while kvrelay runs comes back: a record, and
// the whole object when Dynamo makes it again.
func repair(t *testing.T, p *place) {
	p.dynamo(dynamoData{})
	s := p.store()
	p.put(s, source(1), value(1))
	p.put(s, source(2), value(2))
	running(t, s.Run)
	for range 3 {
		patch := []byte(`{"spec":{"data":{"event_sources":null}}}`)
		if _, err := p.api.Patch(t.Context(), pod, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: "somebody"}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the records are there again", func() bool { return len(p.records()) == 2 })
	}
	if err := p.api.Delete(t.Context(), pod, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	p.dynamo(dynamoData{})
	eventually(t, "the records are in the new object", func() bool { return len(p.records()) == 2 })
	p.remove(s, source(1))
	p.want("what was withdrawn stays away", source(2))
}

// overwritten: a record that somebody changes is put back as it was, and the
// others stay; one that Dynamo's process has taken is left to it.
func overwritten(t *testing.T, p *place) {
	p.dynamo(dynamoData{})
	s := p.store()
	p.put(s, source(1), value(1))
	p.put(s, source(2), value(2))
	p.put(s, endpoint(1), value(3))
	before := p.records()
	running(t, s.Run)
	name := strings.TrimPrefix(source(1), "v1/event_sources/")
	for _, by := range []string{
		`{"metadata":{"worker":{"dp_rank":9}}}`, `{"metadata":{"worker":{"dp_rank":9}},"publisher_id":null,"note":{"a":1}}`, `{"note":"x"}`, `"nonsense"`, `{"type":"Endpoint"}`,
	} {
		patch := []byte(`{"spec":{"data":{"event_sources":{"` + name + `":` + by + `}}}}`)
		if _, err := p.api.Patch(t.Context(), pod, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: "somebody"}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the record is as it was, after "+by, func() bool { return maps.Equal(p.records(), before) })
	}
	worker := strings.TrimPrefix(endpoint(1), "v1/instances/")
	p.dynamo(dynamoData{Endpoints: map[string]any{worker: map[string]any{"type": "Endpoint", "instance_id": 1}}})
	theirs := p.records()
	if maps.Equal(theirs, before) {
		t.Fatal("Dynamo has taken nothing")
	}
	patch := []byte(`{"spec":{"data":{"event_sources":{"` + name + `":{"note":"x"}}}}}`)
	if _, err := p.api.Patch(t.Context(), pod, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: "somebody"}); err != nil {
		t.Fatal(err)
	}
	source1 := strings.Replace(source(1), "v1/", "", 1)
	eventually(t, "our record is put back beside Dynamo's", func() bool { return p.records()[source1] == before[source1] })
	taken := "endpoints/" + worker
	if got := p.records()[taken]; !strings.Contains(got, `"instance_id":1`) {
		t.Errorf("Dynamo's record became %s", got)
	}
	p.remove(s, endpoint(1))
	p.remove(s, source(2))
	if got := p.records()[taken]; !strings.Contains(got, `"instance_id":1`) {
		t.Errorf("at the end Dynamo's record became %q", got)
	}
}

// gone: Run never makes an object that was deleted, unless it is the one who
// makes it.
func gone(t *testing.T, p *place) {
	p.dynamo(dynamoData{})
	s := p.store()
	p.put(s, source(1), value(1))
	running(t, s.Run)
	if err := p.api.Delete(t.Context(), pod, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := s.Put(t.Context(), source(2), value(2)); err == nil {
		t.Error("put without an object")
	}
	if p.object() != nil {
		t.Error("the object was made again")
	}
	p.dynamo(dynamoData{})
	eventually(t, "both records are in Dynamo's new object", func() bool { return len(p.records()) == 2 })

	q := newPlace(t, p.config)
	made := q.store(making)
	q.put(made, source(1), value(1))
	running(t, made.Run)
	if err := q.api.Delete(t.Context(), pod, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the object is there again, with its owner", func() bool {
		u := q.object()
		return u != nil && len(u.GetOwnerReferences()) == 1 && len(q.records()) == 1
	})
}

// manyAtOnce: 64 ranks come and go at the same time, and none takes another's
// record away.
func manyAtOnce(t *testing.T, p *place) {
	p.dynamo(dynamoData{})
	s := p.store()
	const ranks = 64
	each := func(f func(i int) error) {
		var wg sync.WaitGroup
		for i := range ranks {
			wg.Go(func() {
				if err := f(i); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	}
	each(func(i int) error { return s.Put(t.Context(), source(i), value(i)) })
	if got := len(p.records()); got != ranks {
		t.Errorf("%d of %d records", got, ranks)
	}
	each(func(i int) error {
		if i%2 == 0 {
			return s.Delete(t.Context(), source(i))
		}
		return s.Put(t.Context(), source(i), value(i+100))
	})
	if got := len(p.records()); got != ranks/2 {
		t.Errorf("%d of %d records", got, ranks/2)
	}
	each(func(i int) error { return s.Delete(t.Context(), source(i)) })
	p.want("all gone")
}

// fixed is a source that publishes nothing.
type fixed struct {
	publisher uint64
	rank      uint32
}

func (f fixed) WorkerID() uint64     { return 7 }
func (f fixed) Rank() uint32         { return f.rank }
func (fixed) SetUnregistered(string) {}
func (f fixed) PublisherID() uint64  { return f.publisher }
func (f fixed) BlockSize() uint64    { return 16 }
func (f fixed) Since(from uint64, _ func(uint64, *convert.RouterEvent)) (uint64, bool) {
	return from - 1, from == 1
}
func (f fixed) Newest() (number, lastID uint64)                            { return 0, 0 }
func (f fixed) Walk(_, to uint64, _ *convert.Output) (next, lastID uint64) { return to + 1, 0 }

// registry: whole lives of kvrelay's membership, each of which ends without a
// word, or in order. At no time has a rank two records.
func registry(t *testing.T, p *place) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	life := func(publisher uint64, register bool) (withdraw []func(), stop func()) {
		s := p.store(func(o *kube.Options) { o.Create = register })
		r, err := membership.New(membership.Options{
			Endpoint: membership.Endpoint{Namespace: "n", Component: "c", Name: "e"}, Store: s,
			RecoveryAddr: "127.0.0.1:0", RegisterWorker: register, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
		})
		if err != nil {
			t.Fatal(err)
		}
		stop = running(t, func(ctx context.Context) {
			if err := r.Run(ctx); err != nil {
				t.Error(err)
			}
		})
		for rank := range uint32(2) {
			w, err := r.Register(ctx, fixed{publisher + uint64(rank), rank})
			if err != nil {
				t.Fatal(err)
			}
			withdraw = append(withdraw, w)
		}
		return withdraw, stop
	}
	w, err := p.api.Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	watched := make(chan struct{})
	go func() { // every state that was ever there
		defer close(watched)
		for e := range w.ResultChan() {
			u, ok := e.Object.(*unstructured.Unstructured)
			if !ok {
				continue
			}
			sources, _, _ := unstructured.NestedMap(u.Object, "spec", "data", "event_sources")
			if len(sources) > 2 {
				t.Errorf("two ranks with %d records", len(sources))
			}
		}
	}()
	_, stop := life(0x10, true)
	p.want("first life", endpoint(7), "v1/mdc/n/c/e/7", source(0x10), source(0x11))
	stop() // without a word: what it put there stays
	withdraw, stop := life(0x20, true)
	p.want("second life", endpoint(7), "v1/mdc/n/c/e/7", source(0x20), source(0x21))
	for _, f := range withdraw {
		f()
	}
	p.want("withdrawn")
	stop()
	_, stop = life(0x30, false) // of a Dynamo worker, now
	p.want("third life", source(0x30), source(0x31))
	stop()
	_, stop = life(0x40, false)
	p.want("fourth life", source(0x40), source(0x41))
	stop()
	cancel()
	w.Stop()
	<-watched
}
