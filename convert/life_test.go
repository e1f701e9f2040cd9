package convert

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/kvrelay/kvrelay/decode"
)

// step calls f with an empty Output and tells what it appended.
func (x *tester) step(f func(out *Output)) string {
	x.t.Helper()
	x.out.Reset()
	f(&x.out)
	var text []string
	for i := range x.out.Events {
		text = append(text, string(AppendEventJSON(nil, &x.out.Events[i], 0, 0, 0)))
	}
	x.fold.apply(x.out.Events)
	return strings.Join(text, "\n")
}

// TestRestart: both ends of history leave nothing of the old engine but counters.
func TestRestart(t *testing.T) {
	for name, forget := range map[string]func(*Rank){"restart": (*Rank).Restart, "lost": (*Rank).Lost} {
		x := newTester(t, Config{})
		x.batch(stored(0, []uint64{1, 2}, in(3, "full_attention")), stored(0, []uint64{5}, tokens(1)), stored(0, []uint64{6}, salted("a")))
		x.batch(stored(0, []uint64{1, 2}, in(3, "")), stored(2, []uint64{7}, in(3, ""))) // reports fully
		newest, events := x.r.Newest(), x.r.Stats().Events.In
		got := x.step(func(out *Output) { x.r.Cleared(out, name == "lost") })
		want := `{"worker_id":0,"storage_tier":"device","residency_domain":"worker","event":{"event_id":0,"data":"cleared","dp_rank":0}}`
		if name == "lost" {
			want = strings.Replace(want, `"residency_domain":"worker",`, "", 1)
		}
		if got != want {
			t.Errorf("%s: %s\nwant %s", name, got, want)
		}
		forget(x.r)
		samePicture(t, x.r, x.fold)
		s := x.r.Stats()
		if s.FullReporting || s.BlockSize != 0 || s.Present != 0 || s.Events.In != events || x.r.Newest() != newest {
			t.Errorf("%s: stats %+v, newest %d", name, s, x.r.Newest())
		}
		x.want("S device 5>8; S device 6>9; unlearned_group 1", stored(0, []uint64{1}, in(3, "")), stored(5, []uint64{8}), stored(6, []uint64{9}))
		if x.fold[placed{Device, 8}].tokens != x.fold[placed{Device, 9}].tokens {
			t.Errorf("%s: a salt outlived it", name)
		}
	}
}

// TestRemovesForCleared: all that is published is removed, tier by tier, in
// events no larger than others.
func TestRemovesForCleared(t *testing.T) {
	x := newTester(t, Config{RemovesForCleared: true})
	if got := x.step(func(out *Output) { x.r.Cleared(out, true) }); got != "" {
		t.Errorf("nothing is published, and yet: %s", got)
	}
	x.want("", decode.Event{Type: decode.Cleared})
	if s := x.r.Stats(); s.Events.Suppressed != 1 {
		t.Errorf("stats %+v", s)
	}
	var all []uint64
	for i := range uint64(300) {
		all = append(all, i+1)
	}
	x.batch(stored(0, all), stored(0, all[:2], on("CPU")))
	got := x.batch(decode.Event{Type: decode.Cleared}, stored(0, []uint64{1}))
	if len(x.out.Events) != 5 || len(x.out.Events[0].Hashes) != 128 || !strings.HasSuffix(got, "R host_pinned 1,2; S device ->1") {
		t.Errorf("%s", got)
	}
	if len(x.fold) != 1 {
		t.Errorf("%d blocks left", len(x.fold))
	}
	x.step(func(out *Output) { x.r.Cleared(out, false) })
	if x.r.Away(); len(x.fold) != 0 {
		t.Errorf("%d blocks left", len(x.fold))
	}
	samePicture(t, x.r, x.fold)
}

