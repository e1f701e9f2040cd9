package logging

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"
)

// RepeatsOptions bound a Repeats.
type RepeatsOptions struct {
	Level  slog.Level    // least level that is trouble; 0: Warn
	Window time.Duration // how long repeats are counted before they are said; 0: 30 s
	Max    int           // kinds of trouble remembered; 0: 512. Beyond it the oldest is said and forgotten
	Alike  int           // kinds with one message that are told apart; 0: 16. All further ones count as one kind
	News   int           // records below Level, of Info and above, with one message within Window; 0: 64. Those beyond are counted
	Keys   []string      // attributes that tell one trouble from another beside the message; nil: engine, rank
	Now    func() time.Time
}

// Repeats says trouble once and then counts it: the first record of a kind
// passes at once; those that follow within Window are held back, and then one line, the last
// of them, says "… (47 more in 30 s)", and "the last 12 s ago" where it may be over. It goes on so while the trouble lasts;
// a Window without any ends it, and the next record passes at once again.
// A message that very many engines or ranks have is one trouble: beyond Alike
// of them they are counted together. So is news that comes too often to be read.
type Repeats struct {
	o    RepeatsOptions
	base slog.Handler
	wake chan struct{} // the table is no longer empty

	mu    sync.Mutex // guards what follows; not held while writing
	seen  map[string]*trouble
	alike map[string]int // of seen, by message; those counted together are not in it
	ended bool           // Run has ended: everything passes
}

// trouble is one kind of trouble, or of news, that was said.
type trouble struct {
	message string    // what alike counts it under; "": it stands for many engines or ranks
	since   time.Time // of the window
	more    int       // held back in it
	passes  int       // how many more may pass
	last    slog.Record
	lastAt  time.Time
	to      slog.Handler // where last belongs
}

// NewRepeats makes a Repeats in front of h.
func NewRepeats(h slog.Handler, o RepeatsOptions) *Repeats {
	if o.Level == 0 {
		o.Level = slog.LevelWarn
	}
	if o.Window <= 0 {
		o.Window = 30 * time.Second
	}
	if o.Max <= 0 {
		o.Max = 512
	}
	if o.Alike <= 0 {
		o.Alike = 16
	}
	if o.News <= 0 {
		o.News = 64
	}
	if o.Keys == nil {
		o.Keys = []string{"engine", "rank"}
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Repeats{o: o, base: h, wake: make(chan struct{}, 1), seen: map[string]*trouble{}, alike: map[string]int{}}
}

// Handler is what a slog.Logger writes to.
func (r *Repeats) Handler() slog.Handler { return &handler{r: r, to: r.base} }

// Run says the counts when their time has come, and all of them when ctx ends;
// afterwards every record passes.
func (r *Repeats) Run(ctx context.Context) {
	timer := time.NewTimer(r.o.Window)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			r.mu.Lock()
			r.ended = true
			due, _ := r.collect(time.Time{})
			r.mu.Unlock()
			say(due)
			return
		case <-r.wake:
			timer.Reset(r.o.Window)
		case <-timer.C:
			now := r.o.Now()
			r.mu.Lock()
			due, next := r.collect(now)
			r.mu.Unlock()
			say(due)
			if !next.IsZero() { // else nothing is remembered, and wake comes first
				timer.Reset(max(next.Sub(now), time.Millisecond))
			}
		}
	}
}

// line is a count to be said.
type line struct {
	to     slog.Handler
	record slog.Record
	last   time.Time // of what it counts
}

// say writes lines. A logger has nowhere to report that it cannot write.
func say(lines []line) {
	for _, l := range lines {
		_ = l.to.Handle(context.Background(), l.record)
	}
}

// collect ends the windows that are over at now (all, when now is zero) and
// returns what is to be said of them, and when the next one ends.
func (r *Repeats) collect(now time.Time) (due []line, next time.Time) {
	for key, t := range r.seen {
		end := t.since.Add(r.o.Window)
		if !now.IsZero() && now.Before(end) {
			if next.IsZero() || end.Before(next) {
				next = end
			}
			continue
		}
		if t.more == 0 || now.IsZero() {
			r.forget(key)
		}
		if t.more > 0 {
			due = append(due, t.count(now, r.o))
			t.since, t.more = now, 0
			if end = now.Add(r.o.Window); next.IsZero() || end.Before(next) {
				next = end
			}
		}
	}
	slices.SortFunc(due, func(a, b line) int { return a.last.Compare(b.last) })
	return due, next
}

// overFor is how long ago the last of the repeats is when their line says so: the trouble
// may be over then, and nothing else in that line tells.
const overFor = 8 * time.Second

