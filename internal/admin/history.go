package admin

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/kvrelay/kvrelay/relay"
)

const (
	// historyTicks is how far back the page sees: 10 minutes. A row takes
	// 9 bytes a tick, so 64 ranks take some 350 KB.
	historyTicks = 600
	// maxMarks: the oldest is forgotten.
	maxMarks = 256
	// sameMark: what happens again to the same row so soon, in ticks, is counted with it.
	sameMark = 10
)

// Kinds of marks. The list is closed.
const (
	markGap      = "gap"     // a live batch was ahead of the one expected
	markHealed   = "healed"  // what was missing is there again
	markRestart  = "restart" // of the engine
	markLost     = "lost"    // history
	markGarbage  = "garbage" // an undecodable batch
	markAway     = "away"    // the live connection ended
	markBack     = "back"    // it is there again
	markNATSDown = "nats_down"
	markNATSUp   = "nats_up"
)

// mark is something that happened to a row, or to NATS (Row is "").
type mark struct {
	ID    uint64 `json:"id"`
	rev   uint64 // of the last change
	Tick  int64  `json:"tick"` // of the first time
	Last  int64  `json:"last"` // of the last time
	Row   string `json:"row"`
	Kind  string `json:"kind"`
	Count uint64 `json:"count"`
	Text  string `json:"text"`
}

// history is what the page draws: samples per row, and marks.
type history struct {
	tick  int64 // newest
	rows  map[string]*series
	marks []*mark
	rev   uint64
	ids   uint64
	nats  bool // connected at the last sample
	some  bool // there was a sample
}

// series is one row's samples; the one of tick t is at t mod historyTicks.
type series struct {
	from  int64                 // first tick that has one
	rate  [historyTicks]float32 // batches a second; NaN: unknown
	lag   [historyTicks]float32 // seconds, mean of that second; NaN: no batch
	state [historyTicks]byte    // 'l'ive 'r'eplaying 's'uspect 'w'aiting, ' ': unknown
	prev  row
	seen  int64 // tick of the last sample
}

// row is one line of the page: a rank of a source, or a source that has none yet.
type row struct {
	key  string
	src  *relay.SourceStatus
	rank *relay.RankStatus // nil: none yet
}

func rows(st *relay.Status) []row {
	var list []row
	for i := range st.Sources {
		src := &st.Sources[i]
		if len(src.Ranks) == 0 {
			list = append(list, row{key: rowKey(src.Source.Rank, src), src: src})
		}
		for j := range src.Ranks {
			list = append(list, row{key: rowKey(src.Ranks[j].Rank, src), src: src, rank: &src.Ranks[j]})
		}
	}
	return list
}

// rowKey tells rows apart, also where two sources claim one rank.
func rowKey(rank uint32, src *relay.SourceStatus) string {
	return strconv.FormatUint(uint64(rank), 10) + " " + src.Source.Endpoint
}

func (r row) number() uint32 {
	if r.rank != nil {
		return r.rank.Rank
	}
	return r.src.Source.Rank
}

func (r row) state() string {
	if r.rank != nil {
		return r.rank.State
	}
	return r.src.State
}

// batches is what the rate is the growth of.
func (r row) batches() uint64 {
	if r.rank != nil && len(r.src.Ranks) > 1 {
		return r.rank.Convert.Batches
	}
	return r.src.Cursor.Applied
}

// add takes the sample of a tick. A tick that the clock gives again is skipped,
// ticks that it has left out stay unknown.
func (h *history) add(tick int64, snap *snapshot) {
	if h.some && tick <= h.tick {
		return
	}
	if h.rows == nil {
		h.rows = map[string]*series{}
	}
	nats := snap.relay.Sink.Connected
	if h.some && nats != h.nats {
		if nats {
			h.note(tick, "", markNATSUp, 1, "connected to NATS")
		} else {
			h.note(tick, "", markNATSDown, 1, "the connection to NATS is lost")
		}
	}
	for _, r := range rows(&snap.relay) {
		s := h.rows[r.key]
		if s == nil {
			s = &series{from: tick, seen: tick - 1}
			h.rows[r.key] = s
		} else {
			h.compare(tick, s.prev, r)
		}
		s.add(tick, r)
	}
	for key, s := range h.rows {
		if s.seen != tick {
			delete(h.rows, key)
		}
	}
	h.tick, h.nats, h.some = tick, nats, true
}

