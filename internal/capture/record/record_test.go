package record

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kvrelay/kvrelay/internal/capture"
	"github.com/kvrelay/kvrelay/internal/mockengine"
	"github.com/kvrelay/kvrelay/internal/zmtp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 20 * time.Second

// rig is a mock engine with a memory of everything it published, and a recorder.
type rig struct {
	t         *testing.T
	e         *mockengine.Engine
	mu        sync.Mutex
	published []mockengine.Published
}

func newRig(t *testing.T, o mockengine.Options) *rig {
	t.Helper()
	g := &rig{t: t}
	o.BlockSize, o.Blocks, o.Topic, o.Seed = 4, 32, "kv@rig", 3
	if o.Workload == nil {
		o.Workload = &mockengine.Workload{}
	}
	o.Observe = func(p mockengine.Published) {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.published = append(g.published, p)
	}
	var err error
	if g.e, err = mockengine.Start(o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = g.e.Close() })
	return g
}

func (g *rig) steps(n int) {
	for range n {
		g.e.Step()
	}
}

// exist are the payloads that exist for anyone, in order.
func (g *rig) exist() (out []mockengine.Published) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, p := range g.published {
		if p.Payload != nil {
			out = append(out, p)
		}
	}
	return out
}

func (g *rig) options() Options {
	r := g.e.Rank(0)
	return Options{Endpoint: r.Endpoint(), ReplayEndpoint: r.ReplayEndpoint(), Log: slog.New(slog.NewTextHandler(g.t.Output(), nil))}
}

// recording is a running recorder and its file.
type recording struct {
	t     *testing.T
	path  string
	stop  func()
	ended chan error
	stats Stats
}

func begin(t *testing.T, o Options) *recording {
	t.Helper()
	rec := &recording{t: t, path: filepath.Join(t.TempDir(), "x.jsonl.gz"), ended: make(chan error, 1)}
	w, err := capture.Create(rec.path, &capture.Meta{Engine: "mock"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	rec.stop = cancel
	go func() {
		var err error
		rec.stats, err = Run(ctx, o, w, nil)
		rec.ended <- errors.Join(err, w.Close())
	}()
	return rec
}

// end stops the recorder and reads what it wrote.
func (rec *recording) end() []capture.Message {
	rec.t.Helper()
	rec.stop()
	return rec.wait()
}

func (rec *recording) wait() []capture.Message {
	rec.t.Helper()
	defer rec.stop()
	if err := <-rec.ended; err != nil {
		rec.t.Fatal(err)
	}
	c, err := capture.Load(rec.path)
	if err != nil {
		rec.t.Fatal(err)
	}
	return c.Messages
}

func (g *rig) subscribed() {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := g.e.Rank(0).WaitSubscribers(ctx, 1); err != nil {
		g.t.Fatal(err)
	}
}

// same compares a recording with what was published from a number on.
func (g *rig) same(got []capture.Message, want []mockengine.Published) {
	g.t.Helper()
	if len(got) != len(want) {
		g.t.Fatalf("recorded %d messages, %d exist", len(got), len(want))
	}
	for i, m := range got {
		seq, ok := m.Seq()
		if !ok || seq != want[i].Seq || !bytes.Equal(m.Payload(), want[i].Payload) || string(m.Topic()) != "kv@rig" {
			g.t.Fatalf("message %d: seq %d topic %q, want seq %d", i, seq, m.Topic(), want[i].Seq)
		}
	}
}

func TestLiveOnly(t *testing.T) {
	g := newRig(t, mockengine.Options{})
	g.steps(10) // before the subscription: lost
	lost := len(g.exist())
	o := g.options()
	o.ReplayEndpoint, o.Count = "", 20
	rec := begin(t, o)
	g.subscribed()
	g.steps(40)
	got := rec.wait()
	g.same(got, g.exist()[lost:][:20])
	if rec.stats != (Stats{Messages: 20}) {
		t.Errorf("stats %+v", rec.stats)
	}
}

// TestComplete: with a ROUTER the file has everything from the beginning,
// whatever PUB withholds, in order and once, with either reply shape.
func TestComplete(t *testing.T) {
	for _, shape := range []mockengine.ReplayShape{mockengine.Reply4, mockengine.Reply3, mockengine.ReplyATOM, mockengine.ReplyATOMNoEnd} {
		t.Run(string(shape), func(t *testing.T) {
			faults, err := mockengine.ParseFaults("drop=0.3,garbage")
			if err != nil {
				t.Fatal(err)
			}
			g := newRig(t, mockengine.Options{Replay: shape, Faults: faults})
			g.steps(1)
			o := g.options()
			if shape == mockengine.ReplyATOMNoEnd {
				o.Idle = 500 * time.Millisecond // the only end there is
			}
			rec := begin(t, o)
			g.subscribed()
			for i := range 60 {
				g.steps(1)
				if i == 30 { // the last one must be live: nobody asks for what comes after it
					g.e.Rank(0).Cut()
					g.subscribed()
				}
			}
			ends := 0
			for !live(g.exist()[len(g.exist())-1]) {
				if g.steps(1); ends > 50 {
					t.Fatal("every batch is withheld")
				}
				ends++
			}
			want := g.exist()
			rec.has(len(want))
			got := rec.end()
			if shape != mockengine.Reply4 { // the first ones come from a replay without topics
				for i := range got {
					got[i].Frames[0] = []byte("kv@rig")
				}
			}
			g.same(got, want)
			if rec.stats.Replayed == 0 || rec.stats.Missing != 0 || rec.stats.Restarts != 0 {
				t.Errorf("stats %+v", rec.stats)
			}
		})
	}
}

func live(p mockengine.Published) bool { return !p.Withheld }

// onDisk is how many messages have been flushed so far.
func onDisk(path string) int {
	r, err := capture.Open(path)
	if err != nil {
		return 0
	}
	defer func() { _ = r.Close() }()
	n := 0
	for {
		if _, err := r.Next(); err != nil {
			return n
		}
		n++
	}
}

// has waits until n messages are in the file.
func (rec *recording) has(n int) {
	rec.t.Helper()
	got := 0
	eventually(rec.t, func() bool { got = onDisk(rec.path); return got == n }, func() string { return fmt.Sprintf("%d of %d messages", got, n) })
}

func eventually(t *testing.T, ok func() bool, state func() string) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	late := time.After(patience)
	for !ok() {
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("waited in vain: %s", state())
		}
	}
}

