package convert

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/zeebo/xxh3"
)

// bare is the least that anybody could do with a batch of stores: a cursor over
// the bytes that believes them, XXH3 over the tokens, and nothing kept.
type bare struct {
	b      []byte
	i      int
	hashes []uint64
	tokens []byte
}

func (c *bare) uint() uint64 {
	t := c.b[c.i]
	switch {
	case t < 0x80:
		c.i++
		return uint64(t)
	case t == 0xcc:
		c.i += 2
		return uint64(c.b[c.i-1])
	case t == 0xcd:
		c.i += 3
		return uint64(binary.BigEndian.Uint16(c.b[c.i-2:]))
	case t == 0xce:
		c.i += 5
		return uint64(binary.BigEndian.Uint32(c.b[c.i-4:]))
	}
	c.i += 9
	return binary.BigEndian.Uint64(c.b[c.i-8:])
}

// list is the length of an array or a map.
func (c *bare) list() int {
	t := c.b[c.i]
	switch t {
	case 0xdc, 0xde:
		c.i += 3
		return int(binary.BigEndian.Uint16(c.b[c.i-2:]))
	}
	c.i++
	return int(t & 0x0f)
}

func (c *bare) text() []byte {
	n := int(c.b[c.i] & 0x1f)
	c.i += 1 + n
	return c.b[c.i-n : c.i]
}

// skip passes over a nil, a text or an integer.
func (c *bare) skip() {
	switch t := c.b[c.i]; {
	case t == 0xc0:
		c.i++
	case t&0xe0 == 0xa0:
		c.text()
	default:
		c.uint()
	}
}

// batch hashes what payloads has made.
func (c *bare) batch(p []byte, named bool) (sum uint64) {
	c.b, c.i = p, 0
	key := func() string {
		if named {
			return string(c.text())
		}
		return ""
	}
	c.list()
	key()
	c.i += 9
	key()
	for range c.list() {
		n := c.list()
		c.hashes, c.tokens = c.hashes[:0], c.tokens[:0]
		for at := range n {
			field := at
			if named {
				switch string(c.text()) {
				case "block_hashes":
					field = 1
				case "token_ids":
					field = 3
				default:
					field = 0
				}
			}
			switch field {
			case 1:
				for range c.list() {
					c.hashes = append(c.hashes, c.uint())
				}
			case 3:
				for range c.list() {
					c.tokens = binary.LittleEndian.AppendUint32(c.tokens, uint32(c.uint()))
				}
			default:
				c.skip()
			}
		}
		for i := range c.hashes {
			sum += xxh3.HashSeed(c.tokens[i*4*benchBlock:][:4*benchBlock], routerSeed) ^ c.hashes[i]
		}
	}
	return sum
}

func BenchmarkReferenceBareAArray(b *testing.B) { referenceBare(b, shapeA, false) }
func BenchmarkReferenceBareAMap(b *testing.B)   { referenceBare(b, shapeA, true) }
func BenchmarkReferenceBareBArray(b *testing.B) { referenceBare(b, shapeB, false) }
func BenchmarkReferenceBareBMap(b *testing.B)   { referenceBare(b, shapeB, true) }

func referenceBare(b *testing.B, s shape, named bool) {
	rng := rand.New(rand.NewPCG(1, 2))
	var stores [][]byte
	for range benchWorkingSet {
		st, _ := s.payloads(rng, named)
		stores = append(stores, st)
	}
	var c bare
	b.ReportAllocs()
	b.SetBytes(int64(len(stores[0])))
	for i := 0; b.Loop(); i++ {
		if c.batch(stores[i%benchWorkingSet], named) == 0 {
			b.Fatal("no hash")
		}
	}
}
