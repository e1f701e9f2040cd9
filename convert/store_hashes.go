package convert

import "github.com/kvrelay/kvrelay/decode"

// storeHashes publishes a store without tokens: blocks that the ledger knows
// take tokens_hash and parent from there, whatever their tier.
func (r *Rank) storeHashes(ev *decode.Event, tier Tier, group uint8, out *Output) {
	orphan := ev.HasParent && r.refused.has(ev.Parent)
	as := r.countAs(ev, tier, group, out)
	r.ledger.tiers |= 1 << tier
	published, open := 0, false
	why := noReason // the first missing block's, for the event
	var last uint64
	for i, h := range ev.Hashes {
		from, reason := r.source(tier, h)
		if reason == noReason && orphan {
			reason = ReasonOrphan
		}
		if reason == noReason && r.fits(tier, ev.Hashes[i:i+1], out) == 0 {
			reason = ReasonLedgerFull
		}
		if reason != noReason {
			r.refuseHashes(ev.Hashes[i:i+1], out)
			r.stats.Blocks.Dropped[reason]++
			if why == noReason {
				why = reason
			}
			continue
		}
		tokens, mm := from.tokens, []MMObject(nil)
		if from.side != 0 {
			mm = r.ledger.mm.objects(r.ledger.sides.at(from.side).mm, out)
		}
		hasParent, parent, salt := from.hasParent(), from.parent, from.salt
		if open && !(hasParent && parent == last) {
			out.endStore()
			open = false
		}
		if open {
			out.run.n++
		} else {
			out.beginStore(tier, sessionOf(ev), hasParent, parent, 1)
			open = true
		}
		b := out.addBlock(h)
		b.TokensHash, b.MM = tokens, mm
		e, known := r.keep(tier, h, group, as, out)
		r.describe(e, known, hasParent, parent, b, out)
		if e.salt == saltNone && salt != saltNone {
			e.salt = r.ledger.salts.share(salt)
		}
		published++
		last = h
	}
	if open {
		out.endStore()
	}
	if published == 0 {
		r.stats.Events.Dropped[why]++
		return
	}
	r.stats.Events.Published++
	r.stats.Blocks.Published += uint64(published)
	if why != noReason {
		r.stats.Partial[why]++
	}
}

// source is the entry that tells a hash's tokens_hash: of another tier before
// the same one. It is valid until the ledger changes.
func (r *Rank) source(tier Tier, hash uint64) (*entry, Reason) {
	var found *entry
	for _, t := range allTiers {
		if _, e, _, ok := r.find(t, hash); ok && (found == nil || t != tier) {
			found = e
		}
	}
	switch {
	case found == nil:
		return nil, ReasonNoTokens
	case found.hasParent() && r.refused.has(found.parent):
		return nil, ReasonOrphan
	}
	return found, noReason
}
