package admin

import (
	"encoding/json"
	"fmt"
	"net/http"
	"runtime"
	"runtime/debug"
	"strconv"
	"time"
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
