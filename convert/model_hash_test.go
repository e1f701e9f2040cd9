package convert

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/zeebo/xxh3"

	"github.com/kvrelay/kvrelay/decode"
)

func modelSalt(ev *decode.Event) string {
	if len(ev.CacheSalt) > 0 {
		return string(ev.CacheSalt)
	}
	if len(ev.SlotSalt) > 0 {
		return string(ev.SlotSalt)
	}
	for _, k := range ev.ExtraKeys {
		if s, ok := strings.CutPrefix(string(k.Text), "dynamo-cache-salt:"); ok && k.Block == 0 && k.Str && !k.Pair && s != "" {
			return s
		}
	}
	return ""
}

func (m *model) hash(ev *decode.Event, i, extra int, salt string) Block {
	size := int(m.size)
	seed := uint64(1337)
	if len(ev.LoraName) > 0 {
		seed += xxh3.Hash(ev.LoraName)
	}
	if salt != "" {
		seed += xxh3.HashSeed([]byte(salt), 1)
	}
	window := ev.Tokens[4*i*size : 4*((i+1)*size+extra)]
	b := Block{Hash: ev.Hashes[i]}
	if ev.HasMM {
		for _, o := range ev.MM {
			if o.Block == i && o.Empty && b.MM == nil {
				b.MM = []MMObject{}
			} else if o.Block == i && !o.Empty {
				b.MM = append(b.MM, MMObject{Hash: o.Hash, Offsets: o.Offsets})
			}
		}
	} else {
		for _, k := range ev.ExtraKeys {
			var v uint64
			if k.Block == i && k.Str && len(k.Text) == 64 && bytes.Count(k.Text[16:], []byte("0")) == 48 {
				if _, err := fmt.Sscanf(string(k.Text[:16]), "%x", &v); err == nil {
					b.MM = append(b.MM, MMObject{Hash: v})
				}
			}
		}
	}
	text := slices.Clone([]byte(window))
	if replaced := m.substitute(window, b.MM); replaced != nil {
		text = replaced
	} else {
		var sorted []uint64
		for _, o := range b.MM {
			sorted = append(sorted, o.Hash)
		}
		slices.Sort(sorted)
		for _, h := range sorted {
			text = binary.LittleEndian.AppendUint64(text, h)
		}
	}
	b.TokensHash = xxh3.HashSeed(text, seed)
	return b
}

// substitute writes runs out first and counts objects then.
func (m *model) substitute(window decode.Tokens, mm []MMObject) []byte {
	image, video := m.cfg.ImageToken, m.cfg.VideoToken
	if image != nil && video != nil && *image == *video || len(mm) == 0 {
		return nil
	}
	var kinds []byte // one letter a token
	for i := range window.Len() {
		switch t := window.At(i); {
		case image != nil && t == *image:
			kinds = append(kinds, 'i')
		case video != nil && t == *video:
			kinds = append(kinds, 'v')
		default:
			kinds = append(kinds, '.')
		}
	}
	object := make([]int, len(kinds))
	n := 0
	var before byte = '.' // the last run's letter
	for i, k := range kinds {
		if k == '.' {
			continue
		}
		if i > 0 && kinds[i-1] == k {
			object[i] = object[i-1]
			continue
		}
		if k == 'v' && before == 'v' {
			object[i] = n - 1
		} else {
			object[i] = n
			n++
		}
		before = k
	}
	if n == 0 || video != nil && n != len(mm) {
		return nil
	}
	var out []byte
	for i, k := range kinds {
		t := window.At(i)
		if k != '.' {
			t = uint32(1_000_000 + mm[min(object[i], len(mm)-1)].Hash&(1<<30-1))
		}
		out = binary.LittleEndian.AppendUint32(out, t)
	}
	return out
}

// coalesce merges the items of the batch and encodes them, ids all 0.
func (m *model) coalesce() []string {
	var out []string
	var run *modelItem
	flush := func() {
		if run != nil && (run.kind == Stored || run.kind == Cleared || len(run.hashes) > 0) {
			e := RouterEvent{Kind: run.kind, Tier: run.tier, HasParent: run.hasParent, Parent: run.parent,
				Blocks: run.blocks, Hashes: run.hashes}
			if run.session != "" {
				e.SessionID = []byte(run.session)
			}
			out = append(out, string(AppendEventJSON(nil, &e, 0, 0, 0)))
		}
		run = nil
	}
	for _, it := range m.items {
		switch {
		case it.kind == 0:
			flush()
			continue
		case it.kind == Cleared:
			flush()
			run = &it
			flush()
			continue
		case run != nil && it.kind == Removed && run.kind == Removed && it.tier == run.tier:
			run.hashes = append(run.hashes, it.hashes...)
			run.n += it.n
		case run != nil && it.kind == Stored && run.kind == Stored && it.tier == run.tier && it.session == run.session &&
			it.hasParent && it.parent == run.blocks[len(run.blocks)-1].Hash:
			run.blocks = append(slices.Clip(run.blocks), it.blocks...)
		default:
			flush()
			run = &it
			run.hashes = slices.Clip(run.hashes)
		}
		if run.kind == Stored && len(run.blocks) >= 128 || run.kind == Removed && run.n >= 128 {
			flush()
		}
	}
	flush()
	return out
}
