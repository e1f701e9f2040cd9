package decode

import (
	"math"
	"reflect"
	"testing"
)

// one decodes a batch of a good store, ev and a good store, and returns what
// became of ev; its neighbours must be untouched.
func one(t *testing.T, ev any) *Event {
	t.Helper()
	var b Batch
	p := batchOf(stored(), ev, named())
	if err := b.Decode(p); err != nil {
		t.Fatal(err)
	}
	if len(b.Events) != 3 || b.Events[0].Type != Stored || b.Events[2].Type != Stored || b.Events[2].Tokens.Len() != 4 {
		t.Fatalf("the neighbours suffered: %d events", len(b.Events))
	}
	return &b.Events[1]
}

func tokens(t Tokens) (out []uint32) {
	for i := range t.Len() {
		out = append(out, t.At(i))
	}
	return out
}

func TestMalformed(t *testing.T) {
	bad := "\xff\xfe"
	for _, c := range []struct {
		name    string
		ev      any
		problem string
		tag     string
	}{
		{"integer", 7, "event: wrong type", ""},
		{"nil", nil, "event: wrong type", ""},
		{"text", "BlockStored", "event: wrong type", ""},
		{"float", 1.5, "event: wrong type", ""},
		{"ext", raw{0xd4, 1, 2}, "event: wrong type", ""},
		{"empty array", list{}, "type: missing", ""},
		{"empty map", dict{}, "type: missing", ""},
		{"no type", dict{"block_hashes", list{1}}, "type: missing", ""},
		{"tag nil", list{nil, list{1}}, "type: wrong type", ""},
		{"tag integer", list{3, list{1}}, "type: wrong type", ""},
		{"tag list", list{list{"BlockStored"}, list{1}}, "type: wrong type", ""},
		{"tag not UTF-8", list{bad}, "type: invalid UTF-8", ""},
		{"type nil", named("type", nil), "type: wrong type", ""},
		{"type integer", named("type", 4), "type: wrong type", ""},
		{"type not UTF-8", named("type", bad), "type: invalid UTF-8", ""},
		{"integer key", named(7, 8), "key: wrong type", "BlockStored"},
		{"nil key", named(nil, 8), "key: wrong type", "BlockStored"},
		{"list key", named(list{1, 2}, list{3}), "key: wrong type", "BlockStored"},
		{"key not UTF-8", named(bad, 8), "key: invalid UTF-8", "BlockStored"},
		{"bytes key not UTF-8", named([]byte(bad), 8), "key: invalid UTF-8", "BlockStored"},
		{"integer key before the type", dict{1, 2, "type", "Ignored"}, "key: wrong type", "Ignored"},

		{"tuple ends after the tag", stored()[:1], "block_hashes: missing", "BlockStored"},
		{"tuple ends after the hashes", stored()[:2], "token_ids: missing", "BlockStored"},
		{"tuple ends after the parent", stored()[:3], "token_ids: missing", "BlockStored"},
		{"tuple ends after the tokens", stored()[:4], "block_size: missing", "BlockStored"},
		{"hash-only tuple ends after the tokens", list{"BlockStored", list{1}, nil, nil}, "block_size: missing", "BlockStored"},
		{"no block_hashes", dict{"type", "BlockStored", "token_ids", list{1}, "block_size", 1}, "block_hashes: missing", "BlockStored"},
		{"no block_size", dict{"type", "BlockStored", "block_hashes", list{1}, "token_ids", list{1}}, "block_size: missing", "BlockStored"},
		{"block_size nil", named("block_size", nil), "block_size: missing", "BlockStored"},
		{"removed without hashes", list{"BlockRemoved"}, "block_hashes: missing", "BlockRemoved"},
		{"removed map without hashes", dict{"type", "BlockRemoved"}, "block_hashes: missing", "BlockRemoved"},
		{"removed hashes nil", list{"BlockRemoved", nil}, "block_hashes: wrong type", "BlockRemoved"},
		{"removed hashes text", list{"BlockRemoved", "x"}, "block_hashes: wrong type", "BlockRemoved"},
		{"removed medium", list{"BlockRemoved", list{1}, 5}, "medium: wrong type", "BlockRemoved"},
		{"removed medium not UTF-8", list{"BlockRemoved", list{1}, bad}, "medium: invalid UTF-8", "BlockRemoved"},
		{"removed tail not UTF-8", list{"BlockRemoved", list{1}, nil, 0, bad}, "tail: invalid UTF-8", "BlockRemoved"},
		{"removed map's medium", dict{"type", "BlockRemoved", "block_hashes", list{1}, "medium", 5}, "medium: wrong type", "BlockRemoved"},
		{"removed map's group", dict{"type", "BlockRemoved", "block_hashes", list{1}, "group_idx", -1}, "group_idx: wrong type", "BlockRemoved"},
		{"cleared slot 1 not UTF-8", list{"AllBlocksCleared", bad}, "medium: invalid UTF-8", "AllBlocksCleared"},
		{"cleared map's owner not UTF-8", dict{"type", "AllBlocksCleared", "ownership", bad}, "ownership: invalid UTF-8", "AllBlocksCleared"},

		{"hashes nil", named("block_hashes", nil), "block_hashes: wrong type", "BlockStored"},
		{"hashes a map", named("block_hashes", dict{"a", 1}), "block_hashes: wrong type", "BlockStored"},
		{"float hash", named("block_hashes", list{1, 1.0}), "block_hashes: wrong type", "BlockStored"},
		{"nil hash", named("block_hashes", list{1, nil}), "block_hashes: wrong type", "BlockStored"},
		{"text hash", named("block_hashes", list{"12345678"}), "block_hashes: wrong type", "BlockStored"},
		{"bool hash", named("block_hashes", list{true}), "block_hashes: wrong type", "BlockStored"},
		{"list hash", named("block_hashes", list{list{1}}), "block_hashes: wrong type", "BlockStored"},
		{"empty bytes hash", named("block_hashes", list{[]byte{}}), "block_hashes: wrong type", "BlockStored"},
		{"parent text", named("parent_block_hash", "x"), "parent_block_hash: wrong type", "BlockStored"},
		{"parent float", named("parent_block_hash", 1.0), "parent_block_hash: wrong type", "BlockStored"},
		{"parent list", named("parent_block_hash", list{1}), "parent_block_hash: wrong type", "BlockStored"},
		{"parent of no bytes", named("parent_block_hash", []byte{}), "parent_block_hash: wrong type", "BlockStored"},
		{"token 2^32", named("token_ids", list{1, 2, 3, 1 << 32}), "token_ids: wrong type", "BlockStored"},
		{"token negative", named("token_ids", list{1, 2, 3, -1}), "token_ids: wrong type", "BlockStored"},
		{"token nil", named("token_ids", list{1, 2, nil, 4}), "token_ids: wrong type", "BlockStored"},
		{"token float", named("token_ids", list{1.0, 2, 3, 4}), "token_ids: wrong type", "BlockStored"},
		{"token text", named("token_ids", list{"1"}), "token_ids: wrong type", "BlockStored"},
		{"tokens bytes", named("token_ids", []byte{1, 0, 0, 0}), "token_ids: wrong type", "BlockStored"},
		{"tokens a number", named("token_ids", 4), "token_ids: wrong type", "BlockStored"},
		{"triple", named("token_ids", list{list{1, 2, 3}}), "token_ids: wrong type", "BlockStored"},
		{"single", named("token_ids", list{list{1}}), "token_ids: wrong type", "BlockStored"},
		{"pair's second too large", named("token_ids", list{list{1, 1 << 32}}), "token_ids: wrong type", "BlockStored"},
		{"pair's first negative", named("token_ids", list{list{-1, 2}}), "token_ids: wrong type", "BlockStored"},
		{"nil among pairs", named("token_ids", list{list{1, 2}, nil}), "token_ids: wrong type", "BlockStored"},
		{"block_size -4", stored()[:4:4], "block_size: missing", "BlockStored"},
		{"block_size negative", append(stored()[:4:4], -4), "block_size: wrong type", "BlockStored"},
		{"block_size text", append(stored()[:4:4], "4"), "block_size: wrong type", "BlockStored"},
		{"block_size float", append(stored()[:4:4], 4.0), "block_size: wrong type", "BlockStored"},
		{"tuple's block_size nil", append(stored()[:4:4], nil), "block_size: wrong type", "BlockStored"},
		{"hash-only block_size negative", list{"BlockStored", list{1}, nil, nil, -4}, "block_size: wrong type", "BlockStored"},
		{"lora_id text", stored("1"), "lora_id: wrong type", "BlockStored"},
		{"lora_id float", stored(1.0), "lora_id: wrong type", "BlockStored"},
		{"medium integer", stored(nil, 1), "medium: wrong type", "BlockStored"},
		{"medium list", named("medium", list{"GPU"}), "medium: wrong type", "BlockStored"},
		{"medium not UTF-8", stored(nil, bad), "medium: invalid UTF-8", "BlockStored"},
		{"medium bytes not UTF-8", stored(nil, []byte(bad)), "medium: invalid UTF-8", "BlockStored"},
		{"slot 7 integer", stored(nil, nil, 7), "lora_name: wrong type", "BlockStored"},
		{"slot 7 list", stored(nil, nil, list{"s"}), "lora_name: wrong type", "BlockStored"},
		{"slot 7 not UTF-8", stored(nil, nil, bad), "lora_name: invalid UTF-8", "BlockStored"},
		{"slot 7 salt integer", stored(nil, nil, dict{"cache_salt", 5}), "lora_name: wrong type", "BlockStored"},
		{"slot 7 salt not UTF-8", stored(nil, nil, dict{"cache_salt", bad}), "lora_name: invalid UTF-8", "BlockStored"},
		{"slot 7 integer key", stored(nil, nil, dict{1, 2}), "lora_name: wrong type", "BlockStored"},
		{"slot 7 key not UTF-8", stored(nil, nil, dict{bad, 2}), "lora_name: invalid UTF-8", "BlockStored"},
		{"slot 7's last salt", stored(nil, nil, dict{"cache_salt", "s", "cache_salt", 5}), "lora_name: wrong type", "BlockStored"},
		{"lora_name a map", named("lora_name", dict{"cache_salt", "s"}), "lora_name: wrong type", "BlockStored"},
		{"cache_salt integer", named("cache_salt", 5), "cache_salt: wrong type", "BlockStored"},
		{"session_id integer", named("session_id", 5), "session_id: wrong type", "BlockStored"},
		{"ownership integer", named("ownership", 5), "ownership: wrong type", "BlockStored"},
		{"kind integer", named("kv_cache_spec_kind", 5), "kv_cache_spec_kind: wrong type", "BlockStored"},
		{"window text", named("kv_cache_spec_sliding_window", "5"), "kv_cache_spec_sliding_window: wrong type", "BlockStored"},
		{"group negative", named("group_idx", -1), "group_idx: wrong type", "BlockStored"},
		{"group text", named("group_idx", "0"), "group_idx: wrong type", "BlockStored"},
		{"group float", named("group_idx", 0.0), "group_idx: wrong type", "BlockStored"},
		{"group bool", named("group_idx", false), "group_idx: wrong type", "BlockStored"},
		{"locality not UTF-8", named("locality", bad), "locality: invalid UTF-8", "BlockStored"},
		{"tail not UTF-8", tailed(0, bad), "tail: invalid UTF-8", "BlockStored"},

		{"extra_keys text", stored(nil, nil, nil, "x"), "extra_keys: wrong type", "BlockStored"},
		{"extra_keys map", named("extra_keys", dict{}), "extra_keys: wrong type", "BlockStored"},
		{"extra_keys of a block text", named("extra_keys", list{"x"}), "extra_keys: wrong type", "BlockStored"},
		{"item nil", named("extra_keys", list{list{nil}}), "extra_keys: wrong type", "BlockStored"},
		{"item map", named("extra_keys", list{list{dict{}}}), "extra_keys: wrong type", "BlockStored"},
		{"item ext", named("extra_keys", list{list{raw{0xd4, 1, 2}}}), "extra_keys: wrong type", "BlockStored"},
		{"item of three", named("extra_keys", list{list{list{"a", 1, 2}}}), "extra_keys: wrong type", "BlockStored"},
		{"item of one", named("extra_keys", list{list{list{"a"}}}), "extra_keys: wrong type", "BlockStored"},
		{"item of none", named("extra_keys", list{list{list{}}}), "extra_keys: wrong type", "BlockStored"},
		{"pair of integers", named("extra_keys", list{list{list{1, 2}}}), "extra_keys: wrong type", "BlockStored"},
		{"pair of texts", named("extra_keys", list{list{list{"a", "b"}}}), "extra_keys: wrong type", "BlockStored"},
		{"pair with nil", named("extra_keys", list{list{list{"a", nil}}}), "extra_keys: wrong type", "BlockStored"},
		{"pair with a float", named("extra_keys", list{list{list{"a", 1.0}}}), "extra_keys: wrong type", "BlockStored"},
		{"item not UTF-8", named("extra_keys", list{nil, list{bad}}), "extra_keys: invalid UTF-8", "BlockStored"},

		{"mm text", named("block_mm_infos", "x"), "block_mm_infos: wrong type", "BlockStored"},
		{"mm of a block integer", named("block_mm_infos", list{1}), "block_mm_infos: wrong type", "BlockStored"},
		{"mm without objects", named("block_mm_infos", list{dict{}}), "block_mm_infos: missing", "BlockStored"},
		{"mm objects nil", named("block_mm_infos", list{dict{"mm_objects", nil}}), "block_mm_infos: wrong type", "BlockStored"},
		{"mm array without objects", named("block_mm_infos", list{list{}}), "block_mm_infos: missing", "BlockStored"},
		{"mm object integer", named("block_mm_infos", list{list{list{1}}}), "block_mm_infos: wrong type", "BlockStored"},
		{"mm object without offsets", named("block_mm_infos", list{dict{"mm_objects", list{dict{"mm_hash", 1}}}}), "block_mm_infos: missing", "BlockStored"},
		{"mm object without hash", named("block_mm_infos", list{dict{"mm_objects", list{dict{"offsets", list{}}}}}), "block_mm_infos: missing", "BlockStored"},
		{"mm object array of one", named("block_mm_infos", list{list{list{list{1}}}}), "block_mm_infos: missing", "BlockStored"},
		{"mm_hash negative", named("block_mm_infos", list{list{list{list{-1, list{}}}}}), "block_mm_infos: wrong type", "BlockStored"},
		{"mm_hash text", named("block_mm_infos", list{list{list{list{"1", list{}}}}}), "block_mm_infos: wrong type", "BlockStored"},
		{"mm offsets nil", named("block_mm_infos", list{list{list{list{1, nil}}}}), "block_mm_infos: wrong type", "BlockStored"},
		{"mm offset of three", named("block_mm_infos", list{list{list{list{1, list{list{1, 2, 3}}}}}}), "block_mm_infos: wrong type", "BlockStored"},
		{"mm offset negative", named("block_mm_infos", list{list{list{list{1, list{list{1, -2}}}}}}), "block_mm_infos: wrong type", "BlockStored"},
		{"mm offset's first nil", named("block_mm_infos", list{list{list{list{1, list{list{nil, 2}}}}}}), "block_mm_infos: wrong type", "BlockStored"},
		{"mm integer key", named("block_mm_infos", list{dict{1, 2, "mm_objects", list{}}}), "block_mm_infos: wrong type", "BlockStored"},
		{"mm key not UTF-8", named("block_mm_infos", list{dict{bad, 2, "mm_objects", list{}}}), "block_mm_infos: invalid UTF-8", "BlockStored"},
		{"mm in the tail without offsets", tailed(list{dict{"mm_objects", list{dict{"mm_hash", 1}}}}), "block_mm_infos: missing", "BlockStored"},
		{"the same behind a kind", tailed("full_attention", list{nil, dict{"mm_objects", 1}}), "block_mm_infos: wrong type", "BlockStored"},
		{"locality of a clear not UTF-8", dict{"type", "AllBlocksCleared", "locality", bad}, "locality: invalid UTF-8", "AllBlocksCleared"},
		{"the last of two values", named("medium", "GPU", "medium", 4), "medium: wrong type", "BlockStored"},
	} {
		ev := one(t, c.ev)
		if ev.Type != Malformed || ev.Problem != c.problem || string(ev.Name) != c.tag {
			t.Errorf("%s: type %d, problem %q of %q, want %q of %q", c.name, ev.Type, ev.Problem, ev.Name, c.problem, c.tag)
		}
		_, isMap := c.ev.(dict)
		if want := (Event{Type: Malformed, IsMap: isMap, Name: ev.Name, Problem: ev.Problem}); !reflect.DeepEqual(*ev, want) {
			t.Errorf("%s: a malformed event holds more: %+v", c.name, ev)
		}
	}
}

