package decode

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"
	"unsafe"

	wire "github.com/kvrelay/kvrelay/internal/msgpack"
)

// repeat is n times the encoding of v, behind a header for n values.
func repeat(n int, v any) raw {
	e := enc(v)
	return append(raw(wire.AppendArrayHeader(nil, n)), bytes.Repeat(e, n)...)
}

// hostileBatches make batches of about size bytes that cost more than they should.
func hostileBatches(size int) map[string]func() []byte {
	mapOf := func(n int, pairs ...any) raw { // n times the pairs, in one map
		var body []byte
		for _, v := range pairs {
			body = put(body, v)
		}
		return append(raw(wire.AppendMapHeader(nil, n*len(pairs)/2)), bytes.Repeat(body, n)...)
	}
	names := func() raw {
		p := raw(wire.AppendArrayHeader(nil, size/5))
		for i := range size / 5 {
			p = append(p, 0x91, 0xa3, byte('a'+i%26), byte('a'+i/26%26), byte('a'+i/676%26))
		}
		return p
	}
	stored := func(hashes, tokens any) list { return list{list{"BlockStored", hashes, nil, tokens, 1}} }
	return map[string]func() []byte{
		"nil events":         func() []byte { return enc(list{1, repeat(size, nil)}) },
		"empty events":       func() []byte { return enc(list{1, repeat(size/2, list{0})}) },
		"removes of nothing": func() []byte { return enc(list{1, repeat(size/15, list{"BlockRemoved", list{}})}) },
		"small removes":      func() []byte { return enc(list{1, repeat(size/16, list{"BlockRemoved", list{1}})}) },
		"clears":             func() []byte { return enc(list{1, repeat(size/18, list{"AllBlocksCleared"})}) },
		"small stores":       func() []byte { return enc(list{1, repeat(size/19, list{"BlockStored", list{1}, nil, list{2}, 1})}) },
		"tags all different": func() []byte { return enc(list{1, names()}) },
		"two tags in turn": func() []byte {
			return enc(list{1, append(raw(wire.AppendArrayHeader(nil, size/6*2)), bytes.Repeat(append(enc(list{"a"}), enc(list{"b"})...), size/6)...)})
		},
		"ignored":             func() []byte { return enc(list{1, repeat(size/9, list{"Ignored"})}) },
		"small hashes":        func() []byte { return enc(list{1, stored(repeat(size, 1), nil)}) },
		"small tokens":        func() []byte { return enc(list{1, stored(list{1}, repeat(size, 1))}) },
		"bytes hashes":        func() []byte { return enc(list{1, stored(repeat(size/3, []byte{1}), nil)}) },
		"small pairs":         func() []byte { return enc(list{1, stored(list{1}, repeat(size/3, list{1, 1}))}) },
		"tokens, then a pair": func() []byte { return enc(list{1, stored(list{1}, append(repeat(size, 1)[:], 0))}) },
		"extra keys": func() []byte {
			return enc(list{1, list{append(stored(list{1}, nil)[0].(list), nil, nil, nil, list{repeat(size/5, "abcd")})}})
		},
		"short extra keys": func() []byte {
			return enc(list{1, list{append(stored(list{1}, nil)[0].(list), nil, nil, nil, repeat(size/2, list{""}))}})
		},
		"mm objects": func() []byte {
			return enc(list{1, list{append(stored(list{1}, nil)[0].(list), nil, nil, nil, nil, list{list{repeat(size/3, list{1, list{}})}})}})
		},
		"mm offsets": func() []byte {
			return enc(list{1, list{append(stored(list{1}, nil)[0].(list), nil, nil, nil, nil, list{list{list{list{1, repeat(size/3, list{1, 1})}}}})}})
		},
		"repeated keys": func() []byte {
			return enc(list{1, list{mapOf(size/30, "block_hashes", list{1, 2, 3}, "token_ids", list{1})}})
		},
		"repeated wrong keys": func() []byte {
			return enc(list{1, list{mapOf(size/30, "block_hashes", list{1, 2, nil}, "token_ids", "x")}})
		},
		"one long wrong list": func() []byte {
			return enc(list{1, list{dict{"type", "BlockStored", "block_hashes", append(repeat(size, 1)[:size], 0xc0)}}})
		},
		"wrong lists": func() []byte {
			return enc(list{1, repeat(size/40, dict{"type", "BlockStored", "block_hashes", list{1, 2, 3, 4, nil}})})
		},
		"unknown keys": func() []byte { return enc(list{1, list{mapOf(size/4, "a", list{0})}}) },
		"deep events":  func() []byte { return enc(list{1, repeat(size/900, list{"x", nestedList(890)})}) },
		"one long text": func() []byte {
			return enc(list{1, list{list{"BlockStored", list{1}, nil, nil, 1, nil, string(make([]byte, size))}}})
		},
		"repeated events key": func() []byte { return enc(mapOf(size/30, "events", list{list{"BlockRemoved", list{1, 2}}})) },
		"no batch":            func() []byte { return enc(append(repeat(size, 1)[:size], 0xc1)) },
		"announced and absent": func() []byte {
			return append(enc(list{1, nil})[:2], append(wire.AppendArrayHeader(nil, size), bytes.Repeat([]byte{0x90}, size-1)...)...)
		},
		"tail lists": func() []byte {
			return enc(list{1, repeat(size/80, tailed(list{nil, nil, list{}}, list{nil, list{}}, list{list{}}, list{list{}}, list{list{}}, list{list{}}))})
		},
	}
}

