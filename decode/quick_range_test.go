package decode

import (
	"bytes"
	"strings"
	"testing"

	"github.com/kvrelay/kvrelay/internal/msgpack"
)

// quick takes all that its comment says, to the last value, and nothing more.
// TestQuickAgrees says that what it takes is right; here it is that it takes it.
func TestQuickTakesWhatIsPlain(t *testing.T) {
	hash := func(tag byte) []byte { return append([]byte{tag}, make([]byte, 8)...) }
	numbers := []field{fBlockSize, fLoraID, fGroup, fWindow}
	texts := []field{fMedium, fLoraName, fSalt, fKind, fLocality, fOwnership, fSession}
	takes := func(f field, in []byte, want int) {
		t.Helper()
		for _, behind := range [][]byte{nil, {0xc1}, bytes.Repeat([]byte{0xff}, 40)} {
			var ev Event
			if got := ev.quick(f, append(bytes.Clone(in), behind...)); got != want {
				t.Errorf("field %d, % x and %d bytes: takes %d, want %d", f, in, len(behind), got, want)
			}
		}
	}
	for f := range numFields {
		switch f {
		case fParent, fBlockSize, fLoraID, fGroup, fWindow, fExtraKeys, fMMInfos, fMedium, fLoraName, fSalt, fKind, fLocality, fOwnership, fSession:
			takes(f, []byte{0xc0}, 1)
		default:
			takes(f, []byte{0xc0}, 0)
			takes(f, []byte{5}, 0)
			takes(f, []byte("\xa1x"), 0)
		}
	}
	takes(fParent, hash(0xcf), 9)
	takes(fParent, hash(0xd3), 9)
	for c := range 256 {
		switch {
		case c == 0xc0 || c == 0xcf || c == 0xd3:
		default:
			takes(fParent, hash(byte(c)), 0)
		}
		if c != 0xc0 {
			takes(fExtraKeys, []byte{byte(c)}, 0)
			takes(fMMInfos, []byte{byte(c)}, 0)
		}
		for _, f := range numbers {
			switch {
			case c <= 0x7f:
				takes(f, []byte{byte(c)}, 1)
			case c != 0xc0:
				takes(f, []byte{byte(c)}, 0)
			}
		}
	}
	if new(Event).quick(fParent, hash(0xcf)[:8]) != 0 {
		t.Error("takes a hash that is cut off")
	}
	for _, f := range texts {
		for n := range 32 {
			plain := msgpack.AppendStr(nil, strings.Repeat("x", n))
			want := 0
			if n <= 16 {
				want = n + 1
			}
			takes(f, plain, want)
			if n > 0 && new(Event).quick(f, plain[:n]) != 0 {
				t.Errorf("field %d: takes a text of %d that is cut off", f, n)
			}
			for at := range n { // one letter that is not ASCII
				high := bytes.Clone(plain)
				high[1+at] |= 0x80
				takes(f, high, 0)
			}
		}
		takes(f, []byte{5}, 0)
		takes(f, []byte{0xd9, 1, 'x'}, 0)
		takes(f, []byte{0xc4, 1, 'x'}, 0)
	}
}

// Each key that engines write is known by its encoding, where enough bytes
// follow, and nothing else is taken for it.
func TestWireKeysAreKnown(t *testing.T) {
	known := 0
	for f, name := range fieldNames {
		k := &wireKeys[f]
		if name == "" || fieldOf([]byte(name)) != field(f) {
			if k.size != 0 {
				t.Errorf("field %d (%q) has a key of %d bytes", f, name, k.size)
			}
			continue
		}
		known++
		key := msgpack.AppendStr(nil, name)
		if k.size != len(key) {
			t.Errorf("%s: size %d, want %d", name, k.size, len(key))
		}
		in := append(bytes.Clone(key), bytes.Repeat([]byte{0xa5}, 40)...)
		for n := range in {
			if got, want := k.begins(in[:n]), n >= 32; got != want {
				t.Errorf("%s in %d bytes: %v, want %v", name, n, got, want)
			}
		}
		for i := range key {
			for bit := range 8 {
				near := bytes.Clone(in)
				near[i] ^= 1 << bit
				if k.begins(near) {
					t.Errorf("%x is taken for %s", near[:len(key)], name)
				}
			}
		}
		for other := range wireKeys {
			if o := &wireKeys[other]; other != f && o.size > 0 && o.begins(in) {
				t.Errorf("%s is taken for field %d", name, other)
			}
		}
	}
	if known != 18 {
		t.Errorf("%d keys are known, want 18", known)
	}
}

// The place of every key of the last map of a size is remembered, those of one
// size apart from those of another.
func TestOrderOfKeysIsRemembered(t *testing.T) {
	var b Batch
	decode := func(ev any) {
		t.Helper()
		if err := b.Decode(batchOf(ev)); err != nil {
			t.Fatal(err)
		}
	}
	is := func(n int, want ...field) {
		t.Helper()
		for i, f := range want {
			if got := b.order[n][i]; got != f {
				t.Errorf("maps of %d: place %d is field %d, want %d", n, i, got, f)
			}
		}
	}
	decode(dict{"type", "BlockRemoved", "block_hashes", list{1}, "medium", "GPU"})
	decode(dict{"block_hashes", list{1}, "type", "BlockRemoved"})
	is(3, fTag, fHashes, fMedium)
	is(2, fHashes, fTag)
	decode(dict{"medium", "GPU", "type", "BlockRemoved", "block_hashes", list{1}})
	is(3, fMedium, fTag, fHashes)
	is(2, fHashes, fTag)
	decode(dict{"x", 1, "type", "BlockRemoved", "block_hashes", list{1}})
	is(3, fUnknown, fTag, fHashes)
	decode(dict{7, 1, "type", "BlockRemoved", "block_hashes", list{1}}) // no key at all: nothing learned
	is(3, fUnknown, fTag, fHashes)
}
