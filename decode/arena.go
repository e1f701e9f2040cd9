package decode

import (
	"unsafe"

	"github.com/kvrelay/kvrelay/internal/msgpack"
)

const (
	// maxMemory bounds what one batch may take decoded: some 170 000 events, or
	// 16 million tokens. A prompt of 128k tokens stored page by page at
	// page size 1 is 131 072 events. A batch
	// that needs more is refused (reason "too much for its size"), and so is
	// one that needs more than maxRatio times its own size beyond minMemory:
	// only events with next to nothing in them do, and no engine sends those.
	maxMemory = 64 << 20
	maxRatio  = 24
	minMemory = 1 << 20

	// maxEvents bounds the events of a batch, whatever they are: a batch of more
	// is refused unread (the same reason). Sixty million events of one byte each
	// fit in a frame, and would be read for seconds.
	maxEvents = 1 << 18
	// maxHashes bounds the hashes of a batch in the same way: each becomes nine
	// bytes in three more places before it has left the process. It is a cache of
	// 2 million blocks given back in one step.
	maxHashes = 1 << 21

	// Arenas above keepMemory are given back when idleBatches batches in a row
	// have used less than a quarter of them. What a Batch retains is therefore
	// at most maxMemory, and, that many small batches after a giant one or
	// after Release, at most keepMemory.
	keepMemory  = 1 << 20
	idleBatches = 64
)

// arena is the memory behind a Batch's slices. A batch is decoded in one pass
// into what is there. Where that is too little the pass goes on, makes the same
// decisions and only counts; then exactly what is missing is allocated and the
// batch is decoded again. So no announced length is believed, slices never
// move, and after the first batches nothing is allocated.
type arena struct {
	r      msgpack.Reader
	events slab[Event]
	hashes slab[uint64]
	tokens slab[byte]
	keys   slab[ExtraKey]
	mm     slab[MMObject]
	offs   slab[[2]uint64]

	tooMany bool // events or hashes are more than their bound

	spare  Event       // takes the events of a counting pass
	spareH [128]uint64 // and their hashes
	spareT [512]byte   // and tokens
	folds  folds
	order  order // of the keys of maps
	idle   int   // batches in a row that used less than a quarter
}

// slab hands out elements of one array.
type slab[T any] struct {
	buf  []T
	used int // elements asked for; more than len(buf): some were only counted
	high int // elements from here on hold nothing
}

// take returns n elements, or nil when they can only be counted.
func (s *slab[T]) take(n int) []T {
	from := s.used
	s.used += n
	if s.used > len(s.buf) {
		return nil
	}
	return s.buf[from:s.used:s.used]
}

func (s *slab[T]) put(v T) {
	if s.used < len(s.buf) {
		s.buf[s.used] = v
		s.high = max(s.high, s.used+1)
	}
	s.used++
}

// since returns the elements put from mark on.
func (s *slab[T]) since(mark int) []T {
	if s.used > len(s.buf) || s.used == mark {
		return nil
	}
	return s.buf[mark:s.used:s.used]
}

func (s *slab[T]) bytes(n int) int {
	var v T
	return n * int(unsafe.Sizeof(v))
}

// fit makes room for what was counted: small arrays in powers of two, so that
// they are soon large enough for good, large ones with an eighth to spare.
func (s *slab[T]) fit() {
	if s.used <= len(s.buf) {
		return
	}
	n := s.used + s.used/8
	if s.bytes(n) < 64<<10 {
		for n = 16; n < s.used; n *= 2 {
		}
	}
	s.buf, s.high = make([]T, n), 0
}

// done forgets what lies beyond the used elements: left there by a larger batch
// or by an event that turned out malformed, it would keep its payload alive.
func (s *slab[T]) done() {
	if s.used < s.high {
		clear(s.buf[s.used:s.high])
		s.high = s.used
	}
}

func (a *arena) rewind() {
	a.events.used, a.hashes.used, a.tokens.used = 0, 0, 0
	a.keys.used, a.mm.used, a.offs.used = 0, 0, 0
	a.folds.on = false
}

// counted says whether some of the batch was only counted.
func (a *arena) counted() bool {
	return a.events.used > len(a.events.buf) || a.hashes.used > len(a.hashes.buf) ||
		a.tokens.used > len(a.tokens.buf) || a.keys.used > len(a.keys.buf) ||
		a.mm.used > len(a.mm.buf) || a.offs.used > len(a.offs.buf)
}

// need is how many bytes the batch takes.
func (a *arena) need() int {
	return a.events.bytes(a.events.used) + a.hashes.bytes(a.hashes.used) + a.tokens.used +
		a.keys.bytes(a.keys.used) + a.mm.bytes(a.mm.used) + a.offs.bytes(a.offs.used)
}

// held is how many bytes the arenas have.
func (a *arena) held() int {
	return a.events.bytes(len(a.events.buf)) + a.hashes.bytes(len(a.hashes.buf)) + len(a.tokens.buf) +
		a.keys.bytes(len(a.keys.buf)) + a.mm.bytes(len(a.mm.buf)) + a.offs.bytes(len(a.offs.buf))
}

func (a *arena) fit() {
	a.events.fit()
	a.hashes.fit()
	a.tokens.fit()
	a.keys.fit()
	a.mm.fit()
	a.offs.fit()
}

// done ends a decode.
func (a *arena) done() {
	a.events.done()
	a.keys.done()
	a.spare = Event{}
	a.folds.forget()
	a.r.Reset(nil)
}

// shrink gives large arenas back that have not been needed for a while.
func (a *arena) shrink() {
	held := a.held()
	if held <= keepMemory || a.need() >= held/4 {
		a.idle = 0
		return
	}
	if a.idle++; a.idle >= idleBatches {
		a.release()
	}
}

func (a *arena) release() {
	a.events = slab[Event]{}
	a.hashes = slab[uint64]{}
	a.tokens = slab[byte]{}
	a.keys = slab[ExtraKey]{}
	a.mm = slab[MMObject]{}
	a.offs = slab[[2]uint64]{}
	a.idle = 0
}

// marks is a place in the arenas to go back to.
type marks struct{ hashes, tokens, keys, mm, offs int }

func (a *arena) mark() marks {
	return marks{a.hashes.used, a.tokens.used, a.keys.used, a.mm.used, a.offs.used}
}

func (a *arena) back(m marks) {
	a.hashes.used, a.tokens.used, a.keys.used = m.hashes, m.tokens, m.keys
	a.mm.used, a.offs.used = m.mm, m.offs
}
