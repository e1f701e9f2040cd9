package config

import (
	"fmt"
	"os"
	"regexp"
)

// podName is what Kubernetes takes for the name of a pod or a container.
var podName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$`)

// checkPod: with MEMBERSHIP=kubernetes the worker's custom resource has a name
// that Dynamo knows too, and the worker's id follows from it.
func (l *loader) checkPod() {
	c := l.cfg
	if c.Membership != MembershipKubernetes {
		return
	}
	const how = " with MEMBERSHIP=kubernetes, from the downward API (valueFrom.fieldRef.fieldPath: metadata."
	for _, f := range []struct{ name, value, path string }{
		{"POD_NAME", c.PodName, "name"}, {"POD_NAMESPACE", c.PodNamespace, "namespace"}, {"POD_UID", c.PodUID, "uid"},
	} {
		switch {
		case f.value == "":
			l.problemOf(f.name, "want it"+how+f.path+")")
		case !podName.MatchString(f.value):
			l.problemOf(f.name, "want the pod's metadata."+f.path+": lower-case letters, digits, dashes and dots")
		}
	}
	switch {
	case c.WorkerContainer != "" && !podName.MatchString(c.WorkerContainer):
		l.problemOf("WORKER_CONTAINER", "want the name of the engine's container: lower-case letters, digits and dashes")
	case c.WorkerContainer == "" && os.Getenv("DYN_KUBE_DISCOVERY_MODE") == "container":
		l.problemOf("WORKER_CONTAINER", "want the name of the engine's container with DYN_KUBE_DISCOVERY_MODE=container")
	}
	if l.bad["POD_NAME"] || l.bad["WORKER_CONTAINER"] || !c.WorkerID.Has {
		return
	}
	if id := DynamoWorkerID(c.WorkerResource()); c.WorkerID.Value != id {
		l.problemOf("WORKER_ID", fmt.Sprintf("want %d, or leave it out: in Kubernetes Dynamo's routers compute it from the name %s, and know no other", id, c.WorkerResource()))
	}
}
