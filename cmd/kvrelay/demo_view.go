package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/kvrelay/kvrelay/consumer"
	"github.com/kvrelay/kvrelay/consumer/index"
	"github.com/kvrelay/kvrelay/internal/logging"
)

// demoFacts is what the view shows at one moment.
type demoFacts struct {
	elapsed  time.Duration
	state    string // of the relay's source
	faults   string
	batches  uint64 // that the engine made
	withheld uint64 // of these, not on PUB
	garbage  uint64
	applied  uint64 // that the relay applied, replayed ones included
	replayed uint64
	gaps     uint64
	restarts uint64
	losses   uint64
	events   uint64 // that the router applied
	missed   uint64
	lastID   uint64
	held     int // blocks in the engine's cache
	seen     int // blocks in the router's picture
	differs  time.Duration
	cached   int // blocks of the sample prompt, by the engine
	believed int // by the router
	cycles   int
	lag      float64 // seconds, of the newest batch
	log      []string
}

func (d *demo) facts(now time.Time, lines *lastLines) demoFacts {
	f := demoFacts{
		elapsed: now.Sub(d.started), faults: d.faults,
		batches: d.batches.Load(), withheld: d.withheld.Load(), garbage: d.garbage.Load(),
		events: d.events.Load(), missed: d.missed.Load(), log: lines.last(),
		state: relayStarting,
	}
	for _, s := range d.relay.Status().Sources {
		f.state = s.State
		f.applied, f.replayed, f.gaps = s.Cursor.Applied, s.Cursor.Counters.Replayed, s.Cursor.Gaps
		f.restarts, f.losses = s.Cursor.Restarts, s.Cursor.Losses
		for _, r := range s.Ranks {
			f.lastID, f.lag = r.LastID, r.Lag.Last
			if f.state != r.State {
				f.state = r.State
			}
		}
	}
	f.held = len(d.engine.Rank(0).Truth())
	f.cached = d.engine.Rank(0).Hit(d.sample) / demoBlockSize
	d.mu.Lock()
	defer d.mu.Unlock()
	f.seen = d.picture.Len(consumer.Rank{Worker: demoWorker}, consumer.Device)
	f.cycles = d.cycles
	f.differs = now.Sub(d.equalAt)
	for _, m := range d.index.Match(index.Prompt{Tokens: d.sample}) {
		f.believed = m.Blocks[consumer.Device]
	}
	return f
}

const relayStarting = "starting"

// demoView draws facts: in place on a terminal, as plain lines elsewhere.
type demoView struct {
	out   io.Writer
	live  bool // redraw in place
	color bool
	every time.Duration
	lines int         // drawn last
	past  []demoFacts // drawn in the last two seconds, oldest first: what rates are from
}

func newDemoView(out io.Writer, url, page string, noColor bool) *demoView {
	v := &demoView{out: out, live: logging.IsTerminal(out), every: 2 * time.Second}
	v.color = v.live && !noColor
	if v.live {
		v.every = 250 * time.Millisecond
	}
	fmt.Fprintf(out, "kvrelay demo: mock engine → kvrelay → NATS → router, in one process.\nStatus page: %s\nWatch the events with\n  kvrelay tail --nats-url %s\n\n", page, url)
	return v
}

func (v *demoView) width() int {
	if f, ok := v.out.(*os.File); ok {
		if w, _, err := term.GetSize(int(f.Fd())); err == nil && w > 20 {
			return w
		}
	}
	return 80
}

