package decode

import (
	"errors"
	"math"

	"github.com/kvrelay/kvrelay/internal/msgpack"
)

// Decode empties b and fills it from one payload. The events alias payload,
// which must stay unchanged while they are used. It allocates only while b's
// arenas still grow.
//
// An error (an *Error) means that the msgpack is broken or is no batch; b is
// then empty. Whatever else is wrong makes a single event Malformed, or is
// ignored. Bytes after the batch are ignored.
func (b *Batch) Decode(payload []byte) error {
	b.shrink()
	err := b.pass(payload)
	if err == nil && b.need() > min(maxMemory, minMemory+maxRatio*len(payload)) {
		err = &Error{Reason: ReasonTooMuch, Off: len(payload)}
	}
	if err == nil && b.counted() {
		b.fit()
		err = b.pass(payload)
	}
	if err != nil {
		*b = Batch{arena: b.arena}
		b.rewind()
		b.done()
		return err
	}
	b.Events = b.events.buf[:b.events.used]
	b.done()
	return nil
}

// Release empties b and gives its memory back, which Decode does by itself only
// after many small batches. For streams that may stay silent after a giant one.
func (b *Batch) Release() { *b = Batch{} }

// pass decodes payload into the arenas, or counts what they lack.
func (b *Batch) pass(payload []byte) error {
	b.TS, b.HasTS, b.Rank, b.HasRank, b.BadRank, b.IsMap, b.Events = 0, false, 0, false, false, false, nil
	b.rewind()
	b.tooMany = false
	if len(payload) == 0 {
		return &Error{Reason: ReasonEmpty}
	}
	b.r.Reset(payload)
	ok := false
	switch b.r.Kind() {
	case msgpack.Array:
		ok = b.arrayBatch()
	case msgpack.Map:
		b.IsMap = true
		ok = b.mapBatch()
	default:
		b.r.Skip() // broken, or sound and no batch
	}
	if b.r.Failed() {
		return framingError(b.r.Err())
	}
	if b.tooMany {
		return &Error{Reason: ReasonTooMuch, Off: b.r.Off()}
	}
	if !ok {
		return &Error{Reason: ReasonNoBatch}
	}
	return nil
}

func framingError(err error) error {
	var broken *msgpack.Error
	if !errors.As(err, &broken) {
		return err
	}
	e := &Error{Reason: ReasonTruncated, Off: broken.Off}
	switch broken.Err {
	case msgpack.ErrTooDeep:
		e.Reason = ReasonTooDeep
	case msgpack.ErrReserved:
		e.Reason = ReasonReserved
	}
	return e
}

// arrayBatch reads [ts, events, rank?, …].
func (b *Batch) arrayBatch() bool {
	n, ok := b.r.Array()
	if !ok || n < 2 {
		return false
	}
	b.readTS()
	if !b.readEvents() {
		return false
	}
	if n > 2 {
		b.readRank()
		b.r.SkipN(n - 3)
	}
	return true
}

// mapBatch reads {"ts", "events", "data_parallel_rank" or "dp_rank"}. Of a
// repeated key the last value counts. Keys that are no text are unknown keys.
func (b *Batch) mapBatch() bool {
	n, ok := b.r.Map()
	events, ranked := false, false
	for ; ok && n > 0 && !b.r.Failed(); n-- {
		key, text := b.r.Text()
		if !text {
			b.r.SkipN(2)
			continue
		}
		switch string(key) {
		case "ts":
			b.readTS()
		case "events":
			b.rewind()
			if events = b.readEvents(); b.tooMany {
				return false
			}
			if !events {
				b.r.Skip()
			}
		case "data_parallel_rank":
			ranked = true
			b.readRank()
		case "dp_rank":
			if ranked {
				b.r.Skip()
			} else {
				b.readRank()
			}
		default:
			b.r.Skip()
		}
	}
	return events
}

func (b *Batch) readTS() {
	ts, ok := number(&b.r)
	if !ok {
		b.r.Skip()
	}
	b.TS, b.HasTS = ts, ok
}

// number reads a finite number; of what is none, nothing is read.
func number(r *msgpack.Reader) (float64, bool) {
	at := r.Off()
	v, ok := r.Float()
	if !ok {
		var bits uint64
		var neg bool
		if bits, neg, ok = r.Bits64(); neg {
			v = float64(int64(bits))
		} else {
			v = float64(bits)
		}
	}
	if !ok || math.IsNaN(v) || math.IsInf(v, 0) {
		r.Seek(at)
		return 0, false
	}
	return v, true
}

func (b *Batch) readRank() {
	b.Rank, b.HasRank, b.BadRank = 0, false, false
	if b.r.Nil() {
		return
	}
	at := b.r.Off()
	v, ok := b.r.Uint()
	if !ok || v > math.MaxUint16 {
		b.r.Seek(at)
		b.r.Skip()
		b.BadRank = true
		return
	}
	b.Rank, b.HasRank = uint32(v), true
}

// readEvents reads the list of events; nil is an empty one. False: it is
// something else, and still the next value, or the framing is broken, or there
// are too many.
func (b *Batch) readEvents() bool {
	if b.r.Nil() {
		return true
	}
	n, ok := b.r.Array()
	if !ok {
		return false
	}
	if b.tooMany = n > maxEvents; b.tooMany {
		return false
	}
	for range n {
		if b.readEvent(); b.r.Failed() || b.tooMany {
			return false
		}
	}
	return true
}