// Whatever is sent, a Batch allocates at most a megabyte beyond 16 times as
// much, and never more than its bound.
func TestMemoryIsBounded(t *testing.T) {
	if size := unsafe.Sizeof(Event{}); size > 376 {
		t.Errorf("an Event takes %d bytes: a batch of single removes, 24 bytes each, would take more than 16 times its size", size)
	}
	for name, build := range hostileBatches(64 << 10) {
		p := build()
		var b Batch
		got := allocated(func() { _ = b.Decode(p) })
		if limit := uint64(16*len(p) + minMemory); got > limit {
			t.Errorf("%s: %d bytes allocated for %d (%d events)", name, got, len(p), len(b.Events))
		}
	}
	large := hostileBatches(4 << 20)
	for _, name := range []string{"removes of nothing", "small removes", "small hashes", "extra keys", "mm objects", "announced and absent"} {
		p := large[name]()
		var b Batch
		got := allocated(func() { _ = b.Decode(p) })
		if limit := uint64(maxMemory + maxMemory/8 + minMemory); got > limit || uint64(b.held()) > limit {
			t.Errorf("%s: %d bytes allocated for %d", name, got, len(p))
		}
	}
}

// Events and hashes are also bounded by number: what is above is refused
// without a look at it, and what is just below passes.
func TestTooMany(t *testing.T) {
	var b Batch
	for name, c := range map[string]struct {
		p     []byte
		wrong bool
	}{
		"events":                        {enc(list{1, repeat(maxEvents, list{"Ignored"})}), false},
		"too many events":               {enc(list{1, repeat(maxEvents+1, list{"Ignored"})}), true},
		"too many events in a map":      {enc(dict{"ts", 1, "events", repeat(maxEvents+1, nil)}), true},
		"hashes":                        {enc(list{1, list{list{"BlockRemoved", repeat(maxHashes, uint64(1)<<40)}}}), false},
		"too many hashes":               {enc(list{1, list{list{"BlockRemoved", repeat(maxHashes+1, uint64(1)<<40)}}}), true},
		"too many hashes in a map":      {enc(list{1, list{dict{"type", "BlockRemoved", "block_hashes", repeat(maxHashes+1, 1)}}}), true},
		"too many hashes in two events": {enc(list{1, repeat(2, list{"BlockRemoved", repeat(maxHashes/2+1, uint64(1)<<40)})}), true},
	} {
		err := b.Decode(c.p)
		if e, ok := err.(*Error); ok != c.wrong || ok && e.Reason != ReasonTooMuch {
			t.Errorf("%s: %v", name, err)
		}
		if err := b.Decode(enc(list{1, list{list{"BlockRemoved", list{7}}}})); err != nil || len(b.Events) != 1 || len(b.Events[0].Hashes) != 1 {
			t.Errorf("after %s: %v", name, err)
		}
	}
}

