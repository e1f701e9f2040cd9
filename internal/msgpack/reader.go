// Package msgpack reads and writes msgpack without reflection, allocation or
// recursion. The format is that of the msgpack specification
// (github.com/msgpack/msgpack, spec.md).
//
// A Reader never trusts a length: nothing is announced that the input could
// not hold, so a caller may size memory by what Array and Map return.
package msgpack

import (
	"encoding/binary"
	"errors"
	"math"
	"strconv"
)

// MaxDepth is how deep containers may lie in each other, counted by Skip from
// the value that it skips. Deeper input is an error (ErrTooDeep): no engine
// nests ten levels, and 1024 is also where Dynamo's decoder gives up.
const MaxDepth = 1024

// What can be wrong with the framing. A Reader reports them as *Error.
var (
	// ErrTruncated: a value, or the elements that a header announces, end
	// beyond the input.
	ErrTruncated = errors.New("value ends beyond the input")
	// ErrTooDeep: containers nested more than MaxDepth deep.
	ErrTooDeep = errors.New("nested too deep")
	// ErrReserved: the byte 0xc1, which begins no value.
	ErrReserved = errors.New("reserved byte")
)

// Error is broken framing: what, and the offset of the value it was seen at.
type Error struct {
	Err error // one of the sentinels
	Off int
}

func (e *Error) Error() string {
	return "msgpack: " + e.Err.Error() + " at offset " + strconv.Itoa(e.Off)
}

// Unwrap returns the sentinel.
func (e *Error) Unwrap() error { return e.Err }

// Kind is the family of a value.
type Kind uint8

const (
	None Kind = iota // the input is at its end, or the framing is broken
	Nil
	Bool
	Int // of either sign and any width
	Float
	Str
	Bin
	Array
	Map
	Ext
)

// Reader walks over msgpack values in a byte slice. A typed read returns
// ok = false when the next value is of another type – it is then still the
// next one – or when the framing is broken. Once it is broken, every read
// fails, Kind says None, and Err says why. The zero Reader is empty.
//
// Results of Str, Bin, Text and Raw alias the input.
type Reader struct {
	b    []byte
	i    int
	err  error // sentinel, nil while sound
	errI int
}

// NewReader returns a Reader at the start of b.
func NewReader(b []byte) Reader { return Reader{b: b} }

// Reset puts the Reader at the start of b.
func (r *Reader) Reset(b []byte) { *r = Reader{b: b} }

// Err is nil while the framing was sound so far, else an *Error.
func (r *Reader) Err() error {
	if r.err == nil {
		return nil
	}
	return &Error{Err: r.err, Off: r.errI}
}

// Failed says whether the framing is broken, without allocating the error.
func (r *Reader) Failed() bool { return r.err != nil }

// Off is the offset of the next value.
func (r *Reader) Off() int { return r.i }

// Seek goes back, or on, to the start of a value. It does not heal
// broken framing.
func (r *Reader) Seek(off int) { r.i = off }

// Input is all that the Reader was given. Who reads it by himself from Off on
// has to Seek to where he stopped, at the start of a value.
func (r *Reader) Input() []byte { return r.b }

// Left is the number of bytes not yet read.
func (r *Reader) Left() int { return len(r.b) - r.i }

// Raw returns the input from offset from up to the next value.
func (r *Reader) Raw(from int) []byte { return r.b[from:r.i] }

func (r *Reader) fail(err error) {
	if r.err == nil {
		r.err, r.errI = err, r.i
	}
}

// peek returns the next value's first byte. At the end of the input it fails.
func (r *Reader) peek() (byte, bool) {
	if r.err != nil {
		return 0, false
	}
	if r.i >= len(r.b) {
		r.fail(ErrTruncated)
		return 0, false
	}
	return r.b[r.i], true
}

// Kind tells the family of the next value without reading it. At the end of
// the input it is None and nothing is broken yet.
func (r *Reader) Kind() Kind {
	if r.err != nil || r.i >= len(r.b) {
		return None
	}
	return kinds[r.b[r.i]]
}

// Nil reads a nil.
func (r *Reader) Nil() bool {
	c, ok := r.peek()
	if !ok || c != 0xc0 {
		return false
	}
	r.i++
	return true
}

// Bool reads a bool.
func (r *Reader) Bool() (v, ok bool) {
	c, ok := r.peek()
	if !ok || c&^1 != 0xc2 {
		return false, false
	}
	r.i++
	return c == 0xc3, true
}

// Bits64 reads an integer of either sign and any width as the 64 bits of its
// two's complement; neg says whether it is below zero.
func (r *Reader) Bits64() (v uint64, neg, ok bool) {
	c, ok := r.peek()
	if !ok {
		return 0, false, false
	}
	if c <= 0x7f {
		r.i++
		return uint64(c), false, true
	}
	if c >= 0xe0 {
		r.i++
		return uint64(int64(int8(c))), true, true
	}
	if c < 0xcc || c > 0xd3 {
		return 0, false, false
	}
	b := r.b[r.i+1:]
	width := 1 << (c & 3)
	if len(b) < width {
		r.fail(ErrTruncated)
		return 0, false, false
	}
	r.i += 1 + width
	switch c {
	case 0xcc:
		return uint64(b[0]), false, true
	case 0xcd:
		return uint64(binary.BigEndian.Uint16(b)), false, true
	case 0xce:
		return uint64(binary.BigEndian.Uint32(b)), false, true
	case 0xcf:
		return binary.BigEndian.Uint64(b), false, true
	case 0xd0:
		v = uint64(int64(int8(b[0])))
	case 0xd1:
		v = uint64(int64(int16(binary.BigEndian.Uint16(b))))
	case 0xd2:
		v = uint64(int64(int32(binary.BigEndian.Uint32(b))))
	default:
		v = binary.BigEndian.Uint64(b)
	}
	return v, int64(v) < 0, true
}

