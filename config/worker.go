package config

import (
	"encoding/binary"
	"strings"

	"github.com/zeebo/xxh3"
)

// EngineAddress names the engine in the worker id and in logs: the first of
// ENDPOINTS as written, else DISCOVERY_URL, else "".
func (c *Config) EngineAddress() string {
	if c.IsStatic() && len(c.Endpoints) > 0 {
		return c.Endpoints[0].String()
	}
	return string(c.DiscoveryURL)
}

// Worker is WORKER_ID, or when that is not set: with MEMBERSHIP=kubernetes
// Dynamo's own id, else the derived id of this host's engine.
func (c *Config) Worker(host string) uint64 {
	if c.WorkerID.Has {
		return c.WorkerID.Value
	}
	if c.Membership == MembershipKubernetes {
		return DynamoWorkerID(c.WorkerResource())
	}
	return DeriveWorkerID(c.Namespace, host, c.EngineAddress())
}

// mainContainer is the one that Dynamo's container mode names like the pod.
const mainContainer = "main"

// WorkerResource is the name of the worker's custom resource in Kubernetes: the
// pod's, or <pod>-<container> in Dynamo's container mode.
func (c *Config) WorkerResource() string {
	if c.WorkerContainer == "" || c.WorkerContainer == mainContainer {
		return c.PodName
	}
	return c.PodName + "-" + c.WorkerContainer
}

// DeriveWorkerID is a stable 53-bit number (1 … 2^53 − 1, which every JSON
// reader keeps exact) from what tells one engine from another: the XXH3-64 of
// the three texts (the host in lower case), each behind its length as LE64. Changing it would make
// every relay another worker at its next upgrade.
func DeriveWorkerID(namespace, host, engine string) uint64 {
	var b []byte
	for _, text := range []string{namespace, strings.ToLower(host), engine} {
		b = binary.LittleEndian.AppendUint64(b, uint64(len(text)))
		b = append(b, text...)
	}
	return max(xxh3.Hash(b)&(1<<53-1), 1)
}
