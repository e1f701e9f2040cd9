package replay

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestHeldModel compares held with maps.
func TestHeldModel(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 300 {
		b := NewBudget(2000)
		h := held{budget: b}
		live, replayed := map[uint64]int{}, map[uint64]int{} // seq → size
		sum := func() (n int64) {
			for _, m := range []map[uint64]int{live, replayed} {
				for _, size := range m {
					n += int64(size + heldCost)
				}
			}
			return n
		}
		for range 200 {
			seq, size := r.Uint64N(40), r.IntN(50)
			_, isLive := live[seq]
			_, isReplayed := replayed[seq]
			switch op := r.IntN(10); {
			case op < 5 && !isLive && !isReplayed:
				m, rep := live, op < 2
				if rep {
					m = replayed
				}
				fits := sum()+int64(size+heldCost) <= 2000
				if ok := h.put(seq, seq*3, make([]byte, size), rep); ok != fits {
					t.Fatalf("put %v, fits %v", ok, fits)
				}
				if fits {
					m[seq] = size
				}
			case op == 5:
				got, rep, ok := h.take(seq)
				if ok != (isLive || isReplayed) || ok && (rep != isReplayed || got.seq != seq || got.sum != seq*3) {
					t.Fatalf("take %d: %+v %v %v", seq, got, rep, ok)
				}
				delete(live, seq)
				delete(replayed, seq)
			case op == 6:
				h.toLive(seq)
				if isReplayed {
					live[seq] = replayed[seq]
					delete(replayed, seq)
				}
			case op == 7 && seq < 8:
				n := 0
				for _, m := range []map[uint64]int{live, replayed} {
					for s := range m {
						if s < seq {
							delete(m, s)
							n++
						}
					}
				}
				if got := h.dropBelow(seq); got != uint64(n) {
					t.Fatalf("dropped %d, not %d", got, n)
				}
			case op == 8 && seq == 0:
				if got := h.dropReplayed(); got != uint64(len(replayed)) {
					t.Fatalf("dropped %d, not %d", got, len(replayed))
				}
				clear(replayed)
			}
			all := []uint64{}
			for s := range live {
				all = append(all, s)
			}
			for s := range replayed {
				all = append(all, s)
			}
			slices.Sort(all)
			lo, okLo := h.min()
			hi, okHi := h.max()
			if h.len() != len(all) || okLo != (len(all) > 0) || okHi != okLo || okLo && (lo != all[0] || hi != all[len(all)-1]) {
				t.Fatalf("%d from %d to %d, want %v", h.len(), lo, hi, all)
			}
			from := r.Uint64N(39)
			to := from + 1 + r.Uint64N(10)
			between := false
			for s := range live {
				between = between || from < s && s < to
			}
			if h.liveBetween(from, to) != between {
				t.Fatalf("live between %d and %d: %v", from, to, !between)
			}
			if b.Used() != sum() || h.bytes != sum() {
				t.Fatalf("%d bytes, %d in the budget, want %d", h.bytes, b.Used(), sum())
			}
		}
		if h.clear() != uint64(len(live)+len(replayed)) || b.Used() != 0 {
			t.Fatal("clear")
		}
	}
}

func TestRingModel(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for size := 1; size < 20; size++ {
		ring := ring{size: size}
		var model []seen
		for seq := uint64(0); seq < 200; seq += 1 + r.Uint64N(3) {
			ring.add(seen{seq, r.Uint64()})
			model = append(model, ring.at(len(ring.list)-1))
			model = model[max(0, len(model)-size):]
			if ring.lowest() != model[0].seq {
				t.Fatalf("lowest %d, not %d", ring.lowest(), model[0].seq)
			}
			for q := range seq + 3 {
				i := slices.IndexFunc(model, func(s seen) bool { return s.seq == q })
				sum, ok := ring.get(q)
				if ok != (i >= 0) || ok && sum != model[i].sum {
					t.Fatalf("get %d: %d %v", q, sum, ok)
				}
				to := q + 1 + r.Uint64N(5)
				if ring.between(q, to) != slices.ContainsFunc(model, func(s seen) bool { return q < s.seq && s.seq < to }) {
					t.Fatalf("between %d and %d", q, to)
				}
			}
		}
		ring.clear()
		if _, ok := ring.get(199); ok || ring.lowest() != 0 {
			t.Fatal("not empty")
		}
	}
}

