package check

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/vmihailenco/msgpack/v5"
	"go.uber.org/goleak"

	"github.com/kvrelay/kvrelay/convert"
	"github.com/kvrelay/kvrelay/discovery"
	"github.com/kvrelay/kvrelay/internal/fuzzlimit"
	"github.com/kvrelay/kvrelay/internal/mockengine"
)

// look watches the first rank of an engine: before may prepare the engine and
// change the source; then 40 prompts are cached while the look goes on.
func look(t *testing.T, o mockengine.Options, opt Options, before func(e *mockengine.Engine, src *discovery.Source)) (*Report, *mockengine.Engine) {
	t.Helper()
	ignore := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, ignore) })
	o.BlockSize = 4
	e, err := mockengine.Start(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() })
	src := discovery.Source{Endpoint: e.Rank(0).Endpoint(), Replay: e.Rank(0).ReplayEndpoint(), Topic: o.Topic, Rank: uint32(o.FirstRank)}
	before(e, &src)

	ctx, stop := context.WithTimeout(t.Context(), 30*time.Second)
	defer stop()
	ready, all := make(chan struct{}, 1), make(chan struct{}, 1)
	tell := func(c chan struct{}) {
		select {
		case c <- struct{}{}:
		default:
		}
	}
	opt.Progress = func(_ uint32, n Numbers) {
		tell(ready)
		if n.Last != nil && *n.Last+1 == e.Rank(0).NextSeq() {
			tell(all)
		}
	}
	ended := make(chan []*Stream, 1)
	go func() { ended <- Watch(ctx, []discovery.Source{src}, opt) }()
	select {
	case <-ready: // the first replay is over
	case <-time.After(time.Second): // this engine will not get that far
	}
	sctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_ = e.Rank(0).WaitSubscribers(sctx, 1) // some cases have none
	for i := range uint32(40) {
		_, _ = e.Prompt([]uint32{i, i, i, i, i + 1, i, i, i, 7}, mockengine.PromptOptions{})
		select {
		case <-all: // not yet
		default:
		}
		e.Step()
	}
	select {
	case <-all:
	case <-time.After(time.Second): // nor so far
	}
	stop()
	r := &Report{Target: "mock", Streams: <-ended}
	r.Judge()
	return r, e
}

func prompts(e *mockengine.Engine, n uint32) {
	for i := range n {
		_, _ = e.Prompt([]uint32{i, 1000, i, i, i, i, i, i, i}, mockengine.PromptOptions{})
		e.Step()
	}
}

// TestWatch: replay first, gaps healed, numbers that never were passed over; in
// the end the blocks that a router would hold are the engine's.
func TestWatch(t *testing.T) {
	for shape, frames := range map[mockengine.ReplayShape]string{mockengine.Reply4: "4", mockengine.Reply3: "3", mockengine.ReplyATOM: "3"} {
		t.Run(string(shape), func(t *testing.T) {
			faults, err := mockengine.ParseFaults("drop=0.3,burn=0.1")
			if err != nil {
				t.Fatal(err)
			}
			var lastLive bool
			r, e := look(t, mockengine.Options{Blocks: 64, Faults: faults, Seed: 3, Replay: shape, FirstRank: 2,
				Observe: func(p mockengine.Published) { lastLive = p.Payload != nil && !p.Withheld }},
				Options{}, func(e *mockengine.Engine, _ *discovery.Source) { prompts(e, 30) })
			if !lastLive {
				t.Fatal("choose a seed that sends the last batch live")
			}
			s := r.Streams[0]
			if !r.Healthy || !slices.Equal(codes(r), []string{"gaps", "burned"}) {
				t.Errorf("findings %+v", r.Findings)
			}
			truth := e.Rank(0).Truth()
			if len(s.Ranks) != 1 || s.Ranks[0].Present != len(truth) || s.Ranks[0].Rank != 2 {
				t.Errorf("ranks %+v, truth of %d", s.Ranks, len(truth))
			}
			if n := s.Numbers; n.Missing != 0 || n.Burned == 0 || n.Healed == 0 || *n.First > 1 || *n.Last+1 != e.Rank(0).NextSeq() ||
				n.Applied+n.Burned != *n.Last+1-*n.First {
				t.Errorf("numbers %+v", n)
			}
			if p := s.Replay; !slices.Equal(names(p.Frames), []string{frames}) || p.EndMarkers == 0 || p.Answered != p.Requests || p.FirstMS <= 0 {
				t.Errorf("replay %+v", p)
			}
			if l := s.Live; l.lagN == 0 || l.LagMS < 0 || l.LagMS > 60_000 || l.Frames["3"] != l.Messages {
				t.Errorf("live %+v", l)
			}
		})
	}
}