// TestRepublish: a returned engine's blocks come in chunks, each after its
// parent, also where the ledger has them the other way round.
func TestRepublish(t *testing.T) {
	x := newTester(t, Config{})
	const chain = 3000
	for h := uint64(chain); h > 1; h-- { // children first
		x.quiet(stored(h-1, []uint64{h}))
	}
	x.quiet(stored(0, []uint64{1}))
	x.quiet(stored(0, []uint64{chain + 1}, on("DISK"), func(ev *decode.Event) {
		ev.HasMM, ev.MM = true, []decode.MMObject{{Hash: 3, Offsets: [][2]uint64{{1, 2}}}}
	}))
	x.quiet(stored(chain+3, []uint64{chain + 2}), stored(chain+2, []uint64{chain + 3})) // each the other's parent
	before := x.fold
	x.fold = picture{}
	x.r.Away()
	x.r.BeginRepublish()
	chunks, seen := 0, map[placed]bool{}
	for more := true; more; chunks++ {
		x.out.Reset()
		more = x.r.Republish(&x.out, 1000)
		for _, e := range x.out.Events {
			if len(e.Blocks) > runLimit {
				t.Fatalf("a store of %d blocks", len(e.Blocks))
			}
			hasParent, parent := e.HasParent, e.Parent
			for _, b := range e.Blocks {
				if hasParent && parent <= chain && !seen[placed{e.Tier, parent}] {
					t.Fatalf("%d comes before its parent", b.Hash)
				}
				if k := (placed{e.Tier, b.Hash}); seen[k] {
					t.Fatalf("%v comes twice", k)
				} else {
					seen[k] = true
				}
				hasParent, parent = true, b.Hash
			}
		}
		x.fold.apply(x.out.Events)
		samePicture(t, x.r, x.fold)
	}
	if !reflect.DeepEqual(x.fold, before) {
		t.Errorf("%d blocks came back, %d went", len(x.fold), len(before))
	}
	if chunks < 2 {
		t.Errorf("%d chunks", chunks)
	}
	checkLedger(t, &x.r.ledger)
	if got := x.step(func(out *Output) {
		if x.r.Republish(out, 10) {
			t.Error("more of nothing")
		}
	}); got != "" {
		t.Errorf("nothing is kept, and yet: %s", got)
	}
}

// TestRepublishLoop: a chain of parents longer than is looked at, and a dead
// engine that dies again while its blocks are published.
func TestRepublishAgain(t *testing.T) {
	x := newTester(t, Config{})
	const chain = maxClimb + 2000
	for h := uint64(chain); h > 1; h-- {
		x.quiet(stored(h-1, []uint64{h}))
	}
	before := x.fold
	for range 3 {
		x.fold = picture{}
		x.r.Away()
		if s := x.r.Stats(); s.Kept != len(before) {
			t.Fatalf("%d kept, want %d", s.Kept, len(before))
		}
		x.step(func(out *Output) { x.r.Republish(out, 100) })
		samePicture(t, x.r, x.fold)
	}
	for more := true; more; {
		x.step(func(out *Output) { more = x.r.Republish(out, 1000) })
	}
	if !reflect.DeepEqual(x.fold, before) {
		t.Errorf("%d blocks came back, %d went", len(x.fold), len(before))
	}
}

// TestWalk: fixed ranges of numbers can be read again, and give what is still
// there; what is stored again keeps its number, what came back has a new one.
func TestWalk(t *testing.T) {
	x := newTester(t, Config{})
	g := rand.New(rand.NewPCG(8, 8))
	var hashes []uint64
	for i := range uint64(5000) {
		x.quiet(stored(i, []uint64{i + 1}))
		hashes = append(hashes, i+1)
	}
	top := x.r.Newest()
	var bounds []uint64
	for from := uint64(1); from <= top; {
		x.out.Reset()
		next := x.r.Walk(from, top, &x.out)
		n := 0
		for _, e := range x.out.Events {
			n += len(e.Blocks)
		}
		if n > walkLimit || n == 0 {
			t.Fatalf("%d blocks from %d", n, from)
		}
		bounds = append(bounds, from)
		from = next
	}
	bounds = append(bounds, top+1)
	// Meanwhile a third goes, a third is stored again, some come back.
	g.Shuffle(len(hashes), func(i, k int) { hashes[i], hashes[k] = hashes[k], hashes[i] })
	untouched := picture{}
	for i, h := range hashes {
		switch {
		case i%3 == 0:
			x.quiet(removed(h))
			if i%6 == 0 {
				x.quiet(stored(h-1, []uint64{h}))
			}
		case i%3 == 1:
			x.quiet(stored(h-1, []uint64{h}, salted("s")))
			fallthrough
		default:
			untouched[placed{Device, h}] = x.fold[placed{Device, h}]
		}
	}
	for range 2 {
		got := picture{}
		for i, from := range bounds[:len(bounds)-1] {
			x.out.Reset()
			if next := x.r.Walk(from, bounds[i+1]-1, &x.out); next != bounds[i+1] {
				t.Fatalf("part %d ends at %d, want %d", i, next, bounds[i+1])
			}
			got.apply(x.out.Events)
		}
		if !reflect.DeepEqual(got, untouched) {
			t.Errorf("%d blocks, want %d", len(got), len(untouched))
		}
	}
	samePicture(t, x.r, x.fold)
	x.out.Reset()
	if next := x.r.Walk(x.r.Newest()+1, x.r.Newest()+10, &x.out); next != x.r.Newest()+11 || len(x.out.Events) > 0 {
		t.Errorf("beyond the newest: next %d, %d events", next, len(x.out.Events))
	}
}

