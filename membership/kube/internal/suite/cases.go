package suite

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

// bothWriters: in any order of what Dynamo and kvrelay write, and with restarts
// of kvrelay, the object holds exactly what both want there, and no null.
func bothWriters(t *testing.T, config *rest.Config, seeds int) {
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(uint64(seed), 8))
			p := newPlace(t, config)
			s := p.store(making)
			theirs := dynamoData{Endpoints: map[string]any{}, ModelCards: map[string]any{}, EventSources: map[string]any{}}
			ours := map[string]bool{} // what this life and, until its first put, the one before want there
			var history []string
			fresh, there := false, false
			for range 14 {
				id := r.IntN(3)
				var did string
				switch k := r.IntN(10); {
				case k < 2:
					name := fmt.Sprintf("n/c/other/%x", id)
					did = "dynamo endpoint " + name
					if theirs.Endpoints[name] == nil {
						theirs.Endpoints[name] = map[string]any{"instance_id": 7}
					} else {
						delete(theirs.Endpoints, name)
					}
					p.dynamo(theirs)
					there = true
				case k < 3:
					name := fmt.Sprintf("namespace/n/component/c/endpoint/e/topic/metrics/%x", id)
					did = "dynamo source " + name
					if theirs.EventSources[name] == nil {
						theirs.EventSources[name] = map[string]any{"type": "EventSource"}
					} else {
						delete(theirs.EventSources, name)
					}
					p.dynamo(theirs)
					there = true
				case k < 6:
					key := []string{source(id), endpoint(id)}[r.IntN(2)]
					did = "put " + key
					if fresh {
						clear(ours)
						fresh = false
					}
					p.put(s, key, value(r.IntN(100)))
					ours[key] = true
					there = true
				case k < 9:
					key := []string{source(id), endpoint(id)}[r.IntN(2)]
					did = "delete " + key
					p.remove(s, key)
					delete(ours, key)
				default:
					did = "restart"
					s, fresh = p.store(making), true
				}
				history = append(history, did)
				if !there {
					continue
				}
				var want []string
				for k := range ours {
					want = append(want, k)
				}
				for k := range theirs.Endpoints {
					want = append(want, "endpoints/"+k)
				}
				for k := range theirs.EventSources {
					want = append(want, "event_sources/"+k)
				}
				p.want(strings.Join(history, "; "), want...)
			}
		})
	}
}

// create: with REGISTER_WORKER the object is made with its owner and with all
// that Dynamo reads; what Dynamo applies later takes nothing of ours away.
func create(t *testing.T, p *place) {
	s := p.store(making)
	p.put(s, endpoint(1), value(1))
	p.put(s, source(1), value(1))
	u := p.object()
	refs := u.GetOwnerReferences()
	if len(refs) != 1 || string(refs[0].UID) != p.podUID || refs[0].Kind != "Pod" || refs[0].Name != pod || refs[0].APIVersion != "v1" {
		t.Errorf("owners %+v", refs)
	}
	data := u.Object["spec"].(map[string]any)["data"].(map[string]any)
	for _, bucket := range []string{"endpoints", "model_cards", "event_channels", "event_sources"} {
		if data[bucket] == nil {
			t.Errorf("spec.data has no %s", bucket)
		}
	}
	p.dynamo(dynamoData{Endpoints: map[string]any{"n/c/x/9": map[string]any{"a": 1}}})
	p.want("after Dynamo's apply", endpoint(1), source(1), "endpoints/n/c/x/9")
	if refs := p.object().GetOwnerReferences(); len(refs) != 1 {
		t.Errorf("owners %+v", refs)
	}
	p.dynamo(dynamoData{})
	p.remove(s, source(1))
	p.remove(s, endpoint(1))
	p.want("at the end")
}

// noCreate: without REGISTER_WORKER an object that is not there is not made.
func noCreate(t *testing.T, p *place) {
	s := p.store()
	err := s.Put(t.Context(), source(1), value(1))
	if err == nil || !strings.Contains(err.Error(), "REGISTER_WORKER") {
		t.Errorf("put without an object: %v", err)
	}
	if p.object() != nil {
		t.Error("an object was made")
	}
	if list, err := s.List(t.Context(), "v1/event_sources/"); err != nil || len(list) != 0 {
		t.Errorf("%v, %v", list, err)
	}
	p.remove(s, source(1))
	p.dynamo(dynamoData{})
	p.put(s, source(2), value(2))
	p.want("when it is there", source(2))
}