// A batch of more than is sensible is refused, however warm the Batch is.
func TestTooMuch(t *testing.T) {
	var b Batch
	giant := enc(list{1, repeat(200_000, list{"BlockRemoved", list{uint64(1) << 63}})})
	for range 2 {
		err := b.Decode(giant)
		if e, ok := err.(*Error); !ok || e.Reason != ReasonTooMuch || len(b.Events) != 0 {
			t.Fatal(err)
		}
	}
	// What engines send passes: page-wise removes, page-wise stores, one long store.
	for name, p := range map[string][]byte{
		"131072 removes":       enc(list{1, repeat(1<<17, list{"BlockRemoved", list{uint64(1) << 63}})}),
		"131072 stores":        enc(list{1, repeat(1<<17, list{"BlockStored", list{uint64(1) << 63}, uint64(1) << 63, list{100_000}, 1, nil})}),
		"a million blocks":     enc(list{1, list{list{"BlockStored", repeat(1<<20, uint64(1)<<63), nil, repeat(1<<20, 100_000), 1}}}),
		"100000 small removes": enc(list{1, repeat(100_000, list{"BlockRemoved", list{1}})}),
	} {
		if err := b.Decode(p); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		hashes := 0
		for i := range b.Events {
			hashes += len(b.Events[i].Hashes)
		}
		if hashes < 100_000 {
			t.Errorf("%s: %d hashes", name, hashes)
		}
	}
}

// Events that say nothing are folded past FoldAfter, and the others are not.
func TestFolding(t *testing.T) {
	events := list{}
	for range 700 {
		events = append(events, nil, list{}, list{"Ignored"}, list{"Tag1"}, list{"Tag2"}, named("medium", 1), list{"BlockRemoved", list{1}}, list{"AllBlocksCleared"}, stored())
	}
	events = append(events, list{"Tag3"})
	var b Batch
	for range 2 { // counting, and not
		if err := b.Decode(enc(list{1, events})); err != nil {
			t.Fatal(err)
		}
		count := map[string]int{}
		for i := range b.Events {
			ev := &b.Events[i]
			if i < FoldAfter && ev.Folded != 0 || ev.Folded != 0 && (ev.Type == Stored || ev.Type == Removed || ev.Type == Cleared) {
				t.Fatalf("event %d of type %d: %d folded", i, ev.Type, ev.Folded)
			}
			count[fmt.Sprint(ev.Type, ev.Problem, string(ev.Name))] += 1 + int(ev.Folded)
		}
		want := map[string]int{"0event: wrong type": 700, "0type: missing": 700, "0medium: wrong typeBlockStored": 700, "1": 700, "2": 700, "3": 700,
			"4": 700, "5Tag1": 700, "5Tag2": 700, "5Tag3": 1}
		if !reflect.DeepEqual(count, want) {
			t.Errorf("%v, want %v", count, want)
		}
		if n := len(b.Events); n > 3*700+FoldAfter || n < 3*700 {
			t.Errorf("%d events take a place", n)
		}
	}
	// Tags that come back after many others are still counted right.
	events = events[:0]
	for i := range 3000 {
		events = append(events, list{fmt.Sprintf("Tag%d", i%20)})
	}
	if err := b.Decode(enc(list{1, events})); err != nil {
		t.Fatal(err)
	}
	count := map[string]int{}
	for i := range b.Events {
		count[string(b.Events[i].Name)] += 1 + int(b.Events[i].Folded)
	}
	if len(count) != 20 || count["Tag0"] != 150 || count["Tag19"] != 150 {
		t.Error(count)
	}
	// Exactly at the limit nothing is folded.
	if err := b.Decode(enc(list{1, repeat(FoldAfter+1, nil)})); err != nil || len(b.Events) != FoldAfter+1 {
		t.Error(err, len(b.Events))
	}
	if err := b.Decode(enc(list{1, repeat(FoldAfter+2, nil)})); err != nil || len(b.Events) != FoldAfter+1 || b.Events[FoldAfter].Folded != 1 {
		t.Error(err, len(b.Events))
	}
}

