package msgpack

import "encoding/binary"

// Uint32s reads integers from 0 to 2^32−1, in any encoding, into dst as four
// little-endian bytes each: at most len(dst)/4 of them, and none beyond the
// first value that is something else, which is then the next one. It returns
// how many it read. It never fails: what stopped it does, when it is read.
//
// Token ids come by the thousand, the 16 and 32-bit encodings in random order,
// so a branch on the encoding is mispredicted half the time (3.9 µs for 1024
// tokens, against 1.6 without). The fast loop computes value and width instead.
func (r *Reader) Uint32s(dst []byte) int {
	if r.err != nil {
		return 0
	}
	room := len(dst)
	b, i := r.b, r.i
	for {
		for len(dst) >= 4 && i+8 <= len(b) {
			wide := uint(b[i]) - 0xcd // 0: uint16, 1: uint32
			if wide > 1 {
				break
			}
			x := binary.BigEndian.Uint64(b[i : i+8])
			v := uint32(x>>24) >> ((16 - 16*wide) & 31)
			binary.LittleEndian.PutUint32(dst[:4], v)
			dst = dst[4:]
			i += int(3 + 2*wide)
		}
		if len(dst) < 4 {
			break
		}
		r.i = i
		v, neg, ok := r.Bits64()
		if !ok || neg || v > 1<<32-1 {
			r.i, r.err = i, nil
			return (room - len(dst)) / 4
		}
		binary.LittleEndian.PutUint32(dst[:4], uint32(v))
		dst = dst[4:]
		i = r.i
	}
	r.i = i
	return (room - len(dst)) / 4
}

// Ints reads integers of either sign and any width as the 64 bits of their
// two's complement into dst: at most len(dst), and none beyond the first value
// that is something else. It returns how many it read, and never fails either.
func (r *Reader) Ints(dst []uint64) int {
	if r.err != nil {
		return 0
	}
	b := r.b
	for n := range dst {
		// Block hashes are 64 bits wide, so nearly all take nine bytes.
		if i := r.i; i+9 <= len(b) && (b[i] == 0xcf || b[i] == 0xd3) {
			dst[n] = binary.BigEndian.Uint64(b[i+1 : i+9])
			r.i = i + 9
			continue
		}
		at := r.i
		v, _, ok := r.Bits64()
		if !ok {
			r.i, r.err = at, nil
			return n
		}
		dst[n] = v
	}
	return len(dst)
}
