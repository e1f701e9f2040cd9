package mockengine

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"
	"testing"

	"github.com/go-zeromq/zmq4"

	"github.com/kvrelay/kvrelay/internal/capture"
	"github.com/kvrelay/kvrelay/internal/fuzzlimit"
)

// TestTranscripts: the ROUTER answers every request of the recorded
// transcripts, malformed ones included, as the engine did, to the byte.
func TestTranscripts(t *testing.T) {
	for name, shape := range map[string]ReplayShape{
		"vllm-0.33.0-evict-buf20":          Reply4,
		"sglang-0.5.23-page16-buf12":       Reply4,
		"vllm-0.18.1-evict-buf20":          Reply3,
		"sglang-0.4.9-page16-buf12":        Reply3,
		"vllm-0.9.0-sha256-holes-buf10000": Reply3,
	} {
		t.Run(name, func(t *testing.T) {
			c, err := capture.Load("testdata/replay-" + name + ".jsonl.gz")
			if err != nil {
				t.Fatal(err)
			}
			p := publisher(t, PublisherOptions{Topic: c.Meta.Topic, Replay: shape, BufferSteps: int(*c.Meta.BufferSteps)})
			publishTranscript(p, c)
			answered := 0
			for _, x := range c.Exchanges {
				client := dial(t, p.endpoint(), zmq4.Dealer)
				client.send(x.Request...)
				for i, want := range x.Replies {
					if got := client.recv(); !reflect.DeepEqual(got, want) {
						t.Fatalf("%s: reply %d:\n got %x\nwant %x", x.Case, i, got, want)
					}
					answered++
				}
				// Nothing more: the next thing to come is the answer to the next request.
				client.send(nil, seqFrame(endSeq))
				if got := client.recv(); !isEnd(got) {
					t.Errorf("%s: one reply too many: %x", x.Case, got)
				}
			}
			if answered < 20 {
				t.Errorf("only %d replies compared", answered)
			}
		})
	}
}

func (p *Publisher) endpoint() string { return fmt.Sprintf("tcp://127.0.0.1:%d", p.ReplayPort()) }

func (p *Publisher) eventEndpoint() string { return fmt.Sprintf("tcp://127.0.0.1:%d", p.EventPort()) }

// publishTranscript publishes what the engine had: the numbers that existed,
// the buffered payloads as recorded. What the buffer had forgotten by then is
// published as well, so that ours must forget it too.
func publishTranscript(p *Publisher, c *capture.Capture) {
	payloads := map[string][]byte{}
	for _, m := range c.Exchanges[0].Replies {
		payloads[string(m[len(m)-2])] = m[len(m)-1]
	}
	for _, s := range c.Meta.LivePayloads {
		seq := seqFrame(s.Seq)
		payload, ok := payloads[string(seq)]
		if !ok {
			payload = []byte("forgotten")
		}
		p.Play([][]byte{[]byte(c.Meta.Topic), seq, payload}, false)
	}
}

func TestATOMEchoesPrefix(t *testing.T) {
	for _, shape := range []ReplayShape{ReplyATOM, ReplyATOMNoEnd} {
		p := publisher(t, PublisherOptions{Replay: shape})
		p.Publish([]byte("a"))
		for _, prefix := range [][][]byte{nil, {{}}, {[]byte("x")}} {
			c := dial(t, p.endpoint(), zmq4.Dealer)
			for range 2 { // without an end marker the second answer shows that none came
				c.send(append(slices.Clone(prefix), seqFrame(0))...)
				want := append(slices.Clone(prefix), seqFrame(0), []byte("a"))
				if got := c.recv(); !reflect.DeepEqual(got, want) {
					t.Errorf("%s prefix %q: %q", shape, prefix, got)
				}
				if shape == ReplyATOM {
					if got := c.recv(); len(got) != len(prefix)+1 || !isEnd(got) {
						t.Errorf("end %q", got)
					}
				}
			}
		}
	}
}

func TestParseRequest(t *testing.T) {
	e := []byte{}
	for _, c := range []struct {
		shape  ReplayShape
		frames [][]byte
		start  uint64
		ok     bool
	}{
		{Reply4, [][]byte{e, seqFrame(7)}, 7, true},
		{Reply4, [][]byte{e, e}, 0, true},
		{Reply4, [][]byte{e, {0, 0, 0, 0}}, 0, true},
		{Reply4, [][]byte{e, {1, 2}}, 258, true},
		{Reply4, [][]byte{e, append([]byte{0}, seqFrame(7)...)}, 7, true},
		{Reply4, [][]byte{e, append([]byte{1}, seqFrame(7)...)}, endSeq, true},
		{Reply4, [][]byte{e, seqFrame(endSeq)}, endSeq, true},
		{Reply4, [][]byte{seqFrame(7)}, 0, false},
		{Reply4, [][]byte{{1}, seqFrame(7)}, 0, false},
		{Reply4, [][]byte{e, seqFrame(7), {'x'}}, 0, false},
		{Reply4, nil, 0, false},
		{ReplyATOM, [][]byte{seqFrame(7)}, 7, true},
		{ReplyATOM, [][]byte{{1}, seqFrame(7)}, 7, true},
		{ReplyATOM, [][]byte{e, e, seqFrame(7)}, 0, false},
	} {
		if _, start, ok := parseRequest(c.shape, c.frames); start != c.start || ok != c.ok {
			t.Errorf("%s %x: %d %v, want %d %v", c.shape, c.frames, start, ok, c.start, c.ok)
		}
	}
}

