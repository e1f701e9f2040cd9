package check

import (
	"encoding/binary"
	"strconv"
)

type replyKind uint8

const (
	replyOdd replyKind = iota
	replyBatch
	replyEnd
)

const endSeq = 1<<64 - 1

// answer follows the replies to one request.
type answer struct {
	r     *Replay
	from  uint64 // first seq asked for
	n     uint64 // batches so far
	first uint64
	last  uint64
	ended bool
}

func (a *answer) asked() { a.r.Requests++ }

// reply reads one reply as a DEALER sees it, from the end: what stands in
// front differs between engines.
func (a *answer) reply(frames [][]byte) (seq uint64, payload []byte, kind replyKind) {
	n := len(frames)
	shape := strconv.Itoa(n)
	switch {
	case n >= 2 && len(frames[n-2]) == 8:
		seq, payload = binary.BigEndian.Uint64(frames[n-2]), frames[n-1]
		if seq == endSeq {
			kind = replyEnd
		} else {
			kind = replyBatch
		}
	case n >= 1 && len(frames[n-1]) == 8 && binary.BigEndian.Uint64(frames[n-1]) == endSeq:
		kind = replyEnd
	}
	switch kind {
	case replyOdd:
		a.r.Odd++
	case replyEnd:
		count(a.r.EndFrames, shape, 1)
		a.r.EndMarkers++
		a.ended = true
	case replyBatch:
		count(a.r.Frames, shape, 1)
		a.r.Batches++
		if a.n > 0 && seq > a.last+1 {
			a.r.Holes += seq - a.last - 1
		}
		if a.n == 0 {
			a.first = seq
		}
		a.n++
		a.last = seq
	}
	return seq, payload, kind
}

// done ends the request.
func (a *answer) done() {
	if a.n > 0 || a.ended {
		a.r.Answered++
	}
	if a.from == 0 && a.n > 0 && a.r.First == nil {
		first := a.first
		a.r.First = &first
	}
}