func (s *series) add(tick int64, r row) {
	gap := tick - s.seen
	for t := max(s.seen+1, tick-historyTicks+1); t < tick; t++ {
		i := t % historyTicks
		s.rate[i], s.lag[i], s.state[i] = nan, nan, ' '
	}
	i := tick % historyTicks
	s.rate[i], s.lag[i] = nan, nan
	s.state[i] = r.state()[0]
	if s.prev.src != nil {
		if now, before := r.batches(), s.prev.batches(); now >= before {
			s.rate[i] = float32(float64(now-before) / float64(gap))
		}
		if r.rank != nil && s.prev.rank != nil {
			now, before := &r.rank.Lag, &s.prev.rank.Lag
			if now.N > before.N {
				s.lag[i] = float32(max(0, now.Sum-before.Sum) / float64(now.N-before.N))
			}
		}
	}
	s.prev, s.seen = r, tick
}

var nan = float32(math.NaN())

// recent is the mean rate of the last 10 ticks, of those that are known.
func (s *series) recent(tick int64) float64 {
	var sum float64
	var n int
	for t := max(s.from, tick-9); t <= tick; t++ {
		if v := float64(s.rate[t%historyTicks]); v == v {
			sum += v
			n++
		}
	}
	if n == 0 {
		return 0
	}
	return sum / float64(n)
}

// compare marks what has happened to a row since the last sample.
func (h *history) compare(tick int64, a, b row) {
	x, y := &a.src.Cursor, &b.src.Cursor
	if y.Frames < x.Frames {
		return // another stream: its counters began anew
	}
	grew := func(before, now uint64) uint64 {
		if now < before {
			return 0
		}
		return now - before
	}
	if a.src.LiveSince.IsZero() != b.src.LiveSince.IsZero() {
		if b.src.LiveSince.IsZero() {
			h.note(tick, b.key, markAway, 1, "connection to the engine ended")
		} else {
			h.note(tick, b.key, markBack, 1, "connected to the engine again")
		}
	}
	if n := grew(x.Restarts, y.Restarts); n > 0 {
		h.note(tick, b.key, markRestart, n, "the engine was restarted; its old blocks were cleared")
	}
	if n := grew(x.Gaps, y.Gaps); n > 0 {
		text := fmt.Sprintf("gap behind seq %d", x.Position.Seq)
		if !y.Missing && y.Losses == x.Losses && y.Restarts == x.Restarts {
			text += ", healed by replay"
		}
		h.note(tick, b.key, markGap, n, text)
	}
	if n := grew(x.Losses, y.Losses); n > 0 {
		h.note(tick, b.key, markLost, n, fmt.Sprintf("history lost: %s", plural(grew(x.Lost, y.Lost), "batch number")))
	}
	if n := grew(a.src.Undecodable, b.src.Undecodable); n > 0 {
		h.note(tick, b.key, markGarbage, n, "a batch could not be decoded")
	}
	if n := grew(x.Replayed, y.Replayed); x.Missing && !y.Missing && n > 0 && y.Losses == x.Losses && y.Restarts == x.Restarts {
		h.note(tick, b.key, markHealed, 1, "gap healed by replay up to seq "+strconv.FormatUint(y.Position.Seq, 10))
	}
}

// note adds a mark, or counts with a recent one of the same kind and row.
func (h *history) note(tick int64, key, kind string, n uint64, text string) {
	h.rev++
	for i := len(h.marks) - 1; i >= 0; i-- {
		m := h.marks[i]
		if m.Last < tick-sameMark {
			break
		}
		if m.Row == key && m.Kind == kind {
			m.Last, m.Count, m.Text, m.rev = tick, m.Count+n, text, h.rev
			return
		}
	}
	h.ids++
	if len(h.marks) == maxMarks {
		h.marks = append(h.marks[:0], h.marks[1:]...)
	}
	h.marks = append(h.marks, &mark{ID: h.ids, rev: h.rev, Tick: tick, Last: tick, Row: key, Kind: kind, Count: n, Text: text})
}

// samplesJSON is a row's samples in (since, tick], in a short form.
type samplesJSON struct {
	From  int64   `json:"from"`  // tick of the first
	Rate  numbers `json:"rate"`  // batches a second
	Lag   numbers `json:"lag"`   // seconds
	State string  `json:"state"` // a letter each
}

// numbers is a JSON array of which NaN is null, with three digits that count.
type numbers []float32

func (n numbers) MarshalJSON() ([]byte, error) {
	b := []byte{'['}
	for i, v := range n {
		if i > 0 {
			b = append(b, ',')
		}
		if f := float64(v); f == f {
			b = strconv.AppendFloat(b, f, 'g', 3, 32)
		} else {
			b = append(b, "null"...)
		}
	}
	return append(b, ']'), nil
}

func (s *series) after(since, tick int64) samplesJSON {
	j := samplesJSON{From: max(since+1, s.from, tick-historyTicks+1)}
	var state strings.Builder
	for t := j.From; t <= tick; t++ {
		i := t % historyTicks
		j.Rate = append(j.Rate, s.rate[i])
		j.Lag = append(j.Lag, s.lag[i])
		state.WriteByte(s.state[i])
	}
	j.State = state.String()
	return j
}
