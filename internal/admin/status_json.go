package admin

import (
	"time"

	"github.com/kvrelay/kvrelay/config"
)

// statusJSON is the answer of /status. Fields may be added, none is renamed.
// Times are RFC 3339, ages and lags seconds; ids that can exceed 2^53 are text.
type statusJSON struct {
	Build   build     `json:"build"`
	Now     time.Time `json:"now"`
	Started time.Time `json:"started"`
	Worker  string    `json:"worker_id"`
	Healthy bool      `json:"healthy"`
	Ready   bool      `json:"ready"`
	Reasons []string  `json:"reasons"` // why it is not healthy, or not ready

	Sink      sinkJSON      `json:"sink"`
	Discovery discoveryJSON `json:"discovery"`
	Memory    memoryJSON    `json:"memory"`
	Ranks     []rankJSON    `json:"ranks"`
	Omitted   int           `json:"ranks_omitted"`

	Settings []config.Value `json:"settings"`
	History  *historyJSON   `json:"history,omitempty"` // with ?since=TICK
}

type sinkJSON struct {
	Kind              string    `json:"kind"`
	Connected         bool      `json:"connected"`
	Server            string    `json:"server"`
	Since             time.Time `json:"since"` // of the connection, or of its loss
	LastError         string    `json:"last_error"`
	Stream            string    `json:"stream,omitempty"`
	Reconnects        uint64    `json:"reconnects"`
	Failures          uint64    `json:"publish_errors"`
	Envelopes         uint64    `json:"envelopes"`
	Resent            uint64    `json:"envelopes_resent"`
	ConfirmedEvents   uint64    `json:"confirmed_events"`
	UnconfirmedEvents int64     `json:"unconfirmed_events"`
	TooLarge          uint64    `json:"blocks_too_large"`
}

type discoveryJSON struct {
	Engine    string   `json:"engine"`
	Kind      string   `json:"kind"`
	Version   string   `json:"version"`
	Awaiting  string   `json:"awaiting"`
	LastError string   `json:"last_error"` // "" when the last asking was answered
	Refused   []string `json:"refused"`
	Warnings  []string `json:"warnings"`
}

type memoryJSON struct {
	Held        int64 `json:"held_bytes"`
	HoldLimit   int64 `json:"hold_limit_bytes"`
	Unconfirmed int64 `json:"unconfirmed_bytes"`
	OutLimit    int64 `json:"out_limit_bytes"`
}

type rankJSON struct {
	Row      string     `json:"row"` // names it in history
	Rank     uint32     `json:"rank"`
	Endpoint string     `json:"endpoint"`
	Replay   string     `json:"replay"`
	State    string     `json:"state"`
	Reason   string     `json:"reason"`
	Ready    bool       `json:"ready"`
	Position position   `json:"position"`
	Rates    ratesJSON  `json:"rates"`
	Error    string     `json:"last_error"`
	ErrorAt  *time.Time `json:"last_error_at"`
	Since    *time.Time `json:"connected_since"`
	Message  *time.Time `json:"last_message"`

	PublisherID string `json:"publisher_id"`
	LastID      uint64 `json:"last_event_id"`
	Confirmed   uint64 `json:"confirmed_event_id"`

	Blocks      int    `json:"blocks"`
	BlockSize   uint64 `json:"block_size"`
	Mismatch    uint64 `json:"block_size_mismatch"` // the other size; 0: none
	HeldBatches int    `json:"held_batches"`
	Missing     bool   `json:"gap_open"`

	Counts countsJSON        `json:"counts"`
	Drops  map[string]uint64 `json:"drops"` // by reason; reasons without any are left out
}

// position is the newest applied batch.
type position struct {
	Epoch uint64 `json:"epoch"`
	Seq   uint64 `json:"seq"`
	Sum   string `json:"xxh3"`
	Begun bool   `json:"begun"` // false: no batch of this epoch yet, seq and xxh3 mean nothing
}

// ratesJSON are means over 10 seconds.
type ratesJSON struct {
	Batches float64  `json:"batches_per_second"`
	Lag     *float64 `json:"lag_seconds"` // of the newest batch; null: none yet
}

type countsJSON struct {
	Batches     uint64 `json:"batches_applied"`
	Replayed    uint64 `json:"batches_replayed"`
	Discarded   uint64 `json:"batches_discarded"`
	Undecodable uint64 `json:"batches_undecodable"`
	Refused     uint64 `json:"frames_refused"`
	Filtered    uint64 `json:"messages_filtered"`
	OtherRanks  uint64 `json:"batches_of_refused_ranks"`
	Gaps        uint64 `json:"gaps"`
	Restarts    uint64 `json:"restarts"`
	Losses      uint64 `json:"lost_history"`
	Lost        uint64 `json:"lost_batches"`
	Burned      uint64 `json:"burned_batches"`
	Reconnects  uint64 `json:"reconnects"`
	Requests    uint64 `json:"replay_requests"`
	Ended       uint64 `json:"replays_ended"`
	Stalled     uint64 `json:"replays_stalled"`
	RefusedAsks uint64 `json:"replays_refused"`
	Stalls      uint64 `json:"backpressure"`
	Panics      uint64 `json:"panics"`
	Events      uint64 `json:"events"`
	Published   uint64 `json:"events_published"`
	Suppressed  uint64 `json:"events_suppressed"`
	Routed      uint64 `json:"router_events"`
}

type historyJSON struct {
	Tick  int64                  `json:"tick"`  // newest; a tick is a second
	Began time.Time              `json:"began"` // of tick 0
	Ticks int                    `json:"ticks"` // remembered
	Rev   uint64                 `json:"rev"`   // ask with &rev= for later marks only
	Rows  map[string]samplesJSON `json:"rows"`
	Marks []mark                 `json:"marks"`
}
