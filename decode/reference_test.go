package decode

import (
	"math"
	"strings"
	"unicode/utf8"
)

// The reference: another msgpack decoder makes a tree of the payload, and the
// rules of the wire are applied to that tree, slowly and in the plainest way.

// refBatch is what Decode must make of a sound payload; false: no batch.
func refBatch(n node) (b Batch, ok bool) {
	var ts, events, rank node
	switch {
	case n.kind == "array" && len(n.list) >= 2:
		ts, events = n.list[0], n.list[1]
		if len(n.list) > 2 {
			rank = n.list[2]
		}
	case n.kind == "map":
		b.IsMap = true
		ts, events = n.field("ts"), n.field("events")
		if events.kind == "" {
			return b, false
		}
		if rank = n.field("data_parallel_rank"); rank.kind == "" {
			rank = n.field("dp_rank")
		}
	default:
		return b, false
	}
	switch {
	case ts.kind == "float":
		b.TS = ts.float
	case ts.kind == "int" && ts.neg:
		b.TS = float64(int64(ts.num))
	case ts.kind == "int":
		b.TS = float64(ts.num)
	default:
		b.TS = math.NaN()
	}
	b.HasTS = !math.IsNaN(b.TS) && !math.IsInf(b.TS, 0)
	if !b.HasTS {
		b.TS = 0
	}
	if rank.kind == "int" && !rank.neg && rank.num <= 65535 {
		b.Rank, b.HasRank = uint32(rank.num), true
	} else {
		b.BadRank = !rank.isNil()
	}
	if events.kind != "array" && !events.isNil() {
		return b, false
	}
	for _, e := range events.list {
		b.Events = append(b.Events, refEvent(e))
	}
	return b, true
}

// bad is what the reference panics with when an event is malformed.
type bad struct{}

func must(ok bool) {
	if !ok {
		panic(bad{})
	}
}

func refEvent(n node) (ev Event) {
	var name []byte
	defer func() {
		if p := recover(); p != nil {
			if _, ok := p.(bad); !ok {
				panic(p)
			}
			ev = Event{Type: Malformed, IsMap: n.kind == "map", Name: name}
		}
	}()
	must(n.kind == "array" || n.kind == "map")
	var tag node
	if n.kind == "map" {
		tag = n.field("type")
	} else if len(n.list) > 0 {
		tag = n.list[0]
	}
	if tag.isText() && utf8.Valid(tag.text) {
		name = tag.text
	}
	if n.kind == "map" {
		ev.IsMap = true
		for i := 0; i < len(n.list); i += 2 {
			must(n.list[i].isText() && utf8.Valid(n.list[i].text))
		}
	}
	must(name != nil)
	get := n.field
	if n.kind == "array" {
		get = func(field string) node { return n.slot(string(name), field) }
	}
	switch string(name) {
	case "BlockStored":
		ev.Type = Stored
		if n.kind == "array" {
			must(len(n.list) >= 5)
		}
		ev.refStored(get)
		if n.kind == "array" && len(n.list) > 9 {
			ev.refTail(n.list[9:])
		}
	case "BlockRemoved":
		ev.Type = Removed
		ev.refHashes(get("block_hashes"))
		ev.refCommon(get)
		if n.kind == "array" && len(n.list) > 3 {
			ev.refTail(n.list[3:])
		}
	case "AllBlocksCleared":
		ev.Type = Cleared
		for _, f := range []struct {
			name string
			dst  *[]byte
		}{{"medium", &ev.Medium}, {"ownership", &ev.Ownership}} {
			if v := get(f.name); v.isText() {
				*f.dst = refText(v)
			}
		}
		ev.refLocality(get)
	case "Ignored":
		ev.Type = Ignored
	default:
		ev.Type, ev.Name = Unknown, name
	}
	return ev
}

// slot is a field of an array event by its position.
func (n node) slot(tag, field string) node {
	order := map[string]string{
		"BlockStored":      "type block_hashes parent_block_hash token_ids block_size lora_id medium lora_name extra_keys",
		"BlockRemoved":     "type block_hashes medium",
		"AllBlocksCleared": "type medium",
	}[tag]
	for i, name := range strings.Fields(order) {
		if name == field && i < len(n.list) {
			v := n.list[i]
			if field == "lora_name" && v.kind == "map" {
				v.kind = "slot map"
			}
			return v
		}
	}
	return node{}
}

func refText(v node) []byte {
	if v.isNil() {
		return nil
	}
	must(v.isText() && utf8.Valid(v.text))
	return v.text
}

func refUint(v node) uint64 {
	must(v.kind == "int" && !v.neg)
	return v.num
}

func refHash(v node) uint64 {
	if v.kind == "bin" {
		must(len(v.text) > 0)
		var h uint64
		for _, c := range v.text {
			h = h<<8 + uint64(c)
		}
		return h
	}
	must(v.kind == "int")
	return v.num
}

func (ev *Event) refHashes(v node) {
	must(v.kind == "array")
	for _, h := range v.list {
		ev.Hashes = append(ev.Hashes, refHash(h))
		ev.BytesHash = ev.BytesHash || h.kind == "bin"
	}
}

