//go:build integration

package integration

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/kvrelay/kvrelay/consumer"
	"github.com/kvrelay/kvrelay/internal/mockengine"
)

// soakRank is a rank of the soak's engine, with everything that can happen to
// it: a mock publisher in this process (own) or a process of libzmq (zmq). The
// relay reaches each through a proxy, which is the network, and a front, where
// somebody hostile may take its place.
type soakRank struct {
	s    *soak
	name string
	id   consumer.Rank
	own  *bedRank   // or
	zmq  *faultRank // this
	w    *workload

	hops [2]soakHop // live, replay

	// bases are the batches at which a replay buffer that was cut short began:
	// what a relay may know the engine's history from, beside its beginning.
	bases   []int
	stopped bool    // its process stands still, nothing can be asked of it
	busy    [3]bool // a trouble of the engine, the network, a hostile peer is under way
}

type soakHop struct {
	proxy *mockengine.Proxy
	front *front
}

// The layers of trouble: one of each at a time.
const (
	layerEngine = iota
	layerNetwork
	layerHostile
)

func (s *soak) newOwn(b *bed, i uint32) *soakRank {
	k := &soakRank{s: s, name: fmt.Sprintf("own%d", i), own: b.newRank(i)}
	k.id, k.w = k.own.id, k.own.w
	k.behind(s, k.own.live, fmt.Sprintf("127.0.0.1:%d", k.own.EventPort()), 0)
	k.behind(s, k.own.replay, fmt.Sprintf("127.0.0.1:%d", k.own.ReplayPort()), 1)
	return k
}

func (s *soak) newZMQ(f *faultWorld, i uint32) *soakRank {
	cfg := ownEngine()
	cfg.Socket = "PUB"
	cfg.Shape = []string{"3", "4", "atom"}[s.r.IntN(3)]
	cfg.BufferSteps = 10_000
	z := &faultRank{f: f, cfg: cfg, w: newWorkload(s.t, s.r, i), id: consumer.Rank{Worker: 42, DP: i}}
	z.engine = startEngine(s.t, cfg)
	z.live, z.replay = startProxy(s.t, z.engine.Pub), startProxy(s.t, z.engine.Router)
	k := &soakRank{s: s, name: fmt.Sprintf("zmq%d", i), zmq: z, id: z.id, w: z.w}
	k.behind(s, z.live, strings.TrimPrefix(z.engine.Pub, "tcp://"), 0)
	k.behind(s, z.replay, strings.TrimPrefix(z.engine.Router, "tcp://"), 1)
	return k
}

// behind puts a front between a proxy and the engine.
func (k *soakRank) behind(s *soak, p *mockengine.Proxy, engine string, hop int) {
	f := newFront(s.t, engine)
	p.SetTarget(strings.TrimPrefix(f.endpoint(), "tcp://"))
	k.hops[hop] = soakHop{p, f}
}

// network does something to the network before both sockets.
func (k *soakRank) network(do func(p *mockengine.Proxy)) {
	for _, h := range k.hops {
		do(h.proxy)
	}
}

// publish makes n batches, a share of them only in the replay buffer.
func (k *soakRank) publish(n int, share float64) {
	switch {
	case k.own != nil:
		k.own.publish(n, share)
	case !k.stopped && n > 0:
		k.zmq.publish(n, share)
	}
}

// mark publishes a block that nobody else has.
func (k *soakRank) mark() {
	if k.own != nil {
		k.own.mark(false)
	} else {
		k.zmq.putMark(false)
	}
}

func (k *soakRank) marked() bool {
	hash := uint64(0)
	if k.own != nil {
		hash = k.own.markHash()
	} else {
		hash = k.zmq.markHash()
	}
	_, has := k.s.core.picture.Lookup(k.id, consumer.Device, hash)
	return has
}

// fresh is to be called where the engine's process is another one.
func (k *soakRank) fresh() {
	k.bases = nil
	if k.own != nil {
		k.own.fresh()
	} else {
		k.w.restart()
	}
}

// forgets is to be called where the replay buffer was cut short: it begins with
// the n newest batches.
func (k *soakRank) forgets(n int) {
	k.bases = append(k.bases, max(0, len(k.w.batches)-n))
}

// differs compares the router's picture with the engine's cache: "" when it is
// the same, or the same from a batch on at which the replay buffer once began.
// After a loss that the relay declared any batch will do, where all.
func (k *soakRank) differs(all bool) string {
	if !k.marked() {
		return "the last mark has not come"
	}
	got := heldBy(k.s.core.picture, k.id)
	want := k.w.fold(k.w.batches)
	if truth, ok := k.w.truth(); ok {
		want = truth
	}
	d := want.diff(got, nil)
	if d == "" {
		return ""
	}
	from := slices.Clone(k.bases)
	for i := 1; all && i < len(k.w.batches); i++ {
		from = append(from, i)
	}
	for _, i := range from {
		if k.w.fold(k.w.batches[i:]).diff(got, nil) == "" {
			return ""
		}
	}
	return d
}

// hostileSockets are all rows of TestHostilePeers that take no long time.
func hostileSockets(r *rand.Rand) hostileRow {
	all := slices.Concat(handshakeRows(), liveRows(), sequenceRows(), replayRows())
	return all[r.IntN(len(all))]
}
