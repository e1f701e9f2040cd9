// Package suite holds package kube to its promises against an API server: the
// package's own tests bring a small one with Kubernetes' real merge logic, and
// the module in membership/kube/check the real one.
package suite

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/kvrelay/kvrelay/membership/kube"
)

// Resource is the type that the server must have.
var Resource = schema.GroupVersionResource{Group: "nvidia.com", Version: "v1alpha1", Resource: "dynamoworkermetadatas"}

// patience is how long anything may take before a test gives up on it.
const patience = 30 * time.Second

// Run runs all of it against the server at config, in namespaces of its own.
// seeds is how many random histories are tried.
func Run(t *testing.T, config *rest.Config, seeds int) {
	t.Run("BothWriters", func(t *testing.T) { bothWriters(t, config, seeds) })
	for name, f := range map[string]func(*testing.T, *place){
		"Create": create, "NoCreate": noCreate, "DeletedMeanwhile": deletedMeanwhile, "AnotherPod": anotherPod,
		"NullMaps": nullMaps, "Conflict": conflict, "Numbers": numbers, "Repair": repair, "Overwritten": overwritten, "Restart": restart,
		"Registry": registry, "ManyAtOnce": manyAtOnce, "Gone": gone,
	} {
		t.Run(name, func(t *testing.T) { f(t, newPlace(t, config)) })
	}
}

// place is a namespace with a pod.
type place struct {
	t      *testing.T
	config *rest.Config
	api    dynamic.ResourceInterface
	ns     string
	podUID string
	// nulls are the maps in spec.data that Dynamo has left null: it applies an
	// empty map when its last record in it goes.
	nulls map[string]bool

	mu     sync.Mutex
	before func(*http.Request) // called before each request of a store
}

// pod is the name of the pod, and of the worker's custom resource.
const pod = "worker-0"

func newPlace(t *testing.T, config *rest.Config) *place {
	t.Helper()
	p := &place{t: t, config: config, ns: "ns-" + strings.ToLower(rand.Text()[:10]), podUID: "pod-" + strings.ToLower(rand.Text()[:10])}
	hc, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(hc.CloseIdleConnections)
	c := rest.CopyConfig(config)
	c.QPS = -1
	client, err := dynamic.NewForConfigAndClient(c, hc)
	if err != nil {
		t.Fatal(err)
	}
	p.api = client.Resource(Resource).Namespace(p.ns)
	return p
}

// hooked is a store's way to the server.
type hooked struct {
	p    *place
	next http.RoundTripper
}

func (h hooked) RoundTrip(r *http.Request) (*http.Response, error) {
	h.p.mu.Lock()
	before := h.p.before
	h.p.mu.Unlock()
	if before != nil {
		before(r)
	}
	return h.next.RoundTrip(r)
}

// beforeEach has f called before each request of a store.
func (p *place) beforeEach(f func(*http.Request)) {
	p.mu.Lock()
	p.before = f
	p.mu.Unlock()
}

// store is a life of kvrelay in the pod.
func (p *place) store(change ...func(*kube.Options)) *kube.Store {
	p.t.Helper()
	c := rest.CopyConfig(p.config)
	c.Wrap(func(rt http.RoundTripper) http.RoundTripper { return hooked{p, rt} })
	o := kube.Options{Config: c, Namespace: p.ns, Name: pod, Pod: pod, PodUID: p.podUID, Log: slog.New(slog.NewTextHandler(p.t.Output(), nil))}
	for _, f := range change {
		f(&o)
	}
	s, err := kube.New(o)
	if err != nil {
		p.t.Fatal(err)
	}
	return s
}

func making(o *kube.Options) { o.Create = true }

// source and endpoint are keys of records.
func source(id int) string {
	return fmt.Sprintf("v1/event_sources/namespace/n/component/c/endpoint/e/topic/kv-events/%x", id)
}

func endpoint(id int) string { return fmt.Sprintf("v1/instances/n/c/e/%x", id) }

func value(id int) []byte {
	return fmt.Appendf(nil, `{"type":"EventSource","publisher_id":%d,"metadata":{"worker":{"worker_id":7,"dp_rank":%d}}}`, id, id)
}

