package kube

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

// errGone: the object that was to be written to is no more, or is another one of its name.
var errGone = errors.New("the custom resource was deleted meanwhile")

// Verbs that the Role in k8s grants: what is called below and by Run.
const (
	verbGet    = "get"
	verbList   = "list"
	verbWatch  = "watch"
	verbPatch  = "patch"
	verbCreate = "create"
)

// askAgain keeps it to ourselves when a server that is busy is asked again. The
// client would wait as long as Retry-After says, and then only know that time is up.
type askAgain struct{ http.RoundTripper }

func (a askAgain) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := a.RoundTripper.RoundTrip(r)
	if resp != nil {
		resp.Header.Del("Retry-After")
	}
	return resp, err
}

// get reads the object; nil: there is none.
func (s *Store) get(ctx context.Context) (*object, error) {
	u, err := s.api.Get(ctx, s.o.Name, metav1.GetOptions{})
	if s.absent(err) {
		return nil, nil
	}
	if err != nil {
		return nil, s.explain(ctx, verbGet, err)
	}
	return parse(u), nil
}

// absent: the API server has the type, but not this object.
func (s *Store) absent(err error) bool {
	return apierrors.IsNotFound(err) && !apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}

// create makes the object with its owner, so that it goes with the pod.
func (s *Store) create(ctx context.Context) (*object, error) {
	if !s.o.Create {
		return nil, fmt.Errorf("there is no custom resource %s in namespace %s: the engine's Dynamo process makes it when it registers. Where no Dynamo process runs set REGISTER_WORKER=true; where it runs in container mode (DYN_KUBE_DISCOVERY_MODE=container) WORKER_CONTAINER", s.o.Name, s.o.Namespace)
	}
	owner := s.owner()
	u := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": resource.GroupVersion().String(), "kind": "DynamoWorkerMetadata",
		// All that Dynamo's reader wants to be there.
		"spec": map[string]any{"data": map[string]any{
			"endpoints": map[string]any{}, "model_cards": map[string]any{}, "event_channels": map[string]any{}, "event_sources": map[string]any{},
		}},
	}}
	u.SetName(s.o.Name)
	u.SetOwnerReferences([]metav1.OwnerReference{owner})
	made, err := s.api.Create(ctx, u, metav1.CreateOptions{FieldManager: manager})
	if apierrors.IsAlreadyExists(err) { // a Dynamo process was faster
		obj, err := s.get(ctx)
		if err == nil && obj == nil {
			err = errGone
		}
		return obj, err
	}
	if err != nil {
		return nil, s.explain(ctx, verbCreate, err)
	}
	return parse(made), nil
}

// applyKeys has the object with this uid say what is in records, and nothing
// else as kvrelay. The uid keeps an object that was deleted from being made
// again, without an owner. Without force: what another manager says stays.
func (s *Store) applyKeys(ctx context.Context, id types.UID, records map[string]any) error {
	b, err := body(map[string]any{"name": s.o.Name, "uid": id}, records)
	if err != nil {
		return err
	}
	_, err = s.api.Patch(ctx, s.o.Name, types.ApplyPatchType, b, metav1.PatchOptions{FieldManager: manager})
	return s.patched(ctx, id, err)
}

// mergeNull takes keys away. (An apply without them leaves null in place of a
// map, in most versions of Kubernetes, which Dynamo cannot read.)
func (s *Store) mergeNull(ctx context.Context, id types.UID, keys map[string]bool) error {
	b, err := body(map[string]any{"uid": id}, nothing(keys))
	if err != nil {
		return err
	}
	_, err = s.api.Patch(ctx, s.o.Name, types.MergePatchType, b, metav1.PatchOptions{FieldManager: manager})
	return s.patched(ctx, id, err)
}

// patched says what became of a patch. An object that has gone meanwhile shows
// as 404 (a merge patch), 409 or 422 (its uid is another's), or 403 (an apply
// that would make it, which the Role does not allow), so it is looked at again.
func (s *Store) patched(ctx context.Context, id types.UID, err error) error {
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) || apierrors.IsInvalid(err) || apierrors.IsForbidden(err) {
		if obj, again := s.get(ctx); again == nil && (obj == nil || obj.uid != id) {
			return errGone
		}
	}
	return s.explain(ctx, verbPatch, err)
}
