package decode

import (
	"fmt"
	"testing"
	"unsafe"
)

// The bounds are part of what documentation and specification promise, so they
// stand here as numbers.
func TestBoundsAreThosePromised(t *testing.T) {
	for name, c := range map[string][2]int{
		"bytes of a decoded batch":            {maxMemory, 67_108_864},
		"decoded bytes for each of its own":   {maxRatio, 24},
		"decoded bytes that any batch may be": {minMemory, 1_048_576},
		"events":                              {maxEvents, 262_144},
		"hashes":                              {maxHashes, 2_097_152},
		"events kept one by one":              {FoldAfter, 1024},
		"bytes kept for good":                 {keepMemory, 1_048_576},
		"small batches until memory goes":     {idleBatches, 64},
		"shortest text of extra_keys":         {shortText, 4},
		"tail slots":                          {tailSlots, 5},
	} {
		if c[0] != c[1] {
			t.Errorf("%s: %d, want %d", name, c[0], c[1])
		}
	}
}

// A batch may take 24 times its size and a mebibyte, never more than 64 MiB: to
// the byte.
func TestTooMuchForItsSizeToTheByte(t *testing.T) {
	one := int(unsafe.Sizeof(Event{}) + unsafe.Sizeof(uint64(0)))
	var b Batch
	refused := func(n int) bool {
		t.Helper()
		// Of bytes hashes of 20 bytes, so that only the whole bound can bite.
		p := enc(list{1, repeat(n, list{"BlockRemoved", list{make([]byte, 20)}})})
		err := b.Decode(p)
		if err == nil {
			if len(b.Events) != n {
				t.Fatalf("%d events of %d", len(b.Events), n)
			}
			return false
		}
		if e := err.(*Error); e.Reason != ReasonTooMuch || e.Off != len(p) {
			t.Fatalf("%d removes: %v", n, err)
		}
		return true
	}
	if n := 64 << 20 / one; refused(n) || !refused(n+1) {
		t.Errorf("%d removes: the bound is not 64 MiB", n)
	}
	// Clears in arrays take 18 bytes of a batch each, and an Event.
	event := int(unsafe.Sizeof(Event{}))
	clears := func(n int) bool {
		p := enc(list{1, repeat(n, list{"BlockRemoved", list{}})}) // 15 bytes
		err := b.Decode(p)
		if want := n*event > 1<<20+24*len(p); want != (err != nil) {
			t.Errorf("%d removes of nothing in %d bytes, %d decoded: %v", n, len(p), n*event, err)
		}
		return err != nil
	}
	first := 1
	for clears(first) == false && first < 1<<17 {
		first *= 2
	}
	if first == 1<<17 {
		return // an Event has become so small that no batch of them is too much for its size
	}
	lo, hi := first/2, first // lo passes, hi does not
	for hi-lo > 1 {
		if mid := (lo + hi) / 2; clears(mid) {
			hi = mid
		} else {
			lo = mid
		}
	}
}

// Arenas grow in powers of two while they are small, by an eighth more than is
// needed when they are not, and not at all while there is room.
func TestArenasGrowOnlySoFar(t *testing.T) {
	for _, c := range []struct{ used, want int }{
		{1, 16}, {16, 16}, {17, 32}, {32, 32}, {33, 64}, {7281, 8192}, {7282, 8192}, {8000, 9000}, {80_000, 90_000},
	} {
		s := slab[uint64]{used: c.used}
		if s.fit(); len(s.buf) != c.want || s.used != c.used || s.high != 0 {
			t.Errorf("%d numbers: %+v, want room for %d", c.used, [3]int{len(s.buf), s.used, s.high}, c.want)
		}
		was := &s.buf[0]
		s.high = 5
		s.used = c.want
		if s.fit(); &s.buf[0] != was || s.high != 5 {
			t.Errorf("%d of %d numbers: made anew", s.used, c.want)
		}
	}
	for n, want := range map[int]int{7281: 8192, 7282: 8192, 3000: 4096, 65536: 73728} {
		s := slab[byte]{used: 8 * n}
		if s.fit(); s.used*9/8 < 64<<10 && len(s.buf)&(len(s.buf)-1) != 0 || len(s.buf) < s.used {
			t.Errorf("%d bytes: room for %d (%d)", s.used, len(s.buf), want)
		}
	}
}

