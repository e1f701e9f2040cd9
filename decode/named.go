package decode

import (
	"bytes"
	"encoding/binary"
	"math/bits"

	"github.com/kvrelay/kvrelay/internal/msgpack"
)

// fieldOf is the field that a map's key names.
func fieldOf(key []byte) field {
	switch string(key) {
	case "type":
		return fTag
	case "block_hashes":
		return fHashes
	case "parent_block_hash":
		return fParent
	case "token_ids":
		return fTokens
	case "block_size":
		return fBlockSize
	case "lora_id":
		return fLoraID
	case "medium":
		return fMedium
	case "lora_name":
		return fLoraName
	case "cache_salt":
		return fSalt
	case "extra_keys":
		return fExtraKeys
	case "block_mm_infos":
		return fMMInfos
	case "group_idx":
		return fGroup
	case "kv_cache_spec_kind":
		return fKind
	case "kv_cache_spec_sliding_window":
		return fWindow
	case "locality":
		return fLocality
	case "ownership":
		return fOwnership
	case "session_id":
		return fSession
	case "origin":
		return fOrigin
	}
	return fUnknown
}

// removedFields are those that a remove has. A key that is not among them is to
// it as any unknown key.
const removedFields = 1<<fHashes | 1<<fMedium | 1<<fGroup | 1<<fKind | 1<<fWindow | 1<<fLocality | 1<<fOwnership

// wireKey is the name of a field as engines encode it, in words of eight bytes
// and with the bits of them that count: to compare words in place is a few per
// cent of a map cheaper than to call for a comparison of bytes.
type wireKey struct {
	size       int // 0: none
	word, bits [4]uint64
}

var wireKeys = func() (t [numFields]wireKey) {
	for f, name := range fieldNames {
		if name == "" || fieldOf([]byte(name)) != field(f) {
			continue
		}
		var word, bits [32]byte
		t[f].size = copy(word[:], msgpack.AppendStr(nil, name))
		copy(bits[:t[f].size], bytes.Repeat([]byte{0xff}, len(bits)))
		for i := range t[f].word {
			t[f].word[i] = binary.LittleEndian.Uint64(word[8*i:])
			t[f].bits[i] = binary.LittleEndian.Uint64(bits[8*i:])
		}
	}
	return t
}()

// begins is whether in begins with the key, which is one (size > 0), and goes on for a
// while behind it. It is small enough to be inlined.
func (k *wireKey) begins(in []byte) bool {
	return len(in) >= 32 &&
		((binary.LittleEndian.Uint64(in)^k.word[0])&k.bits[0]|(binary.LittleEndian.Uint64(in[8:])^k.word[1])&k.bits[1]) == 0 &&
		(k.size <= 16 || k.goesOn(in))
}

// goesOn compares what of a long key lies behind its first 16 bytes.
func (k *wireKey) goesOn(in []byte) bool {
	return ((binary.LittleEndian.Uint64(in[16:])^k.word[2])&k.bits[2] | (binary.LittleEndian.Uint64(in[24:])^k.word[3])&k.bits[3]) == 0
}

// order remembers which field stood at which place of the last map of so many
// keys. An engine writes the events of a type alike, so a key is nearly always
// known by one comparison with what was there before; where that fails it is
// read like any other, so that a wrong guess costs time and decides nothing.
// Stores and removes differ in the number
// of their keys and do not spoil each other's guesses.
type order [16][16]field // sizes and places modulo 16; a field without a wireKey is no guess

// readKey reads a key of a map: its field, or what is wrong with it.
func (b *Batch) readKey() (field, cause) {
	key, ok := b.r.Text()
	if !ok {
		return 0, wrongType
	}
	f := fieldOf(key)
	if f == fUnknown && !valid(key) {
		return 0, badText
	}
	return f, good
}

