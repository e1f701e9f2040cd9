package compare

import (
	"bytes"
	"errors"
	"testing"

	"github.com/tinylib/msgp/msgp"
	"github.com/vmihailenco/msgpack/v5"

	"github.com/kvrelay/kvrelay/decode"
)

var errShape = errors.New("not the batch that was made")

// decoders read a whole batch, each as a careful user of the library would write
// it: reused, without reflection, hashes and tokens into slices that are kept.
var decoders = []struct {
	name string
	make func() func([]byte) (batch, error)
}{
	{"kvrelay", func() func([]byte) (batch, error) {
		var d decode.Batch
		return func(p []byte) (b batch, err error) {
			if err = d.Decode(p); err != nil {
				return b, err
			}
			b.events = len(d.Events)
			for i := range d.Events {
				e := &d.Events[i]
				b.sum(e.Hashes, e.Tokens.Len(), e.Tokens.At(e.Tokens.Len()-1), e.Parent)
			}
			return b, nil
		}
	}},
	{"tinylib", func() func([]byte) (batch, error) { return new(tinylib).decode }},
	{"vmihailenco", func() func([]byte) (batch, error) { return new(vmihailenco).decode }},
}

func (b *batch) sum(hashes []uint64, tokens int, last uint32, parent uint64) {
	b.hashes += hashes[0] + hashes[len(hashes)-1]
	b.tokens += uint64(tokens) + uint64(last)
	b.parent += parent
}

// fieldNames are those of a tuple, in order.
var fieldNames = [...]string{"type", "block_hashes", "parent_block_hash", "token_ids"}

// tinylib reads with the functions that tinylib's generated code calls.
type tinylib struct {
	hashes []uint64
	tokens []uint32
}

func (t *tinylib) decode(p []byte) (b batch, err error) {
	var n, events uint32
	if n, p, err = msgp.ReadArrayHeaderBytes(p); err != nil || n != 3 {
		return b, errors.Join(err, errShape)
	}
	if _, p, err = msgp.ReadFloat64Bytes(p); err != nil {
		return b, err
	}
	if events, p, err = msgp.ReadArrayHeaderBytes(p); err != nil {
		return b, err
	}
	for range events {
		named := msgp.NextType(p) == msgp.MapType
		if named {
			n, p, err = msgp.ReadMapHeaderBytes(p)
		} else {
			n, p, err = msgp.ReadArrayHeaderBytes(p)
		}
		parent := uint64(0)
		t.hashes, t.tokens = t.hashes[:0], t.tokens[:0]
		for i := 0; err == nil && i < int(n); i++ {
			name := ""
			if named {
				var key []byte
				if key, p, err = msgp.ReadMapKeyZC(p); err != nil {
					return b, err
				}
				name = string(key)
				switch name {
				case "type", "block_hashes", "parent_block_hash", "token_ids":
				default:
					name = ""
				}
			} else if i < len(fieldNames) {
				name = fieldNames[i]
			}
			p, parent, err = t.field(name, p, parent)
		}
		if err != nil {
			return b, err
		}
		b.events++
		b.sum(t.hashes, len(t.tokens), t.tokens[len(t.tokens)-1], parent)
	}
	_, _, err = msgp.ReadUint64Bytes(p)
	return b, err
}

func (t *tinylib) field(name string, p []byte, parent uint64) ([]byte, uint64, error) {
	var n uint32
	var err error
	switch name {
	case "type":
		var tag []byte
		if tag, p, err = msgp.ReadStringZC(p); err == nil && string(tag) != "BlockStored" {
			err = errShape
		}
	case "block_hashes":
		n, p, err = msgp.ReadArrayHeaderBytes(p)
		for ; err == nil && n > 0; n-- {
			var h uint64
			h, p, err = msgp.ReadUint64Bytes(p)
			t.hashes = append(t.hashes, h)
		}
	case "token_ids":
		n, p, err = msgp.ReadArrayHeaderBytes(p)
		for ; err == nil && n > 0; n-- {
			var k uint32
			k, p, err = msgp.ReadUint32Bytes(p)
			t.tokens = append(t.tokens, k)
		}
	case "parent_block_hash":
		parent, p, err = msgp.ReadUint64Bytes(p)
	default:
		p, err = msgp.Skip(p)
	}
	return p, parent, err
}

// vmihailenco reads with the streaming decoder.
type vmihailenco struct {
	d      *msgpack.Decoder
	in     bytes.Reader
	hashes []uint64
	tokens []uint32
	parent uint64
}

func (v *vmihailenco) decode(p []byte) (b batch, err error) {
	if v.d == nil {
		v.d = msgpack.NewDecoder(nil)
	}
	v.in.Reset(p)
	v.d.Reset(&v.in)
	n, err := v.d.DecodeArrayLen()
	if err != nil || n != 3 {
		return b, errors.Join(err, errShape)
	}
	if _, err = v.d.DecodeFloat64(); err != nil {
		return b, err
	}
	events, err := v.d.DecodeArrayLen()
	for range events {
		code, err := v.d.PeekCode()
		if err != nil {
			return b, err
		}
		named := code&0xf0 == 0x80
		if named {
			n, err = v.d.DecodeMapLen()
		} else {
			n, err = v.d.DecodeArrayLen()
		}
		v.hashes, v.tokens, v.parent = v.hashes[:0], v.tokens[:0], 0
		for i := 0; err == nil && i < n; i++ {
			name := ""
			if named {
				name, err = v.d.DecodeString()
			} else if i < len(fieldNames) {
				name = fieldNames[i]
			}
			if err == nil {
				err = v.field(name)
			}
		}
		if err != nil {
			return b, err
		}
		b.events++
		b.sum(v.hashes, len(v.tokens), v.tokens[len(v.tokens)-1], v.parent)
	}
	if err != nil {
		return b, err
	}
	_, err = v.d.DecodeUint64()
	return b, err
}

func (v *vmihailenco) field(name string) (err error) {
	var n int
	switch name {
	case "type":
		var tag string
		if tag, err = v.d.DecodeString(); err == nil && tag != "BlockStored" {
			err = errShape
		}
	case "block_hashes":
		n, err = v.d.DecodeArrayLen()
		for ; err == nil && n > 0; n-- {
			var h uint64
			h, err = v.d.DecodeUint64()
			v.hashes = append(v.hashes, h)
		}
	case "token_ids":
		n, err = v.d.DecodeArrayLen()
		for ; err == nil && n > 0; n-- {
			var k uint32
			k, err = v.d.DecodeUint32()
			v.tokens = append(v.tokens, k)
		}
	case "parent_block_hash":
		v.parent, err = v.d.DecodeUint64()
	default:
		err = v.d.Skip()
	}
	return err
}

// All of them read the same.
func TestDecodersAgree(t *testing.T) {
	for _, s := range shapes {
		for _, p := range s.batches()[:8] {
			var first batch
			for i, d := range decoders {
				b, err := d.make()(p)
				if err != nil || b.events != s.stores {
					t.Fatalf("%s, %s: %+v, %v", s.name, d.name, b, err)
				}
				if i == 0 {
					first = b
				} else if b != first {
					t.Errorf("%s: %s reads %+v, %s %+v", s.name, d.name, b, decoders[0].name, first)
				}
			}
		}
	}
}

func BenchmarkDecode(b *testing.B) {
	for _, s := range shapes {
		for _, d := range decoders {
			b.Run("shape="+s.name+"/lib="+d.name, func(b *testing.B) {
				batches, decode := s.batches(), d.make()
				b.SetBytes(int64(len(batches[0])))
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					if _, err := decode(batches[i%len(batches)]); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
