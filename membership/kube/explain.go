package kube

import (
	"context"
	"errors"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// explain says what is wrong and what to do about it.
func (s *Store) explain(ctx context.Context, verb string, err error) error {
	if err == nil {
		return nil
	}
	name := resource.GroupResource().String()
	var status apierrors.APIStatus
	switch {
	case errors.Is(err, context.Canceled) || errors.Is(context.Cause(ctx), context.Canceled):
		return err
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("the API server does not accept the token of the pod's service account: %w", err)
	case apierrors.IsForbidden(err) && !strings.Contains(err.Error(), "is forbidden: User ") && strings.Contains(err.Error(), "is forbidden: "):
		// Not the Role: a quota, an admission rule, or a namespace that is being deleted.
		return fmt.Errorf("the cluster does not let anybody %s this custom resource, %s in namespace %s: %w", verb, s.o.Name, s.o.Namespace, err)
	case apierrors.IsForbidden(err):
		return fmt.Errorf("the pod's service account may not %s %s in namespace %s: its Role needs the verb %q on %s of the API group %q (k8s/components/dynamo has it; create is in dynamo-register-worker): %w",
			verb, name, s.o.Namespace, verb, resource.Resource, resource.Group, err)
	case apierrors.IsNotFound(err):
		return fmt.Errorf("the cluster does not have the type %s (%s), which comes with Dynamo: install its CustomResourceDefinition: %w", name, resource.Version, err)
	case apierrors.HasStatusCause(err, metav1.CauseTypeFieldManagerConflict):
		return fmt.Errorf("another field manager has a record of this name in the custom resource %s, and is not overruled; where a Dynamo process registered the engine, REGISTER_WORKER must be false: %w", s.o.Name, err)
	case apierrors.IsConflict(err):
		return fmt.Errorf("the custom resource %s changed while it was written: %w", s.o.Name, err)
	case apierrors.IsTooManyRequests(err):
		return fmt.Errorf("the API server at %s is busy (%s %s), or limits kvrelay by its API priority and fairness: %w", s.o.Config.Host, verb, name, err)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("the API server at %s did not answer in time (%s %s): %w", s.o.Config.Host, verb, name, err)
	case !errors.As(err, &status):
		return fmt.Errorf("the API server at %s cannot be reached; is a NetworkPolicy in the way? %w", s.o.Config.Host, err)
	}
	return fmt.Errorf("the API server at %s fails (%s %s %s): %w", s.o.Config.Host, verb, name, s.o.Name, err)
}
