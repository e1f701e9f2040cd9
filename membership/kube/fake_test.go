package kube

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/client-go/rest"
)

// fakeAPI is an API server with one type, as far as package kube uses one. What
// merges is Kubernetes' own code (managedfields); the rest is what the real
// server was seen to do, and membership/kube/check holds both to the same suite.
type fakeAPI struct {
	t      *testing.T
	fields *managedfields.FieldManager
	stop   chan struct{} // closed: watches end

	mu       sync.Mutex
	version  int
	objects  map[string]*unstructured.Unstructured // by namespace/name
	watchers map[chan event]string                 // by the namespace that they watch
	past     []event                               // what watchers were told
	// fault, when not nil, answers in place of the server; false: it does not.
	fault func(w http.ResponseWriter, r *http.Request) bool
}

type event struct {
	Type   string                     `json:"type"`
	Object *unstructured.Unstructured `json:"object"`
}

// same converts nothing: there is one version.
type same struct{}

func (same) Convert(in, out, _ any) error { return errors.New("no conversion") }
func (same) ConvertToVersion(in runtime.Object, _ runtime.GroupVersioner) (runtime.Object, error) {
	return in, nil
}
func (same) ConvertFieldLabel(_ schema.GroupVersionKind, label, value string) (string, string, error) {
	return label, value, nil
}
func (same) Default(runtime.Object) {}
func (same) New(kind schema.GroupVersionKind) (runtime.Object, error) {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(kind)
	return u, nil
}

// newFake starts one.
func newFake(t *testing.T) (*fakeAPI, *rest.Config) {
	t.Helper()
	kind := resource.GroupVersion().WithKind("DynamoWorkerMetadata")
	fm, err := managedfields.NewDefaultCRDFieldManager(managedfields.NewDeducedTypeConverter(), same{}, same{}, same{}, kind, resource.GroupVersion(), "", nil)
	if err != nil {
		t.Fatal(err)
	}
	f := &fakeAPI{t: t, fields: fm, stop: make(chan struct{}), objects: map[string]*unstructured.Unstructured{}, watchers: map[chan event]string{}}
	s := httptest.NewServer(f)
	t.Cleanup(func() { close(f.stop); s.Close() })
	// A transport of the test's own: client-go's are kept for ever.
	tr := &http.Transport{}
	t.Cleanup(tr.CloseIdleConnections)
	return f, &rest.Config{Host: s.URL, Transport: tr}
}

// failing has every request answered by fault while it returns true.
func (f *fakeAPI) failing(fault func(w http.ResponseWriter, r *http.Request) bool) {
	f.mu.Lock()
	f.fault = fault
	f.mu.Unlock()
}

func (f *fakeAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	fault := f.fault
	f.mu.Unlock()
	if fault != nil && fault(w, r) {
		return
	}
	rest, ok := strings.CutPrefix(r.URL.Path, "/apis/nvidia.com/v1alpha1/namespaces/")
	part := strings.Split(rest, "/")
	if !ok || len(part) < 2 || len(part) > 3 || part[1] != resource.Resource {
		http.Error(w, "404 page not found", http.StatusNotFound)
		return
	}
	if len(part) == 3 {
		f.one(w, r, part[0], part[2])
		return
	}
	f.all(w, r, part[0])
}

func reply(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(v)
}

func refuse(w http.ResponseWriter, err error) {
	status := apierrors.NewInternalError(err).ErrStatus
	var known apierrors.APIStatus
	if errors.As(err, &known) {
		status = known.Status()
	}
	status.Kind, status.APIVersion = "Status", "v1"
	reply(w, int(status.Code), status)
}

