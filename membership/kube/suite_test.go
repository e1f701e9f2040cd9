package kube_test

import (
	"testing"

	"github.com/kvrelay/kvrelay/membership/kube"
	"github.com/kvrelay/kvrelay/membership/kube/internal/suite"
)

// TestSuite: the promises, against Kubernetes' merge logic behind a fake server.
func TestSuite(t *testing.T) {
	suite.Run(t, kube.NewFake(t), 100)
}
