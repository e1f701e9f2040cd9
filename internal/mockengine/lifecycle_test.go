package mockengine

import (
	"errors"
	"io"
	"maps"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-zeromq/zmq4"
)

// TestOvertake: the new process is past the old one's numbers before anybody
// can connect.
func TestOvertake(t *testing.T) {
	e := start(t, Options{BlockSize: 4, Blocks: 32, Workload: &Workload{Steps: 5000}, Faults: faults(t, "overtake=1")})
	r := e.Rank(0)
	live := subscribe(t, r.Publisher, r.Endpoint(), "")
	for range 5 {
		before, incarnation := r.NextSeq(), r.Incarnation()
		e.Step()
		if r.NextSeq() <= before || r.Incarnation() != incarnation+1 {
			t.Fatalf("after %d comes %d, process %d after %d", before, r.NextSeq(), r.Incarnation(), incarnation)
		}
	}
	rest, _ := io.ReadAll(live.nc)
	track := frameTracker{}
	if track.wrote(rest); track.between() {
		t.Error("the old connection did not end in mid-frame")
	}
	if got := dial(t, r.ReplayEndpoint(), zmq4.Dealer).ask(0); uint64(len(got)) != r.NextSeq() {
		t.Errorf("%d batches of %d", len(got), r.NextSeq())
	}
}

// TestFaultsOnTheWire: what the faults of single steps and replays are to a client.
func TestFaultsOnTheWire(t *testing.T) {
	engine := func(text string, steps int) *Rank {
		t.Helper()
		e := start(t, Options{BlockSize: 4, Blocks: 32, Workload: &Workload{}, Faults: faults(t, text)})
		for range steps {
			e.Step()
		}
		return e.Rank(0)
	}
	// replies to one request; the answer to a second one shows where they end.
	replies := func(r *Rank) (got []uint64, ended bool) {
		t.Helper()
		c := dial(t, r.ReplayEndpoint(), zmq4.Dealer)
		c.send(nil, seqFrame(0))
		c.send(nil, seqFrame(1<<40))
		for {
			m := c.recv()
			if !isEnd(m) {
				got = append(got, seqs([][][]byte{m})...)
				continue
			}
			if err := c.nc.SetReadDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
				t.Fatal(err)
			}
			second, err := c.RecvMsg() // a second end marker: the first one was the first request's
			return got, err == nil && isEnd(second.Frames)
		}
	}
	n := uint64(40)
	r := engine("", 60)
	if got, ended := replies(r); uint64(len(got)) != r.NextSeq() || !ended || r.NextSeq() < n {
		t.Errorf("without faults: %d of %d, ended %v", len(got), r.NextSeq(), ended)
	}
	r = engine("silent=1", 60)
	c := dial(t, r.ReplayEndpoint(), zmq4.Dealer)
	c.send(nil, seqFrame(0))
	still(t, c.nc)
	r = engine("truncate=7", 60)
	if got, ended := replies(r); !slices.Equal(got, from(0, 7)) || ended {
		t.Errorf("truncated: %d, ended %v", got, ended)
	}
	r = engine("holes=7", 60)
	if got, ended := replies(r); !slices.Equal(got[:7], from(0, 7)) || !ended || len(got) < 12 || uint64(len(got)) > r.NextSeq()-5 {
		t.Errorf("holes: %d of %d, ended %v", got, r.NextSeq(), ended)
	}
	r = engine("evict=3", 1000)
	if buffered, _ := r.Buffered(); buffered == 0 || uint64(buffered) >= r.NextSeq() {
		t.Errorf("evicted: %d of %d are left", buffered, r.NextSeq())
	}

	e := start(t, Options{BlockSize: 4, Blocks: 32, Workload: &Workload{}, Faults: faults(t, "cut=1")})
	live := subscribe(t, e.Rank(0).Publisher, e.Rank(0).Endpoint(), "")
	e.Step()
	track := frameTracker{}
	rest, _ := io.ReadAll(live.nc)
	if track.wrote(rest); track.between() {
		t.Error("cut: the connection did not end in mid-frame")
	}

	// Every start has its own slow joiners.
	var seen []Published
	e, err := New(Options{BlockSize: 4, Blocks: 32, Workload: &Workload{}, Faults: faults(t, "slowjoin=3"), Observe: func(p Published) { seen = append(seen, p) }})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		for range 20 {
			e.Step()
		}
		e.Restart()
	}
	for _, p := range seen {
		if p.Withheld != (p.Seq < 3) {
			t.Errorf("process %d: number %d withheld: %v", p.Incarnation, p.Seq, p.Withheld)
		}
	}
	if seen[len(seen)-1].Incarnation != 1 {
		t.Error("no second process")
	}
}

