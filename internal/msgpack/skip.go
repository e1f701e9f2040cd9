package msgpack

import "encoding/binary"

// Skip passes over the next value, whatever it is and however deep it nests,
// without recursion. False means that the framing is broken.
func (r *Reader) Skip() bool { return r.SkipN(1) }

// SkipN passes over the next n values.
func (r *Reader) SkipN(n int) bool {
	if r.err != nil {
		return false
	}
	// Flat values, by far the most, need no stack.
	for ; n > 0; n-- {
		inner, ok := r.step()
		if !ok {
			return false
		}
		if inner > 0 && !r.skipInside(inner) {
			return false
		}
	}
	return true
}

// skipInside passes over the inner elements of a container. Up to shallow
// levels it makes do with a small stack.
func (r *Reader) skipInside(inner int) bool {
	const shallow = 16
	var todo [shallow]uint32 // elements left, per open container
	depth := 0
	todo[0] = uint32(inner)
	for {
		if todo[depth] == 0 {
			if depth == 0 {
				return true
			}
			depth--
			continue
		}
		todo[depth]--
		inner, ok := r.step()
		if !ok {
			return false
		}
		if inner == 0 {
			continue
		}
		if depth+1 < shallow {
			depth++
			todo[depth] = uint32(inner)
		} else if !r.skipDeep(inner) {
			return false
		}
	}
}

// skipDeep is skipInside for the levels from shallow+1 to MaxDepth.
func (r *Reader) skipDeep(inner int) bool {
	const levels = MaxDepth - 16
	var todo [levels]uint32
	depth := 0
	todo[0] = uint32(inner)
	for {
		if todo[depth] == 0 {
			if depth == 0 {
				return true
			}
			depth--
			continue
		}
		todo[depth]--
		at := r.i
		inner, ok := r.step()
		if !ok {
			return false
		}
		if inner == 0 {
			continue
		}
		if depth+1 == levels {
			r.i = at
			r.fail(ErrTooDeep)
			return false
		}
		depth++
		todo[depth] = uint32(inner)
	}
}

// step passes over one scalar, or over the header of a container, whose
// number of elements (keys and values counted singly) it returns.
func (r *Reader) step() (inner int, ok bool) {
	c, ok := r.peek()
	if !ok {
		return 0, false
	}
	left := len(r.b) - r.i
	size := int(sizes[c])
	switch {
	case size > 0:
		if size > left {
			r.fail(ErrTruncated)
			return 0, false
		}
		r.i += size
		return 0, true
	case c&0xe0 == 0xa0: // fixstr
		size = 1 + int(c&0x1f)
	case c&0xf0 == 0x90:
		return r.Array()
	case c&0xf0 == 0x80:
		n, ok := r.Map()
		return 2 * n, ok
	}
	b := r.b[r.i+1:]
	switch c {
	case 0xc4, 0xd9: // bin8, str8
		if len(b) < 1 {
			size = left + 1
			break
		}
		size = 2 + int(b[0])
	case 0xc5, 0xda:
		if len(b) < 2 {
			size = left + 1
			break
		}
		size = 3 + int(binary.BigEndian.Uint16(b))
	case 0xc6, 0xdb:
		if len(b) < 4 {
			size = left + 1
			break
		}
		size = 5 + int(binary.BigEndian.Uint32(b))
	case 0xc7: // ext8: a type byte follows the length
		if len(b) < 1 {
			size = left + 1
			break
		}
		size = 3 + int(b[0])
	case 0xc8:
		if len(b) < 2 {
			size = left + 1
			break
		}
		size = 4 + int(binary.BigEndian.Uint16(b))
	case 0xc9:
		if len(b) < 4 {
			size = left + 1
			break
		}
		size = 6 + int(binary.BigEndian.Uint32(b))
	case 0xdc, 0xdd:
		return r.Array()
	case 0xde, 0xdf:
		n, ok := r.Map()
		return 2 * n, ok
	case 0xc1:
		r.fail(ErrReserved)
		return 0, false
	}
	if size > left {
		r.fail(ErrTruncated)
		return 0, false
	}
	r.i += size
	return 0, true
}

// sizes of values whose first byte tells their whole length; 0: it does not.
var sizes = func() (t [256]uint8) {
	for c := range t {
		switch {
		case c <= 0x7f, c >= 0xe0, c == 0xc0, c == 0xc2, c == 0xc3:
			t[c] = 1
		case c == 0xca: // float32
			t[c] = 5
		case c == 0xcb:
			t[c] = 9
		case c >= 0xcc && c <= 0xd3: // integers of 1, 2, 4, 8 bytes
			t[c] = 1 + 1<<(c&3)
		case c >= 0xd4 && c <= 0xd8: // fixext: type byte and 1, 2, 4, 8, 16
			t[c] = 2 + 1<<(c-0xd4)
		}
	}
	return t
}()

// kinds of values by their first byte.
var kinds = func() (t [256]Kind) {
	for c := range t {
		switch {
		case c <= 0x7f, c >= 0xe0, c >= 0xcc && c <= 0xd3:
			t[c] = Int
		case c&0xf0 == 0x80, c == 0xde, c == 0xdf:
			t[c] = Map
		case c&0xf0 == 0x90, c == 0xdc, c == 0xdd:
			t[c] = Array
		case c&0xe0 == 0xa0, c >= 0xd9 && c <= 0xdb:
			t[c] = Str
		case c == 0xc0:
			t[c] = Nil
		case c == 0xc2, c == 0xc3:
			t[c] = Bool
		case c >= 0xc4 && c <= 0xc6:
			t[c] = Bin
		case c >= 0xc7 && c <= 0xc9, c >= 0xd4 && c <= 0xd8:
			t[c] = Ext
		case c == 0xca, c == 0xcb:
			t[c] = Float
		}
	}
	return t
}()
