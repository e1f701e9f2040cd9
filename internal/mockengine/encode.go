package mockengine

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Encoder turns events into msgpack batches as vLLM's publisher words them:
// [ts, events, data_parallel_rank], each event positional with its tag first
// (vLLM ≤ 0.23) or a map with the tag as "type" (since 0.24), or the whole
// batch as a map, as some forks send it.
type Encoder struct {
	Batch     Encoding
	Event     Encoding
	Hashes    HashEncoding
	BlockSize int
	Rank      int
	OmitRank  bool // a batch of two elements, as vLLM 0.9
}

// Encode appends one batch to dst. ts is the wall clock in seconds.
func (c *Encoder) Encode(dst []byte, ts float64, events []Event) []byte {
	if c.Batch == Map {
		dst = mapHead(dst, 3-boolInt(c.OmitRank))
		dst = float(str(dst, "ts"), ts)
		dst = c.events(str(dst, "events"), events)
		if !c.OmitRank {
			dst = uintv(str(dst, "data_parallel_rank"), uint64(c.Rank))
		}
		return dst
	}
	dst = arrayHead(dst, 3-boolInt(c.OmitRank))
	dst = float(dst, ts)
	dst = c.events(dst, events)
	if !c.OmitRank {
		dst = uintv(dst, uint64(c.Rank))
	}
	return dst
}

func (c *Encoder) events(dst []byte, events []Event) []byte {
	dst = arrayHead(dst, len(events))
	for i := range events {
		if c.Event == Map {
			dst = c.mapEvent(dst, &events[i])
		} else {
			dst = c.arrayEvent(dst, &events[i])
		}
	}
	return dst
}

const medium = "GPU"

// arrayEvent is the form of vLLM 0.18: a store ends after extra_keys, a remove
// after the medium.
func (c *Encoder) arrayEvent(dst []byte, e *Event) []byte {
	switch e.Kind {
	case Stored:
		dst = str(arrayHead(dst, 9), "BlockStored")
		dst = c.hashes(dst, e.Hashes)
		dst = c.parent(dst, e)
		dst = tokens(dst, e.Tokens)
		dst = uintv(dst, uint64(c.BlockSize))
		dst = nilv(dst) // lora_id
		dst = str(dst, medium)
		dst = nilv(dst) // lora_name
		return nulls(dst, len(e.Hashes))
	case Removed:
		dst = str(arrayHead(dst, 3), "BlockRemoved")
		return str(c.hashes(dst, e.Hashes), medium)
	case Cleared:
		return str(arrayHead(dst, 1), "AllBlocksCleared")
	}
	panic(fmt.Sprintf("mockengine: event of kind %d", e.Kind))
}

// mapEvent is the form of vLLM 0.33, to the byte: msgspec writes the head of a
// type with so many fields as map 16, however many there are.
func (c *Encoder) mapEvent(dst []byte, e *Event) []byte {
	switch e.Kind {
	case Stored:
		dst = str(str(append(dst, 0xde, 0, 11), "type"), "BlockStored")
		dst = c.hashes(str(dst, "block_hashes"), e.Hashes)
		dst = c.parent(str(dst, "parent_block_hash"), e)
		dst = tokens(str(dst, "token_ids"), e.Tokens)
		dst = uintv(str(dst, "block_size"), uint64(c.BlockSize))
		dst = nilv(str(dst, "lora_id"))
		dst = str(str(dst, "medium"), medium)
		dst = nilv(str(dst, "lora_name"))
		dst = nulls(str(dst, "extra_keys"), len(e.Hashes))
		dst = uintv(str(dst, "group_idx"), 0)
		return str(str(dst, "kv_cache_spec_kind"), "full_attention")
	case Removed:
		dst = str(str(mapHead(dst, 4), "type"), "BlockRemoved")
		dst = c.hashes(str(dst, "block_hashes"), e.Hashes)
		dst = str(str(dst, "medium"), medium)
		return uintv(str(dst, "group_idx"), 0)
	case Cleared:
		return str(str(mapHead(dst, 1), "type"), "AllBlocksCleared")
	}
	panic(fmt.Sprintf("mockengine: event of kind %d", e.Kind))
}

