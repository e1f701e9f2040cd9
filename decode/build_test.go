package decode

import (
	"fmt"
	"strings"

	wire "github.com/kvrelay/kvrelay/internal/msgpack"
)

type (
	list []any // an array
	dict []any // a map: key, value, key, value, …
	raw  []byte
)

// enc writes v as msgpack.
func enc(v any) []byte { return put(nil, v) }

func put(p []byte, v any) []byte {
	switch v := v.(type) {
	case nil:
		return wire.AppendNil(p)
	case bool:
		return wire.AppendBool(p, v)
	case int:
		return wire.AppendInt(p, int64(v))
	case int64:
		return wire.AppendInt(p, v)
	case uint64:
		return wire.AppendUint(p, v)
	case float64:
		return wire.AppendFloat(p, v)
	case string:
		return wire.AppendStr(p, v)
	case []byte:
		return wire.AppendBin(p, v)
	case raw:
		return append(p, v...)
	case list:
		p = wire.AppendArrayHeader(p, len(v))
		for _, e := range v {
			p = put(p, e)
		}
		return p
	case dict:
		p = wire.AppendMapHeader(p, len(v)/2)
		for _, e := range v {
			p = put(p, e)
		}
		return p
	}
	panic(fmt.Sprintf("no msgpack for %T", v))
}

// batchOf is an array batch of events.
func batchOf(events ...any) []byte { return enc(list{1.5, list(events), 0}) }

// stored is a tuple of hash 1 and tokens 1 to 4, with more slots from lora_id on.
func stored(more ...any) list {
	return append(list{"BlockStored", list{1}, nil, list{1, 2, 3, 4}, 4}, more...)
}

// tailed is the same with a tail.
func tailed(tail ...any) list { return append(stored(nil, "GPU", nil, nil), tail...) }

// named is the same as a map, with more keys and values.
func named(more ...any) dict {
	return append(dict{"type", "BlockStored", "block_hashes", list{1}, "parent_block_hash", nil,
		"token_ids", list{1, 2, 3, 4}, "block_size", 4}, more...)
}

// show writes an event so that two can be compared: nil and empty texts differ,
// nil and empty lists do not. Problem is left out: the reference has none.
func show(ev *Event) string {
	text := func(b []byte) string {
		if b == nil {
			return "-"
		}
		return fmt.Sprintf("%q", b)
	}
	var s strings.Builder
	fmt.Fprintf(&s, "type %d map %v name %s hashes %x bytes %v parent %x %v tokens %x %v pairs %d size %d %v lora %d %s slot %s %v salt %s %v medium %s mm %v",
		ev.Type, ev.IsMap, text(ev.Name), ev.Hashes, ev.BytesHash, ev.Parent, ev.HasParent, []byte(ev.Tokens), ev.HasTokens,
		ev.Pairs, ev.BlockSize, ev.HasBlockSz, ev.LoraID, text(ev.LoraName), text(ev.SlotSalt), ev.HasSlotSalt,
		text(ev.CacheSalt), ev.HasSalt, text(ev.Medium), ev.HasMM)
	for _, m := range ev.MM {
		fmt.Fprintf(&s, " (%d %x %v)", m.Block, m.Hash, m.Offsets)
	}
	s.WriteString(" keys")
	for _, k := range ev.ExtraKeys {
		fmt.Fprintf(&s, " (%d %s %v %v)", k.Block, text(k.Text), k.Str, k.Pair)
	}
	fmt.Fprintf(&s, " group %d %v kind %s %v locality %s %v owner %s session %s reused %v", ev.Group, ev.HasGroup,
		text(ev.Kind), ev.HasKind, text(ev.Locality), ev.OtherLocality, text(ev.Ownership), text(ev.SessionID), ev.Reused)
	return s.String()
}
