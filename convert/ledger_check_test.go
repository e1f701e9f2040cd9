package convert

import "testing"

// add makes (tier, hash) present.
func (l *ledger) add(tier Tier, hash uint64) (slot uint32, e *entry) {
	_, e, at := l.seek(tier, hash)
	if e != nil {
		panic("present")
	}
	return l.addAt(tier, hash, at)
}

// checkLedger fails the test when the ledger's parts disagree.
func checkLedger(t testing.TB, l *ledger) {
	t.Helper()
	live, kept, doubted, doubtedPublished := 0, 0, 0, 0
	saltOf, saltRefs := map[uint64]uint16{}, make([]uint32, len(l.salts.used))
	check := func(segs []*segment, aside bool) {
		var last uint64
		for i, s := range segs {
			if l.segs[s.id] != s {
				t.Errorf("segment %d of %d is not at its id %d", i, len(segs), s.id)
			}
			n, d := 0, 0
			for place := range s.used {
				e := &s.entries[place]
				if e.flags&flagLive == 0 {
					continue
				}
				n++
				number := s.base + uint64(e.delta)
				if number <= last || number >= l.next {
					t.Errorf("number %d after %d, next %d", number, last, l.next)
				}
				last = number
				if e.flags&flagDoubted != 0 {
					d++
				}
				if isSalt(e.salt) {
					saltRefs[e.salt-1]++
				}
				if e.flags&flagDoubted == 0 || l.held(e) { // else it only waits to be swept
					if was, ok := saltOf[e.hash]; ok && was != e.salt {
						t.Errorf("%d has salts %d and %d", e.hash, was, e.salt)
					}
					saltOf[e.hash] = e.salt
				}
				slot, _, ok := l.lookup(e.tier(), e.hash)
				if want := s.id<<segShift | place; !ok || slot != want {
					t.Errorf("%v %d found at slot %d (%t), is at %d", e.tier(), e.hash, slot, ok, want)
				}
			}
			if n != int(s.live) || d != int(s.doubted) || s.aside != aside {
				t.Errorf("segment says %d live, %d doubted, aside %t; has %d, %d, %t", s.live, s.doubted, s.aside, n, d, aside)
			}
			if n == 0 && !aside && s != l.tail {
				t.Error("an empty segment was not given back")
			}
			live += n
			doubted += d
			if aside {
				kept += n
			} else {
				doubtedPublished += d
			}
		}
	}
	check(l.order, false)
	check(l.aside, true)
	if live != l.size() || kept != l.kept || doubtedPublished != l.doubted {
		t.Errorf("ledger says %d entries, %d kept, %d doubted; has %d, %d, %d", l.size(), l.kept, l.doubted, live, kept, doubtedPublished)
	}
	used := 0
	for i, s := range l.salts.used {
		if s.refs != saltRefs[i] {
			t.Errorf("salt %d says %d entries, has %d", i+1, s.refs, saltRefs[i])
		}
		if s.refs > 0 {
			used++
		}
	}
	if used != len(l.salts.ids) {
		t.Errorf("%d salts have ids, %d entries", len(l.salts.ids), used)
	}
	x := &l.index
	refs := 0
	for i := 0; i < len(x.dir); {
		p := x.dir[i]
		first, n := x.span(p, uint64(i)<<(64-x.depth))
		used := 0
		for place, ref := range p.refs {
			if ref == 0 {
				continue
			}
			used++
			e := l.at(ref>>tagBits - 1)
			if m := x.mix(e.tier(), e.hash); x.page(m) != p || (uint32(place)-p.stray(uint32(place)))%pageSize != uint32(m)%pageSize {
				t.Errorf("page %d: the entry at %d does not belong there", i, place)
			}
		}
		if first != i || used != int(p.used) {
			t.Errorf("page %d begins at %d, says %d entries and has %d", i, first, p.used, used)
		}
		for _, q := range x.dir[first : first+n] {
			if q != p {
				t.Errorf("page %d is not in all of its directory", i)
			}
		}
		refs += used
		i += n
	}
	if refs != x.entries {
		t.Errorf("index says %d entries, has %d", x.entries, refs)
	}
}
