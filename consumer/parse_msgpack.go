package consumer

import (
	"unicode/utf8"

	"github.com/kvrelay/kvrelay/internal/msgpack"
)

// The smallest encodings of what arrays announce; memory is sized by them, so
// that an array of a million one-byte elements costs nothing before it fails.
const (
	minEvent = 40 // the keys alone are longer
	minBlock = 24
	minMM    = 16
)

type mpReader struct {
	msgpack.Reader
}

// fail is broken framing where there is any, else the reason given.
func (r *mpReader) fail(reason string) error {
	if r.Failed() {
		reason = "broken msgpack"
	}
	return &errReason{reason, r.Off()}
}

// fields calls one for every key of a map; one reads the value. required is
// the set of bits that the calls must have set.
func (r *mpReader) fields(what string, required uint, one func(key []byte) (uint, error)) error {
	n, ok := r.Map()
	if !ok {
		return r.fail(what + " is no map")
	}
	var seen uint
	for range n {
		key, ok := r.Str()
		if !ok {
			return r.fail(what + " has a key that is no string")
		}
		bit, err := one(key)
		if err != nil {
			return err
		}
		if bit == 0 && !r.Skip() {
			return r.fail("")
		}
		seen |= bit
	}
	if seen&required != required {
		return r.fail(what + " lacks a field")
	}
	return nil
}

func (r *mpReader) u64(dst *uint64, bit uint, reason string) (uint, error) {
	v, ok := r.Uint()
	if !ok {
		return 0, r.fail(reason)
	}
	*dst = v
	return bit, nil
}

func (r *mpReader) u32(dst *uint32, bit uint, reason string) (uint, error) {
	v, ok := r.Uint()
	if !ok || v > 1<<32-1 {
		return 0, r.fail(reason)
	}
	*dst = uint32(v)
	return bit, nil
}

func (r *mpReader) text(reason string) (string, error) {
	v, ok := r.Str()
	if !ok || !utf8.Valid(v) {
		return "", r.fail(reason)
	}
	return string(v), nil
}

// parseEnvelope reads an EventEnvelope with its payload.
func parseEnvelope(data []byte, m *Message) error {
	r := mpReader{msgpack.NewReader(data)}
	var payload []byte
	err := r.fields("envelope", 0b1_1111, func(key []byte) (uint, error) {
		switch string(key) {
		case "publisher_id":
			return r.u64(&m.Publisher, 1, "publisher_id is no u64")
		case "sequence":
			return r.u64(&m.Sequence, 2, "sequence is no u64")
		case "published_at":
			return r.u64(&m.PublishedAt, 4, "published_at is no u64")
		case "topic":
			topic, ok := r.Str()
			if !ok || string(topic) != "kv-events" {
				return 0, r.fail("topic is not kv-events")
			}
			return 8, nil
		case "payload":
			var ok bool
			if payload, ok = r.Bin(); !ok {
				return 0, r.fail("payload is no bin")
			}
			return 16, nil
		}
		return 0, nil
	})
	if err != nil {
		return err
	}
	if m.Publisher == 0 || m.Publisher > maxPublisher {
		return &errReason{"publisher_id is no publisher id", 0}
	}
	p := mpReader{msgpack.NewReader(payload)}
	if p.Kind() == msgpack.Map {
		m.Events = make([]Event, 1)
		if err := p.event(&m.Events[0]); err != nil {
			return err
		}
		return p.end()
	}
	m.Events, err = parseArray(payload)
	return err
}

func (r *mpReader) end() error {
	if r.Left() != 0 {
		return r.fail("bytes behind the last event")
	}
	return nil
}

// parseArray reads an array of router events.
func parseArray(data []byte) ([]Event, error) {
	r := mpReader{msgpack.NewReader(data)}
	n, ok := r.Array()
	if !ok {
		return nil, r.fail("no array of events")
	}
	evs := make([]Event, 0, min(n, r.Left()/minEvent))
	for range n {
		evs = append(evs, Event{})
		if err := r.event(&evs[len(evs)-1]); err != nil {
			return nil, err
		}
	}
	return evs, r.end()
}

func (r *mpReader) event(e *Event) error {
	return r.fields("router event", 0b101, func(key []byte) (uint, error) {
		switch string(key) {
		case "worker_id":
			return r.u64(&e.Rank.Worker, 1, "worker_id is no u64")
		case "storage_tier":
			name, ok := r.Str()
			if ok {
				e.Tier, ok = ParseTier(string(name))
			}
			if !ok {
				return 0, r.fail("storage_tier is no known tier")
			}
			return 2, nil
		case "event":
			return 4, r.inner(e)
		case "residency_domain":
			var err error
			e.Domain, err = r.text("residency_domain is no text")
			return 8, err
		case "session_id":
			if r.Nil() {
				e.Session = ""
				return 16, nil
			}
			var err error
			e.Session, err = r.text("session_id is no text")
			return 16, err
		}
		return 0, nil
	})
}

