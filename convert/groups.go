package convert

import (
	"slices"

	"github.com/kvrelay/kvrelay/decode"
)

// kind is what a cache group holds.
type kind uint8

const (
	kindUnlearned kind = iota
	kindMain           // full attention of some sort: routable
	kindOther
	kindUnknown // a name that is not known: not routable either
)

func kindOf(name []byte) kind {
	switch string(name) {
	case "full_attention", "mla_attention", "sink_full_attention":
		return kindMain
	case "sliding_window", "sliding_window_mla", "mamba", "chunked_local_attention",
		"encoder_only_attention", "cross_attention":
		return kindOther
	}
	return kindUnknown
}

const (
	maxGroups  = 254 // BoundGroups
	restGroups = 255 // index that all further groups share
)

// groups gives an engine's group numbers one-byte indexes and knows their
// kinds. Group 0 has index 0 and is also the group of events that name none.
type groups struct {
	numbers []uint32 // by index − 1
	kinds   [256]kind
}

// find is the index of a group that has one.
func (g *groups) find(number uint32) (index uint8, ok bool) {
	if number == 0 {
		return 0, true
	}
	i := slices.Index(g.numbers, number)
	return uint8(i + 1), i >= 0
}

// add gives a new group an index; when none is left, the one that such groups share.
func (g *groups) add(number uint32) (index uint8, full bool) {
	if len(g.numbers) == maxGroups {
		return restGroups, true
	}
	g.numbers = append(g.numbers, number)
	return uint8(len(g.numbers)), false
}

// noReason says that nothing stands against an event.
const noReason = NumReasons

// group is an event's cache group. It learns the kind from a store; reason says
// why the event is not routable, if so.
func (r *Rank) group(ev *decode.Event, tier Tier, out *Output) (index uint8, reason Reason) {
	var number uint32
	if ev.HasGroup {
		number = ev.Group
	}
	low := tier == Disk || tier == External // their producers name no kinds
	index, known := r.groups.find(number)
	if !known && (ev.HasKind || low) {
		var full bool
		if index, full = r.groups.add(number); full {
			r.bound(BoundGroups, out)
		}
		known = !full
	}
	if ev.HasKind {
		k := kindOf(ev.Kind)
		if ev.HasGroup && known && ev.Type == decode.Stored {
			r.groups.kinds[index] = k
		}
		switch k {
		case kindOther:
			return index, ReasonNonMainKind
		case kindUnknown:
			return index, ReasonUnknownKind
		}
		return index, noReason
	}
	if !ev.HasGroup {
		return index, noReason
	}
	switch k := r.groups.kinds[index]; {
	case known && k == kindOther:
		return index, ReasonNonMainGroup
	case known && k == kindUnknown:
		return index, ReasonUnknownKind
	case number > 0 && !low && (!known || k == kindUnlearned):
		return index, ReasonUnlearnedGroup
	}
	return index, noReason
}
