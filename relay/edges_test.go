package relay

import (
	"context"
	"io"
	"log/slog"
	"testing"

	"github.com/kvrelay/kvrelay/convert"
	"github.com/kvrelay/kvrelay/decode"
	"github.com/kvrelay/kvrelay/discovery"
	"github.com/kvrelay/kvrelay/internal/load"
	"github.com/kvrelay/kvrelay/replay"
	"github.com/kvrelay/kvrelay/sinks"
)

// edgeStream is a stream with a rank that is being resumed at seq 9, and no connections.
func edgeStream(t *testing.T) (*Stream, *rankState) {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	p, err := sinks.New(sinks.Options{Kind: sinks.Stdout, Stdout: io.Discard, Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	outbox, err := p.OpenRank(7, 0, sinks.RankOptions{})
	if err != nil {
		t.Fatal(err)
	}
	r := New(Options{Log: log, Replays: 1, OutBytes: 1 << 20, HoldBytes: 1 << 20})
	s := newStream(r, discovery.Source{Endpoint: "tcp://127.0.0.1:1", Replay: "tcp://127.0.0.1:1"})
	s.ctx = t.Context()
	place := sinks.Place{Pos: replay.Position{Seq: 9}, Base: 5}
	rs := &rankState{conv: convert.New(convert.Config{BlockSize: 4}), outbox: outbox, owned: &owned{}, rebuild: &place, base: 5, last: place}
	s.ranks = []*rankState{rs}
	return s, rs
}

// A request that the Cursor makes while its session ends must not keep one of
// the process's replay slots: no other source could replay any more.
func TestNoSlotIsLeftBehind(t *testing.T) {
	s, _ := edgeStream(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	readers := make(chan struct{}, 1)
	for id := range uint64(500) { // select takes any of what is ready
		req := replay.Request{ID: id + 1, Fresh: true}
		s.mu.Lock()
		s.replay.want = &req
		s.mu.Unlock()
		s.ask(ctx, ctx, req, readers)
		if len(s.r.slots) != 0 {
			t.Fatalf("request %d has left a slot taken", id+1)
		}
	}
}

// A live connection that comes up while a rank is being resumed must not tell the
// Cursor of credit that there is not: replies would be thrown away, their end
// taken for an engine that has nothing.
func TestReconnectWithoutCreditWhileResuming(t *testing.T) {
	s, _ := edgeStream(t)
	s.withhold(s.begin())
	s.finish(0)
	s.liveUp(nil)
	if s.replay.want != nil {
		t.Error("replay is asked for without credit")
	}
	now := s.begin()
	s.credited = true
	s.cursor.Credit(now, true)
	s.finish(0)
	if s.replay.want == nil {
		t.Error("replay is not asked for when credit is back")
	}
}

// An engine that dies while a stream is being resumed leaves a ledger that has not
// come to the place: what is published again from it must not be resumed there.
func TestAwayWhileResuming(t *testing.T) {
	s, rs := edgeStream(t)
	s.begin()
	(*host)(s).Away()
	s.finish(0)
	if rs.rebuild != nil || rs.last.Kind != sinks.PlaceUnknown || rs.base != 0 {
		t.Errorf("rebuild %v, last %+v, base %d", rs.rebuild, rs.last, rs.base)
	}
}

// A stream that begins again takes back what it has published, also where that
// is said by removes of what the ledger knows.
func TestAnewRemovesBeforeItForgets(t *testing.T) {
	s, rs := edgeStream(t)
	rs.conv = convert.New(convert.Config{BlockSize: 4, RemovesForCleared: true})
	rs.conv.Convert(&decode.Batch{Events: []decode.Event{{
		Type: decode.Stored, Hashes: []uint64{5}, HasTokens: true, HasBlockSz: true, BlockSize: 4, Tokens: make([]byte, 16),
	}}}, new(convert.Output))
	s.anew()
	if id := rs.outbox.LastID(); id != 1 {
		t.Errorf("%d events, want one remove", id)
	}
	if n := rs.conv.Stats().Present; n != 0 {
		t.Errorf("%d blocks are still known", n)
	}
}

// A source that was refused its rank, because another one had it and left before
// it could resume, begins anew and has it then.
func TestRefusedSourceTakesOverAResumption(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	p, err := sinks.New(sinks.Options{Kind: sinks.JetStream, Servers: []string{"nats://127.0.0.1:1"}, Namespace: "n", Component: "c", Endpoint: "e", Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	r := New(Options{Log: log, Publisher: p, Replays: 1, OutBytes: 1 << 20, HoldBytes: 1 << 20})
	a, b := newStream(r, discovery.Source{Endpoint: "tcp://127.0.0.1:1"}), newStream(r, discovery.Source{Endpoint: "tcp://127.0.0.1:2"})
	if a.ownRank() == nil || b.ownRank() != nil {
		t.Fatal("both sources have the rank, or none")
	}
	r.disown(a)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	b.ctx, b.endSession = ctx, cancel
	if b.rank(0) != nil {
		t.Fatal("the rank is had without a resumption")
	}
	if ctx.Err() == nil || !b.over {
		t.Fatal("the session goes on, refused for ever")
	}
	b.anew()
	if b.ownRank() == nil {
		t.Error("refused again")
	}
}

// manyHolding is a relay whose OUT_BYTES one stream uses up, and others that hold
// batches behind a replay from 0 whose end marker has not come yet.
func manyHolding(t *testing.T, others int) (r *Relay, holding []*Stream) {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	p, err := sinks.New(sinks.Options{Kind: sinks.Stdout, Stdout: io.Discard, Logger: log}) // confirms nothing: it does not run
	if err != nil {
		t.Fatal(err)
	}
	r = New(Options{Log: log, Publisher: p, Replays: 1, OutBytes: 64 << 10, HoldBytes: 1 << 20})
	for i := range uint32(others + 1) {
		s := newStream(r, discovery.Source{Endpoint: "tcp://127.0.0.1:1", Replay: "tcp://127.0.0.1:2", Rank: i, BlockSize: 16})
		s.ctx, s.fatal = context.WithCancelCause(t.Context())
		r.credit.join(s)
		holding = append(holding, s)
	}
	busy := holding[others]
	for r.credit.take(busy, 1<<10) {
	}
	holding = holding[:others]
	for _, s := range holding {
		s.cursor.LiveUp(s.begin())
		s.finish(0)
		g, err := load.NewGenerator(load.Shape{Rank: int(s.src.Rank), Blocks: 4, BlockSize: 16})
		if err != nil {
			t.Fatal(err)
		}
		for seq := range uint64(50) {
			payload := g.Append(nil, seq)
			s.cursor.Live(s.begin(), seq, payload)
			s.finish(0)
		}
		s.cursor.ReplaySent(s.begin(), s.replay.want.ID, true)
		s.finish(0)
	}
	return r, holding
}

// A stream that holds batches goes on within its own minimum share when others
// have used up OUT_BYTES, however many they are.
func TestDrainWithinTheShare(t *testing.T) {
	_, holding := manyHolding(t, 15)
	s := holding[0]
	s.cursor.ReplayEnd(s.begin(), s.replay.want.ID)
	s.finish(0)
	s.over = true // what is applied counts, and goes nowhere: NATS keeps up
	s.drain(t.Context())
	if c := s.cursor.State(); c.Held != 0 || !s.credited {
		t.Errorf("credited: %v, %d batches are held still", s.credited, c.Held)
	}
}

// What many streams hold, and may apply at the same time, stays within OUT_BYTES
// and the shares.
func TestHeldWithinTheCredit(t *testing.T) {
	r, holding := manyHolding(t, 15)
	for _, s := range holding {
		s.cursor.ReplayEnd(s.begin(), s.replay.want.ID)
		s.finish(0)
		s.drain(t.Context())
	}
	const batch = 1 << 10 // of each stream the last one may be beyond its share
	if used, most := r.credit.unconfirmed(), r.credit.max+r.credit.max/4+int64(len(holding)*batch); used > most {
		t.Errorf("%d bytes are charged, %d are the bound", used, most)
	}
}
