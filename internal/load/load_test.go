package load

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kvrelay/kvrelay/convert"
	"github.com/kvrelay/kvrelay/decode"
	"github.com/kvrelay/kvrelay/internal/zmtp"
	"github.com/kvrelay/kvrelay/replay"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func generator(t testing.TB, s Shape) *Generator {
	t.Helper()
	g, err := NewGenerator(s)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// What the batches become: stores and removes whose hashes say which batch they
// are of, and as many blocks in the end as the generator says.
func TestBatches(t *testing.T) {
	g := generator(t, Shape{Rank: 3, Blocks: 5, BlockSize: 4, Keep: 20, TS: 1000})
	r := convert.New(convert.Config{BlockSize: 4})
	var b decode.Batch
	var out convert.Output
	last := 0.0
	for seq := range uint64(100) {
		payload := g.Append([]byte("x"), seq)[1:]
		if !slices.Equal(payload, g.Append(nil, seq)) {
			t.Fatal("not the same again")
		}
		if err := b.Decode(payload); err != nil {
			t.Fatal(err)
		}
		if !b.HasTS || b.TS <= last || !b.HasRank || b.Rank != 3 {
			t.Fatalf("batch %d: ts %v after %v, rank %d", seq, b.TS, last, b.Rank)
		}
		last = b.TS
		out.Reset()
		r.Convert(&b, &out)
		if len(out.Events) != g.Events(seq) {
			t.Fatalf("batch %d: %d events, want %d", seq, len(out.Events), g.Events(seq))
		}
		for i, block := range out.Events[0].Blocks {
			if block.Hash != Hash(3, seq, i) || Seq(block.Hash) != seq {
				t.Fatalf("batch %d, block %d: hash %x", seq, i, block.Hash)
			}
		}
		if got := uint64(r.Stats().Present); got != g.Held(seq+1) || got > 20 {
			t.Fatalf("batch %d: %d blocks present, want %d", seq, got, g.Held(seq+1))
		}
	}
	if st := r.Stats(); st.Events.Published != st.Events.In || st.Events.Suppressed > 0 {
		t.Errorf("%+v", st)
	}
}

func TestShapes(t *testing.T) {
	for _, s := range []Shape{{Blocks: 0, BlockSize: 1}, {Blocks: 1, BlockSize: 0}, {Rank: 4096, Blocks: 1, BlockSize: 1}, {Blocks: 4097, BlockSize: 1}, {Blocks: 1, BlockSize: 1, Keep: -1}} {
		if _, err := NewGenerator(s); !errors.Is(err, ErrShape) {
			t.Errorf("%+v: %v", s, err)
		}
	}
	for _, s := range []Shape{{Blocks: 1, BlockSize: 1}, {Rank: 4095, Blocks: 300, BlockSize: 16, Keep: 1}} {
		var b decode.Batch
		if err := b.Decode(generator(t, s).Append(nil, 5)); err != nil || len(b.Events[0].Hashes) != s.Blocks {
			t.Errorf("%+v: %v", s, err)
		}
	}
}

// The relay's own connections read what is published, live and by replay.
func TestPublisher(t *testing.T) {
	g := generator(t, Shape{Blocks: 64, BlockSize: 16, Keep: 640})
	p := NewPublisher(g)
	if err := p.Listen(); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(t.Context(), 20*time.Second)
	var wg sync.WaitGroup
	wg.Go(func() { p.Run(ctx) })
	defer wg.Wait()
	defer stop()

	const n = 500
	p.Preload(7)
	if p.Published() != 7 {
		t.Errorf("%d published", p.Published())
	}
	p.Preload(0)
	published := make(chan error, 1)
	var told uint64
	go func() { published <- p.Publish(ctx, 0, n, func(seq uint64) { told = seq }) }()
	conn, err := zmtp.Dial(ctx, p.Endpoint(), zmtp.Options{Type: zmtp.SUB, Heartbeat: 20 * time.Millisecond, PeerTimeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for seq := range uint64(n) {
		frames, err := conn.Recv()
		if err != nil {
			t.Fatal(err)
		}
		m, problem := replay.ParseLive(frames)
		if problem != "" || m.Seq != seq || !slices.Equal(m.Payload, g.Append(nil, seq)) {
			t.Fatalf("message %d: seq %d, %s", seq, m.Seq, problem)
		}
	}
	if err := <-published; err != nil || told != n-1 || p.Published() != n {
		t.Errorf("%v, told %d, published %d", err, told, p.Published())
	}

	router, err := replay.DialRouter(ctx, p.ReplayEndpoint(), zmtp.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer router.Close()
	for range 2 {
		if err := router.Ask(490); err != nil {
			t.Fatal(err)
		}
		for seq := uint64(490); seq < n; seq++ {
			r, err := router.Next()
			if err != nil || r.End || r.Seq != seq || !slices.Equal(r.Payload, g.Append(nil, seq)) {
				t.Fatalf("reply %d: %+v, %v", seq, r.Seq, err)
			}
		}
		if r, err := router.Next(); err != nil || !r.End {
			t.Fatalf("no end marker: %v", err)
		}
	}
	if requests, batches := p.Replays(); requests != 2 || batches != 20 {
		t.Errorf("%d requests, %d batches", requests, batches)
	}
	deadline := time.Now().Add(10 * time.Second)
	for conn.LastPong().IsZero() { // it is read by nobody but Recv
		if time.Now().After(deadline) {
			t.Fatal("PINGs are not answered")
		}
		go func() { _ = p.Publish(ctx, 0, 1, nil) }()
		if _, err := conn.Recv(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestRate(t *testing.T) {
	p := NewPublisher(generator(t, Shape{Blocks: 1, BlockSize: 1}))
	if err := p.Listen(); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { p.Run(ctx) })
	defer wg.Wait()
	defer stop()
	conn, err := zmtp.Dial(ctx, p.Endpoint(), zmtp.Options{Type: zmtp.SUB})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	wg.Go(func() {
		for {
			if _, err := conn.Recv(); err != nil {
				return
			}
		}
	})
	began := time.Now()
	if err := p.Publish(ctx, 1000, 101, nil); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took < 100*time.Millisecond { // never faster; a busy machine is slower
		t.Errorf("101 batches at 1000 a second in %v", took)
	}
}

// FuzzHandshake: whatever a peer sends, the connection ends in order.
func FuzzHandshake(f *testing.F) {
	greeting := make([]byte, 64)
	greeting[0], greeting[9], greeting[10] = 0xff, 0x7f, 3
	copy(greeting[12:], "NULL")
	f.Add(append(greeting, "\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x03SUB\x00\x01\x01"...))
	f.Add([]byte{0xff})
	f.Fuzz(func(t *testing.T, sent []byte) {
		ours, theirs := pipe(t)
		go func() {
			_, _ = theirs.Write(sent)
			theirs.Close()
		}()
		if peer, err := accept(ours, "PUB"); err == nil {
			for {
				if _, _, err := peer.frame(); err != nil {
					break
				}
			}
		}
		ours.Close()
	})
}