func FuzzRequest(f *testing.F) {
	f.Add([]byte{}, seqFrame(3), []byte{}, 2)
	f.Add([]byte{1}, bytes.Repeat([]byte{255}, 9), []byte{2}, 3)
	f.Fuzz(func(t *testing.T, a, b, c []byte, n int) {
		frames := [][]byte{a, b, c}[:min(max(n, 0), 3)]
		fuzzlimit.Run(t, len(a)+len(b)+len(c), func() { _, _, _ = parseRequest(Reply3, frames) })
		for _, shape := range []ReplayShape{Reply3, Reply4, ReplyATOM} {
			prefix, _, ok := parseRequest(shape, frames)
			if ok != (len(frames) > 0 && len(frames) <= 2 && (shape == ReplyATOM || len(frames) == 2 && len(a) == 0)) {
				t.Errorf("%s: %x accepted: %v", shape, frames, ok)
			}
			if ok && len(prefix) != len(frames)-1 {
				t.Errorf("%s: prefix %x of %x", shape, prefix, frames)
			}
		}
	})
}

func TestTopicsAndCommands(t *testing.T) {
	const topic = "kv@10.0.0.1@org/model:x"
	p := publisher(t, PublisherOptions{Topic: topic})
	all := subscribe(t, p, p.eventEndpoint(), "")
	prefix := subscribe(t, p, p.eventEndpoint(), "kv@")
	other := subscribe(t, p, p.eventEndpoint(), "xx")

	// ZMTP 3.1 peers subscribe by command.
	command := dial(t, p.eventEndpoint(), zmq4.Sub)
	if err := command.SendCmd(zmq4.CmdSubscribe, []byte("kv@10")); err != nil {
		t.Fatal(err)
	}
	if err := p.WaitSubscribers(timeout(t), 4); err != nil {
		t.Fatal(err)
	}
	p.Publish([]byte("one"))
	for _, c := range []*client{all, prefix, command} {
		if got := c.recv(); !reflect.DeepEqual(got, [][]byte{[]byte(topic), seqFrame(0), []byte("one")}) {
			t.Errorf("received %q", got)
		}
	}
	// A PING is answered with its context; a client of another topic got nothing before.
	if err := other.SendCmd(zmq4.CmdPing, []byte{0, 10, 'c', 't', 'x'}); err != nil {
		t.Fatal(err)
	}
	if cmd, err := other.RecvCmd(); err != nil || cmd.Name != zmq4.CmdPong || string(cmd.Body) != "ctx" {
		t.Errorf("PONG %+v, %v", cmd, err)
	}
	// A hundred of them, too: go-zeromq's own PUB stops reading after ten.
	for range 100 {
		if err := other.SendCmd(zmq4.CmdPing, []byte{0, 10}); err != nil {
			t.Fatal(err)
		}
		if cmd, err := other.RecvCmd(); err != nil || cmd.Name != zmq4.CmdPong {
			t.Fatalf("PONG %+v, %v", cmd, err)
		}
	}
	// CANCEL, and a message that unsubscribes.
	if err := command.SendCmd(zmq4.CmdCancel, []byte("kv@10")); err != nil {
		t.Fatal(err)
	}
	prefix.send(append([]byte{0}, "kv@"...))
	eventually(t, "two clients are left", func() bool { return p.Subscribers() == 2 })
	// A client that leaves is forgotten.
	if err := all.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "one client is left", func() bool { return p.Subscribers() == 1 })
}

// TestHighWaterMark: a subscriber that does not read costs itself messages, and
// nobody else; PUB never waits.
func TestHighWaterMark(t *testing.T) {
	p := publisher(t, PublisherOptions{HWM: 100})
	slow := subscribe(t, p, p.eventEndpoint(), "")
	fast := subscribe(t, p, p.eventEndpoint(), "")
	payload := make([]byte, 64<<10)
	for i := range uint64(2000) { // 128 MB: more than the kernel buffers
		p.Publish(payload)
		if got := seqs([][][]byte{fast.recv()}); got[0] != i {
			t.Fatalf("the fast client received %d, want %d", got[0], i)
		}
	}
	dropped, _ := p.Dropped()
	if dropped == 0 {
		t.Fatal("nothing was dropped")
	}
	// What was not dropped arrives whole and in order.
	received, last := uint64(0), uint64(0)
	for received < 2000-dropped {
		m := slow.recv()
		seq := seqs([][][]byte{m})[0]
		if received > 0 && seq <= last || len(m[2]) != len(payload) {
			t.Fatalf("after %d came %d with %d bytes", last, seq, len(m[2]))
		}
		last = seq
		received++
	}
}

