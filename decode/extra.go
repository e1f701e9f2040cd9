package decode

import (
	"unicode/utf8"

	"github.com/kvrelay/kvrelay/internal/msgpack"
)

// shortText is the length from which texts in extra_keys are kept; see ExtraKey.
const shortText = 4

// readExtraKeys reads nil or a list, per block, of nil or a list of items.
func (b *Batch) readExtraKeys(ev *Event) cause {
	ev.ExtraKeys = nil
	if b.r.Nil() {
		return good
	}
	blocks, ok := b.r.Array()
	if !ok {
		return wrongType
	}
	mark := b.keys.used
	for block := range blocks {
		if b.r.Nil() {
			continue
		}
		items, ok := b.r.Array()
		if !ok {
			return wrongType
		}
		for range items {
			if c := b.readExtraKey(block); c != good {
				return c
			}
		}
	}
	ev.ExtraKeys = b.keys.since(mark)
	return good
}

// readExtraKey reads one item: text, bytes, a number, a bool, or a pair of
// text or bytes and an integer offset.
func (b *Batch) readExtraKey(block int) cause {
	k := ExtraKey{Block: block}
	switch b.r.Kind() {
	case msgpack.Str, msgpack.Bin:
	case msgpack.Int, msgpack.Float, msgpack.Bool:
		b.r.Skip()
		return good
	case msgpack.Array:
		if n, _ := b.r.Array(); n != 2 {
			return wrongType
		}
		k.Pair = true
	default:
		return wrongType
	}
	var ok bool
	if k.Text, k.Str = b.r.Str(); !k.Str {
		if k.Text, ok = b.r.Bin(); !ok {
			return wrongType
		}
	} else if !utf8.Valid(k.Text) {
		return badText
	}
	if k.Pair {
		if _, _, ok = b.r.Bits64(); !ok {
			return wrongType
		}
	}
	if len(k.Text) >= shortText {
		b.keys.put(k)
	}
	return good
}

// readMMInfos reads block_mm_infos: nil or a list, per block, of nil or
// {"mm_objects": […]}, or the same as an array.
func (b *Batch) readMMInfos(ev *Event) cause {
	ev.MM, ev.HasMM = nil, false
	if b.r.Nil() {
		return good
	}
	blocks, ok := b.r.Array()
	if !ok {
		return wrongType
	}
	mark := b.mm.used
	for block := range blocks {
		if b.r.Nil() {
			continue
		}
		start := b.mm.used
		c := b.readRecord([2]string{"mm_objects"}, 1, func(int) cause {
			b.mm.used = start
			return b.readMMObjects(block)
		})
		if c != good {
			return c
		}
		if b.mm.used == start {
			b.mm.put(MMObject{Block: block, Empty: true})
		}
	}
	ev.MM, ev.HasMM = b.mm.since(mark), true
	return good
}

func (b *Batch) readMMObjects(block int) cause {
	n, ok := b.r.Array()
	if !ok {
		return wrongType
	}
	for range n {
		o := MMObject{Block: block}
		start := b.offs.used
		c := b.readRecord([2]string{"mm_hash", "offsets"}, 2, func(i int) cause {
			if i == 1 {
				b.offs.used = start
				return b.readOffsets()
			}
			o.Hash, ok = b.r.Uint()
			if !ok {
				return wrongType
			}
			return good
		})
		if c != good {
			return c
		}
		o.Offsets = b.offs.since(start)
		b.mm.put(o)
	}
	return good
}

// readOffsets reads a list of pairs [first, last].
func (b *Batch) readOffsets() cause {
	n, ok := b.r.Array()
	if !ok {
		return wrongType
	}
	for range n {
		if size, _ := b.r.Array(); size != 2 {
			return wrongType
		}
		from, ok := b.r.Uint()
		to, ok2 := b.r.Uint()
		if !ok || !ok2 {
			return wrongType
		}
		b.offs.put([2]uint64{from, to})
	}
	return good
}

// readRecord reads n named values, all of them required: a map with any other
// keys besides, or an array with any other elements behind them. read reads
// the i-th. Of a repeated key the last value counts.
func (b *Batch) readRecord(names [2]string, n int, read func(i int) cause) cause {
	if size, ok := b.r.Array(); ok {
		if size < n {
			return missing
		}
		for i := range n {
			if c := read(i); c != good {
				return c
			}
		}
		b.r.SkipN(size - n)
		return good
	}
	size, ok := b.r.Map()
	if !ok {
		return wrongType
	}
	state := [2]cause{missing, missing}
	for range size {
		key, c := b.key()
		if c != good {
			return c
		}
		i := 0
		for i < n && string(key) != names[i] {
			i++
		}
		if i == n {
			b.r.Skip()
			continue
		}
		at := b.r.Off()
		if state[i] = read(i); state[i] != good {
			b.r.Seek(at)
			b.r.Skip()
		}
	}
	for _, c := range state[:n] {
		if c != good {
			return c
		}
	}
	return good
}
