package compare

import (
	"bytes"
	"testing"

	"github.com/tinylib/msgp/msgp"
	"github.com/vmihailenco/msgpack/v5"

	"github.com/kvrelay/kvrelay/convert"
)

const worker, rank = 42, 3

// encoders write a router event in the dynamo profile.
var encoders = []struct {
	name string
	make func() func(e *convert.RouterEvent, id uint64) ([]byte, error)
}{
	{"kvrelay", func() func(*convert.RouterEvent, uint64) ([]byte, error) {
		var buf []byte
		return func(e *convert.RouterEvent, id uint64) ([]byte, error) {
			buf = convert.AppendEvent(buf[:0], e, worker, rank, id)
			return buf, nil
		}
	}},
	{"tinylib", func() func(*convert.RouterEvent, uint64) ([]byte, error) {
		var buf []byte
		return func(e *convert.RouterEvent, id uint64) ([]byte, error) {
			p := msgp.AppendMapHeader(buf[:0], 4)
			p = msgp.AppendUint64(msgp.AppendString(p, "worker_id"), worker)
			p = msgp.AppendString(msgp.AppendString(p, "storage_tier"), e.Tier.String())
			p = msgp.AppendString(msgp.AppendString(p, "residency_domain"), "worker")
			p = msgp.AppendMapHeader(msgp.AppendString(p, "event"), 3)
			p = msgp.AppendUint64(msgp.AppendString(p, "event_id"), id)
			p = msgp.AppendMapHeader(msgp.AppendString(p, "data"), 1)
			p = msgp.AppendMapHeader(msgp.AppendString(p, "stored"), 3)
			p = msgp.AppendUint64(msgp.AppendString(p, "parent_hash"), e.Parent)
			p = msgp.AppendNil(msgp.AppendString(p, "start_position"))
			p = msgp.AppendArrayHeader(msgp.AppendString(p, "blocks"), uint32(len(e.Blocks)))
			for _, x := range e.Blocks {
				p = msgp.AppendMapHeader(p, 3)
				p = msgp.AppendUint64(msgp.AppendString(p, "block_hash"), x.Hash)
				p = msgp.AppendUint64(msgp.AppendString(p, "tokens_hash"), x.TokensHash)
				p = msgp.AppendNil(msgp.AppendString(p, "mm_extra_info"))
			}
			buf = msgp.AppendUint64(msgp.AppendString(p, "dp_rank"), rank)
			return buf, nil
		}
	}},
	{"vmihailenco", func() func(*convert.RouterEvent, uint64) ([]byte, error) {
		var buf bytes.Buffer
		enc := msgpack.NewEncoder(&buf)
		enc.UseCompactInts(true)
		return func(e *convert.RouterEvent, id uint64) ([]byte, error) {
			buf.Reset()
			out := event{Worker: worker, Tier: e.Tier.String(), Domain: "worker"}
			out.Event.ID, out.Event.Rank = id, rank
			out.Event.Data.Stored.Parent = e.Parent
			out.Event.Data.Stored.Blocks = out.Event.Data.Stored.Blocks[:0]
			for _, x := range e.Blocks {
				out.Event.Data.Stored.Blocks = append(out.Event.Data.Stored.Blocks, block{Hash: x.Hash, Tokens: x.TokensHash})
			}
			err := enc.Encode(&out)
			return buf.Bytes(), err
		}
	}},
}

type event struct {
	Worker uint64 `msgpack:"worker_id"`
	Tier   string `msgpack:"storage_tier"`
	Domain string `msgpack:"residency_domain"`
	Event  struct {
		ID   uint64 `msgpack:"event_id"`
		Data struct {
			Stored struct {
				Parent uint64  `msgpack:"parent_hash"`
				Start  *uint64 `msgpack:"start_position"`
				Blocks []block `msgpack:"blocks"`
			} `msgpack:"stored"`
		} `msgpack:"data"`
		Rank uint32 `msgpack:"dp_rank"`
	} `msgpack:"event"`
}

type block struct {
	Hash   uint64  `msgpack:"block_hash"`
	Tokens uint64  `msgpack:"tokens_hash"`
	MM     *uint64 `msgpack:"mm_extra_info"`
}

// stored is a store of n blocks.
func stored(n int) *convert.RouterEvent {
	e := &convert.RouterEvent{Kind: convert.Stored, HasParent: true, Parent: 0x9E3779B97F4A7C15}
	for i := range uint64(n) {
		e.Blocks = append(e.Blocks, convert.Block{Hash: (i + 2) * 0x9E3779B97F4A7C15, TokensHash: (i + 1) * 0xC2B2AE3D27D4EB4F})
	}
	return e
}

// All of them write the same bytes.
func TestEncodersAgree(t *testing.T) {
	for _, n := range []int{1, 15, 16, 64} {
		for _, id := range []uint64{1, 200, 70_000, 1 << 40} {
			var first []byte
			for i, c := range encoders {
				b, err := c.make()(stored(n), id)
				if err != nil {
					t.Fatal(err)
				}
				if i == 0 {
					first = b
				} else if !bytes.Equal(b, first) {
					t.Errorf("%d blocks: %s writes\n%x, %s\n%x", n, c.name, b, encoders[0].name, first)
				}
			}
		}
	}
}

func BenchmarkEncode(b *testing.B) {
	for _, n := range []int{1, 64} {
		for _, c := range encoders {
			name := map[int]string{1: "1-block", 64: "64-blocks"}[n]
			b.Run("shape="+name+"/lib="+c.name, func(b *testing.B) {
				e, encode := stored(n), c.make()
				b.ReportAllocs()
				for id := uint64(1); b.Loop(); id++ {
					p, err := encode(e, id)
					if err != nil {
						b.Fatal(err)
					}
					b.SetBytes(int64(len(p)))
				}
			})
		}
	}
}