// nobody is a Host that does nothing.
type nobody struct{ Host }

func (nobody) Apply(Position, []byte, bool) {}
func (nobody) Ask(Request)                  {}
func (nobody) Ready()                       {}
func (nobody) CloseReplay()                 {}

// BenchmarkLive is a batch in order, from the socket buffer to Apply.
func BenchmarkLive(b *testing.B) {
	for _, size := range []int{200, 4096} {
		b.Run(map[int]string{200: "200B", 4096: "4KiB"}[size], func(b *testing.B) {
			c := NewCursor(Config{TS: simTS}, nobody{})
			c.LiveUp(simBegin)
			c.ReplaySent(simBegin, 1, true)
			c.ReplayEnd(simBegin, 1)
			payload := make([]byte, size)
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for i := range b.N {
				c.Live(simBegin, uint64(i), payload)
			}
		})
	}
}

// BenchmarkHeld is a batch that waits for a replay: copied, then applied.
func BenchmarkHeld(b *testing.B) {
	c := NewCursor(Config{TS: simTS, Hold: NewBudget(64 << 20)}, nobody{})
	c.LiveUp(simBegin)
	id := uint64(1)
	c.ReplaySent(simBegin, id, true)
	c.ReplayEnd(simBegin, id)
	payload := make([]byte, 4096)
	b.SetBytes(4096)
	b.ReportAllocs()
	c.Live(simBegin, 0, payload)
	const run = 1000
	for i := 0; i < b.N; i += run {
		first := c.State().Next
		for q := range uint64(run) {
			c.Live(simBegin, first+1+q, payload)
		}
		id++
		c.ReplayBatch(simBegin, id, first-1, payload)
		c.ReplayBatch(simBegin, id, first, payload)
		c.ReplayEnd(simBegin, id)
	}
	if got := c.State(); got.Held != 0 || got.Next < uint64(b.N) {
		b.Fatalf("%+v", got)
	}
}

// Batches that wait come in any order, also in the worst one, and their list
// stays in order at no more than a chunk's cost for each.
func TestBatchListInAnyOrder(t *testing.T) {
	const n = 20_000
	r := rand.New(rand.NewPCG(1, 2))
	for name, seq := range map[string]func(i int) uint64{
		"rising":    func(i int) uint64 { return uint64(i) },
		"falling":   func(i int) uint64 { return uint64(n - i) },
		"scattered": func(i int) uint64 { return uint64(i) * 0x9e3779b97f4a7c15 },
		"both ends": func(i int) uint64 { return 1<<40 + uint64(i)*uint64(i%2*2-1) },
	} {
		var l batchList
		want := map[uint64]bool{}
		for i := range n {
			s := seq(i)
			if _, ok := l.find(s); ok {
				t.Fatalf("%s: %d is there before it came", name, s)
			}
			l.put(heldBatch{seq: s, sum: s + 1})
			want[s] = true
			if r.IntN(3) == 0 { // from the front, the back or the middle, as the cursor does
				gone := []uint64{l.first().seq, l.last().seq, s}[r.IntN(3)]
				at, ok := l.find(gone)
				if !ok || l.at(at).sum != gone+1 {
					t.Fatalf("%s: %d is lost", name, gone)
				}
				l.remove(at)
				delete(want, gone)
			}
		}
		for _, c := range l.chunks {
			if len(c) == 0 || len(c) > chunkSize {
				t.Fatalf("%s: a chunk of %d", name, len(c))
			}
		}
		if l.len() != len(want) {
			t.Fatalf("%s: %d batches, want %d", name, l.len(), len(want))
		}
		for _, s := range slices.Sorted(maps.Keys(want)) {
			if l.first().seq != s {
				t.Fatalf("%s: first is %d, want %d", name, l.first().seq, s)
			}
			l.remove(place{})
		}
		if l.len() != 0 || l.chunks != nil {
			t.Fatalf("%s: %d are left", name, l.len())
		}
	}
}
