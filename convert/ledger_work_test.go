package convert

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// What one operation of the ledger may move at most: three segments packed into
// fewer, a page joined, a segment cleared; or a page split, and split again where
// chance wills. At 150 ns a place whose memory is nowhere near, that is below a
// millisecond; a pointer takes about one.
const (
	maxPlaces1 = 3*segSize + 2*pageSize
	maxSplits  = 3 // in a row; each further one has a chance of 2^-767
)

// TestLedgerWork counts what single operations move while a ledger grows to its
// full size, shrinks in three ways, is kept aside, and is cleared. Counts are the
// same on a busy machine as on an idle one; BenchmarkLedgerPauses tells the time.
func TestLedgerWork(t *testing.T) {
	sizes := ledgerSizes
	if testing.Short() || raceEnabled {
		sizes = []int{1 << 17} // the others take minutes with the race detector
	}
	for _, n := range sizes {
		t.Run(fmt.Sprintf("%dK", n>>10), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(1, 2))
			l := newLedger(n)
			// The directory's doubling, and the list of segments cut: microseconds. A
			// list that append grows is copied too, and no longer than these.
			pointers := n / 128
			var most work
			op := func(name string, f func()) {
				before := l.index.work
				f()
				did := work{l.index.work.places - before.places, l.index.work.pointers - before.pointers}
				most = work{max(most.places, did.places), max(most.pointers, did.pointers)}
				if did.places > max(maxPlaces1, segSize+maxSplits*2*pageSize) || did.pointers > pointers {
					t.Fatalf("%s at %d blocks: %+v", name, l.size(), did)
				}
			}
			hashes := make([]uint64, n)
			add := func(i int) {
				hashes[i] = rng.Uint64()
				op("add", func() { l.add(Device, hashes[i]) })
			}
			remove := func(i int) {
				op("remove", func() {
					slot, e, at := l.seek(Device, hashes[i])
					l.removeAt(slot, e, at)
					l.tidy(slot)
				})
			}
			for i := range hashes {
				add(i)
			}
			for i := n / 2; i < n; i++ { // the newest half, and again
				remove(i)
			}
			for i := n / 2; i < n; i++ {
				add(i)
			}
			rng.Shuffle(n, func(i, k int) { hashes[i], hashes[k] = hashes[k], hashes[i] })
			for i := range n / 8 * 7 { // at random, until segments and pages are packed all over
				remove(i)
			}
			for i := range n / 8 * 7 {
				add(i)
			}
			op("aside", l.setAside)
			op("clear", l.clear)
			if l.size() != 0 {
				t.Error("not cleared")
			}
			t.Logf("most for one operation: %d places, %d pointers; directory 2^%d", most.places, most.pointers, l.index.depth)
		})
	}
}
