package integration

import (
	"time"

	"github.com/kvrelay/kvrelay/consumer"
	"github.com/kvrelay/kvrelay/internal/mockengine"
	"github.com/kvrelay/kvrelay/relay"
	"github.com/kvrelay/kvrelay/replay"
)

// bedRank is one rank of the engine: its sockets, and what is published there.
type bedRank struct {
	*mockengine.Publisher
	b            *bed
	id           consumer.Rank
	w            *workload
	seqs         []uint64          // of w.batches
	live, replay *mockengine.Proxy // nil: no network
	marks        int
	first        int // marks of this rank begin here, so that no two have one
}

// settleTime is how long the router may take to hold what the engine holds.
const settleTime = 25 * time.Second

// source is the relay's view of a rank; nil where the relay is the program.
func (k *bedRank) source() *relay.SourceStatus {
	if k.b.relay == nil {
		return nil
	}
	for _, s := range k.b.relay.Status().Sources {
		if s.Source.Rank == k.id.DP {
			return &s
		}
	}
	return nil
}

// cursor is the relay's place in a rank's stream; zero where it is not known.
func (k *bedRank) cursor() replay.State {
	if s := k.source(); s != nil {
		return s.Cursor
	}
	return replay.State{}
}

// publish makes n batches, a share of them only in the replay buffer.
func (k *bedRank) publish(n int, share float64) {
	for range n {
		k.put(k.w.next(), k.b.r.Float64() < share)
	}
}

func (k *bedRank) put(payload []byte, withhold bool) {
	if withhold {
		k.DropNext(1)
	}
	k.seqs = append(k.seqs, k.Publish(payload))
}

// mark publishes a block that nobody else has.
func (k *bedRank) mark(withhold bool) {
	k.marks++
	k.put(k.w.mark(k.markHash()), withhold)
}

func (k *bedRank) markHash() uint64 { return markOf(k.first + k.marks) }

// fresh is to be called where the engine's process is another one.
func (k *bedRank) fresh() {
	k.w.restart()
	k.seqs = nil
}

// cut is a network that is gone.
func (k *bedRank) cut() {
	for _, p := range []*mockengine.Proxy{k.live, k.replay} {
		p.Refuse()
		p.Cut(false)
	}
}

func (k *bedRank) uncut() {
	for _, p := range []*mockengine.Proxy{k.live, k.replay} {
		if err := p.Admit(); err != nil {
			k.b.t.Error(err)
		}
	}
}

// settle publishes a mark and waits until the router holds what the engine holds.
func (k *bedRank) settle() {
	k.b.t.Helper()
	k.mark(false)
	k.settled()
}

// settled waits until the router has the last mark and holds what the engine
// holds – after lost history what the engine has published from some batch on.
func (k *bedRank) settled() {
	t := k.b.t
	t.Helper()
	var d string
	ok := eventually(settleTime, func() bool {
		if _, has := k.b.router.picture.Lookup(k.id, consumer.Device, k.markHash()); !has {
			d = "the last mark has not come"
			return false
		}
		d = k.differs()
		return d == ""
	})
	if !ok {
		t.Fatalf("rank %d, %d batches: %s; source: %+v", k.id.DP, len(k.w.batches), d, k.source())
	}
}

// differs compares the router's picture with the engine's cache: "" when it is
// the same.
func (k *bedRank) differs() string {
	got := heldBy(k.b.router.picture, k.id)
	if s := k.source(); s != nil {
		from := 0
		for from < len(k.seqs) && k.seqs[from] < s.Cursor.Base {
			from++
		}
		return k.from(from).diff(got, nil)
	}
	d := k.from(0).diff(got, nil)
	if d == "" {
		return ""
	}
	if k.b.said("history is lost") > 0 || k.b.said("history before the engine") > 0 {
		for from := 1; from < len(k.w.batches); from++ {
			if k.w.fold(k.w.batches[from:]).diff(got, nil) == "" {
				return ""
			}
		}
	}
	return d
}

// from is what a router must hold that knows the batches from one on.
func (k *bedRank) from(batch int) held {
	if batch == 0 {
		if h, ok := k.w.truth(); ok {
			return h
		}
	}
	return k.w.fold(k.w.batches[batch:])
}
