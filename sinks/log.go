package sinks

import (
	"slices"
	"sort"
	"sync"
)

const (
	// segmentSize is the bytes of encoded events in one segment. An event that
	// is longer gets a segment of its own.
	segmentSize = 64 << 10
	// segmentEvents bounds the events in one segment, so that its index has a size.
	segmentEvents = 512
	// eventOverhead is what the index takes for an event, in bytes; charged with it.
	eventOverhead = 24
	// maxPooled bounds the free segments that are kept (4 MiB); more go to the collector.
	maxPooled = 64
)

// eventLog is an append-only log of encoded router events with contiguous ids,
// in segments that are reused. Events are dropped at its old end only.
type eventLog struct {
	pool *segmentPool
	segs []*segment // oldest first; the last one takes new events
	lo   uint64     // id of the oldest event kept
	next uint64     // id of the next event
	cur  batchPlace // of the events that come
	// charge counts all bytes ever charged.
	charge int
}

// segment holds events of contiguous ids; none spans two segments.
type segment struct {
	buf    []byte
	first  uint64
	events []eventMeta
	places []batchPlace
}

// eventMeta is the index entry of one event.
type eventMeta struct {
	end    uint32 // in segment.buf
	blocks uint32 // blocks or hashes
	place  uint32 // in segment.places
	event  uint32 // Place.Event
	block  uint32 // Place.Block after this event
}

// room returns a segment that takes one more event of up to n bytes without growing.
func (l *eventLog) room(n int) *segment {
	if k := len(l.segs); k > 0 {
		s := l.segs[k-1]
		if len(s.events) < segmentEvents && cap(s.buf)-len(s.buf) >= n {
			return s
		}
		if len(s.events) == 0 { // an unused one that is too small
			l.pool.put(s)
			l.segs = l.segs[:k-1]
		}
	}
	s := l.pool.get(n)
	s.first = l.next
	l.segs = append(l.segs, s)
	l.trim()
	return s
}

// commit makes s.buf[from:] the event l.next.
func (l *eventLog) commit(s *segment, from int, m eventMeta) {
	if k := len(s.places); k == 0 || s.places[k-1] != l.cur {
		s.places = append(s.places, l.cur)
	}
	m.end = uint32(len(s.buf))
	m.place = uint32(len(s.places) - 1)
	s.events = append(s.events, m)
	l.next++
	l.charge += len(s.buf) - from + eventOverhead
}

// settle gives the newest event another place.
func (l *eventLog) settle(b batchPlace, event, block int) {
	s := l.segs[len(l.segs)-1]
	s.places = append(s.places, b)
	m := &s.events[len(s.events)-1]
	m.place, m.event, m.block = uint32(len(s.places)-1), uint32(event), uint32(block)
}

// find returns the segment index and the index in it of a kept event.
func (l *eventLog) find(id uint64) (int, int) {
	i := sort.Search(len(l.segs), func(i int) bool { return l.segs[i].first > id }) - 1
	return i, int(id - l.segs[i].first)
}

// bytes are the encoded bytes of the segment's i-th event.
func (s *segment) bytes(i int) []byte { return s.buf[s.start(i):s.events[i].end] }

func (s *segment) start(i int) uint32 {
	if i == 0 {
		return 0
	}
	return s.events[i-1].end
}

// size is what the events from … to, both included and kept, were charged for.
func (l *eventLog) size(from, to uint64) int {
	n := 0
	for si := l.segmentOf(from); from <= to; si++ {
		s := l.segs[si]
		a := int(from - s.first)
		b := min(int(to-s.first), len(s.events)-1)
		n += int(s.events[b].end-s.start(a)) + (b-a+1)*eventOverhead
		from = s.first + uint64(b) + 1
	}
	return n
}

func (l *eventLog) segmentOf(id uint64) int {
	i, _ := l.find(id)
	return i
}

// dropOldest drops the event lo and returns what it was charged for.
func (l *eventLog) dropOldest() int {
	s := l.segs[0]
	i := int(l.lo - s.first)
	n := int(s.events[i].end-s.start(i)) + eventOverhead
	l.lo++
	l.trim()
	return n
}

// trim frees the segments whose events were all dropped, except the one that takes new events.
func (l *eventLog) trim() {
	k := 0
	for k+1 < len(l.segs) && l.segs[k+1].first <= l.lo {
		l.pool.put(l.segs[k])
		k++
	}
	if k > 0 {
		l.segs = slices.Delete(l.segs, 0, k)
	}
}

// release gives all segments back.
func (l *eventLog) release() {
	for _, s := range l.segs {
		l.pool.put(s)
	}
	l.segs = nil
	l.lo = l.next
}

// segmentPool keeps free segments of the usual size for all outboxes.
type segmentPool struct {
	mu   sync.Mutex
	free []*segment
}

func (p *segmentPool) get(n int) *segment {
	if n > segmentSize {
		return &segment{buf: make([]byte, 0, n)}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if k := len(p.free); k > 0 {
		s := p.free[k-1]
		p.free = p.free[:k-1]
		return s
	}
	return &segment{
		buf:    make([]byte, 0, segmentSize),
		events: make([]eventMeta, 0, segmentEvents),
	}
}

func (p *segmentPool) put(s *segment) {
	if cap(s.buf) != segmentSize {
		return
	}
	s.buf, s.events, s.places = s.buf[:0], s.events[:0], s.places[:0]
	p.mu.Lock()
	if len(p.free) < maxPooled {
		p.free = append(p.free, s)
	}
	p.mu.Unlock()
}