// TestLifecycle: what clients see of the ends and beginnings of an engine.
func TestLifecycle(t *testing.T) {
	o := Options{BlockSize: 4, Blocks: 64}
	prompt := func(e *Engine, n uint32) {
		t.Helper()
		if _, err := e.Prompt(from32(n, n+9), PromptOptions{}); err != nil {
			t.Fatal(err)
		}
		if e.Step() != 1 {
			t.Fatal("no batch")
		}
	}
	// current expects that the engine answers as the n-th process, with one batch.
	current := func(e *Engine, n int) {
		t.Helper()
		r := e.Rank(0)
		c := dial(t, r.ReplayEndpoint(), zmq4.Dealer)
		got := c.ask(0)
		if !slices.Equal(seqs(got), []uint64{0}) || r.Incarnation() != n || !maps.Equal(follow(t, got, 4), r.Truth()) || len(r.Truth()) != 2 {
			t.Errorf("process %d replays %d and holds %v", r.Incarnation(), seqs(got), r.Truth())
		}
	}
	ended := func(c *client) []byte {
		t.Helper()
		rest, err := io.ReadAll(c.nc)
		if err != nil && !strings.Contains(err.Error(), "reset") {
			t.Fatalf("the connection was not closed: %v", err)
		}
		return rest
	}

	t.Run("restart", func(t *testing.T) {
		e := start(t, o)
		r := e.Rank(0)
		at, replayAt := r.Endpoint(), r.ReplayEndpoint()
		live, replay := subscribe(t, r.Publisher, at, ""), dial(t, replayAt, zmq4.Dealer)
		prompt(e, 1)
		live.recv()
		e.Restart()
		if len(r.Truth()) != 0 || r.NextSeq() != 0 || r.Subscribers() != 0 {
			t.Error("the new process remembers the old one")
		}
		if rest := ended(live); len(rest) != 0 {
			t.Errorf("%x after the last message", rest)
		}
		ended(replay)
		if r.Endpoint() != at || r.ReplayEndpoint() != replayAt {
			t.Error("the address moved")
		}
		again := subscribe(t, r.Publisher, at, "")
		prompt(e, 2)
		if got := seqs([][][]byte{again.recv()}); got[0] != 0 {
			t.Errorf("begins with %d", got[0])
		}
		current(e, 1)
	})
	t.Run("kill", func(t *testing.T) {
		e := start(t, o)
		r := e.Rank(0)
		live := subscribe(t, r.Publisher, r.Endpoint(), "")
		prompt(e, 1)
		live.recv()
		e.Kill()
		track := frameTracker{}
		if track.wrote(ended(live)); track.between() {
			t.Error("it did not end in mid-frame")
		}
		for _, endpoint := range []string{r.Endpoint(), r.ReplayEndpoint()} {
			if _, err := net.Dial("tcp", strings.TrimPrefix(endpoint, "tcp://")); err == nil {
				t.Errorf("%s of a dead engine can be reached", endpoint)
			}
		}
		if err := r.Start(); err != nil {
			t.Fatal(err)
		}
		prompt(e, 2)
		current(e, 1)
	})
	t.Run("cut", func(t *testing.T) {
		e := start(t, o)
		r := e.Rank(0)
		live := subscribe(t, r.Publisher, r.Endpoint(), "")
		prompt(e, 1)
		live.recv()
		r.Cut()
		track := frameTracker{}
		if track.wrote(ended(live)); track.between() {
			t.Error("it did not end in mid-frame")
		}
		current(e, 0)
	})
	t.Run("freeze", func(t *testing.T) {
		e := start(t, o)
		r := e.Rank(0)
		live := subscribe(t, r.Publisher, r.Endpoint(), "")
		r.Freeze()
		if _, err := e.Prompt(golden, PromptOptions{}); !errors.Is(err, ErrDown) {
			t.Error(err)
		}
		if err := live.SendCmd(zmq4.CmdPing, []byte{0, 1}); err != nil {
			t.Fatal(err)
		}
		still(t, live.nc)
		r.Thaw()
		if cmd, err := live.RecvCmd(); err != nil || cmd.Name != zmq4.CmdPong {
			t.Errorf("%+v, %v", cmd, err)
		}
		prompt(e, 1)
		live.recv()
		current(e, 0)
	})
	t.Run("half open", func(t *testing.T) {
		e := start(t, o)
		r := e.Rank(0)
		live := subscribe(t, r.Publisher, r.Endpoint(), "")
		prompt(e, 1)
		live.recv()
		r.HalfOpen()
		if r.Subscribers() != 0 {
			t.Error("the new process has the old one's subscribers")
		}
		prompt(e, 2)
		still(t, live.nc)
		current(e, 1)
	})
	t.Run("silent", func(t *testing.T) {
		e := start(t, o)
		r := e.Rank(0)
		prompt(e, 1)
		r.Silence(true)
		c := dial(t, r.ReplayEndpoint(), zmq4.Dealer)
		c.send(nil, seqFrame(0))
		still(t, c.nc)
		r.Silence(false)
		current(e, 0)
	})
	t.Run("replay closed", func(t *testing.T) {
		e := start(t, o)
		r := e.Rank(0)
		prompt(e, 1)
		c := dial(t, r.ReplayEndpoint(), zmq4.Dealer)
		r.CloseReplay()
		ended(c)
		if _, err := net.Dial("tcp", strings.TrimPrefix(r.ReplayEndpoint(), "tcp://")); err == nil {
			t.Error("a closed ROUTER can be reached")
		}
		if err := r.OpenReplay(); err != nil {
			t.Fatal(err)
		}
		current(e, 0)
	})
}