// After the first batches nothing is allocated, whatever the batches hold.
func TestSteadyStateAllocatesNothing(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	batches := [][]byte{
		benchBatch(rng, 1, 64, 16, false), benchBatch(rng, 32, 1, 16, true),
		batchOf(7, list{}, named(5, 6), named("medium", 4), list{"Ignored"}, list{"Unheard"}),
		batchOf(named("extra_keys", list{list{"text", list{"pair", 1}}}, "block_mm_infos", list{dict{"mm_objects", list{dict{"mm_hash", 1, "offsets", list{list{1, 2}}}}}})),
		batchOf(tailed(list{list{list{list{1, list{}}}}}, 0, "full_attention"), named("token_ids", list{list{1, 2}, list{2, 3}}, "block_hashes", list{[]byte("12345678")})),
		enc(dict{"events", list{stored()}, "ts", 1, "dp_rank", 2}),
	}
	for _, c := range captures(t) {
		batches = append(batches, c.payloads...)
	}
	var b Batch
	all := func() {
		for _, p := range batches {
			if err := b.Decode(p); err != nil {
				t.Fatal(err)
			}
		}
	}
	all()
	if n := testing.AllocsPerRun(3, all); n != 0 {
		t.Errorf("%v allocations in %d batches", n, len(batches))
	}
	if n := testing.AllocsPerRun(100, func() { PeekTS(batches[0]) }); n != 0 {
		t.Errorf("PeekTS: %v allocations", n)
	}
}

// A giant batch's memory is given back, and what is kept keeps no payload alive.
func TestGiantBatchesAreForgotten(t *testing.T) {
	giant := enc(list{1, list{list{"BlockStored", repeat(1<<15, uint64(1)<<63), nil, repeat(1<<18, 70_000), 8}}})
	small := batchOf(stored())
	var b Batch
	decode := func(p []byte) {
		t.Helper()
		if err := b.Decode(p); err != nil {
			t.Fatal(err)
		}
	}
	decode(giant)
	if b.held() < 5<<18 {
		t.Fatalf("the batch is not giant: %d", b.held())
	}
	// Now and then another one: the memory stays.
	for i := range 3 * idleBatches {
		if decode(small); i%(idleBatches-1) == 0 {
			decode(giant)
		}
	}
	if b.held() < 5<<18 {
		t.Error("memory that is used is given back")
	}
	decode(giant)
	// The first small one follows a giant, so it counts for nothing yet.
	for range idleBatches {
		decode(small)
	}
	if b.held() < 5<<18 {
		t.Error("the memory is given back too early")
	}
	decode(small)
	if held := b.held(); held > 64<<10 {
		t.Errorf("%d bytes are kept for nothing", held)
	}
	decode(giant)
	b.Release()
	if b.held() != 0 || len(b.Events) != 0 {
		t.Error("Release keeps something")
	}
	decode(small)

	// Small arenas stay, however little of them is used.
	decode(enc(list{1, repeat(100, stored())}))
	held := b.held()
	for range 2 * idleBatches {
		decode(small)
	}
	if b.held() != held {
		t.Error("small arenas are given back")
	}
}

