package kube

import (
	"testing"

	"k8s.io/client-go/rest"
)

// NewFake is newFake for tests outside of the package.
func NewFake(t *testing.T) *rest.Config {
	_, config := newFake(t)
	return config
}
