package decode

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/vmihailenco/msgpack/v5"

	wire "github.com/kvrelay/kvrelay/internal/msgpack"
)

// benchBatches makes many batches of the same shape and different content: a
// single one would let the branch predictor learn its encodings by heart.
func benchBatches(stores, blocks int, asMap bool) [][]byte {
	rng := rand.New(rand.NewPCG(7, 7))
	out := make([][]byte, 256)
	for i := range out {
		out[i] = benchBatch(rng, stores, blocks, 16, asMap)
	}
	return out
}

func benchBatch(rng *rand.Rand, stores, blocks, size int, asMap bool) []byte {
	p := wire.AppendArrayHeader(nil, 3)
	p = wire.AppendFloat(p, 1.79e9)
	p = wire.AppendArrayHeader(p, stores)
	key := func(name string) {
		if asMap {
			p = wire.AppendStr(p, name)
		}
	}
	for range stores {
		if asMap {
			p = wire.AppendMapHeader(p, 9)
		} else {
			p = wire.AppendArrayHeader(p, 11)
		}
		key("type")
		p = wire.AppendStr(p, "BlockStored")
		key("block_hashes")
		p = wire.AppendArrayHeader(p, blocks)
		for range blocks {
			p = wire.AppendUint(p, rng.Uint64())
		}
		key("parent_block_hash")
		p = wire.AppendUint(p, rng.Uint64())
		key("token_ids")
		p = wire.AppendArrayHeader(p, blocks*size)
		for range blocks * size {
			p = wire.AppendUint(p, rng.Uint64N(150_000))
		}
		key("block_size")
		p = wire.AppendUint(p, uint64(size))
		key("lora_id")
		p = wire.AppendNil(p)
		key("medium")
		p = wire.AppendStr(p, "GPU")
		if !asMap { // vLLM's maps leave out what is nil
			p = wire.AppendNil(wire.AppendNil(p))
		}
		key("group_idx")
		p = wire.AppendUint(p, 0)
		key("kv_cache_spec_kind")
		p = wire.AppendStr(p, "full_attention")
	}
	return wire.AppendUint(p, 0)
}

func BenchmarkDecodeAArray(b *testing.B) { benchDecode(b, 1, 64, false) }
func BenchmarkDecodeAMap(b *testing.B)   { benchDecode(b, 1, 64, true) }
func BenchmarkDecodeBArray(b *testing.B) { benchDecode(b, 32, 1, false) }
func BenchmarkDecodeBMap(b *testing.B)   { benchDecode(b, 32, 1, true) }

// The same bytes through vmihailenco/msgpack's streaming decoder.
func BenchmarkVmihailencoAArray(b *testing.B) { benchStreamed(b, 1, 64, false) }
func BenchmarkVmihailencoAMap(b *testing.B)   { benchStreamed(b, 1, 64, true) }
func BenchmarkVmihailencoBArray(b *testing.B) { benchStreamed(b, 32, 1, false) }
func BenchmarkVmihailencoBMap(b *testing.B)   { benchStreamed(b, 32, 1, true) }

func benchDecode(b *testing.B, stores, blocks int, asMap bool) {
	batches := benchBatches(stores, blocks, asMap)
	var batch Batch
	b.SetBytes(int64(len(batches[0])))
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if err := batch.Decode(batches[i%len(batches)]); err != nil || len(batch.Events) != stores {
			b.Fatal(err)
		}
	}
}

func benchStreamed(b *testing.B, stores, blocks int, asMap bool) {
	batches := benchBatches(stores, blocks, asMap)
	var s streamed
	b.SetBytes(int64(len(batches[0])))
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if err := s.decode(batches[i%len(batches)]); err != nil || s.events != stores {
			b.Fatal(err)
		}
	}
}

// streamed is what a careful user of vmihailenco/msgpack would write: its
// streaming decoder, reused, into slices that are reused.
type streamed struct {
	dec    *msgpack.Decoder
	in     bytes.Reader
	hashes []uint64
	tokens []uint32
	events int
}

func (s *streamed) decode(p []byte) error {
	if s.dec == nil {
		s.dec = msgpack.NewDecoder(nil)
	}
	s.in.Reset(p)
	s.dec.Reset(&s.in)
	s.hashes, s.tokens, s.events = s.hashes[:0], s.tokens[:0], 0
	d := s.dec
	n, err := d.DecodeArrayLen()
	if err != nil || n != 3 {
		return errors.Join(err, errors.New("no batch"))
	}
	if _, err = d.DecodeFloat64(); err != nil {
		return err
	}
	if s.events, err = d.DecodeArrayLen(); err != nil {
		return err
	}
	for range s.events {
		code, err := d.PeekCode()
		if err != nil {
			return err
		}
		if code&0xf0 == 0x90 {
			err = s.tuple()
		} else {
			err = s.named()
		}
		if err != nil {
			return err
		}
	}
	_, err = d.DecodeUint64()
	return err
}

func (s *streamed) tuple() error {
	n, err := s.dec.DecodeArrayLen()
	for i := 0; err == nil && i < n; i++ {
		err = s.field([...]string{"type", "block_hashes", "parent_block_hash", "token_ids", "block_size"}[min(i, 4)])
	}
	return err
}

func (s *streamed) named() error {
	n, err := s.dec.DecodeMapLen()
	for i := 0; err == nil && i < n; i++ {
		var key string
		if key, err = s.dec.DecodeString(); err == nil {
			err = s.field(key)
		}
	}
	return err
}

func (s *streamed) field(key string) error {
	d := s.dec
	switch key {
	case "block_hashes":
		n, err := d.DecodeArrayLen()
		for i := 0; err == nil && i < n; i++ {
			var h uint64
			h, err = d.DecodeUint64()
			s.hashes = append(s.hashes, h)
		}
		return err
	case "token_ids":
		n, err := d.DecodeArrayLen()
		for i := 0; err == nil && i < n; i++ {
			var t uint32
			t, err = d.DecodeUint32()
			s.tokens = append(s.tokens, t)
		}
		return err
	case "parent_block_hash":
		_, err := d.DecodeUint64()
		return err
	case "type":
		tag, err := d.DecodeString()
		if err == nil && tag != "BlockStored" {
			err = fmt.Errorf("unexpected tag")
		}
		return err
	}
	return d.Skip()
}
