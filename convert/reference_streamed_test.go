package convert

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/vmihailenco/msgpack/v5"
)

// streamed reads a batch with vmihailenco's streaming decoder, as a careful
// user would: everything reused, nothing made of what is read.
type streamed struct {
	src    *bytes.Reader
	d      *msgpack.Decoder
	hashes []uint64
	tokens []uint32
}

func newStreamed() *streamed {
	src := bytes.NewReader(nil)
	return &streamed{src: src, d: msgpack.NewDecoder(src)}
}

// batch reads what payloads has made.
func (s *streamed) batch(p []byte, named bool) error {
	d := s.d
	s.src.Reset(p)
	d.Reset(s.src)
	list := d.DecodeArrayLen
	if named {
		list = d.DecodeMapLen
	}
	var errs error
	check := func(err error) {
		if err != nil && errs == nil {
			errs = err
		}
	}
	key := func() (k string) {
		if named {
			var err error
			k, err = d.DecodeString()
			check(err)
		}
		return k
	}
	_, err := list()
	check(err)
	key()
	_, err = d.DecodeFloat64()
	check(err)
	key()
	events, err := d.DecodeArrayLen()
	check(err)
	fields := [...]string{"type", "block_hashes", "parent_block_hash", "token_ids", "block_size"}
	for e := 0; e < events && errs == nil; e++ {
		n, err := list()
		check(err)
		for at := 0; at < n && errs == nil; at++ {
			name := key()
			if !named && at < len(fields) {
				name = fields[at]
			}
			check(s.field(name))
		}
	}
	key()
	_, err = d.DecodeUint64()
	check(err)
	if errs == nil && s.src.Len() > 0 {
		errs = errors.New("bytes left")
	}
	return errs
}

func (s *streamed) field(name string) error {
	d := s.d
	switch name {
	case "type":
		_, err := d.DecodeString()
		return err
	case "block_hashes":
		n, err := d.DecodeArrayLen()
		s.hashes = s.hashes[:0]
		for i := 0; err == nil && i < n; i++ {
			var h uint64
			h, err = d.DecodeUint64()
			s.hashes = append(s.hashes, h)
		}
		return err
	case "token_ids":
		n, err := d.DecodeArrayLen()
		s.tokens = s.tokens[:0]
		for i := 0; err == nil && i < n; i++ {
			var t uint32
			t, err = d.DecodeUint32()
			s.tokens = append(s.tokens, t)
		}
		return err
	case "block_size":
		_, err := d.DecodeUint32()
		return err
	}
	return d.Skip()
}

// BenchmarkReferenceDecode… is vmihailenco's streaming decoder over the same
// payloads as BenchmarkDecodeConvert…: only reading.
func BenchmarkReferenceDecodeAArray(b *testing.B) { referenceDecode(b, shapeA, false) }
func BenchmarkReferenceDecodeAMap(b *testing.B)   { referenceDecode(b, shapeA, true) }
func BenchmarkReferenceDecodeBArray(b *testing.B) { referenceDecode(b, shapeB, false) }
func BenchmarkReferenceDecodeBMap(b *testing.B)   { referenceDecode(b, shapeB, true) }

func referenceDecode(b *testing.B, s shape, named bool) {
	rng := rand.New(rand.NewPCG(1, 2))
	var stores [][]byte
	for range benchWorkingSet {
		st, _ := s.payloads(rng, named)
		stores = append(stores, st)
	}
	d := newStreamed()
	b.ReportAllocs()
	b.SetBytes(int64(len(stores[0])))
	for i := 0; b.Loop(); i++ {
		if err := d.batch(stores[i%benchWorkingSet], named); err != nil {
			b.Fatal(err)
		}
	}
}
