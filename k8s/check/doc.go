// Package check holds the tests of the manifests in k8s: what kustomize makes
// of them is decoded strictly into Kubernetes' own types, and then held to what
// the cluster would find out only at run time. It is a module of its own, so
// that kvrelay does not depend on Kubernetes.
package check