// TestSweepLimit: more doubted blocks than one batch may look at are removed by
// the next ones, and events on them count as if they were gone.
func TestSweepLimit(t *testing.T) {
	x := newTester(t, Config{})
	const n = 3 * sweepLimit
	var all []uint64
	for i := range uint64(n) {
		all = append(all, i+1)
	}
	x.quiet(stored(0, all))
	x.quiet(stored(0, all))  // announced
	x.quiet(removed(all...)) // from the announcements: none is gone yet
	if s := x.r.Stats(); s.Present != n {
		t.Fatalf("%d present", s.Present)
	}
	x.quiet(stored(0, []uint64{n + 1}), stored(0, []uint64{n + 1}), stored(n+1, []uint64{n + 2}))
	s := x.r.Stats()
	if !s.FullReporting || s.Present < n/2 || s.Present > n-sweepLimit+2 {
		t.Fatalf("after the first sweep: %d present, full reporting %t", s.Present, s.FullReporting)
	}
	last := uint64(n) // not swept yet
	x.quiet(stored(0, []uint64{last}, on("CPU"), hashOnly))
	if d := x.r.Stats().Events.Dropped[ReasonNoTokens]; d != 1 {
		t.Errorf("the tokens of a block that is as good as gone are known")
	}
	for range 10 {
		x.quiet()
	}
	s = x.r.Stats()
	if s.Present != 2 || s.SelfMadeBlocks != n {
		t.Errorf("%d present, %d removed", s.Present, s.SelfMadeBlocks)
	}
	samePicture(t, x.r, x.fold)
	checkLedger(t, &x.r.ledger)
	accounted(t, s)
}

// TestSweepSpares: a doubted block that is stored before the sweep comes to it stays.
func TestSweepSpares(t *testing.T) {
	x := newTester(t, Config{})
	var all []uint64
	for i := range uint64(3 * sweepLimit) {
		all = append(all, i+1)
	}
	x.quiet(stored(0, all, salted("s")))
	x.quiet(stored(0, all, salted("s")))
	x.quiet(removed(all...))
	last := all[len(all)-1]
	x.quiet(stored(0, []uint64{90000}), stored(0, []uint64{90000}), stored(90000, []uint64{90001}))
	x.quiet(stored(77777, []uint64{last}))
	for range 10 {
		x.quiet()
	}
	if _, ok := x.fold[placed{Device, last}]; !ok || len(x.fold) != 3 {
		t.Errorf("%d blocks, the one stored again there: %t", len(x.fold), ok)
	}
	if x.r.ledger.salts.inUse() {
		t.Error("its old salt outlived it")
	}
	x.want("R device "+fmt.Sprint(last), removed(last))
}

// TestFingerprint: every setting is in it.
func TestFingerprint(t *testing.T) {
	one, two := uint32(1), uint32(0)
	seen := map[uint64]Config{}
	for _, c := range []Config{
		{}, {WorkerID: 1}, {Rank: 1}, {BlockSize: 1}, {ImageToken: &one}, {ImageToken: &two}, {VideoToken: &one},
		{Duplicates: Count}, {Eagle: EagleOff}, {RemovesForCleared: true}, {MaxBlocks: 1},
	} {
		f := c.Fingerprint()
		if other, ok := seen[f]; ok {
			t.Errorf("%+v and %+v have the same", c, other)
		}
		seen[f] = c
		if c.Fingerprint() != f {
			t.Error("it is not stable")
		}
	}
	if (Config{MaxBlocks: DefaultMaxBlocks}).Fingerprint() != (Config{}).Fingerprint() {
		t.Error("a default that is spelled out differs")
	}
	if n := reflect.TypeFor[Config]().NumField(); n != 9 {
		t.Errorf("Config has %d fields: is the new one in the fingerprint, and here?", n)
	}
}

// TestNames: every reason, tier, bound and notice has words of its own.
func TestNames(t *testing.T) {
	var names []string
	for r := range NumReasons {
		names = append(names, r.String())
	}
	for b := range numBounds {
		names = append(names, b.String(), Notice{Kind: NoticeBound, Bound: b}.String())
	}
	for _, tier := range allTiers {
		names = append(names, tier.String())
	}
	for k := NoticeBlockSize; k < NoticeBound; k++ {
		names = append(names, Notice{Kind: k, Got: 16}.String())
	}
	names = append(names, Notice{Kind: NoticeMismatch, Got: 16, Learned: true}.String(), Notice{Kind: NoticeMismatch}.String())
	slices.Sort(names)
	for i, n := range names {
		if n == "" || i > 0 && n == names[i-1] || strings.Contains(n, "(25") {
			t.Errorf("%q", n)
		}
	}
	if NumReasons.String() != "reason(22)" || Tier(9).String() != "tier(9)" || Bound(99).String() != "bound(99)" || (Notice{}).String() != "notice(0)" {
		t.Error("values outside of the lists")
	}
}
