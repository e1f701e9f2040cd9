package convert

// sglangRoot is hash(()) in Python, which SGLang 0.4.9 sends as the parent of
// first blocks.
const sglangRoot = 5740354900026072187

// movedLimit is how many hashes may turn up under another parent than before
// until the engine's prefixes are not trusted. A sound hash stands for its whole
// prefix, so it never does.
const movedLimit = 3

// trust watches whether block hashes stand for one place each.
type trust struct {
	moved int
	gone  []parted // parents of removed blocks, by hash modulo its length; what falls on the same place is forgotten
}

type parted struct{ hash, parent uint64 }

const maxParted = 1024 // 16 KiB a rank

// parentKey makes "no parent" a parent of its own. 0, a parent that no engine is
// known to send, is taken for an empty place.
func parentKey(hasParent bool, parent uint64) uint64 {
	if !hasParent {
		return 0x9e3779b97f4a7c15
	}
	return parent
}

// doubts looks at one stored block, with its entry if it was present before, and
// reports whether the engine's prefixes cannot be trusted.
func (t *trust) doubts(hash uint64, was *entry, hasParent bool, parent uint64) bool {
	if hasParent && parent == sglangRoot {
		return true
	}
	key := parentKey(hasParent, parent)
	if was != nil {
		if parentKey(was.hasParent(), was.parent) != key {
			t.moved++
		}
	} else if t.gone != nil {
		if p := t.gone[hash%maxParted]; p.parent != 0 && p.hash == hash && p.parent != key {
			t.moved++
		}
	}
	return t.moved >= movedLimit
}

// removed remembers the parent of a block that goes.
func (t *trust) removed(hash uint64, e *entry) {
	if t.gone == nil {
		t.gone = make([]parted, maxParted)
	}
	t.gone[hash%maxParted] = parted{hash, parentKey(e.hasParent(), e.parent)}
}
