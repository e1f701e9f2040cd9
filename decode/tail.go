package decode

import "github.com/kvrelay/kvrelay/internal/msgpack"

// slot is one element of a positional tail.
type slot struct {
	kind slotKind
	num  uint64
	text []byte
	at   int // slotList: offset
}

type slotKind uint8

const (
	slotNil slotKind = iota // nil or absent
	slotUint
	slotText
	slotList
	slotOther
)

const (
	// tailSlots are group_idx, kind, sliding window, locality and ownership;
	// what lies behind them is not looked at.
	tailSlots = 5
	// fixedTail is the length from which a tail of the right types is one of
	// the fixed order. Shorter ones are read by type, which reads them alike.
	fixedTail = 4
)

// readTail reads the n elements behind an event's fixed slots. Newer engines
// send a fixed order; older forks only the slots they use, block_mm_infos
// first, so those are told apart by type. What fits nothing is ignored.
func (b *Batch) readTail(ev *Event, n int) problem {
	var all [1 + tailSlots]slot
	m := min(n, len(all))
	for i := range m {
		if c := b.readSlot(&all[i]); c != good {
			return c.of(fTail)
		}
	}
	b.r.SkipN(n - m)
	if b.r.Failed() {
		return wrongType.of(fTail)
	}
	tail := all[:m]
	if m > 0 && ev.Type == Stored && tail[0].kind == slotList {
		if c := b.tailMMInfos(ev, tail[0].at, true); c != good {
			return c.of(fMMInfos)
		}
		tail = tail[1:]
	}
	tail = tail[:min(len(tail), tailSlots)]
	if len(tail) >= fixedTail && isFixed(tail) {
		ev.fixedTail(tail)
		return 0
	}
	return b.typedTail(ev, tail)
}

// readSlot reads one element of a tail.
func (b *Batch) readSlot(s *slot) cause {
	s.at = b.r.Off()
	s.kind = slotOther
	switch b.r.Kind() {
	case msgpack.Nil:
		s.kind = slotNil
	case msgpack.Int:
		if v, ok := b.r.Uint(); ok {
			s.kind, s.num = slotUint, v
			return good
		}
	case msgpack.Str, msgpack.Bin:
		v, c := b.text()
		s.kind, s.text = slotText, v
		return c
	case msgpack.Array:
		s.kind = slotList
	}
	b.r.Skip()
	return good
}

func isFixed(tail []slot) bool {
	for i, want := range [tailSlots]slotKind{slotUint, slotText, slotUint, slotText, slotText} {
		if i < len(tail) && tail[i].kind != slotNil && tail[i].kind != want {
			return false
		}
	}
	return true
}

func (ev *Event) fixedTail(tail []slot) {
	if tail[0].kind == slotUint {
		ev.HasGroup = true
		ev.setGroup(tail[0].num)
	}
	ev.Kind = tail[1].text
	ev.HasKind = ev.Kind != nil
	ev.Locality = tail[3].text
	if len(tail) > 4 {
		ev.Ownership = tail[4].text
	}
}

// typedTail takes the first integer for the group and the second for the
// sliding window, the first list of maps for block_mm_infos, and texts for the
// first thing of their sort that they name: no later slot undoes an earlier
// one. A text that names nothing known, or a second kind or locality, is a kind
// not yet known, or, where there is a kind, an owner: either way the event is
// not taken for a block of main attention by mistake.
func (b *Batch) typedTail(ev *Event, tail []slot) problem {
	ints := 0
	if len(tail) == 3 && tail[0].kind == slotNil && tail[1].kind == slotText {
		ints = 1 // the fixed order, with no group
	}
	var other []byte
	for _, s := range tail {
		switch s.kind {
		case slotUint:
			if ints == 0 {
				ev.HasGroup = true
				ev.setGroup(s.num)
			}
			ints++
		case slotList:
			if ev.Type != Stored {
				continue
			}
			if c := b.tailMMInfos(ev, s.at, false); c != good {
				return c.of(fMMInfos)
			}
		case slotText:
			switch {
			case ev.Kind == nil && isKind(s.text):
				ev.Kind = s.text
			case ev.Locality == nil && isLocality(s.text):
				ev.Locality = s.text
			case string(s.text) == "framework":
				ev.Ownership = s.text
			default:
				other = s.text
			}
		}
	}
	if other != nil && ev.Kind == nil {
		ev.Kind = other
	} else if other != nil {
		ev.Ownership = other
	}
	ev.HasKind = ev.Kind != nil
	return 0
}

// isKind says whether text names a kind of KV-cache group that engines have.
func isKind(text []byte) bool {
	switch string(text) {
	case "full_attention", "mla_attention", "sink_full_attention", "sliding_window", "sliding_window_mla",
		"mamba", "chunked_local_attention", "encoder_only_attention", "cross_attention":
		return true
	}
	return false
}

func isLocality(text []byte) bool { return string(text) == "LOCAL" || string(text) == "REMOTE" }

// tailMMInfos reads the list at an offset as block_mm_infos if it is one: each
// element nil, a map, or an array of the right shape. first: it is the tail's
// first slot, where forks have block_mm_infos, also empty ones. Further on a
// list without a map may be anything, and where there are infos already every
// list is: newer engines end with one of token ids.
func (b *Batch) tailMMInfos(ev *Event, at int, first bool) cause {
	if ev.HasMM {
		return good
	}
	end := b.r.Off()
	defer b.r.Seek(end)
	b.r.Seek(at)
	n, _ := b.r.Array()
	maps := false
	for range n {
		switch b.r.Kind() {
		case msgpack.Map:
			maps = true
		case msgpack.Nil, msgpack.Array:
		default:
			return good
		}
		b.r.Skip()
	}
	if !maps && !first {
		return good
	}
	mark := b.mark()
	b.r.Seek(at)
	c := b.readMMInfos(ev)
	if c != good && !maps {
		b.back(mark)
		return good
	}
	return c
}
