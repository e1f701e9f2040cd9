package sinks

import (
	"bytes"

	"github.com/kvrelay/kvrelay/convert"
	"github.com/kvrelay/kvrelay/internal/msgpack"
)

// WorkerID is the worker that the outbox publishes for.
func (o *Outbox) WorkerID() uint64 { return o.workerID }

// Rank is the data-parallel rank that the outbox publishes for.
func (o *Outbox) Rank() uint32 { return o.rank }

// BlockSize is the engine's, in tokens; 0: not known yet, or without a source.
func (o *Outbox) BlockSize() uint64 {
	if o.source == nil {
		return 0
	}
	return o.source.RankState().BlockSize
}

// Newest is RankSource.Newest of the outbox's source, which it must have.
func (o *Outbox) Newest() (number, lastID uint64) { return o.source.Newest() }

// Walk is RankSource.Walk of the outbox's source, which it must have.
func (o *Outbox) Walk(from, to uint64, out *convert.Output) (next, lastID uint64) {
	return o.source.Walk(from, to, out)
}

// Since calls f with every router event from id from on to the one that is the
// newest now, in order. The event is f's own; no lock is held while f runs, so appending goes on.
// last is the id of the last event given, from − 1 when there is none. ok is
// false when the ring no longer has what comes next, or from is beyond newest + 1.
//
// Events whose ids a smaller max_payload has moved up meanwhile are given again
// under the higher ids: stores, removes and clears may be applied twice in order.
func (o *Outbox) Since(from uint64, f func(id uint64, e *convert.RouterEvent)) (last uint64, ok bool) {
	var buf []byte
	var ends []int
	end := o.LastID() // what comes meanwhile is for the next call
	for {
		buf, ends = buf[:0], ends[:0]
		o.mu.Lock()
		newest := o.log.next - 1
		if from < o.log.lo || from > newest+1 {
			o.mu.Unlock()
			return from - 1, false
		}
		end = min(end, newest) // what was there may have been dropped
		for id, blocks := from, 0; id <= end && blocks < chunkBlocks; id++ {
			si, i := o.log.find(id)
			s := o.log.segs[si]
			buf = append(buf, s.bytes(i)...)
			ends = append(ends, len(buf))
			blocks += 1 + int(s.events[i].blocks)
		}
		o.mu.Unlock()
		if len(ends) == 0 {
			return from - 1, true
		}
		at := 0
		for _, to := range ends {
			e, err := o.decode(buf[at:to])
			if err != nil {
				panic(err) // our own encoding
			}
			f(from, &e)
			from, at = from+1, to
		}
	}
}

// decode decodes any event of our own encoding.
func (o *Outbox) decode(b []byte) (convert.RouterEvent, error) {
	if isCleared(b, o.p.isJSON()) {
		return convert.RouterEvent{Kind: convert.Cleared, NoDomain: !bytes.Contains(b, []byte("residency_domain"))}, nil
	}
	return decodeEvent(b, o.p.isJSON())
}

// isCleared says whether an event of our own encoding is a `cleared`: what
// stands behind its event_id tells.
func isCleared(b []byte, isJSON bool) bool {
	if isJSON {
		_, rest, _ := bytes.Cut(b, []byte(`"event_id":`))
		return bytes.HasPrefix(bytes.TrimLeft(rest, "0123456789"), []byte(`,"data":"cleared"`))
	}
	key := []byte("\xa8event_id")
	i := bytes.Index(b, key)
	if i < 0 {
		return false
	}
	r := msgpack.NewReader(b[i+len(key):])
	_, ok := r.Uint()
	return ok && bytes.HasPrefix(b[i+len(key)+r.Off():], []byte("\xa4data\xa7cleared"))
}
