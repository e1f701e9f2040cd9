package convert

import "github.com/kvrelay/kvrelay/decode"

// saltState is a store's salt.
type saltState struct {
	seed  uint64 // 0 where there is none
	has   bool
	plain bool // a root that names none: its hashes are known to be without
}

// allTiers is for finding a hash wherever it lies.
var allTiers = [...]Tier{Device, HostPinned, Disk, External}

// saltFor is the salt of a store: its own, else its parent's while a copy of
// that is present on any tier.
func (r *Rank) saltFor(ev *decode.Event) (s saltState, ambiguous bool) {
	if salt := saltOf(ev); salt != nil {
		return saltState{seed: saltSeed(salt), has: true}, false
	}
	if !ev.HasParent {
		return saltState{plain: true}, false
	}
	if r.ambiguous.has(ev.Parent) {
		return saltState{}, true
	}
	if !r.ledger.salts.inUse() {
		return saltState{}, false
	}
	for _, t := range allTiers {
		if e := r.copyOn(t, ev.Parent); e != nil {
			if isSalt(e.salt) {
				return saltState{seed: r.ledger.salts.seed(e.salt), has: true}, false
			}
			break // no other copy knows more
		}
	}
	return saltState{}, false
}

func isSalt(id uint16) bool { return id != saltNone && id != saltPlain }

// learnSalt keeps a published block's salt, and finds out whether its hash has
// been seen under another one, or without.
//
// Every entry of a hash says the same, on whatever tier: so what is known of it
// stays while one copy does, whichever goes first. known: the entry was there
// before this store.
func (r *Rank) learnSalt(e *entry, known bool, hash uint64, s saltState, out *Output) {
	l := &r.ledger
	elsewhere := l.tiers&^(1<<e.tier()) != 0 // false where an engine has one tier: nothing is looked up then
	if elsewhere && !known {
		elsewhere = r.adoptSalt(e, hash)
	}
	switch {
	case s.has:
		if isSalt(e.salt) && l.salts.seed(e.salt) == s.seed {
			return
		}
		if e.salt != saltNone {
			r.doubtSalt(hash, out)
		}
		id, ok := l.salts.acquire(s.seed)
		if !ok {
			r.bound(BoundSalts, out)
			r.doubtSalt(hash, out)
			return
		}
		l.salts.release(e.salt)
		e.salt = id
	case s.plain && isSalt(e.salt):
		r.doubtSalt(hash, out)
		return
	case s.plain && e.salt == saltNone:
		e.salt = saltPlain
	default:
		return
	}
	if elsewhere {
		r.spreadSalt(e, hash)
	}
}

// adoptSalt gives a new entry what the hash's entries on other tiers know, and
// reports whether there are any.
func (r *Rank) adoptSalt(e *entry, hash uint64) bool {
	for _, t := range allTiers {
		if t == e.tier() {
			continue
		}
		if other := r.copyOn(t, hash); other != nil {
			if other.salt != saltNone {
				e.salt = r.ledger.salts.share(other.salt)
			}
			return true
		}
	}
	return false
}

// spreadSalt gives what an entry has learned to the hash's entries on other tiers.
func (r *Rank) spreadSalt(e *entry, hash uint64) {
	for _, t := range allTiers {
		if t == e.tier() {
			continue
		}
		if other := r.copyOn(t, hash); other != nil {
			r.ledger.salts.release(other.salt)
			other.salt = r.ledger.salts.share(e.salt)
		}
	}
}

// copyOn is the entry of (tier, hash), or nil. Tiers that nothing was stored on
// are not looked at.
func (r *Rank) copyOn(tier Tier, hash uint64) *entry {
	if r.ledger.tiers>>tier&1 == 0 {
		return nil
	}
	if _, e, _, ok := r.find(tier, hash); ok {
		return e
	}
	return nil
}

func (r *Rank) doubtSalt(hash uint64, out *Output) {
	if r.ambiguous.add(hash) {
		r.bound(BoundAmbiguous, out)
	}
}
