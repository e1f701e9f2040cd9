package msgpack

import (
	"encoding/binary"
	"testing"

	"github.com/kvrelay/kvrelay/internal/fuzzlimit"
)

// size is the length of the first value of b by plain recursion; −1: broken,
// −2: deeper than MaxDepth.
func size(b []byte, depth int) int {
	if len(b) == 0 {
		return -1
	}
	if depth > MaxDepth {
		return -2
	}
	length := func(head, width, body int) int { // a length of width bytes at head
		if len(b) < head+width {
			return -1
		}
		var v uint64
		for _, c := range b[head : head+width] {
			v = v<<8 | uint64(c)
		}
		if total := uint64(head+width+body) + v; total <= uint64(len(b)) {
			return int(total)
		}
		return -1
	}
	fixed := func(n int) int {
		if n > len(b) {
			return -1
		}
		return n
	}
	inside := func(head int, elements uint64) int {
		if depth == MaxDepth && elements > 0 {
			// A container that holds anything may lie MaxDepth−1 deep at most.
			return -2
		}
		at := head
		for ; elements > 0; elements-- {
			n := size(b[at:], depth+1)
			if n < 0 {
				return n
			}
			at += n
		}
		return at
	}
	count := func(width, per int) int {
		if len(b) < 1+width {
			return -1
		}
		var v uint64
		for _, c := range b[1 : 1+width] {
			v = v<<8 | uint64(c)
		}
		if v > uint64(len(b)-1-width)/uint64(per) {
			return -1
		}
		return inside(1+width, v*uint64(per))
	}
	switch c := b[0]; {
	case c < 0x80, c >= 0xe0, c == 0xc0, c == 0xc2, c == 0xc3:
		return 1
	case c < 0x90:
		if 2*int(c&15) > len(b)-1 {
			return -1
		}
		return inside(1, 2*uint64(c&15))
	case c < 0xa0:
		if int(c&15) > len(b)-1 {
			return -1
		}
		return inside(1, uint64(c&15))
	case c < 0xc0:
		return fixed(1 + int(c&31))
	case c >= 0xc4 && c <= 0xc6:
		return length(1, 1<<(c-0xc4), 0)
	case c >= 0xc7 && c <= 0xc9:
		return length(1, 1<<(c-0xc7), 1)
	case c == 0xca:
		return fixed(5)
	case c == 0xcb:
		return fixed(9)
	case c >= 0xcc && c <= 0xd3:
		return fixed(1 + 1<<(c&3))
	case c >= 0xd4 && c <= 0xd8:
		return fixed(2 + 1<<(c-0xd4))
	case c >= 0xd9 && c <= 0xdb:
		return length(1, 1<<(c-0xd9), 0)
	case c == 0xdc:
		return count(2, 1)
	case c == 0xdd:
		return count(4, 1)
	case c == 0xde:
		return count(2, 2)
	case c == 0xdf:
		return count(4, 2)
	}
	return -1
}

func FuzzSkip(f *testing.F) {
	for _, s := range sampleValues {
		f.Add(unhex(f, s.hex))
	}
	f.Add(nested(40, 0x92, 0xc0))
	f.Add(nested(MaxDepth+1, 0x91))
	f.Add([]byte{0xdd, 0x7f, 0xff, 0xff, 0xff, 1})
	f.Fuzz(func(t *testing.T, p []byte) {
		fuzzlimit.Run(t, len(p), func() { r := NewReader(p); r.Skip() })
		want := size(p, 0)
		r := NewReader(p)
		ok := r.Skip()
		if ok != (want >= 0) || ok && r.Off() != want || ok == r.Failed() {
			t.Fatalf("Skip %v at %d (%v), want %d", ok, r.Off(), r.Err(), want)
		}
	})
}

// FuzzReader does what p's first bytes say to the rest of it.
func FuzzReader(f *testing.F) {
	f.Add([]byte{4, 0, 1, 2, 3, 0xcf, 1, 2, 3, 4, 5, 6, 7, 8})
	f.Add([]byte{12, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0x93, 0xcd, 1, 2, 0xa1, 'x', 0x81, 1, 2})
	f.Fuzz(func(t *testing.T, p []byte) {
		if len(p) == 0 {
			return
		}
		ops := p[1:min(len(p), 1+int(p[0]%64))]
		in := p[1+len(ops):]
		r := NewReader(in)
		for _, op := range ops {
			at, kind := r.Off(), r.Kind()
			var ok bool
			var n int
			switch op % 13 {
			case 0:
				ok = r.Nil()
			case 1:
				_, ok = r.Bool()
			case 2:
				_, _, ok = r.Bits64()
			case 3:
				_, ok = r.Uint()
			case 4:
				_, ok = r.Int()
			case 5:
				_, ok = r.Float()
			case 6:
				_, ok = r.Str()
			case 7:
				_, ok = r.Bin()
			case 8:
				_, ok = r.Text()
			case 9:
				n, ok = r.Array()
			case 10:
				n, ok = r.Map()
				n *= 2
			case 11:
				ok = r.Ints(make([]uint64, 2)) > 0
			case 12:
				dst := make([]byte, 8)
				if k := r.Uint32s(dst); k > 0 {
					ok = true
					check := NewReader(in[at:])
					if v, _ := check.Uint(); uint64(binary.LittleEndian.Uint32(dst)) != v {
						t.Fatalf("Uint32s %x, Uint %d", dst, v)
					}
				}
			}
			switch {
			case ok && (kind == None || r.Off() <= at || r.Off() > len(in)):
				t.Fatalf("op %d of kind %d moved from %d to %d of %d", op%13, kind, at, r.Off(), len(in))
			case !ok && r.Off() != at:
				t.Fatalf("op %d failed and moved from %d to %d", op%13, at, r.Off())
			case n > r.Left():
				t.Fatalf("%d elements announced, %d bytes left", n, r.Left())
			}
			if !ok && !r.Skip() {
				return
			}
		}
	})
}
