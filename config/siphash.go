package config

import (
	"encoding/binary"
	"math/bits"
)

// DynamoWorkerID is the worker id that Dynamo computes from the name of a
// worker's custom resource in Kubernetes: what Rust's DefaultHasher makes of
// the name, cut to 53 bits. It is SipHash-1-3 with zero keys over the name and
// a byte 0xFF.
func DynamoWorkerID(resource string) uint64 {
	return sip13(append([]byte(resource), 0xFF)) & (1<<53 - 1)
}

// sip13 is SipHash (Aumasson and Bernstein, 2012) with one round a word, three
// at the end, and a key of zeros.
func sip13(b []byte) uint64 {
	v := [4]uint64{0x736f6d6570736575, 0x646f72616e646f6d, 0x6c7967656e657261, 0x7465646279746573}
	round := func() {
		v[0] += v[1]
		v[2] += v[3]
		v[1] = bits.RotateLeft64(v[1], 13) ^ v[0]
		v[3] = bits.RotateLeft64(v[3], 16) ^ v[2]
		v[0] = bits.RotateLeft64(v[0], 32)
		v[2] += v[1]
		v[0] += v[3]
		v[1] = bits.RotateLeft64(v[1], 17) ^ v[2]
		v[3] = bits.RotateLeft64(v[3], 21) ^ v[0]
		v[2] = bits.RotateLeft64(v[2], 32)
	}
	word := func(m uint64) {
		v[3] ^= m
		round()
		v[0] ^= m
	}
	n := len(b)
	for ; len(b) >= 8; b = b[8:] {
		word(binary.LittleEndian.Uint64(b))
	}
	var last [8]byte
	copy(last[:], b)
	word(binary.LittleEndian.Uint64(last[:]) | uint64(n)<<56)
	v[2] ^= 0xFF
	for range 3 {
		round()
	}
	return v[0] ^ v[1] ^ v[2] ^ v[3]
}