// TestReplayHighWaterMark: a ROUTER with the old mark answers the first 1000
// and loses some of a long answer to a client that does not read.
func TestReplayHighWaterMark(t *testing.T) {
	for shape, lossy := range map[ReplayShape]bool{Reply3: true, Reply4: false} {
		p := publisher(t, PublisherOptions{Replay: shape})
		payload := make([]byte, 16<<10)
		for range 8000 {
			p.Publish(payload)
		}
		c := dial(t, p.endpoint(), zmq4.Dealer)
		c.send(nil, seqFrame(0))
		dropped := func() uint64 { _, n := p.Dropped(); return n }
		if lossy {
			eventually(t, "replies are dropped", func() bool { return dropped() > 0 })
		}
		for i := range uint64(1000) {
			if got := seqs([][][]byte{c.recv()}); got[0] != i {
				t.Fatalf("%s: reply %d has number %d", shape, i, got[0])
			}
		}
		if lossy {
			continue
		}
		for i := uint64(1000); i < 8000; i++ {
			if got := seqs([][][]byte{c.recv()}); got[0] != i {
				t.Fatalf("%s: reply %d has number %d", shape, i, got[0])
			}
		}
		if !isEnd(c.recv()) || dropped() != 0 {
			t.Errorf("%s: no end, or %d dropped", shape, dropped())
		}
	}
}

func TestBuffer(t *testing.T) {
	p := publisher(t, PublisherOptions{BufferSteps: 5})
	c := dial(t, p.endpoint(), zmq4.Dealer)
	if got := c.ask(0); len(got) != 0 {
		t.Errorf("an engine that published nothing replays %x", got)
	}
	for i := range 12 {
		p.Publish([]byte{byte(i)})
	}
	for start, want := range map[uint64][]uint64{0: from(7, 12), 7: from(7, 12), 9: from(9, 12), 12: {}, 1 << 40: {}} {
		if got := seqs(c.ask(start)); !slices.Equal(got, want) {
			t.Errorf("replay from %d: %d, want %d", start, got, want)
		}
	}
	p.EvictHistory(2)
	if got := seqs(c.ask(0)); !slices.Equal(got, from(10, 12)) {
		t.Errorf("after eviction: %d", got)
	}
	if n, oldest := p.Buffered(); n != 2 || oldest != 10 {
		t.Errorf("buffered %d from %d", n, oldest)
	}
}

func TestWithheldBurnedGarbage(t *testing.T) {
	var seen []Published
	p := publisher(t, PublisherOptions{Observe: func(b Published) { seen = append(seen, b) }})
	sub := subscribe(t, p, p.eventEndpoint(), "")
	p.Publish([]byte("a")) // 0
	p.DropNext(2)
	p.Publish([]byte("b")) // 1, withheld
	p.Publish([]byte("c")) // 2, withheld
	p.Burn(3)              // 3 4 5
	p.Garbage()            // 6
	p.Publish([]byte("d")) // 7
	var live [][][]byte
	for range 3 {
		live = append(live, sub.recv())
	}
	if got := seqs(live); !slices.Equal(got, []uint64{0, 6, 7}) {
		t.Errorf("live %d", got)
	}
	c := dial(t, p.endpoint(), zmq4.Dealer)
	if got := seqs(c.ask(0)); !slices.Equal(got, []uint64{0, 1, 2, 6, 7}) {
		t.Errorf("replay %d", got)
	}
	for i, b := range seen {
		want := Published{Seq: uint64(i), Payload: b.Payload, Withheld: i == 1 || i == 2, Garbage: i == 6}
		if !reflect.DeepEqual(b, want) || (b.Payload == nil) != (i >= 3 && i <= 5) {
			t.Errorf("observed %+v, want %+v", b, want)
		}
	}
	if len(seen) != 8 || p.NextSeq() != 8 {
		t.Errorf("%d observed, next %d", len(seen), p.NextSeq())
	}
}

func TestPlayOtherFrames(t *testing.T) {
	p := publisher(t, PublisherOptions{})
	sub := subscribe(t, p, p.eventEndpoint(), "")
	for _, frames := range [][][]byte{{[]byte("topic"), []byte("payload")}, {[]byte("payload")}} {
		if p.Play(frames, false) {
			t.Errorf("%q has no number", frames)
		}
		if got := sub.recv(); !reflect.DeepEqual(got, frames) {
			t.Errorf("received %q", got)
		}
	}
	if p.Play(nil, false) {
		t.Error("nothing was played")
	}
	if n, _ := p.Buffered(); n != 0 {
		t.Errorf("%d remembered", n)
	}
}
