package replay

import "slices"

// judge looks at the end, after the engine has been silent for long: quiet is
// when silence began, in ns. It knows nothing of how the Cursor works.
func (st *stream) judge(quiet int64, ended bool) map[string]int {
	e := st.e
	if !ended {
		st.violate("LOOP", "")
	}
	idle, since := 0, max(quiet+sec(120), st.lastChange)
	for _, t := range st.requests {
		if t > since {
			idle++
		}
	}
	minutes := float64(max(st.s.t-since, sec(60))) / float64(sec(60))
	most := 8 * minutes
	if st.p.noMarker {
		most *= 4 // each poll takes all attempts
	}
	if float64(idle) > most {
		st.violate("LOOP_IDLE", "%d", idle)
	}
	if st.exit {
		return st.viol
	}
	log := e.log[e.inc]
	var truth blocks
	for _, b := range log {
		if b != nil && b.ok {
			truth.fold(b.ev)
		}
	}
	mixed := slices.ContainsFunc(st.applied, func(b *simBatch) bool { return b.inc != e.inc })
	switch {
	case st.p.noReplay && e.inc > 1:
		st.judgeAlone()
	case st.p.noMarker && (mixed || len(st.applied) == 0) && !st.told():
		return st.viol // silence cannot tell, and live has not
	case st.p.noMarker && mixed && st.heardOn != st.l:
		return st.viol // live has, but on a connection that ended before replay had been silent for long
	case mixed:
		st.violate("MIXED", "")
	default:
		have := make([]bool, len(log))
		for _, b := range st.applied {
			have[b.seq] = true
		}
		for i, b := range log {
			if b == nil {
				continue
			}
			q := uint64(i)
			lost := slices.ContainsFunc(st.loss, func(l [2]uint64) bool { return l[0] <= q && q < l[1] })
			if have[i] || q < st.base || lost {
				continue
			}
			if l := st.last(); l != nil && q < l.seq {
				st.violate("SKIPPED", "%d", q)
			} else if !st.p.noReplay {
				st.violate("STALE_TAIL", "%d", q)
			}
			break
		}
	}
	if false1 := st.cons.without(truth); st.p.lost != LostKeep && !st.p.noReplay && false1 != (blocks{}) && !mixed {
		st.violate("FALSE_BLOCK", "%v", false1)
	}
	if st.waiting && !st.p.noReplay {
		st.violate("STUCK_WAITING", "")
	}
	if st.c.State().Missing {
		st.violate("HOLE_OPEN", "")
	}
	if st.p.lost == LostClear && len(st.viol) == 0 && len(st.loss) == 0 && st.base == 0 && !st.p.noReplay && st.cons != truth {
		st.violate("SET_DIFFERS", "")
	}
	return st.viol
}

// judgeAlone: without replay a restart that lands on the expected number
// cannot be seen, and one that says nothing neither. Any other must be.
func (st *stream) judgeAlone() {
	for i, b := range st.applied {
		if i == 0 {
			continue
		}
		a := st.applied[i-1]
		lost := slices.ContainsFunc(st.loss, func(l [2]uint64) bool { return l[1] == b.seq })
		if a.inc != b.inc && b.seq != a.seq+1 && !lost {
			st.violate("MIXED", "%d", b.seq)
		}
	}
	if l := st.last(); l != nil && st.told() && st.heard.inc != l.inc {
		st.violate("MIXED", "unseen")
	}
}

// told says whether the newest live batch shows by its wall clock alone that it
// is of the present incarnation.
func (st *stream) told() bool {
	dated := slices.ContainsFunc(st.applied, func(b *simBatch) bool { return b.ok && !st.p.noTS })
	return dated && st.heard != nil && st.heard.ok && st.heard.inc == st.e.inc && !st.e.setBack
}
