package integration

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/kvrelay/kvrelay/consumer"
	"github.com/kvrelay/kvrelay/internal/mockengine"
)

// Sixteen ranks with a full buffer each, two replay slots for all of them, and
// three ROUTERs that never answer: the others are replayed, none of them waits
// for ever; and these three as well when they answer.
func TestFaultsManyRanksOneStarves(t *testing.T) {
	const ranks, dumb = 16, 3
	n := 10_000
	if raceEnabled {
		n = 1000
	}
	o := bedOptions{ranks: ranks}
	o.relay.Replays = 2
	o.relay.OutBytes = 16 << 20
	b := newBed(t, rand.New(rand.NewPCG(1, 16)), o)
	for _, k := range b.ranks {
		k.w = nil // one block a batch, so that the relay is what is measured
		for i := range n {
			k.Publish(numberedBatch(k.id.DP, i))
		}
		k.Silence(k.id.DP < dumb)
	}
	start := time.Now()
	b.start()
	done := map[uint32]time.Duration{}
	all := func(from, to uint32) func() bool {
		return func() bool {
			for i := from; i < to; i++ {
				k := consumer.Rank{Worker: 42, DP: i}
				if _, has := b.router.picture.Lookup(k, consumer.Device, numberedHash(i, n-1)); has && done[i] == 0 {
					done[i] = time.Since(start)
				}
			}
			for i := from; i < to; i++ {
				if done[i] == 0 {
					return false
				}
			}
			return true
		}
	}
	if !eventually(2*patience, all(dumb, ranks)) {
		t.Fatalf("only these ranks were replayed beside %d that do not answer: %v", dumb, done)
	}
	healthy := time.Since(start)
	for _, k := range b.ranks[:dumb] {
		k.Silence(false)
	}
	if !eventually(2*patience, all(0, ranks)) {
		t.Fatalf("only these ranks were replayed: %v", done)
	}
	first, last, rounds := healthy, time.Duration(0), uint64(0)
	for _, k := range b.ranks {
		if got := b.router.picture.Len(k.id, consumer.Device); got != n {
			t.Errorf("rank %d: %d blocks, want %d", k.id.DP, got, n)
		}
		c := k.source().Cursor
		rounds += c.Requests - c.Polls
		if k.id.DP >= dumb {
			first, last = min(first, done[k.id.DP]), max(last, done[k.id.DP])
		}
	}
	t.Logf("%d ranks × %d batches, 2 slots: the first of %d that answer after %v, the last after %v; all, with %d that began to answer then, after %v; %d rounds",
		ranks, n, ranks-dumb, first.Round(time.Millisecond), last.Round(time.Millisecond), dumb, time.Since(start).Round(time.Millisecond), rounds)
	b.end()
}

func numberedHash(rank uint32, i int) uint64 { return uint64(rank+1)<<32 + uint64(i) }

// numberedBatch stores one block.
func numberedBatch(rank uint32, i int) []byte {
	e := mockengine.Encoder{Batch: mockengine.Array, Event: mockengine.Map, Hashes: mockengine.Unsigned, BlockSize: 16, Rank: int(rank)}
	tokens := make([]uint32, e.BlockSize)
	for j := range tokens {
		tokens[j] = uint32(i*e.BlockSize + j)
	}
	return e.Encode(nil, 1.79e9+float64(i), []mockengine.Event{{Kind: mockengine.Stored, Hashes: []uint64{numberedHash(rank, i)}, Tokens: tokens}})
}