// TestRestart: a new process's stream follows the old one's in the file, also
// when it has gone on before the recorder is back, and past the old numbers.
func TestRestart(t *testing.T) {
	for name, during := range map[string]int{"at once": 0, "gone on": 3, "past the old": 90} {
		t.Run(name, func(t *testing.T) {
			g := newRig(t, mockengine.Options{})
			r := g.e.Rank(0)
			rec := begin(t, g.options())
			g.subscribed()
			g.steps(30)
			rec.has(len(g.exist()))
			r.Kill()
			if err := r.Start(); err != nil {
				t.Fatal(err)
			}
			g.steps(during)
			g.subscribed()
			g.steps(10)
			want := g.exist()
			rec.has(len(want))
			g.same(rec.end(), want)
			if rec.stats.Restarts != 1 || rec.stats.Missing != 0 {
				t.Errorf("stats %+v", rec.stats)
			}
		})
	}
}

func TestMissing(t *testing.T) {
	g := newRig(t, mockengine.Options{BufferSteps: 5})
	r := g.e.Rank(0)
	g.steps(1)
	rec := begin(t, g.options())
	rec.has(1) // the first replay, of a buffer that is soon too short, is over
	g.subscribed()
	g.steps(10)
	rec.has(len(g.exist()))
	r.DropNext(20)
	g.steps(40)
	r.Burn(3)
	g.steps(5)
	var want []mockengine.Published
	withheld := 0
	all := g.exist()
	firstLive := 0
	for i, p := range all {
		if p.Withheld {
			withheld++
			firstLive = i + 1
		}
	}
	kept := 0 // of the withheld ones, those still in the buffer when they were asked for
	for i, p := range all {
		if p.Withheld && i < firstLive-5 {
			continue
		}
		want = append(want, p)
	}
	eventually(t, func() bool { kept = onDisk(rec.path); return kept >= len(all)-withheld }, func() string { return fmt.Sprint(kept) })
	got := rec.end()
	if uint64(len(got))+rec.stats.Missing != uint64(len(all))+3 {
		t.Errorf("%d recorded and %d missing of %d and 3 burned", len(got), rec.stats.Missing, len(all))
	}
	if len(got) > len(want) || rec.stats.Missing < 18 {
		t.Errorf("stats %+v, at most %d exist", rec.stats, len(want))
	}
	last := int64(-1)
	for _, m := range got {
		seq, _ := m.Seq()
		if int64(seq) <= last {
			t.Fatalf("seq %d after %d", seq, last)
		}
		last = int64(seq)
	}
}

// TestWaits: the engine may come later, and its ROUTER may be silent.
func TestWaits(t *testing.T) {
	g := newRig(t, mockengine.Options{})
	r := g.e.Rank(0)
	r.Kill()
	o := g.options()
	o.Idle = 100 * time.Millisecond
	rec := begin(t, o)
	r.Silence(true)
	if err := r.Start(); err != nil {
		t.Fatal(err)
	}
	g.subscribed()
	g.steps(20)
	n := len(g.exist())
	rec.has(n)
	g.same(rec.end(), g.exist())
}

func TestBadEndpoints(t *testing.T) {
	g := newRig(t, mockengine.Options{})
	for _, o := range []Options{
		{Endpoint: "udp://127.0.0.1:1"},
		{Endpoint: g.e.Rank(0).Endpoint(), ReplayEndpoint: "nonsense"},
	} {
		var b bytes.Buffer
		w, err := capture.NewWriter(&b, &capture.Meta{})
		if err != nil {
			t.Fatal(err)
		}
		o.Log = slog.New(slog.DiscardHandler)
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		if _, err := Run(ctx, o, w, nil); !errors.Is(err, zmtp.ErrEndpoint) {
			t.Errorf("%s %s: %v", o.Endpoint, o.ReplayEndpoint, err)
		}
		cancel()
	}
}

type fullDisk struct{ left int }

func (d *fullDisk) Write(p []byte) (int, error) {
	if d.left -= len(p); d.left < 0 {
		return 0, errors.New("disk full")
	}
	return len(p), nil
}

func TestDiskFull(t *testing.T) {
	g := newRig(t, mockengine.Options{})
	g.steps(100)
	w, err := capture.NewWriter(&fullDisk{left: 1000}, &capture.Meta{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if _, err := Run(ctx, g.options(), w, nil); err == nil || !strings.Contains(err.Error(), "disk full") {
		t.Errorf("error %v", err)
	}
}