// Uint reads an integer from 0 to 2^64−1, whatever its encoding. A negative
// one is another type.
func (r *Reader) Uint() (uint64, bool) {
	at := r.i
	v, neg, ok := r.Bits64()
	if !ok || neg {
		r.i = at
		return 0, false
	}
	return v, true
}

// Int reads an integer from −2^63 to 2^63−1, whatever its encoding. A larger
// one is another type.
func (r *Reader) Int() (int64, bool) {
	at := r.i
	v, neg, ok := r.Bits64()
	if !ok || !neg && v > math.MaxInt64 {
		r.i = at
		return 0, false
	}
	return int64(v), true
}

// Float reads a float32 or float64. An integer is another type.
func (r *Reader) Float() (float64, bool) {
	c, ok := r.peek()
	if !ok || c != 0xca && c != 0xcb {
		return 0, false
	}
	b := r.b[r.i+1:]
	if c == 0xca {
		if len(b) < 4 {
			r.fail(ErrTruncated)
			return 0, false
		}
		r.i += 5
		return float64(math.Float32frombits(binary.BigEndian.Uint32(b))), true
	}
	if len(b) < 8 {
		r.fail(ErrTruncated)
		return 0, false
	}
	r.i += 9
	return math.Float64frombits(binary.BigEndian.Uint64(b)), true
}

// Str reads a string. It is not checked to be UTF-8.
func (r *Reader) Str() ([]byte, bool) {
	c, ok := r.peek()
	switch {
	case !ok:
		return nil, false
	case c&0xe0 == 0xa0:
		return r.take(1, int(c&0x1f))
	case c >= 0xd9 && c <= 0xdb:
		return r.takeSized(1 << (c - 0xd9))
	}
	return nil, false
}

// Bin reads bytes.
func (r *Reader) Bin() ([]byte, bool) {
	c, ok := r.peek()
	if !ok || c < 0xc4 || c > 0xc6 {
		return nil, false
	}
	return r.takeSized(1 << (c - 0xc4))
}

// Text reads a string or bytes. It is not checked to be UTF-8.
func (r *Reader) Text() ([]byte, bool) {
	// Keys and names are short strings, nearly all: read without a further call.
	if r.err == nil && r.i < len(r.b) && r.b[r.i]&0xe0 == 0xa0 {
		from := r.i + 1
		if to := from + int(r.b[r.i]&0x1f); to <= len(r.b) {
			r.i = to
			return r.b[from:to:to], true
		}
	}
	if v, ok := r.Str(); ok {
		return v, true
	}
	return r.Bin()
}

// takeSized reads a body whose length is in the width bytes after the tag.
func (r *Reader) takeSized(width int) ([]byte, bool) {
	n, ok := r.size(width)
	if !ok {
		return nil, false
	}
	return r.take(1+width, n)
}

// take reads n bytes after a header of head bytes, which is known to be there.
func (r *Reader) take(head, n int) ([]byte, bool) {
	from := r.i + head
	if n > len(r.b)-from {
		r.fail(ErrTruncated)
		return nil, false
	}
	r.i = from + n
	return r.b[from:r.i:r.i], true
}

// size reads the big-endian length of width bytes behind the tag; the Reader
// does not move.
func (r *Reader) size(width int) (int, bool) {
	b := r.b[r.i+1:]
	if len(b) < width {
		r.fail(ErrTruncated)
		return 0, false
	}
	switch width {
	case 1:
		return int(b[0]), true
	case 2:
		return int(binary.BigEndian.Uint16(b)), true
	}
	return int(binary.BigEndian.Uint32(b)), true
}

// Array reads an array's header and returns how many elements follow: never
// more than there are bytes left.
func (r *Reader) Array() (n int, ok bool) {
	if r.err == nil && r.i < len(r.b) && r.b[r.i]&0xf0 == 0x90 { // short ones without a further call
		if n = int(r.b[r.i] & 0x0f); n < len(r.b)-r.i {
			r.i++
			return n, true
		}
	}
	return r.container(0x90, 0xdc, 1)
}

// Map reads a map's header and returns how many pairs of key and value follow:
// never more than half the bytes left.
func (r *Reader) Map() (n int, ok bool) { return r.container(0x80, 0xde, 2) }

func (r *Reader) container(fix, wide byte, per int) (n int, ok bool) {
	c, ok := r.peek()
	if !ok {
		return 0, false
	}
	head := 1
	switch {
	case c&0xf0 == fix:
		n = int(c & 0x0f)
	case c&^1 == wide:
		width := 2 << (c & 1)
		if n, ok = r.size(width); !ok {
			return 0, false
		}
		head += width
	default:
		return 0, false
	}
	if n > (len(r.b)-r.i-head)/per {
		r.fail(ErrTruncated)
		return 0, false
	}
	r.i += head
	return n, true
}
