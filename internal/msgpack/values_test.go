package msgpack

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"testing"
)

// withTag is tag and the last width bytes of v, big-endian.
func withTag(tag byte, v uint64, width int) []byte {
	all := binary.BigEndian.AppendUint64(nil, v)
	return append([]byte{tag}, all[8-width:]...)
}

// smallest is v in one byte with fix, where it is below limit, else behind the
// first of tags, for one, two, four and eight bytes, that holds it.
func smallest(v uint64, fix byte, limit uint64, tags ...byte) []byte {
	if v < limit {
		return []byte{fix | byte(v)}
	}
	for i, tag := range tags {
		if width := 1 << i; width == 8 || v < 1<<(8*width) {
			return withTag(tag, v, width)
		}
	}
	return nil
}

// bitLengths are random numbers of every length in bits.
func bitLengths(rng *rand.Rand, most int) (all []uint64) {
	for n := range most + 1 {
		for range 8 {
			all = append(all, rng.Uint64()>>(64-max(1, n)))
		}
	}
	return all
}

// Every value appended is its smallest encoding by the specification, and reads
// back as what it was.
func TestAppendIsSmallestAndReadsBack(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	same := func(what string, v uint64, got, want []byte) {
		t.Helper()
		if !bytes.Equal(got, want) {
			t.Fatalf("%s %#x: %x, want %x", what, v, got, want)
		}
	}
	for _, v := range bitLengths(rng, 64) {
		p := AppendUint(nil, v)
		same("uint", v, p, smallest(v, 0, 128, 0xcc, 0xcd, 0xce, 0xcf))
		r := NewReader(p)
		if got, ok := r.Uint(); !ok || got != v {
			t.Fatalf("%x reads as %d, %t", p, got, ok)
		}
		i := -1 - int64(v>>1)
		p = AppendInt(nil, i)
		switch {
		case i >= -32:
			same("int", v, p, []byte{byte(i)})
		case i >= math.MinInt8:
			same("int", v, p, withTag(0xd0, uint64(i), 1))
		case i >= math.MinInt16:
			same("int", v, p, withTag(0xd1, uint64(i), 2))
		case i >= math.MinInt32:
			same("int", v, p, withTag(0xd2, uint64(i), 4))
		default:
			same("int", v, p, withTag(0xd3, uint64(i), 8))
		}
		r = NewReader(p)
		if got, ok := r.Int(); !ok || got != i {
			t.Fatalf("%x reads as %d, %t", p, got, ok)
		}
		if got := AppendInt(nil, int64(v>>1)); !bytes.Equal(got, AppendUint(nil, v>>1)) {
			t.Fatalf("int %d is %x", v>>1, got)
		}
		f := math.Float64frombits(v)
		p = AppendFloat(nil, f)
		same("float", v, p, withTag(0xcb, v, 8))
		r = NewReader(p)
		if got, ok := r.Float(); !ok || math.Float64bits(got) != math.Float64bits(f) {
			t.Fatalf("%x reads as %g, %t", p, got, ok)
		}
		r = NewReader(withTag(0xca, v, 4))
		if got, ok := r.Float(); !ok || math.Float32bits(float32(got)) != uint32(v) && got == got {
			t.Fatalf("float32 %#x reads as %g, %t", uint32(v), got, ok)
		}
	}
	for _, n := range bitLengths(rng, 32) {
		same("array", n, AppendArrayHeader(nil, int(n)), smallest16(n, 0x90, 0xdc, 0xdd))
		same("map", n, AppendMapHeader(nil, int(n)), smallest16(n, 0x80, 0xde, 0xdf))
		same("bin", n, AppendBinHeader(nil, int(n)), smallest(n, 0, 0, 0xc4, 0xc5, 0xc6))
	}
	for _, n := range bitLengths(rng, 17) {
		text := bytes.Repeat([]byte{'t'}, int(n))
		same("str", n, AppendStr(nil, text), append(smallest(n, 0xa0, 32, 0xd9, 0xda, 0xdb), text...))
		same("str", n, AppendStr([]byte{7}, string(text)), append([]byte{7}, AppendStr(nil, text)...))
		for _, p := range [][]byte{AppendStr(nil, text), AppendBin(nil, text)} {
			r := NewReader(p)
			if got, ok := r.Text(); !ok || !bytes.Equal(got, text) || r.Left() != 0 {
				t.Fatalf("%d bytes of text read as %d, %t, %d left", n, len(got), ok, r.Left())
			}
		}
	}
}

