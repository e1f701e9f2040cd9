package record

import "github.com/zeebo/xxh3"

// remembered is how many messages back a repeat is recognised. A message that
// repeats an older number is taken for another process's.
const remembered = 1024

// verdict says what to do with a live message.
type verdict uint8

const (
	write   verdict = iota // it is next, or the first
	gap                    // numbers before it are missing
	repeat                 // it is in the file already, or from before the file's beginning
	restart                // it is of another process than the one before
)

// order follows the numbers of a stream: pure.
type order struct {
	next    uint64
	started bool
	live    uint64 // number of the last live message of this connection
	hasLive bool
	first   uint64            // number of the process's first message in the file
	joining bool              // that message came on this connection, or from a replay made for it
	sums    map[uint64]uint64 // number → sum of the payload, of the last remembered
}

// connected begins a new connection: only within one do numbers prove an order.
func (o *order) connected() { o.hasLive, o.joining = false, false }

// judge looks at a live message. PUB sends in order, so a number that is not
// above the last live one is a new process's; so is one that is in the file
// with another payload, or from before what is remembered.
func (o *order) judge(seq uint64, payload []byte) verdict {
	back := o.hasLive && seq <= o.live
	o.live, o.hasLive = seq, true
	switch {
	case back:
		return restart
	case !o.started && seq > 0:
		return gap // at the beginning, too: the replay may have what was before
	case !o.started || seq == o.next:
		return write
	case seq > o.next:
		return gap
	}
	if _, known := o.sums[seq]; known && !o.contradicts(seq, payload) {
		return repeat
	}
	if o.joining && seq < o.first {
		return repeat // it was sent before the replay began, whose buffer is shorter than that
	}
	return restart
}

// contradicts reports whether the file has another payload under that number.
func (o *order) contradicts(seq uint64, payload []byte) bool {
	sum, ok := o.sums[seq]
	return ok && sum != xxh3.Hash(payload)
}

// restarted forgets the old process.
func (o *order) restarted() { o.next, o.started, o.sums = 0, false, nil }

// wrote takes note of a message in the file.
func (o *order) wrote(seq uint64, payload []byte) {
	if o.sums == nil {
		o.sums = make(map[uint64]uint64, remembered)
	}
	if !o.started {
		o.first, o.joining = seq, true
	}
	o.sums[seq] = xxh3.Hash(payload)
	delete(o.sums, seq-remembered)
	o.next, o.started = seq+1, true
}
