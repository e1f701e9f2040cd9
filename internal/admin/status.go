package admin

import (
	"encoding/json"
	"fmt"
	"net/http"
	"runtime"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/kvrelay/kvrelay/config"
	"github.com/kvrelay/kvrelay/convert"
)

// build is what was built.
type build struct {
	Version string `json:"version"` // "(devel)" or "" where unknown
	Commit  string `json:"commit"`
	Go      string `json:"go"`
}

func buildOf(info *debug.BuildInfo) build {
	b := build{Version: "unknown", Commit: "unknown", Go: runtime.Version()}
	if info == nil {
		return b
	}
	if info.Main.Version != "" {
		b.Version = info.Main.Version
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && s.Value != "" {
			b.Commit = s.Value[:min(12, len(s.Value))]
		}
	}
	return b
}

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

// status answers with everything a program or the page wants to know. With
// ?since=TICK it has the samples behind that tick, with &rev=REV the marks
// behind that revision.
func (s *Server) status(w http.ResponseWriter, r *http.Request) {
	var since int64 = -1
	var rev uint64
	q := r.URL.Query()
	withHistory := q.Has("since")
	if withHistory {
		var err, err2 error
		since, err = strconv.ParseInt(q.Get("since"), 10, 64)
		if q.Has("rev") {
			rev, err2 = strconv.ParseUint(q.Get("rev"), 10, 64)
		}
		if err != nil || err2 != nil {
			answer(w, http.StatusBadRequest, "since and rev are whole numbers, as an earlier answer gave them")
			return
		}
	}
	snap := s.fresh(r.Context())
	j := s.statusOf(&snap)
	if withHistory {
		j.History = s.historySince(since, rev)
	}
	b, err := json.Marshal(j)
	if err != nil {
		answer(w, http.StatusInternalServerError, "status: "+err.Error())
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(append(b, '\n')) // the client may be gone
}

func (s *Server) statusOf(snap *snapshot) *statusJSON {
	st := &snap.relay
	j := &statusJSON{
		Build: buildOf(s.o.Build), Now: time.Now(), Started: st.Started,
		Worker: strconv.FormatUint(st.WorkerID, 10), Settings: s.o.Settings, Omitted: snap.omitted,
		Memory: memoryJSON{st.HeldBytes, st.HoldLimit, st.Unconfirmed, st.OutLimit},
		Ranks:  []rankJSON{},
	}
	j.Reasons = s.unready(snap)
	j.Ready, j.Healthy = len(j.Reasons) == 0, true
	if err := s.Health(); err != nil {
		j.Healthy, j.Reasons = false, append(j.Reasons, err.Error())
	}
	if j.Reasons == nil {
		j.Reasons = []string{}
	}
	k := &st.Sink
	j.Sink = sinkJSON{
		Kind: s.o.Sink, Connected: k.Connected, Server: k.Server, Since: k.Since, LastError: k.LastError, Stream: k.Stream,
		Reconnects: k.Reconnects, Failures: k.Failures, Envelopes: k.Envelopes, Resent: k.Resent,
		ConfirmedEvents: k.ConfirmedEvents, UnconfirmedEvents: k.UnconfirmedEvents, TooLarge: k.TooLarge,
	}
	d := &snap.discovery
	j.Discovery = discoveryJSON{Engine: d.Engine, Kind: d.Kind, Version: d.Version, Awaiting: d.Awaiting, Refused: []string{}, Warnings: d.Warnings}
	if d.LastFailed.After(d.LastAnswer) {
		j.Discovery.LastError = d.LastError
	}
	for _, r := range d.Refused {
		j.Discovery.Refused = append(j.Discovery.Refused, r.String())
	}
	if j.Discovery.Warnings == nil {
		j.Discovery.Warnings = []string{}
	}
	rates := s.rates()
	for _, r := range rows(st) {
		j.Ranks = append(j.Ranks, r.json(rates[r.key]))
	}
	return j
}

func (r row) json(rate float64) rankJSON {
	src, c := r.src, &r.src.Cursor
	j := rankJSON{
		Row: r.key, Rank: r.number(), Endpoint: src.Source.Endpoint, Replay: src.Source.Replay,
		State: r.state(), Reason: src.Reason, Ready: src.Ready,
		Position: position{c.Epoch, c.Position.Seq, fmt.Sprintf("%016x", c.Position.Sum), c.Begun},
		Rates:    ratesJSON{Batches: rate},
		Error:    src.LastError, ErrorAt: known(src.LastErrorAt), Since: known(src.LiveSince), Message: known(src.LastMessage),
		HeldBatches: c.Held, Missing: c.Missing, Drops: map[string]uint64{},
		Counts: countsJSON{
			Batches: c.Applied, Replayed: c.Replayed, Discarded: c.Discarded, Undecodable: src.Undecodable,
			Refused: src.RefusedFrames, Filtered: src.Filtered, OtherRanks: src.RefusedRanks,
			Gaps: c.Gaps, Restarts: c.Restarts, Losses: c.Losses, Lost: c.Lost, Burned: c.Burned,
			Reconnects: max(src.Connects, 1) - 1,
			Requests:   c.Requests, Ended: c.Counters.Ended, Stalled: c.Stalled, RefusedAsks: c.Refused,
			Stalls: src.Stalls, Panics: src.Panics,
		},
	}
	if r.state() == "suspect" && j.Reason == "" {
		j.Reason = "a batch could not be decoded, or lost history was kept: its picture may be wrong until the next clear or restart"
	}
	if r.rank == nil {
		if src.RefusedRanks > 0 || src.LastError != "" && j.State == "live" {
			j.Reason = src.LastError
		}
		return j
	}
	v := &r.rank.Convert
	j.PublisherID, j.LastID, j.Confirmed = strconv.FormatUint(r.rank.PublisherID, 10), r.rank.LastID, r.rank.Confirmed
	j.Blocks, j.BlockSize = v.Present, v.BlockSize
	if v.Mismatched {
		j.Mismatch = v.OtherSize
	}
	j.Counts.Events, j.Counts.Published, j.Counts.Suppressed, j.Counts.Routed = v.Events.In, v.Events.Published, v.Events.Suppressed, v.RouterEvents
	for _, reason := range reasons() {
		if n := v.Drops(reason); n > 0 {
			j.Drops[reason.String()] = n
		}
	}
	if l := &r.rank.Lag; l.N > 0 {
		j.Rates.Lag = &l.Last
	}
	return j
}

// known is a time, or nil (null) for none.
func known(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// rates are the rows' batches a second.
func (m *monitor) rates() map[string]float64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	rates := map[string]float64{}
	for key, s := range m.history.rows {
		rates[key] = s.recent(m.history.tick)
	}
	return rates
}

func (m *monitor) historySince(since int64, rev uint64) *historyJSON {
	m.mu.Lock()
	defer m.mu.Unlock()
	h := &m.history
	j := &historyJSON{Tick: h.tick, Began: m.began, Ticks: historyTicks, Rev: h.rev, Rows: map[string]samplesJSON{}, Marks: []mark{}}
	since = min(max(since, -1), h.tick)
	for key, s := range h.rows {
		j.Rows[key] = s.after(since, h.tick)
	}
	for _, k := range h.marks {
		if k.rev > rev {
			j.Marks = append(j.Marks, *k)
		}
	}
	return j
}

// DropReasons explains the reasons, for the page and the documentation.
func DropReasons() map[string]string {
	m := map[string]string{}
	for r, text := range reasonTexts {
		m[convert.Reason(r).String()] = text
	}
	return m
}

var reasonTexts = [convert.NumReasons]string{
	convert.ReasonUndecodable:    "a whole batch that is no msgpack of any engine",
	convert.ReasonMalformed:      "an event with impossible fields",
	convert.ReasonUnknownTag:     "an event of a kind that kvrelay does not know",
	convert.ReasonIgnored:        "an event that says nothing about blocks",
	convert.ReasonForeignOwner:   "about blocks of another owner than this engine",
	convert.ReasonNonLocal:       "about blocks that are not on this host",
	convert.ReasonUnknownMedium:  "on a medium that kvrelay does not know",
	convert.ReasonNonMainKind:    "of a cache group that routers do not match: not main attention",
	convert.ReasonUnknownKind:    "of a cache group whose kind is unknown",
	convert.ReasonNonMainGroup:   "of another cache group than the main one",
	convert.ReasonUnlearnedGroup: "of a cache group that has not told its kind",
	convert.ReasonUnnamedLora:    "of a LoRA adapter without a name",
	convert.ReasonAmbiguousSalt:  "the cache salt of its parent cannot be told",
	convert.ReasonSelfReference:  "a block that is its own parent",
	convert.ReasonEmpty:          "an event without blocks",
	convert.ReasonNoTokens:       "a store without tokens of blocks that are not known",
	convert.ReasonBlockSize:      "blocks of another size than expected: check BLOCK_SIZE and the engine's block size",
	convert.ReasonShortTokens:    "fewer tokens than its blocks need",
	convert.ReasonSurplusTokens:  "more tokens than its blocks hold",
	convert.ReasonOrphan:         "its parent was dropped",
	convert.ReasonLedgerFull:     "the ledger is full",
	convert.ReasonTooLarge:       "one block alone exceeds NATS' max_payload",
}