// smallest16 is smallest for containers, which have no one-byte count.
func smallest16(n uint64, fix, two, four byte) []byte {
	switch {
	case n < 16:
		return []byte{fix | byte(n)}
	case n < 1<<16:
		return withTag(two, n, 2)
	}
	return withTag(four, n, 4)
}

// A read that fails returns nothing, whatever comes next and wherever it is cut.
func TestFailedReadsReturnNothing(t *testing.T) {
	var inputs [][]byte
	for _, s := range sampleValues {
		p := unhex(t, s.hex)
		for cut := range len(p) + 1 {
			inputs = append(inputs, p[:cut:cut])
		}
	}
	for c := range 256 {
		for n := range 12 {
			inputs = append(inputs, append([]byte{byte(c)}, bytes.Repeat([]byte{0xff}, n)...))
			inputs = append(inputs, append([]byte{byte(c)}, make([]byte, n)...))
		}
	}
	for _, p := range inputs {
		read := func(name string, f func(r *Reader) (nothing, ok bool)) {
			r := NewReader(p)
			if nothing, ok := f(&r); !ok && !nothing {
				t.Errorf("%x: %s fails and returns something", p, name)
			} else if !ok && r.Off() != 0 {
				t.Errorf("%x: %s fails and moves to %d", p, name, r.Off())
			}
			if !r.Failed() {
				return
			}
			// What was broken stays broken, and says where.
			at := r.Off()
			var broken *Error
			if !errors.As(r.Err(), &broken) || broken.Off != at || r.Kind() != None {
				t.Errorf("%x: after %s: %v, kind %d", p, name, r.Err(), r.Kind())
			}
			for range 2 {
				if nothing, ok := f(&r); ok || !nothing || r.Off() != at {
					t.Errorf("%x: %s works on broken framing", p, name)
				}
			}
		}
		read("Bool", func(r *Reader) (bool, bool) { v, ok := r.Bool(); return !v, ok })
		read("Bits64", func(r *Reader) (bool, bool) { v, neg, ok := r.Bits64(); return v == 0 && !neg, ok })
		read("Uint", func(r *Reader) (bool, bool) { v, ok := r.Uint(); return v == 0, ok })
		read("Int", func(r *Reader) (bool, bool) { v, ok := r.Int(); return v == 0, ok })
		read("Float", func(r *Reader) (bool, bool) { v, ok := r.Float(); return v == 0, ok })
		read("Str", func(r *Reader) (bool, bool) { v, ok := r.Str(); return v == nil, ok })
		read("Bin", func(r *Reader) (bool, bool) { v, ok := r.Bin(); return v == nil, ok })
		read("Text", func(r *Reader) (bool, bool) { v, ok := r.Text(); return v == nil, ok })
		read("Array", func(r *Reader) (bool, bool) { v, ok := r.Array(); return v == 0, ok })
		read("Map", func(r *Reader) (bool, bool) { v, ok := r.Map(); return v == 0, ok })
		read("Uint32s", func(r *Reader) (bool, bool) { n := r.Uint32s(make([]byte, 4)); return n == 0, n > 0 })
		read("Ints", func(r *Reader) (bool, bool) { n := r.Ints(make([]uint64, 1)); return n == 0, n > 0 })
	}
}

// Every text or byte string of every width that is one byte too long for the
// input is cut off, and one that just fits is not; empty ones are not nil.
func TestLengthsToTheLastByte(t *testing.T) {
	for _, head := range [][]byte{
		{0xa5}, {0xd9, 5}, {0xda, 0, 5}, {0xdb, 0, 0, 0, 5}, {0xc4, 5}, {0xc5, 0, 5}, {0xc6, 0, 0, 0, 5},
		{0xc7, 5, 1}, {0xc8, 0, 5, 1}, {0xc9, 0, 0, 0, 5, 1},
	} {
		for n := range 8 {
			p := append(bytes.Clone(head), make([]byte, n)...)
			r := NewReader(p)
			if ok := r.Skip(); ok != (n >= 5) || ok && r.Left() != n-5 {
				t.Errorf("%x: Skip %t, %d left", p, ok, r.Left())
			}
			r = NewReader(p)
			v, ok := r.Text()
			if text := head[0] < 0xc7 || head[0] >= 0xd9; text && (ok != (n >= 5) || ok && (len(v) != 5 || cap(v) != 5)) {
				t.Errorf("%x: Text %d bytes, %t", p, len(v), ok)
			}
		}
	}
	for _, p := range [][]byte{{0xa0}, {0xd9, 0}, {0xc4, 0}} {
		r := NewReader(p)
		if v, ok := r.Text(); v == nil || !ok {
			t.Errorf("%x: Text %v, %t", p, v, ok)
		}
	}
}