// deletedMeanwhile: an object that is deleted, or another one, by the time that
// the patch arrives is not made again and not written to, whether or not
// kvrelay may make objects.
func deletedMeanwhile(t *testing.T, p *place) {
	for _, next := range []string{"nothing", "another"} {
		for _, what := range []string{"put", "delete"} {
			p.podUID += "x"
			p.dynamo(dynamoData{})
			s := p.store()
			p.put(s, source(1), value(1))
			var once sync.Once
			p.beforeEach(func(r *http.Request) {
				if r.Method != http.MethodPatch {
					return
				}
				once.Do(func() {
					if err := p.api.Delete(t.Context(), pod, metav1.DeleteOptions{}); err != nil {
						t.Error(err)
					}
					if next == "another" {
						p.dynamo(dynamoData{EventSources: map[string]any{strings.TrimPrefix(source(1), "v1/event_sources/"): map[string]any{"new": true}}})
					}
				})
			})
			var err error
			if what == "put" {
				if err = s.Put(t.Context(), source(2), value(2)); err == nil {
					t.Errorf("%s, then %s: no error", what, next)
				}
			} else if err = s.Delete(t.Context(), source(1)); err != nil {
				t.Errorf("%s, then %s: %v", what, next, err)
			}
			p.beforeEach(nil)
			if next == "nothing" {
				if u := p.object(); u != nil {
					t.Fatalf("%s made the object again: %v", what, u.Object)
				}
				continue
			}
			p.want(what+" to another object", source(1))
			if err := p.api.Delete(t.Context(), pod, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// anotherPod: the object of an earlier pod of the name is left alone, until it
// has gone.
func anotherPod(t *testing.T, p *place) {
	p.dynamo(dynamoData{})
	p.put(p.store(), source(1), value(1))
	p.podUID = "the-next-pod"
	s := p.store(making)
	err := s.Put(t.Context(), source(2), value(2))
	if err == nil || !strings.Contains(err.Error(), "POD_UID") {
		t.Errorf("put: %v", err)
	}
	if list, err := s.List(t.Context(), "v1/event_sources/"); err != nil || len(list) != 0 {
		t.Errorf("listed %v, %v", list, err)
	}
	p.remove(s, source(1))
	p.want("by the next pod", source(1))
	if err := p.api.Delete(t.Context(), pod, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	p.put(s, source(3), value(3))
	p.want("made by the next pod", source(2), source(3)) // 2 was asked for, too
}

// nullMaps: null maps, which some versions leave, are read as empty.
func nullMaps(t *testing.T, p *place) {
	p.dynamo(dynamoData{})
	patch := []byte(`[{"op":"replace","path":"/spec/data/event_sources","value":{"a":null}}]`)
	if _, err := p.api.Patch(t.Context(), pod, types.JSONPatchType, patch, metav1.PatchOptions{FieldManager: "somebody"}); err != nil {
		t.Fatal(err)
	}
	if list, err := p.store().List(t.Context(), "v1/event_sources/"); err != nil || len(list) != 0 {
		t.Errorf("a null is listed: %v, %v", list, err)
	}
	patch = []byte(`[{"op":"replace","path":"/spec/data/event_sources","value":null},{"op":"replace","path":"/spec/data/endpoints","value":null},` +
		`{"op":"remove","path":"/spec/data/model_cards"}]`)
	if _, err := p.api.Patch(t.Context(), pod, types.JSONPatchType, patch, metav1.PatchOptions{FieldManager: "somebody"}); err != nil {
		t.Fatal(err)
	}
	s := p.store()
	for _, prefix := range []string{"v1/event_sources/", "v1/instances/", "v1/mdc/"} {
		if list, err := s.List(t.Context(), prefix); err != nil || len(list) != 0 {
			t.Errorf("%s: %v, %v", prefix, list, err)
		}
	}
	p.remove(s, source(9))
	for _, key := range []string{source(1), endpoint(1), "v1/mdc/n/c/e/1"} {
		p.put(s, key, value(1))
	}
	p.want("where there were nulls", source(1), endpoint(1), "v1/mdc/n/c/e/1")
	for _, key := range []string{source(1), endpoint(1), "v1/mdc/n/c/e/1"} {
		p.remove(s, key)
	}
	p.want("after withdrawal")
}

// conflict: a record of another manager is not overruled.
func conflict(t *testing.T, p *place) {
	name := strings.TrimPrefix(endpoint(1), "v1/instances/")
	p.dynamo(dynamoData{Endpoints: map[string]any{name: map[string]any{"instance_id": 1, "type": "Endpoint"}}})
	s := p.store(making)
	err := s.Put(t.Context(), endpoint(1), value(5))
	if err == nil || !strings.Contains(err.Error(), "dynamo-worker") || !strings.Contains(err.Error(), "REGISTER_WORKER") {
		t.Errorf("put over Dynamo's: %v", err)
	}
	if got := p.records()["endpoints/"+name]; got != `{"instance_id":1,"type":"Endpoint"}` {
		t.Errorf("it is %s", got)
	}
	list, err := s.List(t.Context(), "v1/instances/")
	if err != nil || len(list) != 1 || list[0].Dead || list[0].Key != endpoint(1) {
		t.Errorf("listed %+v, %v", list, err)
	}
}

// numbers: ids come back exactly, or are refused.
func numbers(t *testing.T, p *place) {
	p.dynamo(dynamoData{})
	s := p.store()
	for _, n := range []string{"0", "9007199254740991", "9007199254740993", "9223372036854775807", "-9223372036854775808"} {
		p.put(s, source(1), []byte(`{"id":`+n+`,"in":[{"id":`+n+`}]}`))
		list, err := s.List(t.Context(), source(1))
		if err != nil || len(list) != 1 || string(list[0].Value) != `{"id":`+n+`,"in":[{"id":`+n+`}]}` {
			t.Errorf("%s: %+v, %v", n, list, err)
		}
	}
	p.remove(s, source(1))
	for _, n := range []string{"9223372036854775808", "18446744073709551615", "1.5", "1e30"} {
		for _, v := range []string{`{"id":` + n + `}`, `{"in":[` + n + `]}`, n} {
			if err := s.Put(t.Context(), source(2), []byte(v)); err == nil || !strings.Contains(err.Error(), n) {
				t.Errorf("%s: %v", v, err)
			}
		}
	}
	p.want("after refusals")
	if err := s.Put(t.Context(), "v1/unknown/x", value(1)); err == nil {
		t.Error("a record of no known kind was taken")
	}
}

// restart: a new life knows the records of the one before as dead, and takes
// all of them away before it says anything of its own; not so Dynamo's.
func restart(t *testing.T, p *place) {
	theirs := strings.TrimPrefix(source(9), "v1/event_sources/")
	p.dynamo(dynamoData{EventSources: map[string]any{theirs: map[string]any{"type": "EventSource"}}})
	first := p.store()
	p.put(first, source(1), value(1))
	p.put(first, source(2), value(2))
	p.put(first, endpoint(1), value(1))
	second := p.store()
	got := p.dead(second)
	if len(got) != 3 || !got[source(1)] || !got[source(2)] || got[source(9)] {
		t.Errorf("dead %v", got)
	}
	for key, dead := range p.dead(first) {
		if dead {
			t.Errorf("%s is dead to the one who keeps it", key)
		}
	}
	p.remove(second, source(1))
	p.want("one taken away", source(2), endpoint(1), source(9))
	var seen []string
	p.beforeEach(func(r *http.Request) {
		if r.Method == http.MethodPatch {
			seen = append(seen, r.Header.Get("Content-Type"))
		}
	})
	p.put(second, source(3), value(3))
	p.beforeEach(nil)
	if !slices.Equal(seen, []string{string(types.MergePatchType), string(types.ApplyPatchType)}) && !slices.Equal(seen, []string{string(types.MergePatchType), string(types.ApplyYAMLPatchType)}) {
		t.Errorf("patches %q: the old record must go before the new one comes", seen)
	}
	p.want("the next life", source(3), source(9))
}
