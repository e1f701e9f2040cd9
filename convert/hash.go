package convert

import (
	"bytes"
	"encoding/binary"
	"slices"

	"github.com/zeebo/xxh3"

	"github.com/kvrelay/kvrelay/decode"
)

// routerSeed is the seed of tokens_hash for the base model without a salt.
const routerSeed = 1337

// loraSeed is what an adapter adds to the seed.
func loraSeed(name []byte) uint64 {
	if len(name) == 0 {
		return 0
	}
	return xxh3.Hash(name)
}

// hasher computes the tokens_hash of one store's blocks, in order.
type hasher struct {
	image, video *uint32 // routing tokens; both nil when they are equal

	seed   uint64
	tokens decode.Tokens
	stride int               // bytes from one block to the next
	window int               // bytes that a block's hash covers
	keys   []decode.ExtraKey // those of blocks not yet hashed, by block
	infos  []decode.MMObject
	plain  bool // no multimodal information at all

	buf    []byte
	hashes []uint64
}

func (h *hasher) configure(c *Config) {
	h.image, h.video = c.ImageToken, c.VideoToken
	if h.image != nil && h.video != nil && *h.image == *h.video {
		h.image, h.video = nil, nil
	}
}

// begin prepares for the blocks of ev, which must have tokens for them.
func (h *hasher) begin(ev *decode.Event, seed, blockSize uint64, eagle bool) {
	if cap(h.buf) > 4*keepBlocks {
		h.buf = nil // left by a giant block
	}
	h.seed, h.tokens = seed, ev.Tokens
	h.stride = int(4 * blockSize)
	h.window = h.stride
	if eagle {
		h.window += 4
	}
	h.keys, h.infos = ev.ExtraKeys, ev.MM
	if ev.HasMM {
		h.keys = nil // block_mm_infos win
	} else {
		h.infos = nil
	}
	h.plain = len(h.keys) == 0 && len(h.infos) == 0
}

// block is the i-th block; i must grow from call to call.
func (h *hasher) block(i int, o *Output) (tokensHash uint64, mm []MMObject) {
	window := h.tokens[i*h.stride : i*h.stride+h.window]
	if h.plain {
		return xxh3.HashSeed(window, h.seed), nil
	}
	if mm = h.objects(i, o); len(mm) == 0 {
		return xxh3.HashSeed(window, h.seed), mm
	}
	if !h.substitute(window, mm) {
		h.hashes = h.hashes[:0]
		for _, m := range mm {
			h.hashes = append(h.hashes, m.Hash)
		}
		slices.Sort(h.hashes)
		h.buf = append(h.buf[:0], window...)
		for _, m := range h.hashes {
			h.buf = binary.LittleEndian.AppendUint64(h.buf, m)
		}
	}
	return xxh3.HashSeed(h.buf, h.seed), mm
}

// objects copies the multimodal objects of block i into o; nil: nothing was said
// of any. An empty list is published as one, as Dynamo 1.6.1 does.
func (h *hasher) objects(i int, o *Output) []MMObject {
	from := len(o.objects)
	empty := false
	for ; len(h.infos) > 0 && h.infos[0].Block == i; h.infos = h.infos[1:] {
		in := &h.infos[0]
		if in.Empty {
			empty = true
			continue
		}
		at := len(o.offsets)
		o.offsets = append(o.offsets, in.Offsets...)
		o.objects = append(o.objects, MMObject{Hash: in.Hash, Offsets: slices.Clip(o.offsets[at:])})
	}
	for ; len(h.keys) > 0 && h.keys[0].Block == i; h.keys = h.keys[1:] {
		if k := &h.keys[0]; k.Str {
			if hash, ok := mmHash(k.Text); ok {
				o.objects = append(o.objects, MMObject{Hash: hash})
			}
		}
	}
	switch {
	case len(o.objects) > from:
		return slices.Clip(o.objects[from:])
	case empty:
		return []MMObject{}
	}
	return nil
}

// mmHash reads a multimodal identifier as routers write it: 16 hex digits and
// 48 zeroes.
func mmHash(text []byte) (uint64, bool) {
	const zeroes = "000000000000000000000000000000000000000000000000"
	if len(text) != 64 || string(text[16:]) != zeroes {
		return 0, false
	}
	var v uint64
	for _, c := range text[:16] {
		switch {
		case '0' <= c && c <= '9':
			v = v<<4 | uint64(c-'0')
		case 'a' <= c|0x20 && c|0x20 <= 'f':
			v = v<<4 | uint64(c|0x20-'a'+10)
		default:
			return 0, false
		}
	}
	return v, true
}

// padValue is the token that stands for an object in a prompt.
func padValue(hash uint64) uint32 { return 1_000_000 + uint32(hash&(1<<30-1)) }

// substitute fills buf with the window's tokens, each run of a routing token
// replaced by its object's pad value. Images: one object a run, the last one
// for surplus runs. Where a video token is configured, runs and objects must
// match one to one, the video runs between two images counting as one. It
// reports false where no routing token occurs, or they do not match.
func (h *hasher) substitute(window decode.Tokens, mm []MMObject) bool {
	const (
		none = iota
		image
		video
	)
	kind := func(token uint32) int {
		switch {
		case h.image != nil && token == *h.image:
			return image
		case h.video != nil && token == *h.video:
			return video
		}
		return none
	}
	h.buf = h.buf[:0]
	object, last, lastRun := -1, none, none
	for i := range window.Len() {
		token := window.At(i)
		k := kind(token)
		if k == none {
			h.buf = binary.LittleEndian.AppendUint32(h.buf, token)
			last = none
			continue
		}
		if k != last && !(k == video && lastRun == video) {
			object++
		}
		last, lastRun = k, k
		h.buf = binary.LittleEndian.AppendUint32(h.buf, padValue(mm[min(object, len(mm)-1)].Hash))
	}
	return object >= 0 && (h.video == nil || object == len(mm)-1)
}

// saltMarker precedes a cache salt in extra_keys.
const saltMarker = "dynamo-cache-salt:"

// saltOf is the salt that a store names, nil when it names none: the key
// cache_salt, else SGLang's map, else a marked extra key of the first block.
func saltOf(ev *decode.Event) []byte {
	if len(ev.CacheSalt) > 0 {
		return ev.CacheSalt
	}
	if len(ev.SlotSalt) > 0 {
		return ev.SlotSalt
	}
	for i := range ev.ExtraKeys {
		k := &ev.ExtraKeys[i]
		if k.Block > 0 {
			break
		}
		if salt, ok := bytes.CutPrefix(k.Text, []byte(saltMarker)); ok && k.Str && !k.Pair && len(salt) > 0 {
			return salt
		}
	}
	return nil
}