// count is the line that tells of t's repeats.
func (t *trouble) count(now time.Time, o RepeatsOptions) line {
	if now.IsZero() {
		now = o.Now()
	}
	record := t.last
	of := ""
	if t.message == "" {
		of = ", of many " + strings.Join(o.Keys, "s or ") + "s"
	}
	if ago := now.Sub(t.lastAt).Round(time.Second); ago >= overFor {
		of += fmt.Sprintf(", the last %d s ago", ago/time.Second)
	}
	record.Time = now // not of the last one: a log is read from top to bottom
	record.Message = fmt.Sprintf("%s (%d more in %d s%s)", record.Message, t.more, max(1, int(now.Sub(t.since).Round(time.Second)/time.Second)), of)
	return line{to: t.to, record: record, last: t.last.Time}
}

// handle passes the record on or counts it. message and the attributes in keys
// make the kind of trouble; of each kind, passes pass at once.
func (r *Repeats) handle(ctx context.Context, to slog.Handler, record slog.Record, message, keys string, passes int) error {
	now := r.o.Now()
	r.mu.Lock()
	if r.ended {
		r.mu.Unlock()
		return to.Handle(ctx, record)
	}
	var due []line
	key := message + keys
	if r.seen[key] == nil && r.alike[message] >= r.o.Alike {
		message, key = "", message+others
	}
	if t := r.seen[key]; t != nil && !now.Before(t.since.Add(r.o.Window)) {
		// Run is late, or nobody runs it: its window ends here.
		due, _ = r.collect(now)
	}
	t := r.seen[key]
	held := t != nil && t.passes == 0
	switch {
	case held:
		t.more++
		t.last, t.lastAt, t.to = record.Clone(), now, to
	case t != nil:
		t.passes--
	default:
		if len(r.seen) >= r.o.Max {
			due = append(due, r.evict(now)...)
		}
		r.seen[key] = &trouble{message: message, since: now, passes: passes - 1}
		if message != "" {
			r.alike[message]++
		}
		if len(r.seen) == 1 {
			select {
			case r.wake <- struct{}{}:
			default: // Run has not seen the last one yet
			}
		}
	}
	r.mu.Unlock()
	say(due)
	if held {
		return nil
	}
	return to.Handle(ctx, record)
}

// others is the key of those beyond Alike, behind their message. No attribute
// makes it: they begin with another byte.
const others = "\x01"

// forget takes a trouble out of the table.
func (r *Repeats) forget(key string) {
	if m := r.seen[key].message; m != "" {
		if r.alike[m]--; r.alike[m] == 0 {
			delete(r.alike, m)
		}
	}
	delete(r.seen, key)
}

// evict forgets the trouble whose window is the oldest, and says its count.
func (r *Repeats) evict(now time.Time) []line {
	oldest := ""
	for key, t := range r.seen {
		if oldest == "" || t.since.Before(r.seen[oldest].since) {
			oldest = key
		}
	}
	t := r.seen[oldest]
	r.forget(oldest)
	if t.more == 0 {
		return nil
	}
	return []line{t.count(now, r.o)}
}

// handler is the slog side of a Repeats, with the attributes of one logger.
type handler struct {
	r       *Repeats
	to      slog.Handler
	key     string // of the attributes so far
	grouped bool   // attributes are in a group now, and name no engine
}

// Enabled implements slog.Handler.
func (h *handler) Enabled(ctx context.Context, level slog.Level) bool {
	return h.to.Enabled(ctx, level)
}

// Handle implements slog.Handler.
func (h *handler) Handle(ctx context.Context, record slog.Record) error {
	message := record.Level.String() + "\x00" + record.Message
	switch {
	case record.Level >= h.r.o.Level:
	case record.Level >= slog.LevelInfo:
		return h.r.handle(ctx, h.to, record, message, "", h.r.o.News)
	default:
		return h.to.Handle(ctx, record)
	}
	var b strings.Builder
	b.WriteString(h.key)
	if !h.grouped {
		record.Attrs(func(a slog.Attr) bool {
			h.r.keyOf(&b, a)
			return true
		})
	}
	return h.r.handle(ctx, h.to, record, message, b.String(), 1)
}

// WithAttrs implements slog.Handler.
func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	c := *h
	c.to = h.to.WithAttrs(attrs)
	if !h.grouped {
		var b strings.Builder
		b.WriteString(h.key)
		for _, a := range attrs {
			h.r.keyOf(&b, a)
		}
		c.key = b.String()
	}
	return &c
}

// WithGroup implements slog.Handler.
func (h *handler) WithGroup(name string) slog.Handler {
	if name == "" {
		return h
	}
	c := *h
	c.to, c.grouped = h.to.WithGroup(name), true
	return &c
}

// keyOf adds an attribute to a key when it is one that tells troubles apart.
func (r *Repeats) keyOf(b *strings.Builder, a slog.Attr) {
	if slices.Contains(r.o.Keys, a.Key) {
		b.WriteByte(0)
		b.WriteString(a.Key)
		b.WriteByte('=')
		b.WriteString(a.Value.Resolve().String())
	}
}
