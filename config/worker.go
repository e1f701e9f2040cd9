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

// Worker is WORKER_ID, or the derived id of this host's engine when that is
// not set. It does not hold with MEMBERSHIP=kubernetes, where Dynamo's own id counts.
func (c *Config) Worker(host string) uint64 {
	if c.WorkerID.Has {
		return c.WorkerID.Value
	}
	return DeriveWorkerID(c.Namespace, host, c.EngineAddress())
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
