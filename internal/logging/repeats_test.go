package logging

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// lines is a handler's output without times.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// take returns what was written since the last take.
func (l *lines) take() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	text := strings.TrimSpace(l.b.String())
	l.b.Reset()
	if text == "" {
		return nil
	}
	return strings.Split(text, "\n")
}

func (l *lines) handler() slog.Handler {
	return slog.NewTextHandler(l, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}})
}

// clock is a clock that the test moves.
type clock struct{ now time.Time }

func (c *clock) add(d time.Duration) { c.now = c.now.Add(d) }

func newClocked(o RepeatsOptions) (*slog.Logger, *lines, *clock) {
	out, c := &lines{}, &clock{now: time.Unix(1_800_000_000, 0)}
	o.Now = func() time.Time { return c.now }
	return slog.New(NewRepeats(out.handler(), o).Handler()), out, c
}

func wantLines(t *testing.T, out *lines, want ...string) {
	t.Helper()
	if got := out.take(); !slices.Equal(got, want) {
		t.Errorf("wrote\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

func TestSaidOnceThenCounted(t *testing.T) {
	log, out, c := newClocked(RepeatsOptions{})
	log = log.With("engine", "tcp://h:1", "rank", 0)
	for i := range 48 {
		log.Warn("cannot connect", "try", i)
	}
	wantLines(t, out, `level=WARN msg="cannot connect" engine=tcp://h:1 rank=0 try=0`)
	c.add(30 * time.Second)
	log.Warn("cannot connect", "try", 48) // opens the next window, in which it is counted
	wantLines(t, out, `level=WARN msg="cannot connect (47 more in 30 s, the last 30 s ago)" engine=tcp://h:1 rank=0 try=47`)
	c.add(31 * time.Second)
	log.Warn("cannot connect", "try", 49)
	wantLines(t, out, `level=WARN msg="cannot connect (1 more in 31 s, the last 31 s ago)" engine=tcp://h:1 rank=0 try=48`)
	c.add(30 * time.Second) // 49 was counted in this window
	log.Warn("something else")
	log.Warn("cannot connect", "try", 50)
	wantLines(t, out,
		`level=WARN msg="something else" engine=tcp://h:1 rank=0`,
		`level=WARN msg="cannot connect (1 more in 30 s, the last 30 s ago)" engine=tcp://h:1 rank=0 try=49`)
}

// A count says how long ago its last repeat was where the trouble may be over, and
// does not while it lasts.
func TestCountSaysWhatMayBeOver(t *testing.T) {
	log, out, c := newClocked(RepeatsOptions{})
	log.Warn("down")
	for range 14 {
		c.add(2 * time.Second)
		log.Warn("down")
	}
	c.add(2 * time.Second)
	log.Warn("down")
	wantLines(t, out, "level=WARN msg=down", `level=WARN msg="down (14 more in 30 s)"`)
	c.add(32 * time.Second)
	log.Warn("down")
	wantLines(t, out, `level=WARN msg="down (1 more in 32 s, the last 32 s ago)"`)
}

// Trouble that stayed away for a window is news again.
func TestNewsAgain(t *testing.T) {
	log, out, c := newClocked(RepeatsOptions{Window: time.Second})
	log.Error("down")
	c.add(time.Second)
	log.Error("down")
	wantLines(t, out, "level=ERROR msg=down", "level=ERROR msg=down")
}

func TestWhatTellsTroublesApart(t *testing.T) {
	log, out, _ := newClocked(RepeatsOptions{})
	log.Info("story")
	log.Info("story")
	log.Warn("a", "rank", 0)
	log.Warn("a", "rank", 1)
	log.Warn("a", "rank", 1, "seq", 7)
	log.With("rank", 1).Warn("a")
	log.With("rank", 1).With("engine", "x").Warn("a")
	log.With("engine", "y").Warn("a", "rank", 1)
	log.Error("a", "rank", 1)
	log.WithGroup("g").With("rank", 5).Warn("b")
	log.WithGroup("g").Warn("b", "rank", 6) // in a group it is no engine's rank
	wantLines(t, out,
		"level=INFO msg=story", "level=INFO msg=story",
		"level=WARN msg=a rank=0", "level=WARN msg=a rank=1",
		"level=WARN msg=a rank=1 engine=x", "level=WARN msg=a engine=y rank=1",
		"level=ERROR msg=a rank=1", "level=WARN msg=b g.rank=5")
}

// A thousand ranks with the same trouble are a few lines and a count, however
// long it lasts; and each rank tells of itself again when few have it.
func TestManyAlikeAreCountedTogether(t *testing.T) {
	log, out, c := newClocked(RepeatsOptions{Alike: 3})
	all := func() {
		for rank := range 1000 {
			log.With("engine", "x").Warn("cannot connect", "rank", rank)
		}
	}
	all()
	wantLines(t, out,
		`level=WARN msg="cannot connect" engine=x rank=0`,
		`level=WARN msg="cannot connect" engine=x rank=1`,
		`level=WARN msg="cannot connect" engine=x rank=2`,
		`level=WARN msg="cannot connect" engine=x rank=3`) // the first of the others
	log.Error("cannot connect", "rank", 999) // another level is another message
	wantLines(t, out, `level=ERROR msg="cannot connect" rank=999`)
	said := 0
	for range 50 {
		c.add(5 * time.Second)
		all()
		got := out.take()
		if said += len(got); len(got) > 5 {
			t.Fatalf("%d lines at once: %q", len(got), got)
		}
	}
	if said > 50*4 {
		t.Errorf("%d lines", said)
	}
	c.add(time.Minute)
	log.Warn("cannot connect", "rank", 2000)
	if got := out.take(); !slices.Contains(got, `level=WARN msg="cannot connect (2991 more in 70 s, of many engines or ranks, the last 60 s ago)" engine=x rank=999`) {
		t.Errorf("no count of the others: %q", got)
	}
	c.add(time.Minute)
	log.Warn("cannot connect", "rank", 2000) // the windows of the others end
	out.take()
	c.add(time.Minute)
	log.Warn("cannot connect", "rank", 2001)
	wantLines(t, out, `level=WARN msg="cannot connect" rank=2001`)
}

// News passes as it comes, until nobody could read it.
func TestNewsIsBounded(t *testing.T) {
	log, out, c := newClocked(RepeatsOptions{News: 3, Level: slog.LevelWarn})
	all := func() {
		for rank := range 1000 {
			log.Info("connected", "rank", rank)
		}
	}
	all()
	wantLines(t, out, "level=INFO msg=connected rank=0", "level=INFO msg=connected rank=1", "level=INFO msg=connected rank=2")
	log.Info("other")
	wantLines(t, out, "level=INFO msg=other")
	c.add(30 * time.Second)
	all()
	wantLines(t, out, `level=INFO msg="connected (997 more in 30 s, the last 30 s ago)" rank=999`)
	c.add(30 * time.Second)
	log.Info("connected", "rank", 0)
	wantLines(t, out, `level=INFO msg="connected (1000 more in 30 s, the last 30 s ago)" rank=999`)
	c.add(30 * time.Second)
	log.Info("connected", "rank", 1)
	wantLines(t, out, `level=INFO msg="connected (1 more in 30 s, the last 30 s ago)" rank=0`)
}

func TestTableIsBounded(t *testing.T) {
	o := RepeatsOptions{Max: 3}
	out, c := &lines{}, &clock{now: time.Unix(1_800_000_000, 0)}
	o.Now = func() time.Time { return c.now }
	r := NewRepeats(out.handler(), o)
	log := slog.New(r.Handler())
	log.Warn("first")
	log.Warn("first")
	for i := range 1000 {
		c.add(time.Millisecond)
		log.Warn(fmt.Sprint("kind ", i))
	}
	if len(r.seen) != 3 || len(r.alike) != 3 {
		t.Errorf("%d kinds and %d messages are remembered", len(r.seen), len(r.alike))
	}
	got := out.take()
	if len(got) != 1002 { // each kind once, and the count of the first when it was forgotten
		t.Errorf("%d lines", len(got))
	}
	if want := `level=WARN msg="first (1 more in 1 s)"`; !slices.Contains(got, want) {
		t.Errorf("the forgotten one's count was not said: %q", got[:6])
	}
}

// With Run, counts are said in time without another record, and at the end.
// The sleeps are synctest's: they take no time and end when all else is idle.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := &lines{}
		r := NewRepeats(out.handler(), RepeatsOptions{})
		log := slog.New(r.Handler())
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() { defer close(done); r.Run(ctx) }()

		time.Sleep(100 * time.Second) // nothing to say
		for range 3 {
			log.Warn("down")
		}
		time.Sleep(10 * time.Second)
		log.Warn("other")
		log.Warn("other")
		wantLines(t, out, "level=WARN msg=down", "level=WARN msg=other")
		time.Sleep(21 * time.Second)
		wantLines(t, out, `level=WARN msg="down (2 more in 30 s, the last 30 s ago)"`)
		time.Sleep(10 * time.Second)
		wantLines(t, out, `level=WARN msg="other (1 more in 30 s, the last 30 s ago)"`)
		time.Sleep(100 * time.Second) // both are forgotten
		r.mu.Lock()
		if len(r.seen) != 0 {
			t.Errorf("still remembered: %d", len(r.seen))
		}
		r.mu.Unlock()
		log.Warn("down")
		log.Warn("down")
		cancel()
		<-done
		wantLines(t, out, "level=WARN msg=down", `level=WARN msg="down (1 more in 1 s)"`)
		log.Warn("down")
		log.Warn("down")
		wantLines(t, out, "level=WARN msg=down", "level=WARN msg=down")
	})
}

