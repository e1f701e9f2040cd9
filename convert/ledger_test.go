package convert

import (
	"math/rand/v2"
	"testing"
)

// ledgerModel is a ledger of maps.
type ledgerModel map[placed]struct{ number, tokens uint64 }

// TestLedgerChurn grows, churns and shrinks a ledger in several patterns and
// compares it with a map: found, numbers kept, order of numbers, space given back.
func TestLedgerChurn(t *testing.T) {
	for seed, pattern := range []string{"oldest first", "newest first", "at random", "in stripes"} {
		t.Run(pattern, func(t *testing.T) {
			g := rand.New(rand.NewPCG(uint64(seed), 7))
			l := newLedger(DefaultMaxBlocks)
			model := ledgerModel{}
			var keys []placed
			add := func() {
				k := placed{Tier(g.IntN(4)), g.Uint64()}
				slot, e := l.add(k.tier, k.hash)
				e.tokens = g.Uint64()
				l.setDoubted(slot, e, g.IntN(3) == 0)
				model[k] = struct{ number, tokens uint64 }{l.next - 1, e.tokens}
				keys = append(keys, k)
			}
			remove := func() {
				i := 0
				switch pattern {
				case "newest first":
					i = len(keys) - 1
				case "at random":
					i = g.IntN(len(keys))
				case "in stripes": // every segment keeps some
					i = len(keys) * g.IntN(16) / 16
				}
				k := keys[i]
				keys = append(keys[:i], keys[i+1:]...)
				slot, e, ok := l.lookup(k.tier, k.hash)
				if !ok {
					t.Fatalf("%v is not there", k)
				}
				l.remove(slot, e)
				l.tidy(slot)
				delete(model, k)
			}
			for _, size := range []int{5000, 9000, 300, 6000, 0, 1500} {
				for n := 0; len(keys) != size; n++ {
					if more := len(keys) < size; more == (g.IntN(4) > 0) {
						add()
					} else if len(keys) > 0 {
						remove()
					}
				}
				checkLedger(t, &l)
				checkModel(t, &l, model)
				// Three neighbours never fit into two, so at worst half is empty
				// between full ones; what is much below is not packed.
				if places := len(l.order) * segSize; places > 2*size+3*segSize {
					t.Errorf("%d entries take %d places", size, places)
				}
				if t.Failed() {
					t.Fatalf("at %d entries", size)
				}
			}
			l.clear()
			checkLedger(t, &l)
			checkModel(t, &l, ledgerModel{})
			add()
			checkModel(t, &l, ledgerModel{keys[len(keys)-1]: model[keys[len(keys)-1]]})
		})
	}
}

func checkModel(t *testing.T, l *ledger, model ledgerModel) {
	t.Helper()
	for k, want := range model {
		slot, e, ok := l.lookup(k.tier, k.hash)
		if !ok || e.tokens != want.tokens || l.seg(slot).base+uint64(e.delta) != want.number {
			t.Fatalf("%v: found %t, %+v, want %+v", k, ok, e, want)
		}
		if _, _, ok := l.lookup(k.tier, k.hash+1); ok {
			t.Fatalf("%v: a hash beside it is found", k)
		}
	}
	n := 0
	l.each(0, func(uint32, *entry) bool { n++; return true })
	if n != len(model) || l.size() != len(model) {
		t.Fatalf("%d entries walked, %d counted, want %d", n, l.size(), len(model))
	}
}

// TestLedgerSparse keeps one entry of every thousand: neither memory nor the
// walk may follow the numbers.
func TestLedgerSparse(t *testing.T) {
	g := rand.New(rand.NewPCG(3, 3))
	l := newLedger(DefaultMaxBlocks)
	const kept, skip = 3000, 1000
	var last []placed
	for i := range kept * skip {
		k := placed{Device, g.Uint64()}
		l.add(k.tier, k.hash)
		if i%skip == 0 {
			continue
		}
		last = append(last, k)
		if len(last) > 500 { // they live for a while
			slot, e, _ := l.lookup(last[0].tier, last[0].hash)
			l.remove(slot, e)
			l.tidy(slot)
			last = last[1:]
		}
	}
	checkLedger(t, &l)
	if places := len(l.order) * segSize; places > 2*l.size()+3*segSize {
		t.Errorf("%d entries take %d places", l.size(), places)
	}
	if len(l.index.dir) > 16 {
		t.Errorf("the index of %d entries has a directory of %d", l.size(), len(l.index.dir))
	}
}