// What a Batch holds is the sum of its arenas, whichever of them are large.
func TestHeldAndNeededAreSums(t *testing.T) {
	mm := list{dict{"mm_objects", list{dict{"mm_hash", 1, "offsets", list{list{1, 2}, list{3, 4}}}, dict{"mm_hash", 2, "offsets", list{}}}}}
	keys := list{list{"text-1", "text-2", "text-3"}}
	var b Batch
	if err := b.Decode(batchOf(named("extra_keys", keys, "block_mm_infos", mm), list{"BlockRemoved", list{1, 2, 3}})); err != nil {
		t.Fatal(err)
	}
	ev, key, obj := int(unsafe.Sizeof(Event{})), int(unsafe.Sizeof(ExtraKey{})), int(unsafe.Sizeof(MMObject{}))
	if want := 2*ev + 4*8 + 4*4 + 3*key + 2*obj + 2*16; b.need() != want {
		t.Errorf("%d bytes needed, want %d", b.need(), want)
	}
	if want := len(b.events.buf)*ev + len(b.hashes.buf)*8 + len(b.tokens.buf) + len(b.keys.buf)*key + len(b.mm.buf)*obj + len(b.offs.buf)*16; b.held() != want || want == 0 {
		t.Errorf("%d bytes held, want %d", b.held(), want)
	}
	for name, grow := range map[string]func(a *arena){
		"events": func(a *arena) { a.events.used = len(a.events.buf) + 1 },
		"hashes": func(a *arena) { a.hashes.used = len(a.hashes.buf) + 1 },
		"tokens": func(a *arena) { a.tokens.used = len(a.tokens.buf) + 1 },
		"keys":   func(a *arena) { a.keys.used = len(a.keys.buf) + 1 },
		"mm":     func(a *arena) { a.mm.used = len(a.mm.buf) + 1 },
		"offs":   func(a *arena) { a.offs.used = len(a.offs.buf) + 1 },
	} {
		a := b.arena
		full := a
		full.events.used, full.hashes.used, full.tokens.used = len(a.events.buf), len(a.hashes.buf), len(a.tokens.buf)
		full.keys.used, full.mm.used, full.offs.used = len(a.keys.buf), len(a.mm.buf), len(a.offs.buf)
		if full.counted() {
			t.Fatal("full arenas lack nothing")
		}
		if grow(&full); !full.counted() {
			t.Errorf("%s: one more than there is room for is not noticed", name)
		}
		if full.fit(); full.counted() {
			t.Errorf("%s: no room after fit", name)
		}
	}
	b.release()
	if b.held() != 0 || b.idle != 0 {
		t.Errorf("%d bytes held after release", b.held())
	}
}

// The error says why and where, and never what was there.
func TestErrorTextsAndOffsets(t *testing.T) {
	sound := enc(list{1.5, list{stored()}, 0})
	for _, c := range []struct {
		p      []byte
		reason string
		off    int
	}{
		{nil, "empty payload", 0},
		{sound[:len(sound)-1], "a value or list ends beyond the payload", len(sound) - 1},
		{enc(5), "no batch", 0}, {enc("text"), "no batch", 0}, {enc(list{1}), "no batch", 0}, {enc(list{}), "no batch", 0},
		{enc(dict{"ts", 1}), "no batch", 0}, {enc(list{1, 2}), "no batch", 0}, {enc(nil), "no batch", 0},
		{[]byte{0xc1}, "reserved byte", 0}, {[]byte{0x92, 1, 0x91, 0xc1}, "reserved byte", 3}, {[]byte{0x92, 0xc1, 0x90}, "reserved byte", 1},
		{enc(list{1, list{}, nestedList(1030)}), "nested too deep", 3 + 1024},
		{[]byte{0x92, 1, 0xdd, 0xff, 0xff, 0xff, 0xff}, "a value or list ends beyond the payload", 2},
		{enc(list{1, repeat(262_145, nil)}), "too much for its size", 7},
	} {
		var b Batch
		_ = b.Decode(sound)
		err := b.Decode(c.p)
		e, ok := err.(*Error)
		if !ok || e.Reason != c.reason || e.Off != c.off || err.Error() != fmt.Sprintf("decode: %s at offset %d", c.reason, c.off) {
			t.Errorf("%.20x: %v, want %q at %d", c.p, err, c.reason, c.off)
		}
		if b.Events != nil || b.HasTS || b.HasRank || b.BadRank || b.IsMap || b.TS != 0 || b.Rank != 0 {
			t.Errorf("%.20x: something is left in the batch: %+v", c.p, b.Events)
		}
	}
}

// Exactly as much as is allowed passes, by both bounds; what a batch may take
// grows with the bytes behind it.
func TestExactlyAsMuchAsIsAllowed(t *testing.T) {
	event := int(unsafe.Sizeof(Event{}))
	var b Batch
	check := func(what string, p []byte, events int, ok bool) {
		t.Helper()
		if err := b.Decode(p); (err == nil) != ok || ok && len(b.Events) != events {
			t.Errorf("%s: %d events, %v", what, len(b.Events), err)
		}
	}
	n := 66_000
	for ; (n*event-minMemory)%24 != 0 || (n*event-minMemory)/24 < 15*n+64; n++ {
		if n > 160_000 {
			t.Fatal("no number of events is just what its size allows: try others than removes of nothing")
		}
	}
	p := enc(list{1, repeat(n, list{"BlockRemoved", list{}})})
	p = append(p, make([]byte, (n*event-minMemory)/24-len(p))...)
	check("24 times its size", p, n, true)
	check("a byte less of it", p[:len(p)-1], 0, false)

	n = 64<<20/event - 5000
	hashes := (64<<20 - n*event) / 8
	for extra := range 2 {
		removes := append(enc(list{"BlockRemoved", repeat(hashes+extra, uint64(1)<<63)}), repeat(n-1, list{"BlockRemoved", list{}})[5:]...)
		p = append(append(enc(list{1, nil})[:2], 0xdd, 0, byte(n>>16), byte(n>>8), byte(n)), removes...)
		check("64 MiB", p, n, extra == 0)
	}
}