func TestManyWriters(t *testing.T) {
	out := &lines{}
	r := NewRepeats(out.handler(), RepeatsOptions{Window: time.Millisecond, Max: 4})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); r.Run(ctx) }()
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			log := slog.New(r.Handler()).With("rank", w)
			for range 500 {
				log.Warn("down")
			}
		})
	}
	wg.Wait()
	cancel()
	<-done
	said := 0
	for _, line := range out.take() {
		n := 0
		if _, err := fmt.Sscanf(line, `level=WARN msg="down (%d more`, &n); err != nil {
			n = 1
		}
		said += n
	}
	if said != 8*500 { // every record is said or counted
		t.Errorf("%d of %d records were accounted for", said, 8*500)
	}
}

func BenchmarkRepeat(b *testing.B) {
	r := NewRepeats(slog.NewJSONHandler(io.Discard, nil), RepeatsOptions{})
	log := slog.New(r.Handler()).With("engine", "tcp://h:1", "rank", 0)
	b.ReportAllocs()
	for b.Loop() {
		log.Warn("cannot connect", "err", "refused")
	}
}

// A count has the time at which it is said: no line stands below a later one.
func TestCountsInOrderOfTime(t *testing.T) {
	out := &lines{}
	c := &clock{now: time.Unix(1_800_000_000, 0)}
	log := slog.New(NewRepeats(slog.NewTextHandler(out, nil), RepeatsOptions{Now: func() time.Time { return c.now }}).Handler())
	at := func(want time.Time) {
		t.Helper()
		got := out.take()
		if line := got[len(got)-1]; !strings.HasPrefix(line, "time="+want.Format("2006-01-02T15:04:05.000Z07:00")) {
			t.Errorf("%s, want the time %v", line, want)
		}
	}
	for range 3 {
		log.Warn("cannot connect")
	}
	c.add(40 * time.Second)
	log.Warn("cannot connect")
	at(c.now)
}