func (v *demoView) paint(code, text string) string {
	if !v.color {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

const (
	bold   = "1"
	dim    = "2"
	red    = "31"
	green  = "32"
	yellow = "33"
)

// differsAfter is how long picture and cache may differ before the view calls
// it so: between two batches they always do.
const differsAfter = time.Second

func (v *demoView) draw(f demoFacts) {
	if v.live {
		v.redraw(f)
	} else {
		fmt.Fprintln(v.out, plainLine(f, v.before()))
	}
	v.past = append(v.past, f)
	v.past = v.past[max(0, len(v.past)-int(2*time.Second/v.every)):]
}

// before is what rates are counted from.
func (v *demoView) before() demoFacts {
	if len(v.past) == 0 {
		return demoFacts{}
	}
	return v.past[0]
}

// plainLine is one line for a log file or a pipe.
func plainLine(f, prev demoFacts) string {
	equal := "equal"
	switch {
	case f.differs > differsAfter:
		equal = fmt.Sprintf("DIFFERENT for %.0fs", f.differs.Seconds())
	case f.held != f.seen:
		equal = "equal but for what is on its way"
	}
	return fmt.Sprintf("%5.1fs %-9s %4.0f batches/s %5.0f events/s  dropped %d, replayed %d, gaps healed %d  cache %d blocks, router %d: %s  sample prompt %d%% cached, router says %d%%",
		f.elapsed.Seconds(), f.state, rateOf(f.applied, prev.applied, f, prev), rateOf(f.events, prev.events, f, prev),
		f.withheld, f.replayed, f.gaps, f.held, f.seen, equal, percent(f.cached), percent(f.believed))
}

func rateOf(now, before uint64, f, prev demoFacts) float64 {
	d := (f.elapsed - prev.elapsed).Seconds()
	if d <= 0 || now < before {
		return 0
	}
	return float64(now-before) / d
}

func percent(blocks int) int { return 100 * blocks / sampleBlocks }

// redraw writes over what was drawn last.
func (v *demoView) redraw(f demoFacts) {
	width := v.width()
	var b strings.Builder
	if v.lines > 0 {
		fmt.Fprintf(&b, "\x1b[%dA", v.lines)
	}
	lines := v.picture(f, width)
	for _, l := range lines {
		b.WriteString("\r\x1b[K" + l + "\n")
	}
	for range max(0, v.lines-len(lines)) {
		b.WriteString("\r\x1b[K\n")
	}
	v.lines = max(v.lines, len(lines))
	io.WriteString(v.out, b.String()) //nolint:errcheck // a terminal that is gone cannot be told
}

// picture is the whole view, one string a line, at most width columns wide.
func (v *demoView) picture(f demoFacts, width int) []string {
	state := v.paint(green, f.state)
	if f.state != "live" {
		state = v.paint(yellow, f.state)
	}
	equal := v.paint(green, "✓ equal")
	switch {
	case f.held != f.seen && f.differs <= differsAfter:
		equal = v.paint(green, "✓ equal but for what is on its way")
	case f.differs > differsAfter:
		equal = v.paint(red, fmt.Sprintf("✗ different for %.0f s", f.differs.Seconds()))
	}
	agree := v.paint(green, "✓")
	if f.cached != f.believed {
		agree = v.paint(yellow, "…")
	}
	faults := f.faults
	if faults == "" {
		faults = "none"
	}
	faults = cut(faults, width-len("  engine   1234567 batches, 1234567 dropped on purpose (faults: )"))
	prev := v.before()
	row := func(name, text string) string { return "  " + v.paint(bold, fmt.Sprintf("%-9s", name)) + text }
	lines := []string{
		row("engine", fmt.Sprintf("%d batches, %s dropped on purpose (faults: %s)", f.batches, v.paint(yellow, fmt.Sprint(f.withheld)), faults)),
		row("kvrelay", fmt.Sprintf("%s  %.0f batches/s  %.0f events/s  lag %.1f ms", state,
			rateOf(f.applied, prev.applied, f, prev), rateOf(f.events, prev.events, f, prev), 1000*f.lag)),
		row("healed", fmt.Sprintf("%s gaps, %d batches replayed, %d restarts, %d losses", v.paint(green, fmt.Sprint(f.gaps)), f.replayed, f.restarts, f.losses)),
		row("router", fmt.Sprintf("%d events applied, %d missed, newest id %d", f.events, f.missed, f.lastID)),
		row("picture", fmt.Sprintf("engine holds %d blocks, router says %d  %s", f.held, f.seen, equal)),
		row("sample", fmt.Sprintf("engine %s %3d%%  router %s %3d%% %s  %d times there and back", v.bar(f.cached), percent(f.cached), v.bar(f.believed), percent(f.believed), agree, f.cycles)),
		v.paint(dim, fmt.Sprintf("  %5.1f s; Ctrl-C ends it", f.elapsed.Seconds())),
	}
	for _, l := range f.log {
		lines = append(lines, v.paint(dim, "  "+cut(l, width-3)))
	}
	return lines
}

// bar is a sample prompt of sampleBlocks blocks.
func (v *demoView) bar(blocks int) string {
	return v.paint(green, strings.Repeat("█", blocks)) + v.paint(dim, strings.Repeat("░", sampleBlocks-blocks))
}

func cut(s string, width int) string {
	if utf8.RuneCountInString(s) <= width {
		return s
	}
	return string([]rune(s)[:max(0, width-1)]) + "…"
}

// end is the summary, on a terminal and elsewhere.
func (v *demoView) end(f demoFacts, equal bool) {
	if v.live {
		f.differs = 0
		if !equal {
			f.differs = demoSettle
		}
		v.redraw(f)
	}
	verdict := "the router's picture equals the engine's cache"
	if !equal {
		verdict = "the router's picture DIFFERS from the engine's cache"
	}
	fmt.Fprintf(v.out, "\nAfter %.1f s: %d batches, %d of them dropped on purpose; %d gaps healed with %d replayed batches; %d router events, %d missed; %s (%d blocks).\n",
		f.elapsed.Seconds(), f.batches, f.withheld, f.gaps, f.replayed, f.events, f.missed, verdict, f.held)
}

// lastLines keeps the newest lines written to it.
type lastLines struct {
	keep int

	mu    sync.Mutex
	lines []string
	part  string // a line without its end yet
}

// Write takes log lines. It never fails.
func (l *lastLines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := strings.Split(l.part+string(p), "\n")
	l.part = all[len(all)-1]
	l.lines = append(l.lines, all[:len(all)-1]...)
	l.lines = l.lines[max(0, len(l.lines)-l.keep):]
	return len(p), nil
}

func (l *lastLines) last() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]string(nil), l.lines...)
}
