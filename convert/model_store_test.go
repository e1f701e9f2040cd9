package convert

import (
	"strings"

	"github.com/kvrelay/kvrelay/decode"
)

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
		if s := m.salts[ev.Parent]; strings.HasPrefix(s, "+") {
			salt = s[1:]
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
		m.learn(b.Hash, state)
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
		if m.roots[modelKey{group, placed{tier, ev.Parent}}] && !m.full {
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
	m.roots[modelKey{group, placed{tier, ev.Hashes[len(ev.Hashes)-1]}}] = true
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
			m.unpublish(p)
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
	m.published[p] = modelBlock{told{b.TokensHash, parent, hasParent, mmText(b.MM)}, b}
}

// learn keeps what a store says of a hash's salt.
func (m *model) learn(h uint64, state string) {
	was := m.salts[h]
	if state != "" && was != "" && was != state {
		m.ambiguous[h] = true
	}
	if state != "" && (state != "-" || was == "") {
		m.salts[h] = state
	}
}

// unpublish forgets a block, and its hash's salt with the last copy on any tier.
func (m *model) unpublish(p placed) {
	delete(m.published, p)
	for t := range Tier(4) {
		if _, ok := m.published[placed{t, p.hash}]; ok {
			return
		}
	}
	delete(m.salts, p.hash)
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
		m.unpublish(p)
		item.hashes = append(item.hashes, h)
	}
	m.items = append(m.items, item)
}