func (c *Encoder) hashes(dst []byte, hashes []uint64) []byte {
	dst = arrayHead(dst, len(hashes))
	for _, h := range hashes {
		dst = c.hash(dst, h)
	}
	return dst
}

func (c *Encoder) parent(dst []byte, e *Event) []byte {
	if !e.HasParent {
		return nilv(dst)
	}
	return c.hash(dst, e.Parent)
}

func (c *Encoder) hash(dst []byte, h uint64) []byte {
	switch c.Hashes {
	case Signed:
		return intv(dst, int64(h))
	case BytesHash:
		// 32 bytes as SHA-256 has; the 24 before the hash differ from block to
		// block, so that a reader of the wrong end is found out.
		dst = append(dst, 0xc4, 32)
		for _, m := range [...]uint64{0x9e3779b97f4a7c15, 0xbf58476d1ce4e5b9, 0x94d049bb133111eb, 1} {
			dst = binary.BigEndian.AppendUint64(dst, h*m)
		}
		return dst
	}
	return uintv(dst, h)
}

func tokens(dst []byte, ts []uint32) []byte {
	dst = arrayHead(dst, len(ts))
	for _, t := range ts {
		dst = uintv(dst, uint64(t))
	}
	return dst
}

// nulls is a list of n nils: extra_keys of blocks without any.
func nulls(dst []byte, n int) []byte {
	dst = arrayHead(dst, n)
	for range n {
		dst = nilv(dst)
	}
	return dst
}

// The msgpack forms below are the shortest ones, as msgspec writes them.

func nilv(dst []byte) []byte { return append(dst, 0xc0) }

func float(dst []byte, v float64) []byte {
	return binary.BigEndian.AppendUint64(append(dst, 0xcb), math.Float64bits(v))
}

func uintv(dst []byte, v uint64) []byte {
	switch {
	case v < 0x80:
		return append(dst, byte(v))
	case v <= math.MaxUint8:
		return append(dst, 0xcc, byte(v))
	case v <= math.MaxUint16:
		return binary.BigEndian.AppendUint16(append(dst, 0xcd), uint16(v))
	case v <= math.MaxUint32:
		return binary.BigEndian.AppendUint32(append(dst, 0xce), uint32(v))
	}
	return binary.BigEndian.AppendUint64(append(dst, 0xcf), v)
}

func intv(dst []byte, v int64) []byte {
	switch {
	case v >= 0:
		return uintv(dst, uint64(v))
	case v >= -32:
		return append(dst, byte(v))
	case v >= math.MinInt8:
		return append(dst, 0xd0, byte(v))
	case v >= math.MinInt16:
		return binary.BigEndian.AppendUint16(append(dst, 0xd1), uint16(v))
	case v >= math.MinInt32:
		return binary.BigEndian.AppendUint32(append(dst, 0xd2), uint32(v))
	}
	return binary.BigEndian.AppendUint64(append(dst, 0xd3), uint64(v))
}

// str is for the names of the wire, all shorter than 32 bytes.
func str(dst []byte, s string) []byte { return append(append(dst, 0xa0|byte(len(s))), s...) }

func arrayHead(dst []byte, n int) []byte {
	switch {
	case n < 16:
		return append(dst, 0x90|byte(n))
	case n <= math.MaxUint16:
		return binary.BigEndian.AppendUint16(append(dst, 0xdc), uint16(n))
	}
	return binary.BigEndian.AppendUint32(append(dst, 0xdd), uint32(n))
}

// mapHead is for maps of fewer than 16 members, as all here are.
func mapHead(dst []byte, n int) []byte { return append(dst, 0x80|byte(n)) }

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}
