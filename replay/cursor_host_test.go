package replay

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// table is a Host that writes down what a Cursor decides, and the other side
// of it: inputs on a clock that moves only when told.
type table struct {
	t   *testing.T
	c   *Cursor
	now time.Time
	log []string
	id  uint64 // of the newest request

	first time.Time // when the first bytes of the reply came that is coming
}

func newTable(t *testing.T, cfg Config) *table {
	x := &table{t: t, now: simBegin}
	if cfg.Rand == nil {
		cfg.Rand = func() float64 { return 1 } // the longest of all pauses
	}
	if cfg.TS == nil {
		cfg.TS = func(p []byte) (ts float64, ok bool) {
			_, err := fmt.Sscanf(string(p), "ts%f", &ts)
			return ts, err == nil
		}
	}
	x.c = NewCursor(cfg, x)
	x.c.Tick(x.now)
	return x
}

func (x *table) note(format string, a ...any) { x.log = append(x.log, fmt.Sprintf(format, a...)) }

func (x *table) Apply(at Position, payload []byte, replayed bool) {
	how := "live"
	if replayed {
		how = "replayed"
	}
	x.note("apply %d %s %s", at.Seq, payload, how)
}
func (x *table) Burned(from, to uint64) { x.note("burned %d-%d", from, to) }
func (x *table) Unknown(first uint64)   { x.note("unknown %d", first) }
func (x *table) NewEpoch(epoch uint64, cause Cause) {
	x.note("epoch %d %s", epoch, [...]string{1: "restart", "lost", "goingon"}[cause])
}
func (x *table) Lost(from, to uint64, policy Policy) {
	x.note("lost %d-%d %s", from, to, [...]string{"clear", "keep", "exit"}[policy])
}
func (x *table) Away()        { x.note("away") }
func (x *table) Back()        { x.note("back") }
func (x *table) Ready()       { x.note("ready") }
func (x *table) CloseReplay() { x.note("close") }
func (x *table) ReopenLive()  { x.note("reopen") }
func (x *table) Ask(r Request) {
	x.id = r.ID
	fresh := ""
	if r.Fresh {
		fresh = " fresh"
	}
	x.note("ask %d%s", r.Start, fresh)
}

// do is a list of inputs, separated by spaces: up, down, tick, sent (on a fresh
// connection), same (on the one there was), end, refused, dropped, credit,
// nocredit, pong (sent now), drain, coming and creeping (bytes of a reply, fast or
// slow); +1s moves the clock and ticks at every deadline on
// the way; L5 is a live batch, R5 a replayed one, D5 a discarded one, and a colon
// gives the payload: L5:x. Without, the payload is its number.
func (x *table) do(inputs string) *table {
	for in := range strings.FieldsSeq(inputs) {
		switch in {
		case "up":
			x.c.LiveUp(x.now)
		case "down":
			x.c.LiveDown(x.now)
		case "sent":
			x.c.ReplaySent(x.now, x.id, true)
		case "same":
			x.c.ReplaySent(x.now, x.id, false)
		case "end":
			x.c.ReplayEnd(x.now, x.id)
		case "refused":
			x.c.ReplayRefused(x.now, x.id)
		case "dropped":
			x.c.ReplayDown(x.now, x.id)
		case "credit":
			x.c.Credit(x.now, true)
		case "nocredit":
			x.c.Credit(x.now, false)
		case "pong":
			x.c.Pong(x.now, x.now)
		case "drain":
			x.c.Drain(x.now, x.c.cfg.Portion)
		case "coming", "creeping":
			if x.first.IsZero() {
				x.first = x.now
			}
			x.c.ReplayArriving(x.now, x.id, Arrival{First: x.first, Newest: x.now, Fast: in == "coming"})
		default:
			x.other(in)
		}
	}
	return x
}

func (x *table) other(in string) {
	if in[0] == '+' {
		d, err := time.ParseDuration(in[1:])
		if err != nil {
			x.t.Fatal(err)
		}
		x.pass(d)
		return
	}
	num, payload, ok := strings.Cut(in[1:], ":")
	if !ok {
		payload = num
	}
	var seq uint64
	if _, err := fmt.Sscan(num, &seq); err != nil {
		x.t.Fatal(in, err)
	}
	b := []byte(payload)
	switch in[0] {
	case 'L':
		x.c.Live(x.now, seq, b)
	case 'R':
		x.first = time.Time{}
		x.c.ReplayBatch(x.now, x.id, seq, b)
	case 'D':
		x.c.Discard(x.now, seq)
	default:
		x.t.Fatal(in)
	}
	clear(b) // payloads are valid during the call only
}

// pass lets time pass, with a Tick at each deadline.
func (x *table) pass(d time.Duration) {
	end := x.now.Add(d)
	for {
		at := x.c.Deadline()
		if at.IsZero() || at.After(end) {
			break
		}
		x.now = at
		x.c.Tick(at)
		if at := x.c.Deadline(); !at.IsZero() && !at.After(x.now) {
			x.t.Fatalf("deadline %v does not move", at.Sub(simBegin))
		}
	}
	x.now = end
	x.c.Tick(end)
}

// want compares what was decided since the last call.
func (x *table) want(decisions ...string) *table {
	x.t.Helper()
	if !slices.Equal(x.log, decisions) {
		x.t.Fatalf("got  %q\nwant %q\n%+v", x.log, decisions, x.c.State())
	}
	x.log = nil
	return x
}

// ignore forgets what was decided.
func (x *table) ignore() *table { x.log = nil; return x }

// running is a table where batches 0 to n−1 were applied, on a proven live
// connection.
func running(t *testing.T, cfg Config, n int) *table {
	x := newTable(t, cfg).do("up sent end")
	for i := range n {
		x.do(fmt.Sprintf("L%d", i))
	}
	if s := x.c.State(); s.Next != uint64(n) || !s.Proven {
		t.Fatalf("%+v", s)
	}
	return x.ignore()
}