// refCommon reads what stored and removed events have in common.
func (ev *Event) refCommon(get func(string) node) {
	ev.Medium = refText(get("medium"))
	if g := get("group_idx"); !g.isNil() {
		v := refUint(g)
		if ev.HasGroup = v < 1<<32; ev.HasGroup {
			ev.Group = uint32(v)
		}
	}
	ev.Kind = refText(get("kv_cache_spec_kind"))
	ev.HasKind = ev.Kind != nil
	if w := get("kv_cache_spec_sliding_window"); !w.isNil() {
		refUint(w)
	}
	ev.refLocality(get)
	ev.Ownership = refText(get("ownership"))
}

func (ev *Event) refLocality(get func(string) node) {
	if l := get("locality"); l.isNil() || l.isText() {
		ev.Locality = refText(l)
	} else {
		ev.OtherLocality = true
	}
}

func (ev *Event) refStored(get func(string) node) {
	ev.refHashes(get("block_hashes"))
	if p := get("parent_block_hash"); !p.isNil() {
		ev.Parent, ev.HasParent = refHash(p), true
	}
	ev.refTokens(get("token_ids"))
	if s := get("block_size"); !s.isNil() {
		ev.BlockSize, ev.HasBlockSz = refUint(s), true
	}
	must(ev.HasBlockSz || ev.Tokens.Len() == 0)
	if l := get("lora_id"); !l.isNil() {
		must(l.kind == "int")
		if ev.LoraID = int64(l.num); !l.neg && l.num > math.MaxInt64 {
			ev.LoraID = math.MaxInt64
		}
	}
	if l := get("lora_name"); l.kind == "slot map" {
		ev.HasSlotSalt = true
		for i := 0; i < len(l.list); i += 2 {
			must(l.list[i].isText() && utf8.Valid(l.list[i].text))
		}
		ev.SlotSalt = refText(l.field("cache_salt"))
	} else {
		ev.LoraName = refText(l)
	}
	ev.CacheSalt = refText(get("cache_salt"))
	ev.HasSalt = ev.CacheSalt != nil
	ev.refExtraKeys(get("extra_keys"))
	if mm := get("block_mm_infos"); !mm.isNil() {
		ev.refMMInfos(mm)
	}
	ev.refCommon(get)
	ev.SessionID = refText(get("session_id"))
	if o := get("origin"); o.isText() {
		ev.Reused = string(o.text) == "REUSED"
	}
}

func (ev *Event) refTokens(v node) {
	if v.isNil() {
		return
	}
	must(v.kind == "array")
	ev.HasTokens = true
	add := func(t uint32) { ev.Tokens = append(ev.Tokens, byte(t), byte(t>>8), byte(t>>16), byte(t>>24)) }
	token := func(v node) uint32 {
		t := refUint(v)
		must(t < 1<<32)
		return uint32(t)
	}
	var plain, pairs, breaks int
	var last uint32
	for i, e := range v.list {
		if e.kind != "array" {
			plain++
			add(token(e))
			continue
		}
		pairs++
		must(len(e.list) == 2)
		first := token(e.list[0])
		if i > 0 && first != last {
			breaks++
		}
		add(first)
		last = token(e.list[1])
	}
	if pairs > 0 {
		ev.Pairs = ChainedPairs
		if plain+breaks > 0 {
			ev.Pairs = UnsoundPairs
		}
		if v.list[len(v.list)-1].kind == "array" {
			add(last)
		}
	}
}

func (ev *Event) refExtraKeys(v node) {
	if v.isNil() {
		return
	}
	must(v.kind == "array")
	for block, items := range v.list {
		must(items.isNil() || items.kind == "array")
		for _, it := range items.list {
			k := ExtraKey{Block: block}
			switch it.kind {
			case "int", "float", "bool":
				continue
			case "array":
				must(len(it.list) == 2 && it.list[1].kind == "int")
				it, k.Pair = it.list[0], true
			}
			must(it.isText())
			k.Text, k.Str = it.text, it.kind == "str"
			must(!k.Str || utf8.Valid(k.Text))
			if len(k.Text) >= 4 {
				ev.ExtraKeys = append(ev.ExtraKeys, k)
			}
		}
	}
}

// refRecord reads required fields of a map, or of an array by position.
func refRecord(v node, names ...string) (out []node) {
	if v.kind == "array" {
		must(len(v.list) >= len(names))
		return v.list[:len(names)]
	}
	must(v.kind == "map")
	for i := 0; i < len(v.list); i += 2 {
		must(v.list[i].isText() && utf8.Valid(v.list[i].text))
	}
	for _, name := range names {
		out = append(out, v.field(name))
	}
	return out
}

func (ev *Event) refMMInfos(v node) {
	must(v.kind == "array")
	ev.HasMM = true
	for block, info := range v.list {
		if info.isNil() {
			continue
		}
		objects := refRecord(info, "mm_objects")[0]
		must(objects.kind == "array")
		for _, o := range objects.list {
			f := refRecord(o, "mm_hash", "offsets")
			m := MMObject{Block: block, Hash: refUint(f[0])}
			must(f[1].kind == "array")
			for _, pair := range f[1].list {
				must(pair.kind == "array" && len(pair.list) == 2)
				m.Offsets = append(m.Offsets, [2]uint64{refUint(pair.list[0]), refUint(pair.list[1])})
			}
			ev.MM = append(ev.MM, m)
		}
		if len(objects.list) == 0 {
			ev.MM = append(ev.MM, MMObject{Block: block, Empty: true})
		}
	}
}
