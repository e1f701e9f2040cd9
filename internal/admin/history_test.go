package admin

import (
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/kvrelay/kvrelay/relay"
)

// look adds the sample of one tick.
func (h *history) look(tick int64, w *world) {
	h.add(tick, &snapshot{at: time.Now(), relay: w.status()})
}

func (h *history) told() []string {
	var list []string
	for _, m := range h.marks {
		list = append(list, fmt.Sprintf("%s %d %s", m.Kind, m.Count, m.Text))
	}
	return list
}

func TestMarks(t *testing.T) {
	src := func(w *world) *relay.SourceStatus { return &w.st.Sources[0] }
	for name, c := range map[string]struct {
		change func(*world)
		want   []string
	}{
		"nothing":       {func(*world) {}, nil},
		"gap":           {func(w *world) { src(w).Cursor.Gaps++; src(w).Cursor.Missing = true }, []string{"gap 1 gap behind seq 41"}},
		"gap, healed":   {func(w *world) { src(w).Cursor.Gaps += 2 }, []string{"gap 2 gap behind seq 41, healed by replay"}},
		"restart":       {func(w *world) { src(w).Cursor.Restarts++ }, []string{"restart 1 the engine was restarted; its old blocks were cleared"}},
		"lost":          {func(w *world) { src(w).Cursor.Losses++; src(w).Cursor.Lost += 3 }, []string{"lost 1 history lost: 3 batch numbers"}},
		"garbage":       {func(w *world) { src(w).Undecodable++ }, []string{"garbage 1 a batch could not be decoded"}},
		"away":          {func(w *world) { src(w).LiveSince = time.Time{} }, []string{"away 1 connection to the engine ended"}},
		"first contact": {func(w *world) { src(w).Connects = 1 }, []string{"back 1 connected to the engine"}},
		"back":          {func(w *world) { src(w).Connects = 2 }, []string{"back 1 connected to the engine again"}},
		"NATS":          {func(w *world) { w.st.Sink.Connected = false }, []string{"nats_down 1 the connection to NATS is lost"}},
		"another relay": {func(w *world) { src(w).Cursor.Frames, src(w).Cursor.Gaps = 1, 5 }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(1)
			var h history
			if live := src(w).LiveSince; name == "first contact" || name == "back" {
				src(w).LiveSince = time.Time{}
				h.look(0, w)
				src(w).LiveSince = live
			}
			h.look(0, w)
			c.change(w)
			h.look(1, w)
			if got := h.told(); !reflect.DeepEqual(got, c.want) {
				t.Errorf("told %q, want %q", got, c.want)
			}
		})
	}
}

func TestGapThatStaysOpenIsHealedLater(t *testing.T) {
	w := newWorld(1)
	c := &w.st.Sources[0].Cursor
	var h history
	h.look(0, w)
	c.Gaps, c.Missing = 1, true
	h.look(1, w)
	h.look(2, w)
	c.Missing, c.Replayed, c.Position.Seq = false, 4, 46
	h.look(3, w)
	want := []string{"gap 1 gap behind seq 41", "healed 1 gap healed by replay up to seq 46"}
	if got := h.told(); !reflect.DeepEqual(got, want) {
		t.Errorf("told %q, want %q", got, want)
	}
}

// Trouble without end is counted, and what is remembered stays bounded.
func TestMarksAreBounded(t *testing.T) {
	w := newWorld(3)
	var h history
	h.look(0, w)
	for tick := int64(1); tick < 5000; tick++ {
		w.st.Sources[tick%3].Cursor.Gaps++
		if tick%20 == 0 {
			w.st.Sink.Connected = !w.st.Sink.Connected
		}
		h.look(tick, w)
	}
	if len(h.marks) > maxMarks {
		t.Fatalf("%d marks", len(h.marks))
	}
	for i := 1; i < len(h.marks); i++ {
		if h.marks[i].ID <= h.marks[i-1].ID {
			t.Fatal("ids do not ascend")
		}
	}
}

// A mark that counts on is told again, what has not changed is not.
func TestLaterMarksOnly(t *testing.T) {
	w := newWorld(1)
	m := newMonitor(&Options{})
	m.history.look(0, w)
	w.st.Sources[0].Cursor.Gaps++
	m.history.look(1, w)
	first := m.historySince(-1, 0)
	if len(first.Marks) != 1 || first.Rev == 0 || first.Rows[rowKey(0, &w.st.Sources[0])].State != "ll" {
		t.Fatalf("first %+v", first)
	}
	if again := m.historySince(first.Tick, first.Rev); len(again.Marks) != 0 || again.Rows[rowKey(0, &w.st.Sources[0])].State != "" {
		t.Errorf("again %+v", again)
	}
	w.st.Sources[0].Cursor.Gaps++
	m.history.look(2, w)
	if more := m.historySince(first.Tick, first.Rev); len(more.Marks) != 1 || more.Marks[0].ID != first.Marks[0].ID || more.Marks[0].Count != 2 {
		t.Errorf("more %+v", more)
	}
}

func TestSamples(t *testing.T) {
	w := newWorld(1)
	src := &w.st.Sources[0]
	key := rowKey(0, src)
	var h history
	h.look(0, w)
	src.Cursor.Applied += 8
	src.Ranks[0].Lag = relay.Lag{N: 4, Sum: 2}
	h.look(1, w)
	src.Ranks[0].State = relay.StateSuspect
	h.look(2, w)
	h.look(2, w) // the clock gives a tick again
	src.Cursor.Applied += 9
	h.look(5, w) // and leaves some out
	src.Cursor.Applied = 0
	h.look(6, w) // another stream
	b, err := json.Marshal(h.rows[key].after(-1, h.tick))
	if err != nil {
		t.Fatal(err)
	}
	if want := `{"from":0,"rate":[null,8,0,null,null,3,null],"lag":[null,0.5,null,null,null,null,null],"state":"lls  ss"}`; string(b) != want {
		t.Errorf("samples %s, want %s", b, want)
	}
	if got := h.rows[key].recent(h.tick); math.Abs(got-11.0/3) > 1e-6 {
		t.Errorf("mean rate %v", got)
	}
}

// Ten minutes are kept, whatever was before; rows that are gone are forgotten.
func TestSamplesAreBounded(t *testing.T) {
	w := newWorld(2)
	key := rowKey(0, &w.st.Sources[0])
	var h history
	for tick := range int64(historyTicks + 50) {
		h.look(tick, w)
	}
	if j := h.rows[key].after(-1, h.tick); len(j.State) != historyTicks || j.From != 50 || strings.Trim(j.State, "l") != "" {
		t.Errorf("%d samples from %d: %s", len(j.State), j.From, j.State)
	}
	w.st.Sources = w.st.Sources[:1]
	h.look(historyTicks+5000, w) // much later
	if j := h.rows[key].after(-1, h.tick); len(h.rows) != 1 || strings.Trim(j.State, " ") != "l" || len(j.State) != historyTicks {
		t.Errorf("%d rows; %q", len(h.rows), j.State)
	}
}