// all is POST, and GET with and without watch, of a namespace.
func (f *fakeAPI) all(w http.ResponseWriter, r *http.Request, ns string) {
	if r.Method == http.MethodPost {
		u := &unstructured.Unstructured{}
		if err := json.NewDecoder(r.Body).Decode(u); err != nil {
			refuse(w, err)
			return
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.objects[ns+"/"+u.GetName()] != nil {
			refuse(w, apierrors.NewAlreadyExists(resource.GroupResource(), u.GetName()))
			return
		}
		empty, _ := same{}.New(u.GroupVersionKind())
		f.init(u, ns)
		f.store(w, "ADDED", f.fields.UpdateNoErrors(empty, u, r.URL.Query().Get("fieldManager")), http.StatusCreated)
		return
	}
	only, _ := strings.CutPrefix(r.URL.Query().Get("fieldSelector"), "metadata.name=")
	f.mu.Lock()
	list := &unstructured.UnstructuredList{Object: map[string]any{"kind": "DynamoWorkerMetadataList", "apiVersion": resource.GroupVersion().String()}}
	list.SetResourceVersion(strconv.Itoa(f.version))
	for key, u := range f.objects {
		if name, ok := strings.CutPrefix(key, ns+"/"); ok && (only == "" || name == only) {
			list.Items = append(list.Items, *u.DeepCopy())
		}
	}
	var events chan event
	if r.URL.Query().Get("watch") != "" {
		since, err := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
		if err != nil {
			since = f.version
		}
		events = make(chan event, 10_000)
		for _, e := range f.past {
			if at, _ := strconv.Atoi(e.Object.GetResourceVersion()); at > since && e.Object.GetNamespace() == ns {
				events <- e
			}
		}
		f.watchers[events] = ns
	}
	f.mu.Unlock()
	if events == nil {
		reply(w, http.StatusOK, list)
		return
	}
	defer func() { f.mu.Lock(); delete(f.watchers, events); f.mu.Unlock() }()
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	for {
		w.(http.Flusher).Flush()
		select {
		case e := <-events:
			if only == "" || e.Object.GetName() == only {
				_ = json.NewEncoder(w).Encode(e)
			}
		case <-r.Context().Done():
			return
		case <-f.stop:
			return
		}
	}
}

func (f *fakeAPI) init(u *unstructured.Unstructured, ns string) {
	f.version++
	u.SetUID(types.UID(fmt.Sprintf("object-%d", f.version)))
	u.SetNamespace(ns)
}

// store keeps what an update made, and tells watchers; f.mu is held.
func (f *fakeAPI) store(w http.ResponseWriter, what string, made runtime.Object, code int) {
	u := made.(*unstructured.Unstructured)
	f.version++
	u.SetResourceVersion(strconv.Itoa(f.version))
	f.objects[u.GetNamespace()+"/"+u.GetName()] = u
	f.tell(what, u)
	reply(w, code, u)
}

func (f *fakeAPI) tell(what string, u *unstructured.Unstructured) {
	e := event{what, u.DeepCopy()}
	f.past = append(f.past, e)
	for events, ns := range f.watchers {
		if ns == u.GetNamespace() {
			events <- e
		}
	}
}

// remove takes an object away; f.mu is held.
func (f *fakeAPI) remove(key string) {
	gone := f.objects[key]
	delete(f.objects, key)
	f.version++
	gone.SetResourceVersion(strconv.Itoa(f.version))
	f.tell("DELETED", gone)
}

// one is GET, DELETE and PATCH of an object.
func (f *fakeAPI) one(w http.ResponseWriter, r *http.Request, ns, name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	live := f.objects[ns+"/"+name]
	manager, force := r.URL.Query().Get("fieldManager"), r.URL.Query().Get("force") == "true"
	apply := r.Method == http.MethodPatch && strings.HasPrefix(r.Header.Get("Content-Type"), "application/apply-patch")
	if live == nil && !apply {
		refuse(w, apierrors.NewNotFound(resource.GroupResource(), name))
		return
	}
	switch r.Method {
	case http.MethodGet:
		reply(w, http.StatusOK, live)
	case http.MethodDelete:
		f.remove(ns + "/" + name)
		reply(w, http.StatusOK, metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusSuccess})
	case http.MethodPatch:
		f.patch(w, r, live, ns, name, manager, apply, force)
	default:
		http.Error(w, "no", http.StatusMethodNotAllowed)
	}
}

func (f *fakeAPI) patch(w http.ResponseWriter, r *http.Request, live *unstructured.Unstructured, ns, name, manager string, apply, force bool) {
	var patch any
	b, err := io.ReadAll(r.Body)
	if err == nil {
		err = utiljson.Unmarshal(b, &patch) // whole numbers stay whole
	}
	if err != nil {
		refuse(w, apierrors.NewBadRequest(err.Error()))
		return
	}
	if asMap, ok := patch.(map[string]any); ok {
		if id, ok, _ := unstructured.NestedString(asMap, "metadata", "uid"); ok && (live == nil || id != string(live.GetUID())) {
			refuse(w, apierrors.NewConflict(resource.GroupResource(), name, errors.New("Precondition failed: UID in precondition")))
			return
		}
	}
	if apply {
		u := &unstructured.Unstructured{}
		if err := u.UnmarshalJSON(b); err != nil {
			refuse(w, apierrors.NewBadRequest(err.Error()))
			return
		}
		what, code, old := "MODIFIED", http.StatusOK, runtime.Object(live)
		if live == nil {
			what, code = "ADDED", http.StatusCreated
			old, _ = same{}.New(u.GroupVersionKind())
			f.init(old.(*unstructured.Unstructured), ns)
			old.(*unstructured.Unstructured).SetName(name)
		}
		made, err := f.fields.Apply(old.DeepCopyObject(), u, manager, force)
		if err != nil {
			refuse(w, err)
			return
		}
		f.store(w, what, made, code)
		return
	}
	next := live.DeepCopy()
	if list, ok := patch.([]any); ok { // a JSON patch: replace and remove
		for _, op := range list {
			op := op.(map[string]any)
			path := strings.Split(strings.TrimPrefix(op["path"].(string), "/"), "/")
			if op["op"] == "remove" {
				unstructured.RemoveNestedField(next.Object, path...)
			} else if err := unstructured.SetNestedField(next.Object, op["value"], path...); err != nil {
				refuse(w, err)
				return
			}
		}
	} else {
		next.Object = merged(next.Object, patch).(map[string]any)
	}
	f.store(w, "MODIFIED", f.fields.UpdateNoErrors(live, next, manager), http.StatusOK)
}

// merged is RFC 7396.
func merged(target, patch any) any {
	p, ok := patch.(map[string]any)
	if !ok {
		return patch
	}
	t, _ := target.(map[string]any)
	if t == nil {
		t = map[string]any{}
	}
	for k, v := range p {
		if v == nil {
			delete(t, k)
		} else {
			t[k] = merged(t[k], v)
		}
	}
	return t
}
