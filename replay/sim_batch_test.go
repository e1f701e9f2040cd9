package replay

import (
	"encoding/binary"
	"math"
	"slices"
)

// blocks is a set of block numbers below 256.
type blocks [4]uint64

func (b *blocks) has(i int) bool { return b[i/64]>>(i%64)&1 != 0 }
func (b *blocks) add(i int)      { b[i/64] |= 1 << (i % 64) }
func (b *blocks) del(i int)      { b[i/64] &^= 1 << (i % 64) }
func (b *blocks) or(o blocks) {
	for i := range b {
		b[i] |= o[i]
	}
}

// without is the blocks that o has not.
func (b blocks) without(o blocks) (r blocks) {
	for i := range b {
		r[i] = b[i] &^ o[i]
	}
	return r
}

// simEvent is one engine event: 's' stores, 'r' removes, 'c' clears.
type simEvent struct {
	what byte
	ids  []int
}

type simBatch struct {
	seq     uint64
	inc     int
	ok      bool // decodable
	ev      []simEvent
	payload []byte
}

func (b *blocks) fold(ev []simEvent) {
	for _, e := range ev {
		switch e.what {
		case 'c':
			*b = blocks{}
		case 's':
			for _, i := range e.ids {
				b.add(i)
			}
		case 'r':
			for _, i := range e.ids {
				b.del(i)
			}
		}
	}
}

const simPayload = 13 // flag, ts, id

// encode makes a payload: whether it has a ts, the ts, and the batch's id,
// which is the contents' stand-in. identical: batches alike share an id.
func (s *sim) encode(b *simBatch, ts float64, hasTS, identical bool) {
	id := len(s.known)
	if identical {
		for i, k := range s.known {
			if k.seq == b.seq && k.ok == b.ok && slices.EqualFunc(k.ev, b.ev, func(x, y simEvent) bool { return x.what == y.what && slices.Equal(x.ids, y.ids) }) {
				id = i
				break
			}
		}
	}
	if id == len(s.known) {
		s.known = append(s.known, b)
	}
	p := make([]byte, 0, simPayload)
	if hasTS {
		p = append(p, 1)
	} else {
		p = append(p, 0)
	}
	p = binary.BigEndian.AppendUint64(p, math.Float64bits(ts))
	b.payload = binary.BigEndian.AppendUint32(p, uint32(id))
}

func (s *sim) decode(payload []byte) *simBatch {
	return s.known[binary.BigEndian.Uint32(payload[9:])]
}

func simTS(p []byte) (float64, bool) {
	if len(p) < 9 || p[0] == 0 {
		return 0, false
	}
	return math.Float64frombits(binary.BigEndian.Uint64(p[1:])), true
}

// params is how an engine, its links and its relay are. Times in seconds.
type params struct {
	buffer, blocks, cap int
	clear, burn, undec  float64 // probabilities
	loss, mean, lag     float64
	latL, latR          float64
	stall, serve        float64
	rhwm                int  // ROUTER's high-water mark
	middle              bool // beyond it: holes in the middle; else a prefix
	rgap, late          float64
	redial, subDelay    float64
	relayStart          float64
	ring, hold          int
	lost                Policy
	coarse              float64 // granularity of the wall clock
	identical           bool    // incarnations publish alike, byte for byte
	noTS                bool    // no batch has a ts
	noReplay            bool
	noMarker            bool // no end markers, as one engine does it
}