// readNamed reads an event that is a map. The type may be its last key, and of
// a repeated key the last value counts; so what is wrong is noted per field,
// and judged when all are read. mark is where the arenas stood before.
func (b *Batch) readNamed(ev *Event, mark *marks) (tag []byte, p problem) {
	n, ok := b.r.Map()
	if !ok {
		return nil, wrongType.of(fEvent)
	}
	var seen uint32
	var wrong flaws
	order := &b.order[n%len(b.order)]
	in, at := b.r.Input(), b.r.Off() // the Reader is put there only for what is not quick
	for i := range n {
		guess := &order[i%len(order)]
		f := *guess
		if k := &wireKeys[f]; k.size > 0 && k.begins(in[at:]) {
			at += k.size
		} else {
			b.r.Seek(at)
			var c cause
			if f, c = b.readKey(); c != good {
				if b.r.Failed() {
					return nil, c.of(fKey)
				}
				wrong.note(fKey, max(wrong.of[fKey], c))
				if c == wrongType {
					b.r.Skip()
				}
				if !b.r.Skip() {
					return nil, c.of(fKey)
				}
				at = b.r.Off()
				continue
			}
			*guess = f
			at = b.r.Off()
		}
		seen |= 1 << f
		size := 0
		if f == fTag && at < len(in) {
			tag, size = quickText(in[at:])
			size *= min(len(tag), 1) // nil is no tag
		} else {
			size = ev.quick(f, in[at:])
		}
		if size > 0 {
			at += size
			if wrong.any != 0 {
				wrong.note(f, good)
			}
			continue
		}
		b.r.Seek(at)
		var c cause
		if f == fTag {
			tag, c = b.key()
		} else {
			c = b.readField(ev, f)
		}
		if c != good || wrong.any != 0 {
			wrong.note(f, c)
		}
		if c != good {
			b.r.Seek(at)
			b.r.Skip()
		}
		if b.r.Failed() {
			return nil, wrongType.of(f)
		}
		at = b.r.Off()
	}
	b.r.Seek(at)
	if wrong.any != 0 {
		if c := wrong.of[fKey]; c != good {
			return tag, c.of(fKey)
		}
		if c := wrong.of[fTag]; c != good {
			return nil, c.of(fTag)
		}
	}
	if seen&(1<<fTag) == 0 {
		return nil, missing.of(fTag)
	}
	return tag, b.judge(ev, tag, mark, seen, &wrong)
}

// flaws is what is wrong with each field of a map.
type flaws struct {
	any uint32 // a bit for each field with a cause
	of  [numFields]cause
}

func (w *flaws) note(f field, c cause) {
	w.of[f] = c
	w.any &^= 1 << f
	if c != good {
		w.any |= 1 << f
	}
}

// judge says what is wrong with a map of the type tag, and leaves in ev only
// what that type has.
func (b *Batch) judge(ev *Event, tag []byte, mark *marks, seen uint32, wrong *flaws) problem {
	typ := typeOf(tag)
	var has uint32
	switch typ {
	case Stored:
		has = ^uint32(0)
	case Removed:
		has = removedFields
		if seen&^(removedFields|1<<fTag|1<<fUnknown) != 0 {
			*ev = Event{IsMap: true, Hashes: ev.Hashes, BytesHash: ev.BytesHash, Medium: ev.Medium,
				Group: ev.Group, HasGroup: ev.HasGroup, Kind: ev.Kind, HasKind: ev.HasKind,
				Locality: ev.Locality, OtherLocality: ev.OtherLocality, Ownership: ev.Ownership}
		}
	case Cleared:
		// As in a tuple, a medium or an ownership of another type is ignored: a
		// clear that is lost leaves a false cache behind. A locality of another
		// type is one, though not this worker's, as in every event.
		for _, f := range [...]field{fMedium, fLocality, fOwnership} {
			if wrong.of[f] == badText {
				return badText.of(f)
			}
		}
		*ev = Event{IsMap: true, Medium: ev.Medium, Ownership: ev.Ownership,
			Locality: ev.Locality, OtherLocality: ev.OtherLocality}
	case Unknown:
		*ev = Event{IsMap: true, Name: tag}
	default:
		*ev = Event{IsMap: true}
	}
	ev.Type = typ
	if typ != Stored && typ != Removed {
		b.back(*mark)
		return 0
	}
	if bad := wrong.any & has &^ (1<<fHashes - 1); bad != 0 {
		f := field(bits.TrailingZeros32(bad))
		return wrong.of[f].of(f)
	}
	if seen&(1<<fHashes) == 0 {
		return missing.of(fHashes)
	}
	if typ == Stored && len(ev.Tokens) > 0 && !ev.HasBlockSz {
		return missing.of(fBlockSize)
	}
	return 0
}
