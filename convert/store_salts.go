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
		if _, e, _, ok := r.find(t, ev.Parent); ok && isSalt(e.salt) {
			return saltState{seed: r.ledger.salts.seed(e.salt), has: true}, false
		}
	}
	return saltState{}, false
}

func isSalt(id uint16) bool { return id != saltNone && id != saltPlain }

// learnSalt keeps a published block's salt, and finds out whether its hash has
// been seen under another one, or without.
func (r *Rank) learnSalt(e *entry, tier Tier, hash uint64, s saltState, out *Output) {
	l := &r.ledger
	switch {
	case s.has:
		if r.seenOther(hash, s) {
			r.doubtSalt(hash, out)
		}
		if isSalt(e.salt) && l.salts.seed(e.salt) == s.seed {
			return
		}
		id, ok := l.salts.acquire(s.seed)
		if !ok {
			r.bound(BoundSalts, out)
			r.doubtSalt(hash, out)
			return
		}
		l.salts.release(e.salt)
		e.salt = id
	case s.plain:
		if l.salts.inUse() && r.seenOther(hash, s) {
			r.doubtSalt(hash, out)
		}
		if e.salt == saltNone {
			e.salt = saltPlain
		}
	}
}

// seenOther reports whether a copy of hash, on any tier, was stored otherwise
// than s says.
func (r *Rank) seenOther(hash uint64, s saltState) bool {
	for _, t := range allTiers {
		_, e, _, ok := r.find(t, hash)
		switch {
		case !ok || e.salt == saltNone:
		case e.salt == saltPlain:
			if s.has {
				return true
			}
		case !s.has || r.ledger.salts.seed(e.salt) != s.seed:
			return true
		}
	}
	return false
}

func (r *Rank) doubtSalt(hash uint64, out *Output) {
	if r.ambiguous.add(hash) {
		r.bound(BoundAmbiguous, out)
	}
}
