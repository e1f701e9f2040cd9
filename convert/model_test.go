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

// model converts by the letter of the rules, with maps and without a thought
// for speed. Rank is compared with it.
type model struct {
	cfg       Config
	counts    map[modelKey]*counts
	published map[placed]modelBlock
	kinds     map[uint32]kind
	refused   map[uint64]bool
	ambiguous map[uint64]bool
	size      uint64
	full      bool

	items    []modelItem
	drops    map[Reason]int
	roots    map[uint64]bool
	selfMade []placed // what the switch to full reporting removed
}

type modelKey struct {
	group uint32
	placed
}

type modelBlock struct {
	told
	block Block
	salt  string // "": unknown; "-": plain; "+…": that salt
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
	m.refused, m.ambiguous, m.roots = map[uint64]bool{}, map[uint64]bool{}, map[uint64]bool{}
}

func (m *model) convert(events []decode.Event) []string {
	m.items, m.drops, m.roots, m.selfMade = nil, map[Reason]int{}, map[uint64]bool{}, nil
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

func (m *model) store(ev *decode.Event, tier Tier, group uint32) Reason {
	// 4
	if ev.LoraID > 0 && len(ev.LoraName) == 0 {
		return ReasonUnnamedLora
	}
	salt := modelSalt(ev)
	if salt == "" && ev.HasParent {
		if m.ambiguous[ev.Parent] {
			return ReasonAmbiguousSalt
		}
		for t := range Tier(4) {
			if s := m.published[placed{t, ev.Parent}].salt; strings.HasPrefix(s, "+") {
				salt = s[1:]
				break
			}
		}
	}
	refuse := func(reason Reason, hashes []uint64) Reason {
		for _, h := range hashes {
			m.refused[h] = true
		}
		return reason
	}
	// 5
	seen := map[uint64]bool{}
	if ev.HasParent {
		seen[ev.Parent] = true
	}
	for _, h := range ev.Hashes {
		if seen[h] {
			m.items = append(m.items, modelItem{})
			return refuse(ReasonSelfReference, ev.Hashes)
		}
		seen[h] = true
	}
	n, tokens := len(ev.Hashes), ev.Tokens.Len()
	hashOnly := tokens == 0 && ev.Pairs != decode.UnsoundPairs
	if n == 0 {
		if hashOnly {
			return ReasonEmpty
		}
		return ReasonSurplusTokens
	}
	if hashOnly {
		return m.storeHashes(ev, tier, group)
	}
	if m.size == 0 {
		m.size = ev.BlockSize
	}
	if ev.BlockSize != m.size || m.size == 0 || !ev.HasBlockSz {
		return refuse(ReasonBlockSize, ev.Hashes)
	}
	if ev.Pairs == decode.UnsoundPairs {
		return refuse(ReasonMalformed, ev.Hashes)
	}
	extra := 0
	if m.cfg.Eagle == EagleOn || m.cfg.Eagle == EagleAuto && ev.Pairs == decode.ChainedPairs {
		extra = 1
	} else if ev.Pairs == decode.ChainedPairs {
		tokens--
	}
	size := int(m.size)
	if tokens > n*size+extra {
		return refuse(ReasonSurplusTokens, ev.Hashes)
	}
	covered := 0
	for covered < n && (covered+1)*size+extra <= tokens {
		covered++
	}
	if covered == 0 {
		return refuse(ReasonShortTokens, ev.Hashes)
	}
	if ev.HasParent && m.refused[ev.Parent] {
		return refuse(ReasonOrphan, ev.Hashes)
	}
	reason := noReason
	if covered < n {
		reason = refuse(ReasonShortTokens, ev.Hashes[covered:])
	}
	blocks := make([]Block, covered)
	for i := range blocks {
		blocks[i] = m.hash(ev, i, extra, salt)
	}
	as := m.classify(ev, tier, group)
	m.items = append(m.items, modelItem{kind: Stored, tier: tier, session: string(ev.SessionID),
		hasParent: ev.HasParent, parent: ev.Parent, blocks: blocks})
	hasParent, parent := ev.HasParent, ev.Parent
	for _, b := range blocks {
		m.keep(b, tier, group, hasParent, parent, as)
		state := ""
		if salt != "" {
			state = "+" + salt
		} else if !ev.HasParent {
			state = "-"
		}
		m.learn(tier, b.Hash, state)
		hasParent, parent = true, b.Hash
	}
	return reason
}

func (m *model) storeHashes(ev *decode.Event, tier Tier, group uint32) Reason {
	as := m.classify(ev, tier, group)
	reason := noReason
	var item *modelItem
	for _, h := range ev.Hashes {
		from, found := modelBlock{}, false
		for t := range Tier(4) {
			if b, ok := m.published[placed{t, h}]; ok && (!found || t != tier) {
				from, found = b, true
			}
		}
		why := noReason
		if !found {
			why = ReasonNoTokens
		} else if ev.HasParent && m.refused[ev.Parent] || from.hasParent && m.refused[from.parent] {
			why = ReasonOrphan
		}
		if why != noReason {
			m.refused[h] = true
			if reason == noReason {
				reason = why
			}
			continue
		}
		if item == nil || !from.hasParent || from.parent != item.blocks[len(item.blocks)-1].Hash {
			m.items = append(m.items, modelItem{kind: Stored, tier: tier, session: string(ev.SessionID),
				hasParent: from.hasParent, parent: from.parent})
			item = &m.items[len(m.items)-1]
		}
		item.blocks = append(item.blocks, from.block)
		m.keep(from.block, tier, group, from.hasParent, from.parent, as)
		k := placed{tier, h}
		if b := m.published[k]; b.salt == "" {
			b.salt = from.salt
			m.published[k] = b
		}
	}
	return reason
}

func (m *model) classify(ev *decode.Event, tier Tier, group uint32) copying {
	switch {
	case m.cfg.Duplicates == Presence:
		return asPresence
	case ev.Reused:
		return asNothing
	case m.cfg.Duplicates == Count:
		return asCopy
	}
	if ev.HasParent {
		if m.roots[ev.Parent] && !m.full {
			m.switchToFull(ev)
		}
		return asCopy
	}
	for _, h := range ev.Hashes {
		if c := m.counts[modelKey{group, placed{tier, h}}]; c == nil || !c.present() {
			return asCopy
		}
	}
	if m.full {
		return asNothing
	}
	m.roots[ev.Hashes[len(ev.Hashes)-1]] = true
	return asAnnouncement
}

// switchToFull removes what only announcements kept present. Where Rank removes
// it is at the end of the batch; by then events may have brought some back.
func (m *model) switchToFull(ev *decode.Event) {
	m.full = true
	for k, c := range m.counts {
		*c = counts{copies: c.copies - min(c.copies, c.taken)}
		if *c == (counts{}) {
			delete(m.counts, k)
		}
	}
	for p := range m.published {
		if !m.held(p) {
			delete(m.published, p)
			m.selfMade = append(m.selfMade, p)
		}
	}
}

func (m *model) held(p placed) bool {
	for k, c := range m.counts {
		if k.placed == p && c.present() {
			return true
		}
	}
	return false
}

func (m *model) keep(b Block, tier Tier, group uint32, hasParent bool, parent uint64, as copying) {
	p := placed{tier, b.Hash}
	delete(m.refused, b.Hash)
	k := modelKey{group, p}
	if m.counts[k] == nil {
		m.counts[k] = &counts{}
	}
	switch as {
	case asCopy:
		m.counts[k].copies++
	case asAnnouncement:
		m.counts[k].announced++
	case asPresence:
		m.counts[k].copies = 1
	}
	was := m.published[p]
	m.published[p] = modelBlock{told{b.TokensHash, parent, hasParent, mmText(b.MM)}, b, was.salt}
}

// learn keeps what a store says of a hash's salt, compared with all tiers.
func (m *model) learn(tier Tier, h uint64, state string) {
	if state == "" {
		return
	}
	for t := range Tier(4) {
		other := m.published[placed{t, h}].salt
		if other != "" && other != state {
			m.ambiguous[h] = true
		}
	}
	k := placed{tier, h}
	b := m.published[k]
	if state != "-" || b.salt == "" {
		b.salt = state
	}
	m.published[k] = b
}

func (m *model) remove(ev *decode.Event, tier Tier, group uint32) {
	item := modelItem{kind: Removed, tier: tier, n: len(ev.Hashes)}
	for _, h := range ev.Hashes {
		delete(m.refused, h)
		p := placed{tier, h}
		if c := m.counts[modelKey{group, p}]; c != nil {
			switch {
			case m.cfg.Duplicates == Presence:
				c.copies = 0
			case c.announced > 0:
				c.announced--
				c.taken++
			case c.copies > 0:
				c.copies--
			}
		}
		if m.held(p) {
			continue
		}
		for k := range m.counts {
			if k.placed == p {
				delete(m.counts, k)
			}
		}
		delete(m.published, p)
		item.hashes = append(item.hashes, h)
	}
	m.items = append(m.items, item)
}

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
			if o.Block == i {
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