// TestWatchTruncated: a ROUTER that stops after its high-water mark is asked again.
func TestWatchTruncated(t *testing.T) {
	faults, err := mockengine.ParseFaults("truncate=10")
	if err != nil {
		t.Fatal(err)
	}
	r, e := look(t, mockengine.Options{Blocks: 64, Faults: faults}, Options{Idle: 50 * time.Millisecond},
		func(e *mockengine.Engine, _ *discovery.Source) { prompts(e, 25) })
	s := r.Streams[0]
	if !r.Healthy || s.Numbers.Missing != 0 || s.Ranks[0].Present != len(e.Rank(0).Truth()) {
		t.Errorf("findings %+v, numbers %+v", r.Findings, s.Numbers)
	}
}

func TestWatchTroubles(t *testing.T) {
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := "tcp://" + closed.Addr().String()
	closed.Close()
	none := func(*mockengine.Engine, *discovery.Source) {}
	for name, c := range map[string]struct {
		engine mockengine.Options
		opt    Options
		work   func(*mockengine.Engine, *discovery.Source)
		codes  string
		sick   bool
	}{
		"well":               {codes: "", work: none},
		"no replay":          {engine: mockengine.Options{Replay: mockengine.NoReplay}, work: none, codes: "no_replay", sick: true},
		"replay off":         {opt: Options{NoReplay: true}, work: func(_ *mockengine.Engine, s *discovery.Source) { s.Replay = "" }, codes: "replay_off"},
		"replay refused":     {work: func(_ *mockengine.Engine, s *discovery.Source) { s.Replay = nobody }, codes: "replay_unreachable", sick: true},
		"replay silent":      {opt: Options{Idle: 50 * time.Millisecond}, work: func(e *mockengine.Engine, _ *discovery.Source) { e.Rank(0).Silence(true) }, codes: "replay_silent", sick: true},
		"replay short":       {engine: mockengine.Options{BufferSteps: 60}, work: func(e *mockengine.Engine, _ *discovery.Source) { prompts(e, 70) }, codes: "replay_short"},
		"lost for good":      {engine: mockengine.Options{Replay: mockengine.NoReplay}, work: func(e *mockengine.Engine, _ *discovery.Source) { e.Step(); e.Rank(0).DropNext(3) }, codes: "no_replay", sick: true},
		"other block size":   {opt: Options{Convert: convert.Config{BlockSize: 16}}, work: none, codes: "block_size nothing_published", sick: true},
		"other topic":        {engine: mockengine.Options{Topic: "kv@pod"}, work: func(_ *mockengine.Engine, s *discovery.Source) { s.Topic, s.TopicExact, s.Replay = "kv@", true, "" }, codes: "topic no_replay", sick: true},
		"another socket":     {work: func(_ *mockengine.Engine, s *discovery.Source) { s.Endpoint = s.Replay }, codes: "unreachable", sick: true},
		"garbage":            {work: func(e *mockengine.Engine, _ *discovery.Source) { e.Rank(0).Garbage() }, codes: "undecodable_batch", sick: true},
		"reports fully":      {engine: mockengine.Options{Report: mockengine.Full}, work: func(e *mockengine.Engine, _ *discovery.Source) { again(e) }, codes: "full_reporting"},
		"several copies":     {engine: mockengine.Options{Duplicates: true}, work: none, codes: ""},
		"the engine's clock": {engine: mockengine.Options{Now: func() time.Time { return time.Now().Add(time.Minute) }}, work: none, codes: "clock"},
		"late":               {engine: mockengine.Options{Now: func() time.Time { return time.Now().Add(-time.Minute) }}, work: none, codes: "lag"},
	} {
		t.Run(name, func(t *testing.T) {
			r, _ := look(t, withBlocks(c.engine), c.opt, c.work)
			if got := codes(r); !slices.Equal(got, strings.Fields(c.codes)) || r.Healthy == c.sick {
				t.Errorf("healthy %v, findings %+v", r.Healthy, r.Findings)
			}
			for _, f := range r.Findings {
				if f.Level == Problem && f.Do == "" || f.What == "" {
					t.Errorf("nothing to do about %+v", f)
				}
			}
		})
	}
}