func (r *mpReader) inner(e *Event) error {
	return r.fields("event", 0b111, func(key []byte) (uint, error) {
		switch string(key) {
		case "event_id":
			return r.u64(&e.ID, 1, "event_id is no u64")
		case "data":
			return 2, r.data(e)
		case "dp_rank":
			return r.u32(&e.Rank.DP, 4, "dp_rank is no u32")
		}
		return 0, nil
	})
}

// data reads what an event does.
func (r *mpReader) data(e *Event) error {
	e.Kind, e.HasParent, e.HasStart, e.Blocks, e.Hashes = 0, false, false, nil, nil
	if s, ok := r.Str(); ok {
		if string(s) != "cleared" {
			return r.fail("unknown kind of event")
		}
		e.Kind = Cleared
		return nil
	}
	n, ok := r.Map()
	if !ok || n != 1 {
		return r.fail("data names no single kind of event")
	}
	kind, ok := r.Str()
	if !ok {
		return r.fail("unknown kind of event")
	}
	switch string(kind) {
	case "stored":
		e.Kind = Stored
		return r.stored(e)
	case "removed":
		e.Kind = Removed
		return r.removed(e)
	}
	return r.fail("unknown kind of event")
}

func (r *mpReader) removed(e *Event) error {
	return r.fields("removed", 1, func(key []byte) (uint, error) {
		if string(key) != "block_hashes" {
			return 0, nil
		}
		n, ok := r.Array()
		if !ok {
			return 0, r.fail("block_hashes is no list")
		}
		e.Hashes = make([]uint64, n)
		for i := range e.Hashes {
			if e.Hashes[i], ok = r.Uint(); !ok {
				return 0, r.fail("a block hash is no u64")
			}
		}
		return 1, nil
	})
}

func (r *mpReader) stored(e *Event) error {
	return r.fields("stored", 1, func(key []byte) (uint, error) {
		switch string(key) {
		case "blocks":
			n, ok := r.Array()
			if !ok {
				return 0, r.fail("blocks is no list")
			}
			e.Blocks = make([]Block, 0, min(n, r.Left()/minBlock))
			for range n {
				var b Block
				if err := r.block(&b); err != nil {
					return 0, err
				}
				e.Blocks = append(e.Blocks, b)
			}
			return 1, nil
		case "parent_hash":
			if e.HasParent = !r.Nil(); !e.HasParent {
				return 2, nil
			}
			return r.u64(&e.Parent, 2, "parent_hash is no u64")
		case "start_position":
			if e.HasStart = !r.Nil(); !e.HasStart {
				return 4, nil
			}
			return r.u32(&e.Start, 4, "start_position is no u32")
		}
		return 0, nil
	})
}

func (r *mpReader) block(b *Block) error {
	return r.fields("block", 0b11, func(key []byte) (uint, error) {
		switch string(key) {
		case "block_hash":
			return r.u64(&b.Hash, 1, "block_hash is no u64")
		case "tokens_hash":
			return r.u64(&b.TokensHash, 2, "tokens_hash is no u64")
		case "mm_extra_info":
			b.MM = nil
			if r.Nil() {
				return 4, nil
			}
			return 4, r.fields("mm_extra_info", 1, func(key []byte) (uint, error) {
				if string(key) != "mm_objects" {
					return 0, nil
				}
				return 1, r.mmObjects(b)
			})
		}
		return 0, nil
	})
}

func (r *mpReader) mmObjects(b *Block) error {
	n, ok := r.Array()
	if !ok {
		return r.fail("mm_objects is no list")
	}
	b.MM = make([]MMObject, 0, min(n, r.Left()/minMM))
	for range n {
		var o MMObject
		err := r.fields("mm object", 0b11, func(key []byte) (uint, error) {
			switch string(key) {
			case "mm_hash":
				return r.u64(&o.Hash, 1, "mm_hash is no u64")
			case "offsets":
				return 2, r.offsets(&o)
			}
			return 0, nil
		})
		if err != nil {
			return err
		}
		b.MM = append(b.MM, o)
	}
	return nil
}

func (r *mpReader) offsets(o *MMObject) error {
	n, ok := r.Array()
	if !ok {
		return r.fail("offsets is no list")
	}
	o.Offsets = make([][2]uint64, 0, min(n, r.Left()/3))
	for range n {
		two, ok := r.Array()
		if !ok || two != 2 {
			return r.fail("an offset is no pair")
		}
		from, ok1 := r.Uint()
		to, ok2 := r.Uint()
		if !ok1 || !ok2 {
			return r.fail("an offset is no u64")
		}
		o.Offsets = append(o.Offsets, [2]uint64{from, to})
	}
	return nil
}