func (p *place) put(s *kube.Store, key string, v []byte) {
	p.t.Helper()
	if err := s.Put(p.t.Context(), key, v); err != nil {
		p.t.Fatalf("put: %v", err)
	}
}

func (p *place) remove(s *kube.Store, key string) {
	p.t.Helper()
	if err := s.Delete(p.t.Context(), key); err != nil {
		p.t.Fatalf("delete: %v", err)
	}
}

// dynamoData is what a Dynamo process applies: all of its own, always.
type dynamoData struct{ Endpoints, ModelCards, EventSources map[string]any }

// dynamo applies as Dynamo's process does: with force, with the owner.
func (p *place) dynamo(d dynamoData) {
	p.t.Helper()
	full := func(m map[string]any) map[string]any {
		if m == nil {
			m = map[string]any{}
		}
		return m
	}
	b, err := json.Marshal(map[string]any{
		"apiVersion": Resource.GroupVersion().String(), "kind": "DynamoWorkerMetadata",
		"metadata": map[string]any{"name": pod, "ownerReferences": []any{map[string]any{
			"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": p.podUID, "controller": false, "blockOwnerDeletion": false,
		}}},
		"spec": map[string]any{"data": map[string]any{
			"endpoints": full(d.Endpoints), "model_cards": full(d.ModelCards), "event_channels": map[string]any{}, "event_sources": full(d.EventSources),
		}},
	})
	if err != nil {
		p.t.Fatal(err)
	}
	force := true
	if _, err := p.api.Patch(p.t.Context(), pod, types.ApplyPatchType, b, metav1.PatchOptions{FieldManager: "dynamo-worker", Force: &force}); err != nil {
		p.t.Fatalf("dynamo's apply: %v", err)
	}
	p.nulls = map[string]bool{}
	for bucket, v := range p.object().Object["spec"].(map[string]any)["data"].(map[string]any) {
		p.nulls[bucket] = v == nil
	}
}

// object is what is there; nil: nothing.
func (p *place) object() *unstructured.Unstructured {
	p.t.Helper()
	u, err := p.api.Get(p.t.Context(), pod, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		p.t.Fatal(err)
	}
	return u
}

// records are all records in the object, by bucket/name, as JSON. A null
// in spec.data that is not Dynamo's own fails the test.
func (p *place) records() map[string]string {
	p.t.Helper()
	u := p.object()
	if u == nil {
		return nil
	}
	data, ok, err := unstructured.NestedMap(u.Object, "spec", "data")
	if err != nil || !ok {
		p.t.Fatalf("no spec.data: %v", err)
	}
	out := map[string]string{}
	for bucket, v := range data {
		in, ok := v.(map[string]any)
		if !ok && (v != nil || !p.nulls[bucket]) {
			p.t.Fatalf("spec.data.%s is %v", bucket, v)
		}
		for name, record := range in {
			if record == nil {
				p.t.Fatalf("spec.data.%s holds a null at %s", bucket, name)
			}
			b, err := json.Marshal(record)
			if err != nil {
				p.t.Fatal(err)
			}
			out[bucket+"/"+name] = string(b)
		}
	}
	return out
}

// want fails the test when the records are others than these.
func (p *place) want(when string, keys ...string) {
	p.t.Helper()
	got := p.records()
	want := map[string]bool{}
	for _, k := range keys {
		want[strings.NewReplacer("v1/instances/", "endpoints/", "v1/event_sources/", "event_sources/", "v1/mdc/", "model_cards/").Replace(k)] = true
	}
	for k := range want {
		if _, ok := got[k]; !ok {
			p.t.Errorf("%s: %s is lost; there are %q", when, k, slices.Sorted(maps.Keys(got)))
		}
	}
	for k := range got {
		if !want[k] {
			p.t.Errorf("%s: %s should not be there", when, k)
		}
	}
	if p.t.Failed() {
		p.t.FailNow()
	}
}

// eventually waits until ok.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); !ok(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

// running runs f until the test, or whoever calls stop, is done.
func running(t *testing.T, f func(context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); f(ctx) }()
	stop = sync.OnceFunc(func() { cancel(); <-done })
	t.Cleanup(stop)
	return stop
}
