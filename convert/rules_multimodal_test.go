package convert

import (
	"testing"

	"github.com/kvrelay/kvrelay/decode"
)

// The salt comes with the first block: a marked text among a later block's keys
// is text like any other.
func TestSaltOnlyWithTheFirstBlock(t *testing.T) {
	key := func(block int, text string) func(*decode.Event) {
		return func(ev *decode.Event) {
			ev.ExtraKeys = append(ev.ExtraKeys, decode.ExtraKey{Block: block, Text: []byte(text), Str: true})
		}
	}
	hash := func(change ...func(*decode.Event)) uint64 {
		x := newTester(t, Config{})
		x.quiet(stored(0, []uint64{1, 2}, change...))
		return x.out.Events[0].Blocks[0].TokensHash
	}
	plain, salt := hash(), hash(key(0, "dynamo-cache-salt:s"))
	if plain == salt || hash(salted("s")) != salt {
		t.Fatal("the marked text of the first block is no salt")
	}
	for _, h := range []uint64{hash(key(1, "dynamo-cache-salt:s")), hash(key(0, "text"), key(1, "dynamo-cache-salt:s")),
		hash(key(0, "dynamo-cache-salt:")), hash(key(0, "dynamo-cache-salt")), hash(key(0, "xdynamo-cache-salt:s"))} {
		if h != plain {
			t.Error("something else is taken for a salt")
		}
	}
	if hash(key(0, "text"), key(0, "dynamo-cache-salt:s")) != salt {
		t.Error("a text before the salt hides it")
	}
}

// What a snapshot says of a block's objects is what was published last, down to
// each number of an offset.
func TestMultimodalOfTheNewestStore(t *testing.T) {
	x := newTester(t, Config{})
	for _, mm := range [][]decode.MMObject{
		{{Hash: 5, Offsets: [][2]uint64{{1, 2}}}},
		{{Hash: 5, Offsets: [][2]uint64{{3, 2}}}},
		{{Hash: 5, Offsets: [][2]uint64{{3, 4}}}},
		{{Hash: 6, Offsets: [][2]uint64{{3, 4}}}},
		{{Hash: 6, Offsets: [][2]uint64{{3, 4}, {7, 8}}}},
		{{Hash: 6, Offsets: [][2]uint64{{3, 4}, {7, 9}}}},
		{{Hash: 6, Offsets: [][2]uint64{{3, 4}, {8, 9}}}},
		{{Hash: 6, Offsets: [][2]uint64{{3, 4}}}, {Hash: 8, Offsets: nil}},
		{{Hash: 6, Offsets: [][2]uint64{{3, 4}}}, {Hash: 9, Offsets: nil}},
		{{Hash: 6, Offsets: [][2]uint64{{3, 4}}}, {Hash: 9, Offsets: nil}, {Hash: 9, Offsets: nil}},
		{{Hash: 6, Offsets: [][2]uint64{{3, 4}}}},
		{{Hash: 6, Offsets: nil}},
		{},
		nil,
		{{Hash: 6, Offsets: nil}},
	} {
		x.quiet(stored(0, []uint64{1}, func(ev *decode.Event) {
			ev.HasMM, ev.MM = mm != nil, mm
		}))
		samePicture(t, x.r, x.fold)
		numbers := 0
		if len(mm) > 0 {
			for _, o := range mm {
				numbers += 2 + 2*len(o.Offsets)
			}
		}
		if got := x.r.ledger.mm.numbers; got != numbers {
			t.Errorf("%v: %d numbers kept, want %d", mm, got, numbers)
		}
	}
	x.want("R device 1", removed(1), removed(1), removed(1), removed(1), removed(1), removed(1), removed(1), removed(1), removed(1),
		removed(1), removed(1), removed(1), removed(1), removed(1), removed(1))
	if m := &x.r.ledger.mm; m.numbers != 0 || len(m.infos) != 0 {
		t.Errorf("%d numbers of %d blocks are left", m.numbers, len(m.infos))
	}
}

// A hash-only store takes the salt over, too: children inherit it from the other
// tier when the first copy has gone.
func TestHashOnlyStoresCarryTheSalt(t *testing.T) {
	child := func(salt, moved bool) uint64 {
		x := newTester(t, Config{})
		if salt {
			x.quiet(stored(0, []uint64{1}, salted("a")))
		} else {
			x.quiet(stored(0, []uint64{1}))
		}
		if moved {
			x.quiet(stored(0, []uint64{1}, hashOnly, on("CPU")), removed(1))
		}
		x.quiet(stored(1, []uint64{2}))
		return x.out.Events[0].Blocks[0].TokensHash
	}
	if child(true, false) == child(false, false) {
		t.Fatal("a child inherits no salt")
	}
	if child(true, true) != child(true, false) || child(false, true) != child(false, false) {
		t.Error("the salt is lost on the way to another tier")
	}
}
