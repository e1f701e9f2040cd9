package convert

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"

	"github.com/kvrelay/kvrelay/decode"
)

// generator makes event sequences in which everything happens often: few
// hashes, all tiers, groups, salts, adapters, broken stores.
type generator struct {
	*rand.Rand
	hashes uint64 // hashes are 1 … hashes
	wild   bool   // otherwise an engine that mostly keeps to the rules
}

const testBlock = 4

func (g *generator) chance(percent int) bool { return g.IntN(100) < percent }

func pick[T any](g *generator, from ...T) T { return from[g.IntN(len(from))] }

func (g *generator) batch() []decode.Event {
	var evs []decode.Event
	for range 1 + g.IntN(4) {
		switch {
		case g.chance(2):
			evs = append(evs, decode.Event{Type: decode.Cleared, Medium: pick(g, nil, []byte("GPU"), []byte("kvcr"))})
		case g.wild && g.chance(4):
			evs = append(evs, decode.Event{Type: pick(g, decode.Malformed, decode.Unknown, decode.Ignored), Name: []byte("X"), Folded: g.Uint32N(3)})
		case g.chance(62):
			ev := g.store()
			evs = append(evs, ev)
			if !ev.HasParent && len(ev.Hashes) > 0 && g.chance(30) {
				// As engines with full reporting do: announce, then go on from it.
				next := g.store()
				next.Medium, next.HasGroup, next.Group, next.HasKind, next.Kind = ev.Medium, ev.HasGroup, ev.Group, ev.HasKind, ev.Kind
				next.HasParent, next.Parent = true, ev.Hashes[len(ev.Hashes)-1]
				evs = append(evs, ev, next)
			}
		default:
			ev := decode.Event{Type: decode.Removed, Hashes: []uint64{}}
			g.where(&ev)
			for range g.IntN(5) {
				ev.Hashes = append(ev.Hashes, 1+g.Uint64N(g.hashes))
			}
			evs = append(evs, ev)
		}
	}
	return evs
}

// where gives an event tier and group.
func (g *generator) where(ev *decode.Event) {
	if g.chance(30) {
		ev.Medium = []byte(pick(g, "CPU", "cpu", "DISK", "EXTERNAL", "GPU"))
	}
	if g.chance(40) {
		ev.HasGroup, ev.Group = true, g.Uint32N(4)
		if g.chance(50) {
			ev.HasKind, ev.Kind = true, []byte(pick(g, "full_attention", "full_attention", "mla_attention", "mamba", "odd"))
			if !g.wild {
				ev.Kind = []byte([]string{"full_attention", "mamba", "mla_attention", "sliding_window"}[ev.Group])
			}
		}
	}
	if !g.wild {
		return
	}
	if g.chance(2) {
		ev.Medium = []byte("TAPE")
	}
	if g.chance(3) {
		ev.Locality = []byte(pick(g, "LOCAL", "REMOTE"))
	}
	if g.chance(3) {
		ev.Ownership = []byte(pick(g, "framework", "kvcr"))
	}
}

func (g *generator) store() decode.Event {
	ev := decode.Event{Type: decode.Stored, BlockSize: testBlock, HasBlockSz: true, HasTokens: true}
	g.where(&ev)
	first := 1 + g.Uint64N(g.hashes)
	n := 1 + g.Uint64N(4)
	if g.chance(2) {
		n = 0
	}
	if g.chance(3) {
		n = 100 + g.Uint64N(60)
		first += g.hashes // so that they do not wrap
	}
	for i := range n {
		h := first + i
		if h > g.hashes && first <= g.hashes {
			h -= g.hashes
		}
		ev.Hashes = append(ev.Hashes, h)
	}
	if first%5 != 1 || g.chance(10) {
		ev.HasParent, ev.Parent = true, first-1
		if g.chance(10) {
			ev.Parent = 1 + g.Uint64N(g.hashes)
		}
	}
	if g.wild && len(ev.Hashes) > 1 && g.chance(3) {
		ev.Hashes[0] = ev.Hashes[len(ev.Hashes)-1]
	}
	tokens := len(ev.Hashes) * testBlock
	switch {
	case g.chance(6):
		tokens = 0
	case g.wild && g.chance(8):
		tokens = max(0, tokens+g.IntN(11)-6)
	case g.wild && g.chance(10):
		ev.Pairs = pick(g, decode.ChainedPairs, decode.ChainedPairs, decode.UnsoundPairs)
		tokens++
	}
	for i := range tokens {
		t := uint32(first)*16 + uint32(i)
		if g.chance(15) {
			t = 7 + g.Uint32N(2) // image and video
		}
		ev.Tokens = binary.LittleEndian.AppendUint32(ev.Tokens, t)
	}
	ev.HasTokens = len(ev.Tokens) > 0 || g.chance(50)
	if g.wild && g.chance(5) {
		ev.BlockSize = 8
	}
	if g.chance(10) {
		ev.Reused = true
	}
	g.extras(&ev)
	return ev
}

// extras gives a store adapter, salt, multimodal objects and session.
func (g *generator) extras(ev *decode.Event) {
	if g.chance(10) {
		ev.LoraName = []byte("ad")
		ev.LoraID = 3
	} else if g.wild && g.chance(4) {
		ev.LoraID = pick(g, int64(-1), 0, 4)
	}
	salt := []byte(pick(g, "a", "b"))
	switch {
	case ev.HasParent && !g.chance(20) || !g.chance(30):
	case g.chance(30):
		ev.CacheSalt, ev.HasSalt = salt, true
	case g.chance(30):
		ev.SlotSalt, ev.HasSlotSalt = salt, true
	default:
		ev.ExtraKeys = append(ev.ExtraKeys, decode.ExtraKey{Text: append([]byte(saltMarker), salt...), Str: true, Pair: g.chance(10)})
	}
	for i := range len(ev.Hashes) {
		if !g.chance(8) {
			continue
		}
		for range 1 + g.IntN(3) {
			h := g.Uint64N(3) + uint64(i)<<40
			text := fmt.Appendf(nil, "%016x%048d", h, 0)
			ev.ExtraKeys = append(ev.ExtraKeys, decode.ExtraKey{Block: i, Text: text, Str: !g.chance(10), Pair: g.chance(50)})
			if len(ev.MM) > 0 || g.chance(30) {
				ev.HasMM = true
				ev.MM = append(ev.MM, decode.MMObject{Block: i, Hash: h, Offsets: [][2]uint64{{0, h & 3}}})
			}
		}
	}
	if g.chance(10) {
		ev.SessionID = []byte(pick(g, "s", "t", ""))
	}
}
