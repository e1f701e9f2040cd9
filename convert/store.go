package convert

import (
	"math"

	"github.com/kvrelay/kvrelay/decode"
)

// store publishes the blocks of a store that has passed the filters, or drops
// it. The order of the rules decides the reason.
func (r *Rank) store(ev *decode.Event, tier Tier, group uint8, out *Output) {
	if ev.LoraID > 0 && len(ev.LoraName) == 0 {
		r.drop(ev, ReasonUnnamedLora)
		return
	}
	salt, ambiguous := r.saltFor(ev)
	if ambiguous {
		r.drop(ev, ReasonAmbiguousSalt)
		return
	}
	if r.repeats.in(ev.Hashes, ev.HasParent, ev.Parent) {
		r.refuse(ev, ReasonSelfReference, out)
		out.endRun()
		return
	}
	hashOnly := ev.Tokens.Len() == 0 && ev.Pairs != decode.UnsoundPairs
	switch {
	case len(ev.Hashes) == 0 && hashOnly:
		r.drop(ev, ReasonEmpty)
		return
	case len(ev.Hashes) == 0:
		r.drop(ev, ReasonSurplusTokens)
		return
	case hashOnly:
		r.storeHashes(ev, tier, group, out)
		return
	}
	if !r.sizeFits(ev, out) {
		r.refuse(ev, ReasonBlockSize, out)
		return
	}
	covered, eagle, reason := r.cover(ev)
	if reason != noReason && covered == 0 {
		r.refuse(ev, reason, out)
		return
	}
	if ev.HasParent && r.refused.has(ev.Parent) {
		r.refuse(ev, ReasonOrphan, out)
		return
	}
	r.ledger.warm(tier, ev.Hashes[:covered])
	if n := r.fits(tier, ev.Hashes[:covered], out); n < covered {
		covered, reason = n, ReasonLedgerFull
		if n == 0 {
			r.refuse(ev, reason, out)
			return
		}
	}
	r.refuseHashes(ev.Hashes[covered:], out)

	r.hasher.begin(ev, routerSeed+loraSeed(ev.LoraName)+salt.seed, r.blockSize, eagle)
	as := r.countAs(ev, tier, group, out)
	r.ledger.tiers |= 1 << tier
	out.beginStore(tier, sessionOf(ev), ev.HasParent, ev.Parent, covered)
	hasParent, parent := ev.HasParent, ev.Parent
	for i, h := range ev.Hashes[:covered] {
		b := out.addBlock(h)
		b.TokensHash, b.MM = r.hasher.block(i, out)
		e, known := r.keep(tier, h, group, as, out)
		r.describe(e, known, hasParent, parent, b, out)
		r.learnSalt(e, known, h, salt, out)
		hasParent, parent = true, h
	}
	out.endStore()
	r.stored(ev, covered, reason)
}

// sessionOf is the session that a store names, nil: none.
func sessionOf(ev *decode.Event) []byte {
	if len(ev.SessionID) == 0 {
		return nil
	}
	return ev.SessionID
}

// stored counts a store of which the first published blocks went out.
func (r *Rank) stored(ev *decode.Event, published int, reason Reason) {
	r.stats.Events.Published++
	r.stats.Blocks.Published += uint64(published)
	if rest := len(ev.Hashes) - published; rest > 0 {
		r.stats.Partial[reason]++
		r.stats.Blocks.Dropped[reason] += uint64(rest)
	}
}

// cover is how many leading blocks the tokens cover, and why not all. More
// tokens than the hashes need cover nothing: which chunk belongs to which hash
// is not said.
func (r *Rank) cover(ev *decode.Event) (blocks int, eagle bool, reason Reason) {
	if ev.Pairs == decode.UnsoundPairs {
		return 0, false, ReasonMalformed
	}
	tokens := ev.Tokens.Len()
	eagle = r.cfg.Eagle == EagleOn || r.cfg.Eagle == EagleAuto && ev.Pairs == decode.ChainedPairs
	switch {
	case eagle:
		tokens-- // the last block's window reaches one further
	case ev.Pairs == decode.ChainedPairs:
		tokens-- // first members only
	}
	full, rest := uint64(tokens)/r.blockSize, uint64(tokens)%r.blockSize
	n := uint64(len(ev.Hashes))
	switch {
	case full > n || full == n && rest != 0:
		return 0, eagle, ReasonSurplusTokens
	case full < n:
		return int(full), eagle, ReasonShortTokens
	}
	return len(ev.Hashes), eagle, noReason
}

// missLimit is after how many stores of another block size in a row the
// mismatch is told: hybrid engines send a few partial stores of another size.
const missLimit = 64

// sizeFits checks, or learns, the block size.
func (r *Rank) sizeFits(ev *decode.Event, out *Output) bool {
	if r.blockSize == 0 && ev.BlockSize > 0 {
		r.blockSize = ev.BlockSize
		out.Notices = append(out.Notices, Notice{Kind: NoticeBlockSize, Got: ev.BlockSize})
	}
	if ev.HasBlockSz && ev.BlockSize == r.blockSize && r.blockSize > 0 {
		r.matched, r.misses = true, 0
		return true
	}
	r.misses++
	r.stats.OtherSize = ev.BlockSize
	if !r.stats.Mismatched && (!r.matched || r.misses >= missLimit) {
		r.stats.Mismatched = true
		out.Notices = append(out.Notices, Notice{
			Kind: NoticeMismatch, Want: r.blockSize, Got: ev.BlockSize, Learned: r.cfg.BlockSize == 0,
		})
	}
	return false
}

