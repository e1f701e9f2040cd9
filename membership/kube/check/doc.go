// Package check holds membership/kube to its promises against Kubernetes' own
// API server for custom resources (k8s.io/apiextensions-apiserver) with an etcd
// inside the test. It is a module of its own, so that kvrelay depends on
// neither, behind the tag kube, because it takes minutes to build: make test-kube.
package check
