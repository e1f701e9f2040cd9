//go:build !slim

package main

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/kvrelay/kvrelay/config"
)

// TestKubeOutsideOfPod: what is missing is said, not that something cannot be dialled.
func TestKubeOutsideOfPod(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	_, err := recordStore(&config.Config{Membership: config.MembershipKubernetes, PodName: "p", PodNamespace: "n", PodUID: "u"}, slog.New(slog.DiscardHandler))
	if err == nil || !strings.Contains(err.Error(), "MEMBERSHIP=kubernetes") || !strings.Contains(err.Error(), "in a pod only") {
		t.Errorf("got %v", err)
	}
}
