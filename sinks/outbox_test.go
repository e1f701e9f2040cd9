package sinks

import (
	"maps"
	"math/rand/v2"
	"testing"

	"github.com/kvrelay/kvrelay/convert"
	"github.com/kvrelay/kvrelay/replay"
)

// drainAll takes every message of o and checks its size, its sequence and
// that its ids follow each other; it returns the events.
func drainAll(t testing.TB, o *Outbox, maxPayload int) []got {
	t.Helper()
	var all []got
	for {
		next := o.firstSeq + uint64(o.resend)
		from := o.sent + 1
		msg, ok, _, _ := o.take(nil)
		if !ok {
			return all
		}
		evs := parseMessage(t, o, msg, next)
		size := len(msg)
		if o.p.o.Profile == JSON {
			size += len("NATS/1.0\r\n" + publisherHeader + ": 9007199254740991\r\n\r\n")
		}
		if size > maxPayload {
			t.Fatalf("a message of %d bytes under max_payload %d", size, maxPayload)
		}
		for i, g := range evs {
			if g.id != from+uint64(i) {
				t.Fatalf("id %d, want %d", g.id, from+uint64(i))
			}
		}
		all = append(all, evs...)
	}
}

func parseMessage(t testing.TB, o *Outbox, msg []byte, wantSeq uint64) []got {
	t.Helper()
	payload := msg
	if o.p.o.Profile != JSON {
		pub, seq, _, pl, err := parseEnvelope(msg)
		if err != nil || pub != o.id || seq != wantSeq {
			t.Fatalf("publisher %d, sequence %d, want %d (%v)", pub, seq, wantSeq, err)
		}
		payload = pl
	}
	evs, err := parseEvents(o.p.o.Profile, payload)
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range evs {
		if g.worker != o.workerID || g.rank != o.rank {
			t.Fatalf("event of %d/%d, want %d/%d", g.worker, g.rank, o.workerID, o.rank)
		}
	}
	return evs
}

func foldOf(evs []got) fold {
	f := fold{}
	for i := range evs {
		f.apply(&evs[i].e)
	}
	return f
}

// TestSplit: under any max_payload, all profiles, the pieces say what the whole
// said, ids are contiguous, and no message is too long.
func TestSplit(t *testing.T) {
	for seed := range uint64(30) {
		r := rand.New(rand.NewPCG(seed, 2))
		pr := Profile(r.IntN(3))
		limit := []int{minMaxPayload, 900, 1000, 4096, 1 << 16, 1 << 20}[r.IntN(6)]
		p := newTest(t, Options{Profile: pr})
		p.maxEvent.Store(p.eventLimit(int64(limit)))
		o := open(t, p, r.Uint64(), uint32(r.IntN(9)), nil)
		w := newWorkload(seed)
		w.large = 1500
		want, charged := fold{}, 0
		for range 20 {
			evs := w.events(1 + r.IntN(8))
			for i := range evs {
				want.apply(&evs[i])
			}
			charged += o.Append(Place{}, evs)
		}
		got := drainAll(t, o, limit)
		if !maps.Equal(foldOf(got), want) {
			t.Fatalf("seed %d: the pieces say something else", seed)
		}
		if uint64(len(got)) != o.LastID() {
			t.Fatalf("seed %d: %d events, last id %d", seed, len(got), o.LastID())
		}
		if n := p.tooLarge.Load(); n != 0 {
			t.Fatalf("seed %d: %d blocks too large", seed, n)
		}
		if bytes, events := o.confirm(o.LastID()); bytes != charged || uint64(events) != o.LastID() {
			t.Fatalf("seed %d: confirmed %d bytes of %d charged", seed, bytes, charged)
		}
	}
}

// TestSplitHuge: one store of 100 000 blocks under 64 KiB arrives chained and complete.
func TestSplitHuge(t *testing.T) {
	p := newTest(t, Options{})
	p.maxEvent.Store(p.eventLimit(64 << 10))
	o := open(t, p, 7, 0, nil)
	e := convert.RouterEvent{Kind: convert.Stored, Blocks: make([]convert.Block, 100_000)}
	for i := range e.Blocks {
		e.Blocks[i] = convert.Block{Hash: uint64(i+1) << 33, TokensHash: uint64(i+1) << 34}
	}
	want := fold{}
	want.apply(&e)
	o.Append(Place{}, []convert.RouterEvent{e})
	got := drainAll(t, o, 64<<10)
	if !maps.Equal(foldOf(got), want) {
		t.Fatal("the pieces say something else")
	}
	if n := len(got); n > 130 {
		t.Errorf("%d pieces, a hundred would do", n)
	}
}

// TestTooLarge: a block that no message can hold is dropped alone, takes no
// id, and the block behind it keeps its true parent.
func TestTooLarge(t *testing.T) {
	p := newTest(t, Options{})
	p.maxEvent.Store(p.eventLimit(2000))
	o := open(t, p, 7, 0, nil)
	mm := []convert.MMObject{{Hash: 1, Offsets: make([][2]uint64, 1000)}}
	n := o.Append(Place{}, []convert.RouterEvent{
		{Kind: convert.Stored, Blocks: []convert.Block{{Hash: 1}, {Hash: 2, MM: mm}, {Hash: 3}}},
		{Kind: convert.Stored, Blocks: []convert.Block{{Hash: 4, MM: mm}}},
		{Kind: convert.Stored, SessionID: make([]byte, 3000), Blocks: []convert.Block{{Hash: 5}}},
		{Kind: convert.Cleared},
	})
	evs := drainAll(t, o, 2000)
	if len(evs) != 3 || o.LastID() != 3 || p.tooLarge.Load() != 3 {
		t.Fatalf("%d events, last id %d, %d too large", len(evs), o.LastID(), p.tooLarge.Load())
	}
	if b := evs[1].e; b.Blocks[0].Hash != 3 || !b.HasParent || b.Parent != 2 {
		t.Errorf("behind the dropped block: %+v", b)
	}
	if bytes, _ := o.confirm(3); bytes != n {
		t.Errorf("confirmed %d bytes, charged %d", bytes, n)
	}
}

