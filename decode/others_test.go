package decode

import (
	"math"
	"reflect"
	"testing"
)

func TestOtherEvents(t *testing.T) {
	b := func(s string) []byte { return []byte(s) }
	for _, c := range []struct {
		name string
		ev   any
		want Event
	}{
		{"removed", list{"BlockRemoved", list{1, -1}}, Event{Type: Removed, Hashes: []uint64{1, math.MaxUint64}}},
		{"removed, none", list{"BlockRemoved", list{}}, Event{Type: Removed}},
		{"removed, fixed tail", list{"BlockRemoved", list{1}, "CPU", 2, "mamba", nil, "REMOTE", "kvcr", "more"},
			Event{Type: Removed, Hashes: []uint64{1}, Medium: b("CPU"), Group: 2, HasGroup: true, Kind: b("mamba"), HasKind: true, Locality: b("REMOTE"), Ownership: b("kvcr")}},
		{"removed, short tail", list{"BlockRemoved", list{1}, nil, "mamba", 3},
			Event{Type: Removed, Hashes: []uint64{1}, Group: 3, HasGroup: true, Kind: b("mamba"), HasKind: true}},
		{"removed has no mm infos", list{"BlockRemoved", list{1}, nil, list{dict{"mm_objects", 1}}, 3},
			Event{Type: Removed, Hashes: []uint64{1}, Group: 3, HasGroup: true}},
		{"removed map", dict{"type", "BlockRemoved", "block_hashes", list{[]byte{5}}, "medium", "CPU", "group_idx", 2, "kv_cache_spec_kind", "mamba",
			"kv_cache_spec_sliding_window", 1, "locality", 5, "ownership", "kvcr"},
			Event{Type: Removed, IsMap: true, Hashes: []uint64{5}, BytesHash: true, Medium: b("CPU"), Group: 2, HasGroup: true, Kind: b("mamba"), HasKind: true, OtherLocality: true, Ownership: b("kvcr")}},
		{"a store's fields say nothing in a removed map", dict{"type", "BlockRemoved", "block_hashes", list{1}, "token_ids", "x", "block_size", -1, "extra_keys", 5,
			"session_id", "s", "cache_salt", "s", "lora_id", 3, "parent_block_hash", 1},
			Event{Type: Removed, IsMap: true, Hashes: []uint64{1}}},
		{"cleared", list{"AllBlocksCleared"}, Event{Type: Cleared}},
		{"cleared, nil", list{"AllBlocksCleared", nil}, Event{Type: Cleared}},
		{"cleared, medium or owner", list{"AllBlocksCleared", "kvcr", "more"}, Event{Type: Cleared, Medium: b("kvcr")}},
		{"cleared, bytes", list{"AllBlocksCleared", []byte("GPU")}, Event{Type: Cleared, Medium: b("GPU")}},
		{"cleared, anything else", list{"AllBlocksCleared", list{1, 2}, 3}, Event{Type: Cleared}},
		{"cleared map", dict{"type", "AllBlocksCleared", "medium", "CPU", "ownership", "kvcr", "source_kind", "GPU", "block_hashes", 5},
			Event{Type: Cleared, IsMap: true, Medium: b("CPU"), Ownership: b("kvcr")}},
		{"cleared map elsewhere", dict{"type", "AllBlocksCleared", "locality", "REMOTE"}, Event{Type: Cleared, IsMap: true, Locality: b("REMOTE")}},
		{"cleared map with a locality of another type", dict{"locality", 1, "type", "AllBlocksCleared"}, Event{Type: Cleared, IsMap: true, OtherLocality: true}},
		{"cleared map with other types", dict{"type", "AllBlocksCleared", "medium", 5, "ownership", list{}}, Event{Type: Cleared, IsMap: true}},
		{"ignored", list{"Ignored", 1, list{2}}, Event{Type: Ignored}},
		{"ignored map", dict{"type", "Ignored", "block_hashes", 1}, Event{Type: Ignored, IsMap: true}},
		{"unknown", list{"BlockTransferred", list{1}, "GPU", "CPU"}, Event{Type: Unknown, Name: b("BlockTransferred")}},
		{"unknown map", dict{"block_hashes", 1, "medium", 4, "type", "BlockInactive"}, Event{Type: Unknown, IsMap: true, Name: b("BlockInactive")}},
		{"empty tag", list{""}, Event{Type: Unknown, Name: []byte{}}},
		{"tags are case-sensitive", list{"blockstored", list{1}}, Event{Type: Unknown, Name: b("blockstored")}},
	} {
		got := one(t, c.ev)
		if g, w := show(got), show(&c.want); g != w {
			t.Errorf("%s (%s):\n got %s\nwant %s", c.name, got.Problem, g, w)
		}
	}
}

func TestTokensType(t *testing.T) {
	var b Batch
	if err := b.Decode(batchOf(named("token_ids", list{1, 256, 70000, math.MaxUint32}))); err != nil {
		t.Fatal(err)
	}
	if got := tokens(b.Events[0].Tokens); !reflect.DeepEqual(got, []uint32{1, 256, 70000, math.MaxUint32}) {
		t.Error(got)
	}
}