// fits is how many of the hashes, from the front, the ledger has room for.
func (r *Rank) fits(tier Tier, hashes []uint64, out *Output) int {
	room := min(r.cfg.maxBlocks()-r.ledger.size(), r.ledger.room())
	if len(hashes) <= room {
		return len(hashes)
	}
	for i, h := range hashes {
		if slot, _, ok := r.ledger.lookup(tier, h); ok && r.ledger.published(slot) {
			continue
		}
		if room--; room < 0 {
			r.bound(BoundBlocks, out)
			return i
		}
	}
	return len(hashes)
}

// copying is what a store adds to its blocks' numbers.
type copying uint8

const (
	asCopy copying = iota
	asAnnouncement
	asNothing
	asPresence
)

// countAs decides what a store is. A root store all of whose hashes are present
// announces reused blocks: it may be a copy, so it counts, but apart. A store
// that goes on from such a root in the same batch, group and tier proves that
// the engine reports fully, and that none of them was a copy.
func (r *Rank) countAs(ev *decode.Event, tier Tier, group uint8, out *Output) copying {
	switch {
	case r.cfg.Duplicates == Presence:
		return asPresence
	case ev.Reused:
		return asNothing
	case r.cfg.Duplicates == Count:
		return asCopy
	case ev.HasParent:
		if !r.full && r.roots.has(ev.Parent, rootPlace(tier, group)) {
			r.full = true
			out.Notices = append(out.Notices, Notice{Kind: NoticeFullReporting})
		}
		return asCopy
	}
	for _, h := range ev.Hashes {
		_, e, _, ok := r.find(tier, h)
		if !ok || !r.ledger.counts(e, group).present() {
			return asCopy
		}
	}
	if r.full {
		return asNothing
	}
	r.announced(ev.Hashes[len(ev.Hashes)-1], rootPlace(tier, group))
	return asAnnouncement
}

// rootPlace tells announcements of one hash apart: a store on another tier, or
// of another group, does not go on from blocks that were announced here.
func rootPlace(tier Tier, group uint8) uint32 { return uint32(tier)<<8 | uint32(group) }

// maxRoots bounds the announcements remembered of one batch, far above what an
// engine schedules in a step; behind a further one full reporting is found in
// another batch.
const maxRoots = 1024

func (r *Rank) announced(last uint64, place uint32) {
	if r.roots.n == 0 {
		r.roots.reset(maxRoots)
	}
	if r.roots.n < maxRoots {
		r.roots.add(last, place)
	}
}

// find is the entry of (tier, hash), brought up to date where the switch to
// full reporting has not come to it yet; one that only announcements kept is
// as good as gone, although the sweep has still to say so.
func (r *Rank) find(tier Tier, hash uint64) (slot uint32, e *entry, at spot, ok bool) {
	slot, e, at = r.ledger.seek(tier, hash)
	ok = e != nil
	if ok && r.full && e.flags&flagDoubted != 0 {
		r.ledger.settleCounts(slot, e)
		ok = e.flags&flagDoubted == 0
	}
	return slot, e, at, ok
}

// keep makes (tier, hash) present, or counts it once more; known says which.
func (r *Rank) keep(tier Tier, hash uint64, group uint8, as copying, out *Output) (e *entry, known bool) {
	l := &r.ledger
	slot, e, at, known := r.find(tier, hash)
	switch {
	case e == nil:
		slot, e = l.addAt(tier, hash, at)
		e.group = group
	case !known: // to be swept, but here it is again
		l.setDoubted(slot, e, false)
		l.salts.release(e.salt)
		e.salt = saltNone
		fallthrough
	default:
		if !l.published(slot) {
			slot, e = l.publish(slot, e)
		}
	}
	r.refused.drop(hash)

	if as == asCopy && group == e.group && e.copies < math.MaxUint16 && e.flags&flagDoubted == 0 {
		e.copies++ // the usual case
		return e, known
	}
	c := l.counts(e, group)
	switch as {
	case asCopy:
		c.copies = addOne(c.copies)
	case asAnnouncement:
		c.announced = addOne(c.announced)
	case asPresence:
		c.copies = 1
	}
	if l.setCounts(e, group, c) {
		r.bound(BoundCopies, out)
	}
	if r.cfg.Duplicates == Auto && !r.full {
		l.setDoubted(slot, e, l.doubtful(e))
	}
	return e, known
}

func addOne(n uint32) uint32 {
	if n == math.MaxUint32 {
		return n
	}
	return n + 1
}

// describe keeps what a published block says in its entry.
func (r *Rank) describe(e *entry, known, hasParent bool, parent uint64, b *Block, out *Output) {
	if !r.stats.Untrusted {
		var was *entry
		if known {
			was = e
		}
		if r.trust.doubts(b.Hash, was, hasParent, parent) {
			r.stats.Untrusted = true
			out.Notices = append(out.Notices, Notice{Kind: NoticeUntrusted})
		}
	}
	e.tokens = b.TokensHash
	e.setParent(hasParent, parent)
	if b.MM == nil && e.side == 0 {
		return
	}
	s := r.ledger.firstSide(e)
	var full bool
	if s.mm, full = r.ledger.mm.put(s.mm, b.MM); full {
		r.bound(BoundMultimodal, out)
	}
	r.ledger.dropIdleSide(e)
}
