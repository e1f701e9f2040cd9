package convert

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
