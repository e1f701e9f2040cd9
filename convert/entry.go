package convert

// entry is one (tier, hash) of the ledger, in 40 bytes.
type entry struct {
	hash, tokens, parent uint64
	delta                uint32 // its number is the segment's base + delta
	side                 uint32 // slot + 1 in the side table; 0: nothing there
	copies               uint16 // of group; saturates
	salt                 uint16 // saltNone, saltPlain, or a salt's id
	group                uint8  // index of the first main group that held it
	flags                uint8  // tier, and the bits below
}

const (
	tierBits    = 0b11
	flagLive    = 1 << 2
	flagParent  = 1 << 3
	flagDoubted = 1 << 4 // the switch to full reporting may take it away
)

func (e *entry) tier() Tier { return Tier(e.flags & tierBits) }

func (e *entry) hasParent() bool { return e.flags&flagParent != 0 }

func (e *entry) setParent(has bool, parent uint64) {
	e.flags &^= flagParent
	if has {
		e.flags |= flagParent
	}
	e.parent = parent
}

// counts are the three numbers of one (group, tier, hash).
type counts struct{ copies, announced, taken uint32 }

func (c counts) present() bool { return c.copies|c.announced != 0 }

// side is what few entries have: announcements, multimodal information, other
// main groups. The first record of an entry is that of entry.group, whose
// copies stand in the entry; the next ones are other groups'.
type side struct {
	counts
	mm    uint32 // key in ledger.mm; 0: none; first record only
	next  uint32 // slot + 1 of the next group's record, or of the next free one
	group uint8
}

const sideChunk = 256

// sides is the side table: chunks that never move, and a list of free records.
type sides struct {
	chunks []*[sideChunk]side
	free   uint32 // slot + 1
	used   int    // slots ever handed out
	live   int
}

func (t *sides) at(ref uint32) *side {
	ref--
	return &t.chunks[ref/sideChunk][ref%sideChunk]
}

func (t *sides) add(s side) (ref uint32) {
	t.live++
	if ref = t.free; ref != 0 {
		r := t.at(ref)
		t.free = r.next
		*r = s
		return ref
	}
	if t.used%sideChunk == 0 {
		t.chunks = append(t.chunks, new([sideChunk]side))
	}
	t.used++
	ref = uint32(t.used)
	*t.at(ref) = s
	return ref
}

func (t *sides) drop(ref uint32) {
	t.live--
	*t.at(ref) = side{next: t.free}
	t.free = ref
}
