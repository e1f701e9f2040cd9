package consumer

import (
	"encoding/json"
	"errors"
	"time"
)

// maxHeartbeat is the largest heartbeat read, in bytes; a larger message on a
// heartbeat subject is ignored.
const maxHeartbeat = 4096

// HeartbeatEvery is how often a relay sends a heartbeat per rank.
const HeartbeatEvery = time.Second

// Heartbeat is what a relay says of one rank every second and at each change.
type Heartbeat struct {
	Publisher uint64 `json:"publisher_id"`
	// Started is when that publisher began, ms since 1970.
	Started uint64 `json:"started"`
	// LastEventID is the last event that the relay knows to have reached NATS.
	LastEventID uint64 `json:"last_event_id"`
	// State is live, replaying, suspect, waiting or leaving.
	State string `json:"state"`
	// EngineSeq and Epoch are the engine batch applied last, Blocks how many
	// blocks are published as held, LagMS how old that batch was.
	EngineSeq uint64  `json:"engine_seq"`
	Epoch     uint64  `json:"epoch"`
	Blocks    uint64  `json:"blocks"`
	LagMS     float64 `json:"lag_ms"`
}

// StateLeaving is the state of a relay's last heartbeat.
const StateLeaving = "leaving"

var errHeartbeat = errors.New("no heartbeat")

// ParseHeartbeat decodes a message from a heartbeat subject.
func ParseHeartbeat(data []byte) (Heartbeat, error) {
	var h Heartbeat
	if len(data) > maxHeartbeat || json.Unmarshal(data, &h) != nil ||
		h.Publisher == 0 || h.Publisher > maxPublisher {
		return Heartbeat{}, errHeartbeat
	}
	return h, nil
}
