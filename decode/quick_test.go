package decode

import (
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/kvrelay/kvrelay/internal/msgpack"
)

// What quick reads, readField reads alike, from any value that begins with any
// byte, over whatever an earlier key of the same name has left.
func TestQuickAgrees(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	took := map[field]int{}
	for f := range numFields {
		if f == fTag {
			continue // not a field's value: the caller reads it
		}
		for c := range 256 {
			for range 30 {
				in := []byte{byte(c)}
				high := rng.IntN(3) == 0
				for range rng.IntN(40) {
					b := byte(rng.IntN(128))
					if high && rng.IntN(4) == 0 {
						b |= 0x80
					}
					in = append(in, b)
				}
				quick := dirty(rng)
				want := quick
				size := quick.quick(f, in)
				if size == 0 {
					if !reflect.DeepEqual(quick, want) {
						t.Fatalf("field %d, % x: took nothing and left %+v", f, in, quick)
					}
					continue
				}
				took[f]++
				var b Batch
				b.r.Reset(in)
				if c := b.readField(&want, f); c != good || b.r.Off() != size || b.r.Failed() {
					t.Fatalf("field %d, % x: %d bytes, want %d, cause %d, %v", f, in, size, b.r.Off(), c, b.r.Err())
				}
				if !reflect.DeepEqual(quick, want) {
					t.Fatalf("field %d, % x:\n%+v, want\n%+v", f, in, quick, want)
				}
			}
		}
	}
	for _, f := range []field{fParent, fBlockSize, fLoraID, fMedium, fLoraName, fSalt, fExtraKeys, fMMInfos, fGroup,
		fKind, fWindow, fLocality, fOwnership, fSession} {
		if took[f] == 0 {
			t.Errorf("field %d was never quick", f)
		}
	}
	if (&Event{}).quick(fMedium, nil) != 0 {
		t.Error("read something from nothing")
	}
}

// dirty is an event in which every field that quick may touch holds something.
func dirty(rng *rand.Rand) Event {
	text := func() []byte { return []byte{byte(rng.IntN(256))} }
	return Event{
		Parent: rng.Uint64(), HasParent: true, BlockSize: rng.Uint64(), HasBlockSz: true, LoraID: rng.Int64(),
		Medium: text(), LoraName: text(), CacheSalt: text(), HasSalt: true, ExtraKeys: []ExtraKey{{Text: text()}},
		MM: []MMObject{{Hash: 1}}, HasMM: true, Group: rng.Uint32(), HasGroup: true, Kind: text(), HasKind: true,
		Locality: text(), OtherLocality: true, Ownership: text(), SessionID: text(),
	}
}

// A map is read alike whatever maps were read before: guesses at its keys
// decide nothing. Orders are kept, changed a little, and changed altogether;
// keys are longer encodings, near misses and repeats.
func TestKeyOrderIsFree(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	names := slices.DeleteFunc(slices.Clone(fieldNames[:]), func(name string) bool { return name == "" })
	names = append(names, "source_kind", "token_offset", "")
	value := func(p []byte, key string) []byte {
		switch key {
		case "type":
			return msgpack.AppendStr(p, []string{"BlockStored", "BlockRemoved", "AllBlocksCleared", "Else", "Ignored"}[rng.IntN(5)*rng.IntN(2)*rng.IntN(2)])
		case "block_hashes":
			return msgpack.AppendUint(msgpack.AppendArrayHeader(p, 1), rng.Uint64())
		case "token_ids":
			return msgpack.AppendUint(msgpack.AppendArrayHeader(p, 1), rng.Uint64N(1<<20))
		case "block_size", "lora_id", "group_idx", "kv_cache_spec_sliding_window":
			return msgpack.AppendUint(p, rng.Uint64N(300))
		case "parent_block_hash":
			return msgpack.AppendUint(p, rng.Uint64()>>rng.IntN(64))
		}
		switch rng.IntN(60) {
		case 0:
			return msgpack.AppendUint(p, 7)
		case 1:
			return msgpack.AppendStr(p, "\xff\xfe")
		}
		return msgpack.AppendNil(p)
	}
	var used Batch
	order := slices.Clone(names[:9])
	hits := 0
	for range 20_000 {
		switch rng.IntN(6) {
		case 0:
			rng.Shuffle(len(names), func(i, k int) { names[i], names[k] = names[k], names[i] })
			order = slices.Clone(names[:rng.IntN(len(names))])
			if rng.IntN(4) > 0 {
				order = append(order, "type", "block_hashes") // perhaps once more
				rng.Shuffle(len(order), func(i, k int) { order[i], order[k] = order[k], order[i] })
			}
		case 1:
			if n := len(order); n > 0 {
				order[rng.IntN(n)] = names[rng.IntN(len(names))]
			}
		}
		p := msgpack.AppendFloat(msgpack.AppendArrayHeader(nil, 2), 1)
		p = msgpack.AppendArrayHeader(p, 1)
		p = msgpack.AppendMapHeader(p, len(order))
		for _, key := range order {
			at := len(p)
			switch rng.IntN(60) {
			case 0:
				p = append(append(p, 0xd9, byte(len(key))), key...) // str8
			case 1:
				p = msgpack.AppendBin(p, []byte(key))
			case 2: // some byte of it is another
				p = msgpack.AppendStr(p, key)
				if len(key) > 0 {
					p[at+1+rng.IntN(len(key))] ^= 1 << rng.IntN(8)
				}
			case 3:
				p = msgpack.AppendStr(p, key+"s")
			default:
				p = msgpack.AppendStr(p, key)
			}
			p = value(p, key)
		}
		if rng.IntN(4) == 0 {
			p = p[:len(p)-rng.IntN(min(len(p), 60))] // cut
		} else if rng.IntN(2) == 0 {
			p = append(p, make([]byte, 40)...) // more behind: nothing is near the end
		}
		var fresh Batch
		got, want := used.Decode(p), fresh.Decode(p)
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("% x:\n%v, want %v", p, got, want)
		}
		if len(used.Events) != len(fresh.Events) {
			t.Fatalf("% x:\n%d events, want %d", p, len(used.Events), len(fresh.Events))
		}
		for i := range used.Events {
			if !reflect.DeepEqual(used.Events[i], fresh.Events[i]) {
				t.Fatalf("% x:\n%+v, want\n%+v", p, used.Events[i], fresh.Events[i])
			}
			if used.Events[i].Type == Stored {
				hits++
			}
		}
	}
	if hits < 2000 {
		t.Errorf("only %d stores", hits)
	}
}
