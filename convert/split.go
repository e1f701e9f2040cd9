package convert

import "sort"

// Part is what the blocks, or removed hashes, [from, to) of e are as an event
// of their own. A later part of a store hangs on the last block of the part
// before it. Its slices alias e's. A Cleared has only the part [0, 0): itself.
func Part(e *RouterEvent, from, to int) RouterEvent {
	p := *e
	switch e.Kind {
	case Stored:
		p.Blocks = e.Blocks[from:to:to]
		if from > 0 {
			p.HasParent, p.Parent = true, e.Blocks[from-1].Hash
		}
	case Removed:
		p.Hashes = e.Hashes[from:to:to]
	}
	return p
}

// Fit is the greatest to with size(Part(e, from, to)) ≤ limit; from itself when
// not even one block fits. size must grow with the part.
func Fit(e *RouterEvent, from, limit int, size func(*RouterEvent) int) int {
	n := len(e.Blocks)
	if e.Kind == Removed {
		n = len(e.Hashes)
	}
	return from + sort.Search(n-from, func(k int) bool {
		p := Part(e, from, from+k+1)
		return size(&p) > limit
	})
}
