package admin

import (
	"fmt"
	"strconv"
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
			text := "connected to the engine"
			if b.src.Connects > 1 {
				text += " again"
			}
			h.note(tick, b.key, markBack, 1, text)
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
