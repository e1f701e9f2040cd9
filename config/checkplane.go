package config

import (
	"math"
	"regexp"
	"strings"
)

// checkPlane: routers ask for recovery in one way. Where nothing is put on
// record, Dynamo's own variable is not ours to refuse.
func (l *loader) checkPlane() {
	c := l.cfg
	if c.Membership == MembershipOff {
		return
	}
	switch c.RequestPlane = strings.ToLower(strings.TrimSpace(c.RequestPlane)); c.RequestPlane {
	case "":
		c.RequestPlane = PlaneTCP
	case PlaneTCP:
	case PlaneNATS:
		if c.RecoveryAddr != "" {
			l.problemOf("RECOVERY_ADDR", "want it only with REQUEST_PLANE=tcp: over NATS routers need no address")
		}
	default:
		l.problemOf("REQUEST_PLANE", "want tcp or nats, as the routers' DYN_REQUEST_PLANE")
	}
}

// dynamoName is a name that Dynamo's routers read back from keys and subjects.
// With other characters in it they were seen to ignore everything without a word.
var dynamoName = regexp.MustCompile(`^[A-Za-z0-9._-]+$`)

// checkDynamoNames: routers must find records and events by the endpoint's names.
func (l *loader) checkDynamoNames() {
	c := l.cfg
	if c.Membership == MembershipOff {
		return
	}
	for _, n := range []struct{ setting, name string }{{"NAMESPACE", c.Namespace}, {"COMPONENT", c.Component}, {"ENDPOINT_NAME", c.EndpointName}} {
		if !dynamoName.MatchString(n.name) {
			l.problemOf(n.setting, "want letters, digits, dots, dashes and underscores with MEMBERSHIP: Dynamo's routers do not find other names")
		}
	}
}

// checkWorkerID: an id that no Dynamo worker can have would be ignored by
// routers in silence. An etcd lease, which is the id there, is a positive int64.
// (With MEMBERSHIP=kubernetes there is one right id: checkPod. Where kvrelay
// registers the worker itself, routers take any.)
func (l *loader) checkWorkerID() {
	c := l.cfg
	if !c.WorkerID.Has || c.RegisterWorker {
		return
	}
	switch id := c.WorkerID.Value; {
	case c.Membership != MembershipFile && c.Membership != MembershipEtcd:
	case id == 0:
		l.problemOf("WORKER_ID", "want the instance id of the engine's Dynamo worker, which is never 0, or REGISTER_WORKER=true where there is none")
	case id > math.MaxInt64 && c.Membership == MembershipEtcd:
		l.problemOf("WORKER_ID", "want at most 9223372036854775807, as the instance id of a Dynamo worker with etcd is, or REGISTER_WORKER=true where there is none")
	}
}
