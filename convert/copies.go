package convert

import "math"

// counts are the numbers of one group of an entry; zero where it has none.
func (l *ledger) counts(e *entry, group uint8) counts {
	if group == e.group {
		c := counts{copies: uint32(e.copies)}
		if e.side != 0 {
			s := l.sides.at(e.side)
			c.announced, c.taken = s.announced, s.taken
		}
		return c
	}
	if s := l.otherGroup(e, group); s != nil {
		return s.counts
	}
	return counts{}
}

func (l *ledger) otherGroup(e *entry, group uint8) *side {
	if e.side == 0 {
		return nil
	}
	for ref := l.sides.at(e.side).next; ref != 0; {
		s := l.sides.at(ref)
		if s.group == group {
			return s
		}
		ref = s.next
	}
	return nil
}

// setCounts stores the numbers of one group of an entry. It reports whether
// some of them are more than can be kept: of copies of the first group, or of
// records in the side table.
func (l *ledger) setCounts(e *entry, group uint8, c counts) (capped bool) {
	full := l.sides.live >= l.maxSides
	if group == e.group {
		if c.copies > math.MaxUint16 {
			c.copies, capped = math.MaxUint16, true
		}
		e.copies = uint16(c.copies)
		switch {
		case e.side == 0 && c.announced|c.taken == 0:
			return capped
		case e.side == 0 && full:
			return true
		}
		s := l.firstSide(e)
		s.announced, s.taken = c.announced, c.taken
		l.dropIdleSide(e)
		return capped
	}
	s := l.otherGroup(e, group)
	if s == nil {
		if full {
			return c.present()
		}
		first := l.firstSide(e)
		first.next = l.sides.add(side{group: group, next: first.next})
		s = l.otherGroup(e, group)
	}
	s.counts = c
	return false
}

func (l *ledger) firstSide(e *entry) *side {
	if e.side == 0 {
		e.side = l.sides.add(side{})
	}
	return l.sides.at(e.side)
}

// dropIdleSide gives back a side record that says nothing.
func (l *ledger) dropIdleSide(e *entry) {
	if *l.sides.at(e.side) == (side{}) {
		l.sides.drop(e.side)
		e.side = 0
	}
}

// held reports whether any main group has a copy of the entry, or an announcement.
func (l *ledger) held(e *entry) bool {
	if e.copies != 0 {
		return true
	}
	for ref := e.side; ref != 0; {
		s := l.sides.at(ref)
		if s.present() {
			return true
		}
		ref = s.next
	}
	return false
}

// doubtful reports whether the switch to full reporting would change the entry:
// it has announcements, copies that announcements took, or nothing at all.
func (l *ledger) doubtful(e *entry) bool {
	for ref := e.side; ref != 0; {
		s := l.sides.at(ref)
		if s.announced|s.taken != 0 {
			return true
		}
		ref = s.next
	}
	return !l.held(e)
}

// settleCounts makes an entry what it would be had announcements never counted:
// copies −= taken, announced = 0. One that nothing holds then stays doubted,
// until it is removed or stored again.
func (l *ledger) settleCounts(slot uint32, e *entry) {
	settle := func(c counts) counts {
		return counts{copies: c.copies - min(c.copies, c.taken)}
	}
	if e.side != 0 {
		for ref := l.sides.at(e.side).next; ref != 0; {
			s := l.sides.at(ref)
			s.counts = settle(s.counts)
			ref = s.next
		}
	}
	l.setCounts(e, e.group, settle(l.counts(e, e.group)))
	l.setDoubted(slot, e, !l.held(e))
}