func withBlocks(o mockengine.Options) mockengine.Options {
	o.Blocks = 256
	return o
}

// again has the same prompts, so that full reporting shows.
func again(e *mockengine.Engine) {
	for range 2 {
		_, _ = e.Prompt([]uint32{1, 2, 3, 4, 5, 6, 7, 8, 9}, mockengine.PromptOptions{})
		_, _ = e.Prompt([]uint32{1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 14}, mockengine.PromptOptions{})
		e.Step()
	}
}

// TestWatchSilence: an engine that is idle, and one whose live stream does not
// arrive although replay has newer batches.
func TestWatchSilence(t *testing.T) {
	for _, dead := range []bool{false, true} {
		e, err := mockengine.Start(mockengine.Options{BlockSize: 4, Blocks: 64, Topic: "kv@pod"})
		if err != nil {
			t.Fatal(err)
		}
		prompts(e, 3)
		src := discovery.Source{Endpoint: e.Rank(0).Endpoint(), Replay: e.Rank(0).ReplayEndpoint(), Topic: "kv@other-pod"}
		ctx, stop := context.WithTimeout(t.Context(), 20*time.Second)
		once, calls := false, 0
		streams := Watch(ctx, []discovery.Source{src}, Options{Silence: 10 * time.Millisecond, Progress: func(_ uint32, n Numbers) {
			calls++
			if dead && !once {
				once = true
				prompts(e, 10)
			}
			if calls > 3 && (!dead || n.Polled > 0) {
				stop()
			}
		}})
		stop()
		_ = e.Close()
		r := &Report{Streams: streams}
		r.Judge()
		want := map[bool]string{false: "quiet", true: "live_dead"}[dead]
		if got := codes(r); !slices.Equal(got, []string{want}) || r.Healthy == dead || !strings.Contains(r.Findings[0].Do, "kv@other-pod") {
			t.Errorf("dead %v: findings %+v", dead, r.Findings)
		}
	}
}

// TestWatchListen: an engine whose PUB connects.
func TestWatchListen(t *testing.T) {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := "tcp://" + free.Addr().String()
	free.Close()
	enc := mockengine.Encoder{Batch: mockengine.Map, Event: mockengine.Array, Hashes: mockengine.BytesHash, BlockSize: 4, Rank: 5}
	payload := enc.Encode(nil, float64(time.Now().Unix()), []mockengine.Event{{Kind: mockengine.Stored, Hashes: []uint64{1}, Tokens: []uint32{1, 2, 3, 4}}})
	ctx, stop := context.WithTimeout(t.Context(), 8*time.Second) // a handshake may take 5
	defer stop()
	pub := zmq4.NewPub(ctx)
	defer pub.Close()
	connected := make(chan error, 1)
	go func(ctx context.Context) {
		for i := 0; i < 3; { // silent strangers, who keep nobody out
			nc, err := net.Dial("tcp", strings.TrimPrefix(addr, "tcp://"))
			if err == nil {
				defer nc.Close()
				i++
			} else if ctx.Err() != nil {
				break
			}
		}
		connected <- pub.Dial(addr)
		<-ctx.Done()
	}(ctx)
	sending := make(chan struct{})
	go func() {
		defer close(sending)
		if err := <-connected; err != nil {
			t.Error(err)
			return
		}
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for seq := uint64(0); ctx.Err() == nil; seq++ {
			<-tick.C
			_ = pub.SendMulti(zmq4.NewMsgFrom(nil, binary.BigEndian.AppendUint64(nil, seq), payload))
		}
	}()
	streams := Watch(ctx, []discovery.Source{{Endpoint: "listen:" + addr}}, Options{Progress: func(_ uint32, n Numbers) {
		if n.Applied > 3 {
			stop()
		}
	}})
	<-sending
	r := &Report{Streams: streams}
	r.Judge()
	s := streams[0]
	if !slices.Equal(codes(r), []string{"no_replay", "other_rank"}) || s.Wire.BatchMaps == 0 || s.Wire.HashBytes == 0 || s.Wire.EventArrays == 0 || s.Ranks[0].Present != 1 {
		t.Errorf("findings %+v, wire %+v", r.Findings, s.Wire)
	}

	ctx, stop = context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer stop()
	r = &Report{Streams: Watch(ctx, []discovery.Source{{Endpoint: "listen:" + addr}}, Options{})}
	r.Judge()
	if len(r.Findings) != 1 || r.Findings[0].What != "no engine connected to listen:"+addr {
		t.Errorf("findings %+v", r.Findings)
	}
}

