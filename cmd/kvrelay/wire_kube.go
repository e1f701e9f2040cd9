//go:build !slim

package main

import (
	"errors"
	"fmt"
	"log/slog"

	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/kvrelay/kvrelay/config"
	"github.com/kvrelay/kvrelay/membership"
	"github.com/kvrelay/kvrelay/membership/kube"
)

// kubeStore is where MEMBERSHIP=kubernetes keeps records: in the custom
// resource of the worker whose pod this is.
func kubeStore(c *config.Config, log *slog.Logger) (membership.Store, error) {
	// The client's own words (a token that cannot be read, say) among ours.
	klog.SetSlogLogger(log.With("from", "kubernetes client"))
	api, err := rest.InClusterConfig()
	if errors.Is(err, rest.ErrNotInCluster) {
		return nil, errors.New("MEMBERSHIP=kubernetes works in a pod only: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set")
	}
	if err != nil {
		return nil, fmt.Errorf("MEMBERSHIP=kubernetes needs the token of a service account at /var/run/secrets/kubernetes.io/serviceaccount (k8s/components/dynamo mounts it): %w", err)
	}
	return kube.New(kube.Options{
		Config: api, Namespace: c.PodNamespace, Name: c.WorkerResource(), Pod: c.PodName, PodUID: c.PodUID,
		Create: c.RegisterWorker, Log: log,
	})
}
