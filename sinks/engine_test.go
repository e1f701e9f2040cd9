package sinks

import (
	"flag"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	reference "github.com/kvrelay/kvrelay/consumer"
	"github.com/kvrelay/kvrelay/convert"
	"github.com/kvrelay/kvrelay/decode"
)

var seeds = flag.Int("seeds", 12, "random scenarios a test runs; 200 is the long variant")

// brisk is a timing in which ownership and heartbeats take no second.
var brisk = func() timing {
	t := quick
	t.listen, t.beat, t.silence, t.patience, t.token = 150*time.Millisecond, 30*time.Millisecond, 400*time.Millisecond, 2*time.Second, time.Minute
	return t
}()

// rank is the engine side of an outbox: batches, their conversion, and what
// they have published so far.
type rank struct {
	t  testing.TB
	o  *Outbox
	r  *rand.Rand
	nh uint64 // hashes are 1 … nh

	mu      sync.Mutex
	conv    *convert.Rank
	out     convert.Output
	want    fold
	state   string
	rebuild bool
	seq     uint64
	walks   int // calls
	most    int // blocks in one call
}

func openRank(t testing.TB, p *Publisher, worker uint64, seed, hashes uint64) *rank {
	t.Helper()
	r := &rank{
		t: t, r: rand.New(rand.NewPCG(seed, 99)), nh: hashes, want: fold{}, state: StateLive,
		conv: convert.New(convert.Config{WorkerID: worker, BlockSize: 4}),
	}
	o, err := p.OpenRank(worker, 0, RankOptions{Source: r})
	if err != nil {
		t.Fatal(err)
	}
	r.o = o
	r.mu.Lock()
	defer r.mu.Unlock()
	r.conv.Cleared(&r.out, true)
	r.append(Place{Kind: PlaceEmpty})
	return r
}

func (r *rank) append(at Place) {
	for i := range r.out.Events {
		r.want.apply(&r.out.Events[i])
	}
	r.o.Append(at, r.out.Events)
	r.out.Reset()
}

// events makes a random batch.
func (r *rank) events() []decode.Event {
	var evs []decode.Event
	for range 1 + r.r.IntN(3) {
		switch x := r.r.IntN(60); {
		case x == 0:
			evs = append(evs, decode.Event{Type: decode.Cleared})
		case x < 25:
			e := decode.Event{Type: decode.Removed}
			for range 1 + r.r.IntN(4) {
				e.Hashes = append(e.Hashes, 1+r.r.Uint64N(r.nh))
			}
			evs = append(evs, e)
		default:
			e := decode.Event{HasParent: r.r.IntN(3) > 0}
			if e.HasParent {
				e.Parent = 1 + r.r.Uint64N(r.nh)
			}
			if r.r.IntN(4) == 0 {
				e.Medium = []byte("CPU")
			}
			first := 1 + r.r.Uint64N(r.nh)
			for i := range 1 + r.r.Uint64N(5) {
				if h := 1 + (first+i)%r.nh; !e.HasParent || h != e.Parent {
					e.Hashes = append(e.Hashes, h)
				}
			}
			evs = append(evs, store(e))
		}
	}
	return evs
}

// store completes a store of e's hashes with tokens.
func store(e decode.Event) decode.Event {
	e.Type, e.HasTokens, e.HasBlockSz, e.BlockSize = decode.Stored, true, true, 4
	for _, h := range e.Hashes {
		for i := range uint64(4) {
			e.Tokens = append(e.Tokens, byte(h), byte(h>>8), byte(h>>16), byte(i))
		}
	}
	return e
}

// step converts and publishes one batch.
func (r *rank) step(evs []decode.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.conv.Convert(&decode.Batch{Events: evs}, &r.out)
	r.seq++
	at := Place{}
	at.Pos.Seq = r.seq
	r.append(at)
}

func (r *rank) published() fold {
	r.mu.Lock()
	defer r.mu.Unlock()
	f := fold{}
	for k, v := range r.want {
		f[k] = v
	}
	return f
}

func (r *rank) set(state string) {
	r.mu.Lock()
	r.state = state
	r.mu.Unlock()
	r.o.Changed()
}

func (r *rank) RankState() RankState {
	r.mu.Lock()
	defer r.mu.Unlock()
	return RankState{State: r.state, Seq: r.seq, Epoch: 3, Blocks: r.conv.Stats().Present, LagMS: 1.5, Rebuilding: r.rebuild}
}

func (r *rank) Newest() (number, lastID uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.conv.Newest(), r.o.LastID()
}

func (r *rank) Walk(from, to uint64, out *convert.Output) (next, lastID uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	next = r.conv.Walk(from, to, out)
	n := 0
	for i := range out.Events {
		n += len(out.Events[i].Blocks)
	}
	r.walks++
	r.most = max(r.most, n)
	return next, r.o.LastID()
}

// router follows one worker with the reference consumer.
type router struct {
	c  *reference.Consumer
	mu sync.Mutex
	f  fold
	n  int
}

func (x *router) state() fold {
	x.mu.Lock()
	defer x.mu.Unlock()
	f := fold{}
	for k, v := range x.f {
		f[k] = v
	}
	return f
}

// apply takes one of the consumer's events.
func (x *router) apply(e *reference.Event) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.n++
	r := convert.RouterEvent{Tier: convert.Tier(e.Tier), HasParent: e.HasParent, Parent: e.Parent, Hashes: e.Hashes}
	switch e.Kind {
	case reference.Cleared:
		r.Kind = convert.Cleared
	case reference.Removed:
		r.Kind = convert.Removed
	default:
		r.Kind = convert.Stored
	}
	for _, b := range e.Blocks {
		r.Blocks = append(r.Blocks, convert.Block{Hash: b.Hash, TokensHash: b.TokensHash})
	}
	x.f.apply(&r)
}

// lossy passes events on to another subject, but for those that it loses.
type lossy struct {
	mu   sync.Mutex
	r    *rand.Rand
	one  int // loses one of so many; 0: none
	down bool
}

func (l *lossy) set(one int, down bool) {
	l.mu.Lock()
	l.one, l.down = one, down
	l.mu.Unlock()
}

func (l *lossy) start(t testing.TB, nc *nats.Conn, subject, to string) {
	t.Helper()
	_, err := nc.Subscribe(subject, func(m *nats.Msg) {
		l.mu.Lock()
		lost := l.down || l.one > 0 && l.r.IntN(l.one) == 0
		l.mu.Unlock()
		if !lost {
			if err := nc.PublishMsg(&nats.Msg{Subject: to, Header: m.Header, Data: m.Data}); err != nil {
				t.Error(err)
			}
		}
	})
	if err == nil {
		err = nc.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
}