// TestNothingLeaks: what users wrote is in no report: tokens, salts, adapters,
// prompt text in places where names should be.
func TestNothingLeaks(t *testing.T) {
	const salt, adapter, prompt = "salt-9f3b-secret", "adapter-of-someone", "tell me about my disease, please"
	tokens := []uint32{987654321, 987654322, 987654323, 987654324}
	event := func(tail ...any) []any {
		return append([]any{"BlockStored", []uint64{1}, nil, tokens, 4}, tail...)
	}
	events := []any{
		event(nil, "GPU", adapter, []any{[]any{salt, "dynamo-cache-salt:" + salt}}),
		event(7, prompt, nil, nil),
		event(nil, "GPU", map[string]any{"cache_salt": salt}),
		event(nil, "GPU", nil, nil, 0, prompt),
		[]any{prompt, 1},
		[]any{"BlockStored", prompt, nil, tokens, 4},
		map[string]any{"type": "BlockStored", "block_hashes": []uint64{3}, "token_ids": tokens, "block_size": 4, "locality": prompt, "ownership": prompt, "session_id": prompt, "cache_salt": salt},
	}
	payload, err := msgpack.Marshal([]any{1.5, events, 0})
	if err != nil {
		t.Fatal(err)
	}
	s := NewStream("rank 0", 0, convert.Config{})
	seq := binary.BigEndian.AppendUint64(nil, 0)
	s.recorded(0, [][]byte{nil, seq, payload})
	s.recorded(1, [][]byte{nil, {0, 0, 0, 0, 0, 0, 0, 1}, []byte(prompt)})
	s.finish()
	r := &Report{File: true, Streams: []*Stream{s}}
	r.Judge()
	var text strings.Builder
	if err := r.Text(&text, Style{}); err != nil {
		t.Fatal(err)
	}
	out, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	for _, planted := range []string{salt, adapter, "disease", "987654321", hex.EncodeToString([]byte(salt))} {
		if strings.Contains(text.String()+string(out), planted) {
			t.Errorf("%q is in the report:\n%s", planted, text.String())
		}
	}
	if len(s.Ranks[0].Drops) < 4 || s.Wire.Salted != 3 || s.Wire.Adapters != 1 {
		t.Errorf("the events were not understood: %+v, %+v", s.Ranks[0].Drops, s.Wire)
	}
}

// FuzzFrames: no frames make a Stream or an answer panic, and lists stay bounded.
func FuzzFrames(f *testing.F) {
	f.Add([]byte{}, make([]byte, 8), []byte{0x93, 0xcb, 0, 0, 0, 0, 0, 0, 0, 0, 0x90, 0xc0})
	f.Add([]byte("t"), []byte{1}, []byte{0x92, 0xc0, 0x91, 0x91, 0xa1, 'X'})
	f.Fuzz(func(t *testing.T, a, b, c []byte) {
		fuzzlimit.Run(t, 3*(len(a)+len(b)+len(c)), func() {
			s := NewStream("x", 0, convert.Config{})
			for i, frames := range [][][]byte{{a, b, c}, {a, b}, {c}, {}, {a, a, b, c}} {
				s.recorded(i, frames)
			}
			s.finish()
		})
		s := NewStream("x", 0, convert.Config{})
		var p Replay
		p.Frames, p.EndFrames = map[string]uint64{}, map[string]uint64{}
		x := answer{r: &p}
		for i, frames := range [][][]byte{{a, b, c}, {a, b}, {c}, {}, {a, a, b, c}} {
			s.recorded(i, frames)
			x.reply(frames)
		}
		s.finish()
		r := &Report{File: true, Streams: []*Stream{s}}
		r.Judge()
		var text strings.Builder
		if err := r.Text(&text, Style{}); err != nil {
			t.Fatal(err)
		}
		if _, err := json.Marshal(r); err != nil {
			t.Fatal(err)
		}
		if len(s.Wire.Unknown) > maxNames+1 || p.Odd+p.Batches+p.EndMarkers != 5 {
			t.Fatalf("%+v", p)
		}
	})
}
