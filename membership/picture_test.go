package membership

import (
	"encoding/json"
	"maps"
	"testing"

	"github.com/kvrelay/kvrelay/convert"
	"github.com/kvrelay/kvrelay/decode"
)

// restore reads a dump as a router does, and checks its order: a store stands
// behind the one that brings its parent, unless that is not in the dump.
func restore(t testing.TB, p *picture, src Source) held {
	t.Helper()
	var text []byte
	body, n := p.encode(src)
	for _, part := range body {
		text = append(text, part...)
	}
	var r response
	if err := json.Unmarshal(text, &r); err != nil || r.Data.TreeDump == nil || r.Data.TreeDump.Reset != "all" {
		t.Fatalf("%v: %.300s", err, text)
	}
	if r.Data.TreeDump.Last != p.last {
		t.Fatalf("last id %d, want %d", r.Data.TreeDump.Last, p.last)
	}
	h := held{}
	orphans := map[place]bool{} // parents named before they came
	id := uint64(0)
	read(t, r.Data.TreeDump.Events, func(got uint64, e *convert.RouterEvent) {
		if e.Kind != convert.Stored || e.NoDomain || len(e.Blocks) == 0 || len(e.Blocks) > maxRun {
			t.Fatalf("a dump has %+v", e)
		}
		if got != id {
			t.Fatalf("event id %d, want %d", got, id)
		}
		id++
		if _, there := h[place{e.Tier, e.Parent}]; e.HasParent && !there {
			orphans[place{e.Tier, e.Parent}] = true
		}
		for _, b := range e.Blocks {
			if _, twice := h[place{e.Tier, b.Hash}]; twice {
				t.Fatalf("block %d comes twice", b.Hash)
			}
		}
		h.apply(e)
	})
	if n != len(h) {
		t.Errorf("%d blocks said, %d there", n, len(h))
	}
	for o := range orphans {
		if _, there := h[o]; there && !inRing(h, o) {
			t.Errorf("block %d comes behind its child", o.Hash)
		}
	}
	return h
}

// inRing says whether a block hangs on itself.
func inRing(h held, from place) bool {
	for at, n := from, 0; n <= len(h); n++ {
		c, ok := h[at]
		if !ok || !c.HasParent {
			return false
		}
		if at.Hash = c.Parent; at == from {
			return true
		}
	}
	return true // leads into a ring
}

// TestPictureWhileItChanges: whatever is stored, removed and cleared between
// the chunks of the walk, the picture is exact as of the id that it names.
func TestPictureWhileItChanges(t *testing.T) {
	for seed := range uint64(40) {
		r := newRank(t, seed, 4000)
		for range 3000 {
			r.step()
		}
		chunks := 0
		r.between = func() {
			chunks++
			for range r.r.IntN(200) {
				r.step()
			}
		}
		p := take(t.Context(), r)
		if p == nil {
			t.Fatal("no picture")
		}
		r.between = nil
		want, last := r.published()
		if p.last != last {
			t.Fatalf("seed %d: exact as of %d, want %d", seed, p.last, last)
		}
		if got := restore(t, p, r); !maps.Equal(got, want) {
			t.Fatalf("seed %d: %d blocks, want %d", seed, len(got), len(want))
		}
		if chunks == 0 {
			t.Fatal("nothing was walked")
		}
	}
}

// TestPictureOfLongChains: chains beyond a run, forks, other tiers under the
// same hash, and blocks whose parents are gone.
func TestPictureOfLongChains(t *testing.T) {
	r := newRank(t, 1, 1)
	chain := func(medium string, parent uint64, hashes ...uint64) {
		e := decode.Event{Type: decode.Stored, HasTokens: true, HasBlockSz: true, BlockSize: 4, HasParent: parent != 0, Parent: parent, Hashes: hashes, Medium: []byte(medium)}
		for _, h := range hashes {
			e.Tokens = append(e.Tokens, byte(h), byte(h>>8), 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1)
		}
		r.batch(e)
	}
	var long []uint64
	for h := uint64(1); h <= 3*maxRun+7; h++ {
		long = append(long, h)
	}
	chain("GPU", 0, long...)
	chain("CPU", 0, long[:10]...)
	chain("GPU", 200, 5000, 5001, 5002)
	chain("GPU", 200, 6000)
	chain("GPU", 9999, 7000, 7001)                                     // never seen
	r.batch(decode.Event{Type: decode.Removed, Hashes: []uint64{300}}) // 301 … are orphans now
	p := take(t.Context(), r)
	want, _ := r.published()
	if got := restore(t, p, r); !maps.Equal(got, want) {
		t.Fatalf("%d blocks, want %d", len(got), len(want))
	}
}

// TestPictureOfRings: blocks that are each other's ancestors come once each.
func TestPictureOfRings(t *testing.T) {
	p := newPicture()
	want := held{}
	for _, n := range []node{{hash: 1, parent: 3}, {hash: 2, parent: 1}, {hash: 3, parent: 2}, {hash: 4, parent: 2}, {hash: 5, parent: 5}} {
		n.hasParent, n.tokens = true, n.hash*10
		p.put(n, nil)
		want[place{0, n.hash}] = content{n.tokens, n.parent, true, "[]"}
	}
	r := newRank(t, 1, 1)
	if got := restore(t, p, r); !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestPictureKeepsObjects: multimodal objects are kept, and are the picture's own.
func TestPictureKeepsObjects(t *testing.T) {
	p := newPicture()
	e := convert.RouterEvent{Kind: convert.Stored, Blocks: []convert.Block{
		{Hash: 1, TokensHash: 2, MM: []convert.MMObject{{Hash: 7, Offsets: [][2]uint64{{1, 2}}}}}, {Hash: 3, TokensHash: 4},
	}}
	p.apply(&e)
	want := held{}
	want.apply(&e)
	e.Blocks[0].MM[0] = convert.MMObject{Hash: 99}
	want[place{0, 1}] = content{2, 0, false, "[{7 [[1 2]]}]"}
	if got := restore(t, p, newRank(t, 1, 1)); !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestPictureNeedsTheRing: without the events since the walk began there is none.
func TestPictureNeedsTheRing(t *testing.T) {
	r := newRank(t, 1, 500)
	for range 500 {
		r.step()
	}
	r.lo = r.LastID() + 2
	if take(t.Context(), r) != nil {
		t.Error("a picture without the events of its time")
	}
}