// Well-formed variants and what they must be read as. change makes the expected
// event out of the plain store.
func TestWellFormed(t *testing.T) {
	text := func(s string) []byte { return []byte(s) }
	group := func(g uint32) func(*Event) { return func(e *Event) { e.Group, e.HasGroup = g, true } }
	kind := func(k string) func(*Event) { return func(e *Event) { e.Kind, e.HasKind = text(k), true } }
	local := func(l string) func(*Event) { return func(e *Event) { e.Locality = text(l) } }
	owner := func(o string) func(*Event) { return func(e *Event) { e.Ownership = text(o) } }
	mm := func(objects ...MMObject) func(*Event) { return func(e *Event) { e.MM, e.HasMM = objects, true } }
	asMap := func(e *Event) { e.IsMap = true }
	gpu := func(e *Event) { e.Medium = text("GPU") }
	toks := func(pairs Pairs, ids ...uint32) func(*Event) {
		return func(e *Event) {
			e.Tokens, e.HasTokens, e.Pairs = nil, true, pairs
			for _, id := range ids {
				e.Tokens = append(e.Tokens, byte(id), byte(id>>8), byte(id>>16), byte(id>>24))
			}
		}
	}
	object := dict{"mm_hash", 42, "offsets", list{list{0, 2}}}
	obj := MMObject{Hash: 42, Offsets: [][2]uint64{{0, 2}}}
	full := "full_attention"

	for _, c := range []struct {
		name   string
		ev     any
		change []func(*Event)
	}{
		{"tuple of five", stored(), nil},
		{"map", named(), []func(*Event){asMap}},
		{"map, type last, parent absent", dict{"block_size", 4, "token_ids", list{1, 2, 3, 4}, "block_hashes", list{1}, "type", "BlockStored"}, []func(*Event){asMap}},
		{"tag and keys as bytes", dict{[]byte("type"), []byte("BlockStored"), []byte("block_hashes"), list{1}, []byte("token_ids"), list{1, 2, 3, 4}, []byte("block_size"), 4}, []func(*Event){asMap}},
		{"texts as bytes", append(list{[]byte("BlockStored")}, stored(nil, []byte("GPU"), []byte("l"))[1:]...), []func(*Event){gpu, func(e *Event) { e.LoraName = text("l") }}},
		{"unknown keys of any depth", named("more", nestedList(1000), "again", dict{1, dict{nil, list{raw{0xd4, 1, 1}}}}), []func(*Event){asMap}},
		{"unknown key with invalid UTF-8 inside", named("more", "\xff\xfe"), []func(*Event){asMap}},
		{"keys that say nothing", named("token_offset", "x", "storage_tier", 7, "source_kind", list{}, "lookahead_token_ids", "y"), []func(*Event){asMap}},
		{"empty texts differ from none", stored(nil, "", ""), []func(*Event){func(e *Event) { e.Medium, e.LoraName = []byte{}, []byte{} }}},

		{"last of two values counts", named("medium", 4, "block_hashes", list{9}, "medium", "GPU", "parent_block_hash", 3, "parent_block_hash", nil), []func(*Event){asMap, gpu, func(e *Event) { e.Hashes = []uint64{9} }}},
		{"last of two types counts", append(dict{"type", "Ignored"}, named()...), []func(*Event){asMap}},
		{"last of two token lists", named("token_ids", list{list{1, 2}}, "token_ids", list{5}), []func(*Event){asMap, toks(NoPairs, 5)}},
		{"tokens, then nil", named("token_ids", nil), []func(*Event){asMap, func(e *Event) { e.Tokens, e.HasTokens = nil, false }}},
		{"bytes hashes, then integers", named("block_hashes", list{[]byte{1}}, "block_hashes", list{2}), []func(*Event){asMap, func(e *Event) { e.Hashes = []uint64{2} }}},
		{"salt, then nil", named("cache_salt", "s", "cache_salt", nil), []func(*Event){asMap}},
		{"REUSED, then NEW", named("origin", "REUSED", "origin", "NEW"), []func(*Event){asMap}},
		{"other locality, then LOCAL", named("locality", 5, "locality", "LOCAL"), []func(*Event){asMap, local("LOCAL")}},
		{"extra keys, then nil", named("extra_keys", list{list{"text"}}, "extra_keys", nil), []func(*Event){asMap}},
		{"mm infos, then nil", named("block_mm_infos", list{dict{"mm_objects", list{object}}}, "block_mm_infos", nil), []func(*Event){asMap}},
		{"group, then nil", named("group_idx", 3, "group_idx", nil), []func(*Event){asMap}},

		{"signed and unsigned are one hash", list{"BlockStored", list{-2, uint64(math.MaxUint64 - 1), 0, uint64(1 << 63), int64(math.MinInt64)}, -1, list{1, 2, 3, 4}, 4},
			[]func(*Event){func(e *Event) {
				e.Hashes = []uint64{math.MaxUint64 - 1, math.MaxUint64 - 1, 0, 1 << 63, 1 << 63}
				e.Parent, e.HasParent = math.MaxUint64, true
			}}},
		{"parent 0 is a parent", named("parent_block_hash", 0), []func(*Event){asMap, func(e *Event) { e.HasParent = true }}},
		{"bytes hashes", named("block_hashes", list{7, []byte{1}, []byte{1, 2, 3, 4, 5, 6, 7}, []byte{0, 1, 2, 3, 4, 5, 6, 7}, []byte{9, 9, 0, 1, 2, 3, 4, 5, 6, 7}, 8}, "parent_block_hash", []byte{1, 2}),
			[]func(*Event){asMap, func(e *Event) {
				e.Hashes = []uint64{7, 1, 0x01020304050607, 0x0001020304050607, 0x0001020304050607, 8}
				e.BytesHash, e.Parent, e.HasParent = true, 0x0102, true
			}}},
		{"bytes parent alone", named("parent_block_hash", []byte{1, 2}), []func(*Event){asMap, func(e *Event) { e.Parent, e.HasParent = 0x0102, true }}},

		{"largest token", named("token_ids", list{0, 255, 65535, 65536, math.MaxUint32}), []func(*Event){asMap, toks(NoPairs, 0, 255, 65535, 65536, math.MaxUint32)}},
		{"no tokens", named("token_ids", list{}), []func(*Event){asMap, toks(NoPairs)}},
		{"hash-only tuple", list{"BlockStored", list{1}, nil, nil, 0}, []func(*Event){func(e *Event) { e.Tokens, e.HasTokens, e.BlockSize = nil, false, 0 }}},
		{"hash-only tuple, block_size nil", list{"BlockStored", list{1}, nil, nil, nil}, []func(*Event){func(e *Event) { e.Tokens, e.HasTokens, e.BlockSize, e.HasBlockSz = nil, false, 0, false }}},
		{"hash-only map", dict{"type", "BlockStored", "block_hashes", list{1}}, []func(*Event){asMap, func(e *Event) { e.Tokens, e.HasTokens, e.BlockSize, e.HasBlockSz = nil, false, 0, false }}},
		{"empty tokens and no block_size", dict{"type", "BlockStored", "block_hashes", list{1}, "token_ids", list{}}, []func(*Event){asMap, toks(NoPairs), func(e *Event) { e.BlockSize, e.HasBlockSz = 0, false }}},
		{"store of nothing", named("block_hashes", list{}), []func(*Event){asMap, func(e *Event) { e.Hashes = nil }}},
		{"huge block_size", named("block_size", uint64(math.MaxUint64)), []func(*Event){asMap, func(e *Event) { e.BlockSize = math.MaxUint64 }}},

		{"pairs", named("token_ids", list{list{1, 2}, list{2, 3}, list{3, 4}}), []func(*Event){asMap, toks(ChainedPairs, 1, 2, 3, 4)}},
		{"one pair", named("token_ids", list{list{1, 70000}}), []func(*Event){asMap, toks(ChainedPairs, 1, 70000)}},
		{"pairs that do not chain", named("token_ids", list{list{1, 2}, list{5, 3}}), []func(*Event){asMap, toks(UnsoundPairs, 1, 5, 3)}},
		{"pair behind tokens", named("token_ids", list{1, 2, list{2, 3}}), []func(*Event){asMap, toks(UnsoundPairs, 1, 2, 2, 3)}},
		{"token behind pairs", named("token_ids", list{list{1, 2}, 2}), []func(*Event){asMap, toks(UnsoundPairs, 1, 2)}},

		{"lora_id", stored(5), []func(*Event){func(e *Event) { e.LoraID = 5 }}},
		{"lora_id -1", named("lora_id", -1), []func(*Event){asMap, func(e *Event) { e.LoraID = -1 }}},
		{"lora_id beyond int64", named("lora_id", uint64(math.MaxUint64)), []func(*Event){asMap, func(e *Event) { e.LoraID = math.MaxInt64 }}},
		{"slot 7 with a salt", stored(nil, "GPU", dict{"cache_salt", "t1"}), []func(*Event){gpu, func(e *Event) { e.SlotSalt, e.HasSlotSalt = text("t1"), true }}},
		{"slot 7 with a nil salt", stored(nil, "GPU", dict{"cache_salt", nil}), []func(*Event){gpu, func(e *Event) { e.HasSlotSalt = true }}},
		{"slot 7 without a salt", stored(nil, "GPU", dict{"other", list{1}}), []func(*Event){gpu, func(e *Event) { e.HasSlotSalt = true }}},
		{"slot 7's last salt counts", stored(nil, "GPU", dict{"cache_salt", 4, "cache_salt", ""}), []func(*Event){gpu, func(e *Event) { e.SlotSalt, e.HasSlotSalt = []byte{}, true }}},
		{"texts of a map", named("cache_salt", "s", "lora_name", "l", "session_id", "u", "ownership", "o", "origin", "REUSED", "locality", "far"), []func(*Event){asMap, func(e *Event) {
			e.CacheSalt, e.HasSalt, e.LoraName, e.SessionID, e.Ownership = text("s"), true, text("l"), text("u"), text("o")
			e.Reused, e.Locality = true, text("far")
		}}},
		{"empty salt is a salt", named("cache_salt", ""), []func(*Event){asMap, func(e *Event) { e.CacheSalt, e.HasSalt = []byte{}, true }}},
		{"locality of another type", named("locality", list{"LOCAL"}), []func(*Event){asMap, func(e *Event) { e.OtherLocality = true }}},
		{"origin of another type", named("origin", 5), []func(*Event){asMap}},
		{"origin not UTF-8", named("origin", "\xff"), []func(*Event){asMap}},
		{"group, kind and window of a map", named("group_idx", 3, "kv_cache_spec_kind", "mamba", "kv_cache_spec_sliding_window", 128), []func(*Event){asMap, group(3), kind("mamba")}},
		{"largest group", named("group_idx", math.MaxUint32), []func(*Event){asMap, group(math.MaxUint32)}},
		{"group too large counts as absent", named("group_idx", 1<<32), []func(*Event){asMap}},
		{"empty kind is a kind", named("kv_cache_spec_kind", ""), []func(*Event){asMap, kind("")}},

		{"extra keys", named("extra_keys", list{nil, list{}, list{"text", []byte("byte\xff"), 1, -1, 1.5, true}, list{list{"pair", -3}, list{[]byte("bytes"), uint64(math.MaxUint64)}}}), []func(*Event){asMap, func(e *Event) {
			e.ExtraKeys = []ExtraKey{{Block: 2, Text: text("text"), Str: true}, {Block: 2, Text: text("byte\xff")},
				{Block: 3, Text: text("pair"), Str: true, Pair: true}, {Block: 3, Text: text("bytes"), Pair: true}}
		}}},
		{"short extra keys are left out", named("extra_keys", list{list{"", "abc", list{"xyz", 1}, "abcd"}}), []func(*Event){asMap, func(e *Event) {
			e.ExtraKeys = []ExtraKey{{Text: text("abcd"), Str: true}}
		}}},

		{"mm infos", named("block_mm_infos", list{nil, dict{"mm_objects", list{object, dict{"more", 1, "offsets", list{}, "mm_hash", uint64(math.MaxUint64)}}}}), []func(*Event){asMap,
			mm(MMObject{Block: 1, Hash: 42, Offsets: obj.Offsets}, MMObject{Block: 1, Hash: math.MaxUint64})}},
		{"mm infos as arrays", named("block_mm_infos", list{list{list{list{42, list{list{0, 2}}}}}}), []func(*Event){asMap, mm(obj)}},
		{"mm arrays with more elements", named("block_mm_infos", list{list{list{list{42, list{list{0, 2}}, "x"}}, nil}}), []func(*Event){asMap, mm(obj)}},
		{"last of two mm values counts", named("block_mm_infos", list{dict{"mm_objects", list{object}, "mm_objects", list{dict{"mm_hash", nil, "offsets", list{list{9, 9}}, "mm_hash", 42, "offsets", list{list{0, 2}}}}}}), []func(*Event){asMap, mm(obj)}},
		{"mm infos of nil only", named("block_mm_infos", list{nil}), []func(*Event){asMap, mm()}},
		{"mm infos empty", named("block_mm_infos", list{}), []func(*Event){asMap, mm()}},

		// Positional tails: the fixed order.
		{"all slots", tailed(1, full, 128, "LOCAL", "framework", "session", list{1, 2}, "more"), []func(*Event){gpu, group(1), kind(full), local("LOCAL"), owner("framework")}},
		{"all slots, nil where possible", tailed(nil, nil, nil, "REMOTE"), []func(*Event){gpu, local("REMOTE")}},
		{"ownership", tailed(0, full, nil, nil, "kvcr"), []func(*Event){gpu, group(0), kind(full), owner("kvcr")}},
		{"locality unheard of", tailed(0, full, nil, "NEAR"), []func(*Event){gpu, group(0), kind(full), local("NEAR")}},
		{"group too large", tailed(1<<32, full, nil, "LOCAL"), []func(*Event){gpu, kind(full), local("LOCAL")}},
		{"kind unheard of", tailed(0, "unheard_of"), []func(*Event){gpu, group(0), kind("unheard_of")}},
		{"group", tailed(0), []func(*Event){gpu, group(0)}},
		{"kind and window without group", tailed(nil, "sliding_window", 128), []func(*Event){gpu, kind("sliding_window")}},
		{"nils", tailed(nil, nil, nil, nil, nil, nil, nil), []func(*Event){gpu}},
		{"bytes", tailed(0, []byte(full), nil, []byte("LOCAL")), []func(*Event){gpu, group(0), kind(full), local("LOCAL")}},
		// By type.
		{"kind, group", tailed(full, 2), []func(*Event){gpu, kind(full), group(2)}},
		{"group, window", tailed(0, 128), []func(*Event){gpu, group(0)}},
		{"nil, group, kind", tailed(nil, 2, full), []func(*Event){gpu, group(2), kind(full)}},
		{"nil, nil, group", tailed(nil, nil, 2), []func(*Event){gpu, group(2)}},
		{"kind, group, window, locality", tailed("mla_attention", 0, 128, "LOCAL"), []func(*Event){gpu, kind("mla_attention"), group(0), local("LOCAL")}},
		{"group, locality", tailed(1, "REMOTE"), []func(*Event){gpu, group(1), local("REMOTE")}},
		{"group, kind, odd window, locality, owner", tailed(1, full, -1, "LOCAL", "kvcr"), []func(*Event){gpu, group(1), kind(full), local("LOCAL"), owner("kvcr")}},
		{"owner framework", tailed(full, 0, 0, "framework"), []func(*Event){gpu, kind(full), group(0), owner("framework")}},
		{"nothing fits", tailed(-1, 1.5, true, dict{"a", 1}, raw{0xd4, 1, 1}), []func(*Event){gpu}},
		{"bool in the first slot", tailed(true), []func(*Event){gpu}},
		{"behind five slots", tailed(true, nil, nil, nil, nil, 7, full, "REMOTE"), []func(*Event){gpu}},
		{"invalid UTF-8 behind what is looked at", tailed(0, full, nil, nil, nil, nil, "\xff"), []func(*Event){gpu, group(0), kind(full)}},
		{"numbers in a list", tailed(list{1, 2}), []func(*Event){gpu}},
		{"mm infos first", tailed(list{dict{"mm_objects", list{object}}}, 0, full), []func(*Event){gpu, mm(obj), group(0), kind(full)}},
		{"mm infos before the fixed order", tailed(list{nil}, 0, full, nil, "LOCAL", "kvcr", "session"), []func(*Event){gpu, mm(), group(0), kind(full), local("LOCAL"), owner("kvcr")}},
		{"mm infos as arrays in the tail", tailed(list{nil, list{list{list{42, list{list{0, 2}}}}}}), []func(*Event){gpu, mm(MMObject{Block: 1, Hash: 42, Offsets: obj.Offsets})}},
		{"mm infos behind the group", tailed(0, list{dict{"mm_objects", list{object}}}), []func(*Event){gpu, mm(obj), group(0)}},
		{"empty list is mm infos", tailed(list{}), []func(*Event){gpu, mm()}},
		{"lists of lists that are no mm infos", tailed(list{list{1, 2}}, 0), []func(*Event){gpu, group(0)}},
	} {
		want := Event{Type: Stored, Hashes: []uint64{1}, Tokens: Tokens{1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0}, HasTokens: true, BlockSize: 4, HasBlockSz: true}
		for _, f := range c.change {
			f(&want)
		}
		got := one(t, c.ev)
		if g, w := show(got), show(&want); g != w {
			t.Errorf("%s (%s):\n got %s\nwant %s", c.name, got.Problem, g, w)
		}
	}
}

func nestedList(depth int) list {
	v := list{}
	for range depth - 1 {
		v = list{v}
	}
	return v
}
