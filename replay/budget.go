package replay

import "sync/atomic"

// Budget is a bound in bytes that many owners share. A nil Budget has no bound.
type Budget struct {
	max  int64
	used atomic.Int64
}

// NewBudget returns a Budget of max bytes.
func NewBudget(max int64) *Budget { return &Budget{max: max} }

// Take takes n bytes, or none and reports false.
func (b *Budget) Take(n int) bool {
	if b == nil {
		return true
	}
	if b.used.Add(int64(n)) > b.max {
		b.used.Add(-int64(n))
		return false
	}
	return true
}

// Give gives n bytes back.
func (b *Budget) Give(n int) {
	if b != nil {
		b.used.Add(-int64(n))
	}
}

// Used is how many bytes are taken now.
func (b *Budget) Used() int64 {
	if b == nil {
		return 0
	}
	return b.used.Load()
}
