package convert

import (
	"encoding/hex"
	"testing"

	"github.com/kvrelay/kvrelay/decode"
)

// TestSaltOutlivesItsCopy: what is known of a hash's salt stays while a copy of
// it does, on whatever tier, in whatever order the copies came and went.
func TestSaltOutlivesItsCopy(t *testing.T) {
	gone := func(medium string, hashes ...uint64) decode.Event { return apply(removed(hashes...), on(medium)) }
	root := func(medium string, change ...func(*decode.Event)) decode.Event {
		return stored(0, []uint64{11, 12}, append(change, on(medium))...)
	}
	below := func(medium string, change ...func(*decode.Event)) decode.Event {
		return stored(11, []uint64{12}, append(change, on(medium))...)
	}
	y := salted("y")
	for name, evs := range map[string][]decode.Event{
		"the other copy came first":               {below("CPU"), root("GPU", y), gone("GPU", 12)},
		"its parent was gone when it came":        {root("GPU", y), gone("GPU", 11), below("CPU"), gone("GPU", 12)},
		"both ways, twice":                        {below("CPU"), root("GPU", y), gone("GPU", 12), below("GPU"), gone("CPU", 12), below("DISK"), gone("GPU", 12)},
		"three tiers":                             {below("OBJ"), below("CPU"), root("GPU", y), gone("GPU", 12), gone("CPU", 12)},
		"the other copy has no tokens":            {root("GPU", y), below("CPU", hashOnly), gone("GPU", 12)},
		"learned behind a copy without tokens":    {below("GPU"), below("CPU", hashOnly), root("GPU", y), gone("GPU", 12), gone("GPU", 12)},
		"a salt of its own, without a parent now": {below("CPU"), below("DISK", y), gone("DISK", 12)},
	} {
		x := newTester(t, Config{})
		x.batch(stored(0, []uint64{3}, y))
		for _, ev := range evs {
			x.batch(ev)
		}
		x.batch(stored(12, []uint64{13}))
		if x.fold[placed{Device, 13}].tokens != x.fold[placed{Device, 3}].tokens {
			t.Errorf("%s: the salt is forgotten", name)
		}
		x.batch(gone("GPU", 11, 12), gone("GPU", 11, 12), gone("CPU", 11, 12), gone("DISK", 11, 12), gone("OBJ", 11, 12))
		x.batch(stored(12, []uint64{14}), stored(0, []uint64{4}))
		if x.fold[placed{Device, 14}].tokens != x.fold[placed{Device, 4}].tokens {
			t.Errorf("%s: the salt outlives the last copy", name)
		}
	}
	for name, evs := range map[string][]decode.Event{
		"plain, then salted":              {below("CPU"), root("GPU"), gone("GPU", 12), root("GPU", y)},
		"plain, then salted elsewhere":    {below("CPU"), root("GPU"), gone("GPU", 12), root("DISK", y)},
		"salted, then plain":              {below("CPU"), root("GPU", y), gone("GPU", 12), root("GPU")},
		"two salts":                       {below("CPU"), root("GPU", y), gone("GPU", 12), root("GPU", salted("z"))},
		"plain, copied without its root":  {root("GPU"), gone("GPU", 11), below("CPU"), gone("GPU", 12), root("GPU", y)},
		"plain, copied without tokens":    {root("GPU"), below("CPU", hashOnly), gone("GPU", 12), root("GPU", y)},
		"two salts, and both copies gone": {below("CPU"), root("GPU", y), root("CPU", salted("z")), gone("GPU", 12), gone("CPU", 12), gone("CPU", 12)},
	} {
		x := newTester(t, Config{})
		for _, ev := range evs {
			x.batch(ev)
		}
		if got := x.batch(stored(12, []uint64{13})); got != "ambiguous_salt 1" {
			t.Errorf("%s: %s", name, got)
		}
	}
}

// The same on the wire, as it was found: a child of a salted block, whose copy
// on the GPU is gone, had the hash of an unsalted one.
func TestSaltOutlivesItsCopyOnTheWire(t *testing.T) {
	r := New(Config{BlockSize: 1})
	var last []Block
	for _, p := range []string{
		"92cb3ff00000000000009197ab426c6f636b53746f726564910c0b910201c0a3435055",
		"92cb3ff00000000000009198ab426c6f636b53746f726564920b0cc092010201c0a347505581aa63616368655f73616c74a179",
		"92cb3ff00000000000009193ac426c6f636b52656d6f766564910ca3475055",
		"92cb3ff00000000000009195ab426c6f636b53746f726564910d0c910301",
	} {
		payload, err := hex.DecodeString(p)
		if err != nil {
			t.Fatal(err)
		}
		var b decode.Batch
		if err := b.Decode(payload); err != nil {
			t.Fatal(err)
		}
		var out Output
		r.Convert(&b, &out)
		last = out.Events[0].Blocks
	}
	salted := decode.Event{Type: decode.Stored, Hashes: []uint64{1}, Tokens: []byte{3, 0, 0, 0}, HasTokens: true, BlockSize: 1, HasBlockSz: true,
		CacheSalt: []byte("y"), HasSalt: true}
	var out Output
	New(Config{BlockSize: 1}).Convert(&decode.Batch{Events: []decode.Event{salted}}, &out)
	if len(last) != 1 || last[0].Hash != 13 || last[0].TokensHash != out.Events[0].Blocks[0].TokensHash {
		t.Errorf("%v, want the hash %d", last, out.Events[0].Blocks[0].TokensHash)
	}
}

// Two tiers, and salts that come and go, allocate nothing either.
func TestSaltsOfTwoTiersAllocateNothing(t *testing.T) {
	r := New(Config{})
	var out Output
	batches := []decode.Batch{
		{Events: []decode.Event{stored(11, []uint64{12}, on("CPU"))}},
		{Events: []decode.Event{stored(0, []uint64{11, 12}, salted("y")), stored(12, []uint64{13}), stored(13, []uint64{14}, on("CPU"))}},
		{Events: []decode.Event{removed(12, 11, 13), apply(removed(12, 14), on("CPU"))}},
	}
	relay := func() {
		for i := range batches {
			out.Reset()
			r.Convert(&batches[i], &out)
		}
	}
	relay()
	if n := testing.AllocsPerRun(100, relay); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
