package consumer

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strconv"
)

// The shapes of profile json. Pointers tell a missing field from a zero.
type (
	jsonEvent struct {
		Worker  *uint64    `json:"worker_id"`
		Tier    *string    `json:"storage_tier"`
		Domain  *string    `json:"residency_domain"`
		Event   *jsonInner `json:"event"`
		Session *string    `json:"session_id"`
	}
	jsonInner struct {
		ID   *uint64   `json:"event_id"`
		Data *jsonData `json:"data"`
		DP   *uint32   `json:"dp_rank"`
	}
	jsonBody struct {
		Stored  *jsonStored  `json:"stored"`
		Removed *jsonRemoved `json:"removed"`
	}
	jsonStored struct {
		Parent *uint64      `json:"parent_hash"`
		Start  *uint32      `json:"start_position"`
		Blocks *[]jsonBlock `json:"blocks"`
	}
	jsonRemoved struct {
		Hashes *jsonHashes `json:"block_hashes"`
	}
	jsonBlock struct {
		Hash   *uint64 `json:"block_hash"`
		Tokens *uint64 `json:"tokens_hash"`
		MM     *struct {
			Objects *[]jsonMM `json:"mm_objects"`
		} `json:"mm_extra_info"`
	}
	jsonMM struct {
		Hash    *uint64       `json:"mm_hash"`
		Offsets *[]jsonHashes `json:"offsets"`
	}
)

// jsonData is "cleared" or an object with one kind of event.
type jsonData struct {
	cleared bool
	jsonBody
}

func (d *jsonData) UnmarshalJSON(b []byte) error {
	*d = jsonData{}
	if bytes.Equal(b, []byte(`"cleared"`)) {
		d.cleared = true
		return nil
	}
	return json.Unmarshal(b, &d.jsonBody)
}

// UnmarshalJSON refuses an incomplete block at once, before a list of a million
// such has been read to its end.
func (b *jsonBlock) UnmarshalJSON(data []byte) error {
	type plain jsonBlock
	if err := json.Unmarshal(data, (*plain)(b)); err != nil {
		return err
	}
	if b.Hash == nil || b.Tokens == nil {
		return &errReason{reason: "block lacks a field"}
	}
	return nil
}

// jsonHashes is a list of u64, with none of them null.
type jsonHashes []uint64

func (h *jsonHashes) UnmarshalJSON(b []byte) error {
	b = bytes.TrimSpace(b)
	if len(b) < 2 || b[0] != '[' {
		return &errReason{"a list of numbers is another type", 0}
	}
	b = bytes.TrimSpace(b[1 : len(b)-1])
	*h = make(jsonHashes, 0, min(bytes.Count(b, []byte{','})+1, len(b)))
	for len(b) > 0 {
		one, rest, _ := bytes.Cut(b, []byte{','})
		v, err := strconv.ParseUint(string(bytes.TrimSpace(one)), 10, 64)
		if err != nil {
			return &errReason{"a hash is no u64", 0}
		}
		*h = append(*h, v)
		b = rest
	}
	return nil
}

// parseJSON reads a JSON array of router events, one at a time, so that the
// first wrong one ends it.
func parseJSON(data []byte) ([]Event, error) {
	dec := json.NewDecoder(bytes.NewReader(data))
	fail := func(err error) ([]Event, error) {
		var r *errReason
		if !errors.As(err, &r) {
			r = &errReason{reason: "broken JSON or a field of a wrong type"}
		}
		return nil, &errReason{r.reason, int(dec.InputOffset())}
	}
	if t, err := dec.Token(); err != nil || t != json.Delim('[') {
		return fail(&errReason{reason: "no array of events"})
	}
	var evs []Event
	for dec.More() {
		var j jsonEvent
		if err := dec.Decode(&j); err != nil {
			return fail(err)
		}
		evs = append(evs, Event{})
		if err := j.event(&evs[len(evs)-1]); err != nil {
			return fail(err)
		}
	}
	if _, err := dec.Token(); err != nil {
		return fail(err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return fail(&errReason{reason: "bytes behind the last event"})
	}
	return evs, nil
}

func (j *jsonEvent) event(e *Event) error {
	in := j.Event
	if j.Worker == nil || in == nil || in.ID == nil || in.Data == nil || in.DP == nil {
		return &errReason{reason: "router event lacks a field"}
	}
	e.Rank, e.ID = Rank{*j.Worker, *in.DP}, *in.ID
	if j.Tier != nil {
		var ok bool
		if e.Tier, ok = ParseTier(*j.Tier); !ok {
			return &errReason{reason: "storage_tier is no known tier"}
		}
	}
	if j.Domain != nil {
		e.Domain = *j.Domain
	}
	if j.Session != nil {
		e.Session = *j.Session
	}
	d := in.Data
	switch {
	case d.cleared:
		e.Kind = Cleared
	case d.Stored != nil && d.Removed == nil && d.Stored.Blocks != nil:
		e.Kind = Stored
		return d.Stored.event(e)
	case d.Removed != nil && d.Stored == nil && d.Removed.Hashes != nil:
		e.Kind = Removed
		e.Hashes = *d.Removed.Hashes
	default:
		return &errReason{reason: "data names no single kind of event"}
	}
	return nil
}

func (s *jsonStored) event(e *Event) error {
	if s.Parent != nil {
		e.Parent, e.HasParent = *s.Parent, true
	}
	if s.Start != nil {
		e.Start, e.HasStart = *s.Start, true
	}
	e.Blocks = make([]Block, 0, len(*s.Blocks))
	for _, jb := range *s.Blocks {
		b := Block{Hash: *jb.Hash, TokensHash: *jb.Tokens}
		if jb.MM != nil {
			if jb.MM.Objects == nil {
				return &errReason{reason: "mm_extra_info lacks a field"}
			}
			b.MM = make([]MMObject, 0, len(*jb.MM.Objects))
			for _, o := range *jb.MM.Objects {
				mm, err := o.object()
				if err != nil {
					return err
				}
				b.MM = append(b.MM, mm)
			}
		}
		e.Blocks = append(e.Blocks, b)
	}
	return nil
}

func (j *jsonMM) object() (MMObject, error) {
	if j.Hash == nil || j.Offsets == nil {
		return MMObject{}, &errReason{reason: "mm object lacks a field"}
	}
	o := MMObject{Hash: *j.Hash, Offsets: make([][2]uint64, 0, len(*j.Offsets))}
	for _, p := range *j.Offsets {
		if len(p) != 2 {
			return MMObject{}, &errReason{reason: "an offset is no pair"}
		}
		o.Offsets = append(o.Offsets, [2]uint64{p[0], p[1]})
	}
	return o, nil
}