// TestRecent: what is confirmed stays for RECENT_EVENTS and RECENT_BYTES, and
// no longer; what is not confirmed stays whatever it takes.
func TestRecent(t *testing.T) {
	for _, tc := range []struct{ events, bytes int }{{100, 1 << 30}, {1 << 30, 100_000}, {1, 1 << 30}, {1 << 30, 1}} {
		p := newTest(t, Options{RecentEvents: tc.events, RecentBytes: tc.bytes})
		o := open(t, p, 7, 0, nil)
		w := newWorkload(9)
		charged, confirmed := 0, 0
		for i := range 4000 {
			charged += o.Append(Place{}, w.events(3))
			if i%10 != 0 {
				continue
			}
			o.take(nil)
			upTo := o.sent
			b, _ := o.confirm(upTo)
			confirmed += b
			kept := int(o.confirmed + 1 - o.log.lo)
			size := 0
			if kept > 0 {
				size = o.log.size(o.log.lo, o.confirmed)
			}
			if kept > tc.events || size > tc.bytes || size != o.recent {
				t.Fatalf("%+v: %d events of %d bytes kept, counted %d", tc, kept, size, o.recent)
			}
			if kept+1 <= tc.events && size+2000 < tc.bytes && o.log.lo > 1 {
				t.Fatalf("%+v: %d events of %d bytes kept, too few", tc, kept, size)
			}
		}
		o.take(nil)
		b, _ := o.confirm(o.LastID())
		if confirmed += b; confirmed != charged {
			t.Fatalf("%+v: confirmed %d bytes of %d", tc, confirmed, charged)
		}
		if tc.bytes == 1 && len(o.log.segs) > 1 {
			t.Errorf("%d segments for nothing", len(o.log.segs))
		}
	}
}

// TestPlaces: each event carries the position of its batch, its index there,
// and the blocks that are done after it, through segments and splitting.
func TestPlaces(t *testing.T) {
	p := newTest(t, Options{})
	p.maxEvent.Store(p.eventLimit(minMaxPayload))
	o := open(t, p, 7, 0, nil)
	w := newWorkload(3)
	w.large = 500
	type at struct {
		seq          uint64
		event, block int
	}
	var ends []at
	for seq := range uint64(400) {
		evs := w.events(3)
		o.Append(Place{Pos: replay.Position{Epoch: 9, Seq: seq, Sum: seq * 3}, Event: 5, Base: 2}, evs)
		for i := range evs {
			ends = append(ends, at{seq, 5 + i, len(evs[i].Blocks) + len(evs[i].Hashes)})
		}
	}
	i, done := 0, 0
	for id := uint64(1); id < o.log.next; id++ {
		si, k := o.log.find(id)
		s := o.log.segs[si]
		m, pl := s.events[k], s.places[s.events[k].place]
		done += int(m.blocks)
		want := ends[i]
		if pl.pos != (replay.Position{Epoch: 9, Seq: want.seq, Sum: want.seq * 3}) || pl.base != 2 ||
			int(m.event) != want.event || int(m.block) != done || done > want.block {
			t.Fatalf("event %d: %+v %+v, want %+v with %d done", id, pl, m, want, done)
		}
		if done == want.block {
			i, done = i+1, 0
		}
	}
	if i != len(ends) {
		t.Fatalf("%d of %d events", i, len(ends))
	}
}

// Run is woken by what is news to it: not by an outbox that waits for its rank, and
// not again by one that it has not come to yet.
func TestAppendWakes(t *testing.T) {
	p := newTest(t, Options{})
	o := open(t, p, 7, 0, nil)
	p.mu.Lock()
	o.unowned = true
	p.mu.Unlock()
	evs := newWorkload(5).events(1)
	woken := func() bool {
		select {
		case <-p.wake:
			return true
		default:
			return false
		}
	}
	woken() // by Open
	add := func(what string, want bool) {
		t.Helper()
		o.Append(Place{Pos: replay.Position{Seq: o.log.next}}, evs)
		if got := woken(); got != want {
			t.Errorf("%s: woken %t", what, got)
		}
	}
	add("its rank may be another relay's", false)
	p.own(o)
	if !woken() {
		t.Error("Run does not learn that the rank is ours")
	}
	add("Run has not come to it yet", false)
	if p.pop() != o {
		t.Fatal("what was parked is not ready")
	}
	add("Run has been there", true)
}

// TestAppendAllocates nothing once the ring turns.
func TestAppendAllocates(t *testing.T) {
	for _, pr := range []Profile{Dynamo, DynamoSingle, JSON} {
		p := newTest(t, Options{Profile: pr, RecentEvents: 2000})
		o := open(t, p, 7, 0, nil)
		evs := newWorkload(5).events(8)
		buf := make([]byte, 0, 1<<20)
		step := func() {
			o.Append(Place{Pos: replay.Position{Seq: o.log.next}}, evs)
			for {
				msg, ok, _, _ := o.take(buf)
				buf = msg
				if !ok {
					break
				}
			}
			o.confirm(o.sent)
			p.pop()
		}
		for range 3000 {
			step()
		}
		if n := testing.AllocsPerRun(2000, step); n != 0 {
			t.Errorf("%v: %v allocations a batch", pr, n)
		}
	}
}
