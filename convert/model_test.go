package convert

import (
	"strings"

	"github.com/kvrelay/kvrelay/decode"
)

// model converts by the letter of the rules, with maps and without a thought
// for speed. Rank is compared with it.
type model struct {
	cfg       Config
	counts    map[modelKey]*counts
	published map[placed]modelBlock
	salts     map[uint64]string // of present hashes, on whatever tier: "-": plain; "+…": that salt
	kinds     map[uint32]kind
	refused   map[uint64]bool
	ambiguous map[uint64]bool
	size      uint64
	full      bool

	items    []modelItem
	drops    map[Reason]int
	roots    map[modelKey]bool // last hashes of the batch's announcements
	selfMade []placed          // what the switch to full reporting removed
}

type modelKey struct {
	group uint32
	placed
}

type modelBlock struct {
	told
	block Block
}

// modelItem is an engine event's part in the output, before coalescing.
type modelItem struct {
	kind      Kind // 0: only ends the run
	tier      Tier
	session   string
	hasParent bool
	parent    uint64
	blocks    []Block
	hashes    []uint64
	n         int // removed hashes, suppressed ones too
}

func newModel(c Config) *model {
	m := &model{cfg: c}
	m.restart()
	return m
}

func (m *model) restart() {
	m.forget()
	m.kinds, m.full, m.size = map[uint32]kind{}, false, m.cfg.BlockSize
}

func (m *model) forget() {
	m.counts, m.published = map[modelKey]*counts{}, map[placed]modelBlock{}
	m.salts, m.refused, m.ambiguous, m.roots = map[uint64]string{}, map[uint64]bool{}, map[uint64]bool{}, map[modelKey]bool{}
}

func (m *model) convert(events []decode.Event) []string {
	m.items, m.drops, m.roots, m.selfMade = nil, map[Reason]int{}, map[modelKey]bool{}, nil
	for i := range events {
		if reason := m.event(&events[i]); reason != noReason {
			m.drops[reason]++
		}
	}
	return m.coalesce()
}

func (m *model) event(ev *decode.Event) Reason {
	switch ev.Type {
	case decode.Malformed:
		return ReasonMalformed
	case decode.Unknown:
		return ReasonUnknownTag
	case decode.Ignored:
		return ReasonIgnored
	}
	// 2
	owner, medium := string(ev.Ownership), strings.ToUpper(string(ev.Medium))
	tiers := map[string]Tier{
		"": Device, "GPU": Device, "DEVICE": Device, "CPU": HostPinned, "CPU_PINNED": HostPinned, "CPU_TIER1": HostPinned,
		"CPU_TIER2": Disk, "DISK": Disk, "NVME": Disk, "STORAGE": Disk, "FS": Disk,
		"EXTERNAL": External, "NETWORK": External, "REMOTE": External, "SHARED": External, "OBJ": External,
	}
	tier, known := tiers[medium]
	if ev.Type == decode.Cleared && !ev.IsMap && !known {
		owner, known = string(ev.Medium), true
	}
	switch {
	case owner != "" && owner != "framework":
		return ReasonForeignOwner
	case ev.OtherLocality || ev.Locality != nil && string(ev.Locality) != "LOCAL":
		return ReasonNonLocal
	case !known:
		return ReasonUnknownMedium
	}
	if ev.Type == decode.Cleared {
		m.items = append(m.items, modelItem{kind: Cleared})
		m.forget()
		return noReason
	}
	// 3
	if ev.HasKind {
		k := kindUnknown
		switch string(ev.Kind) {
		case "full_attention", "mla_attention", "sink_full_attention":
			k = kindMain
		case "sliding_window", "sliding_window_mla", "mamba", "chunked_local_attention", "encoder_only_attention", "cross_attention":
			k = kindOther
		}
		if ev.HasGroup && ev.Type == decode.Stored {
			m.kinds[ev.Group] = k
		}
		if k == kindOther {
			return ReasonNonMainKind
		} else if k == kindUnknown {
			return ReasonUnknownKind
		}
	} else if ev.HasGroup {
		switch m.kinds[ev.Group] {
		case kindOther:
			return ReasonNonMainGroup
		case kindUnknown:
			return ReasonUnknownKind
		case kindUnlearned:
			if ev.Group > 0 && tier != Disk && tier != External {
				return ReasonUnlearnedGroup
			}
		}
	}
	var group uint32
	if ev.HasGroup {
		group = ev.Group
	}
	if ev.Type == decode.Removed {
		m.remove(ev, tier, group)
		return noReason
	}
	return m.store(ev, tier, group)
}