// Nothing beyond the events of the last batch points to an older payload.
func TestOldPayloadsAreLetGo(t *testing.T) {
	var b Batch
	keys := list{list{"text-1", "text-2", "text-3"}}
	for _, p := range [][]byte{
		enc(list{1, repeat(40, named("extra_keys", keys, "medium", "GPU"))}),
		batchOf(named("extra_keys", list{list{"text-1"}})),
		batchOf(named("extra_keys", append(keys, 5)), named("extra_keys", list{list{"text-1", nil}})), // malformed behind keys
		append(enc(list{1, repeat(30, named("extra_keys", keys))})[:2000:2000], 0xc1),                 // broken
		enc(list{1, repeat(FoldAfter+9, list{"Unheard"})}),                                            // folded
	} {
		_ = b.Decode(p)
		if b.r.Left() != 0 || b.spare.Name != nil {
			t.Error("the payload is kept")
		}
		for i, ev := range b.events.buf[b.events.used:] {
			if !reflect.DeepEqual(ev, Event{}) {
				t.Fatalf("event %d behind the last: %s", i, show(&ev))
			}
		}
		for i, k := range b.keys.buf[b.keys.used:] {
			if !reflect.DeepEqual(k, ExtraKey{}) {
				t.Fatalf("key %d behind the last: %q", i, k.Text)
			}
		}
		for i := range b.folds.names {
			if b.folds.names[i].name != nil {
				t.Fatal("a folded name is kept")
			}
		}
	}
}

// An event that says nothing takes no room for what was in it.
func TestSilentEventsTakeNoRoom(t *testing.T) {
	fields := dict{"block_hashes", list{1, 2}, "token_ids", list{1, 2}, "extra_keys", list{list{"text"}},
		"block_mm_infos", list{dict{"mm_objects", list{dict{"mm_hash", 1, "offsets", list{list{1, 2}}}}}}}
	for _, more := range []dict{{"type", "Unheard"}, {"type", "Ignored"}, {"type", "AllBlocksCleared"}, {"type", 5}, {"type", "BlockStored", "medium", 5}} {
		var b Batch
		if err := b.Decode(batchOf(append(append(dict{}, fields...), more...))); err != nil {
			t.Fatal(err)
		}
		if m := b.mark(); m != (marks{}) {
			t.Errorf("%v: %+v", more, m)
		}
	}
}

// Slices of one event do not reach into the next one's.
func TestEventsDoNotOverlap(t *testing.T) {
	var b Batch
	keys := list{list{"text-1"}}
	mm := list{dict{"mm_objects", list{dict{"mm_hash", 1, "offsets", list{list{1, 2}}}}}}
	p := enc(list{1, repeat(3, named("extra_keys", keys, "block_mm_infos", mm))})
	if err := b.Decode(p); err != nil {
		t.Fatal(err)
	}
	for i := range b.Events {
		ev := &b.Events[i]
		if cap(ev.Hashes) != 1 || cap(ev.Tokens) != 16 || cap(ev.ExtraKeys) != 1 || cap(ev.MM) != 1 || cap(ev.MM[0].Offsets) != 1 {
			t.Error("appending to a slice would write over a neighbour")
		}
		for j := range i {
			if &ev.Hashes[0] == &b.Events[j].Hashes[0] || &ev.Tokens[0] == &b.Events[j].Tokens[0] ||
				&ev.ExtraKeys[0] == &b.Events[j].ExtraKeys[0] || &ev.MM[0] == &b.Events[j].MM[0] || &ev.MM[0].Offsets[0] == &b.Events[j].MM[0].Offsets[0] {
				t.Error("two events share an element")
			}
		}
	}
}

// BenchmarkHostile is the worst that a megabyte can cost: ns per byte should
// be about the same whatever its size.
func BenchmarkHostile(b *testing.B) {
	for name, build := range hostileBatches(1 << 20) {
		p := build()
		b.Run(name, func(b *testing.B) {
			var batch Batch
			b.SetBytes(int64(len(p)))
			b.ReportAllocs()
			for b.Loop() {
				_ = batch.Decode(p)
			}
		})
	}
}
