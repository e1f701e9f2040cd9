package sinks

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/kvrelay/kvrelay/convert"
	"github.com/kvrelay/kvrelay/internal/msgpack"
)

// renumber appends the encoded event ev with another event_id. The key is
// unique up to its first occurrence: before it stand only a number and names.
func renumber(dst, ev []byte, id uint64, isJSON bool) []byte {
	key := "\xa8event_id"
	if isJSON {
		key = `"event_id":`
	}
	i := bytes.Index(ev, []byte(key)) + len(key)
	dst = append(dst, ev[:i]...)
	if isJSON {
		j := i
		for ev[j] >= '0' && ev[j] <= '9' {
			j++
		}
		return append(strconv.AppendUint(dst, id, 10), ev[j:]...)
	}
	n := 1
	if c := ev[i]; c >= 0xcc {
		n += 1 << (c - 0xcc)
	}
	return append(msgpack.AppendUint(dst, id), ev[i+n:]...)
}

// decodeEvent decodes a stored or removed event of our own encoding.
func decodeEvent(b []byte, isJSON bool) (convert.RouterEvent, error) {
	if isJSON {
		return decodeJSON(b)
	}
	e := convert.RouterEvent{NoDomain: true}
	r := msgpack.NewReader(b)
	tier := ""
	d := fields{&r, nil}
	d.each(func(key string) {
		switch key {
		case "storage_tier":
			tier = d.text()
		case "residency_domain":
			d.text()
			e.NoDomain = false
		case "event":
			d.each(func(key string) {
				if key == "data" {
					d.each(func(key string) { d.data(&e, key) })
				} else {
					r.Skip()
				}
			})
		case "session_id":
			e.SessionID = []byte(d.text())
		default:
			r.Skip()
		}
	})
	if err := errors.Join(d.err, r.Err()); err != nil {
		return e, err
	}
	return e, finish(&e, tier)
}

// fields reads maps of known shape; the first thing of another shape stays in err.
type fields struct {
	*msgpack.Reader
	err error
}

func (d *fields) fail(what string) {
	if d.err == nil {
		d.err = fmt.Errorf("%s is missing or of a wrong type", what)
	}
}

// each calls f with each key of a map; f reads the value.
func (d *fields) each(f func(key string)) {
	n, ok := d.Map()
	if !ok {
		d.fail("a map")
	}
	for ; n > 0 && d.err == nil && !d.Failed(); n-- {
		f(d.text())
	}
}

func (d *fields) array() int {
	n, ok := d.Array()
	if !ok {
		d.fail("an array")
	}
	return n
}

func (d *fields) text() string {
	s, ok := d.Str()
	if !ok {
		d.fail("a string")
	}
	return string(s)
}

func (d *fields) uint() uint64 {
	v, ok := d.Uint()
	if !ok {
		d.fail("a number")
	}
	return v
}

func (d *fields) data(e *convert.RouterEvent, key string) {
	switch key {
	case "stored":
		e.Kind = convert.Stored
		d.each(func(key string) {
			switch {
			case key == "parent_hash" && d.Kind() != msgpack.Nil:
				e.HasParent, e.Parent = true, d.uint()
			case key == "blocks":
				for n := d.array(); n > 0 && d.err == nil; n-- {
					e.Blocks = append(e.Blocks, d.block())
				}
			default:
				d.Skip()
			}
		})
	case "removed":
		e.Kind = convert.Removed
		d.each(func(string) {
			for n := d.array(); n > 0 && d.err == nil; n-- {
				e.Hashes = append(e.Hashes, d.uint())
			}
		})
	default:
		d.fail("stored or removed")
	}
}

func (d *fields) block() (b convert.Block) {
	d.each(func(key string) {
		switch {
		case key == "block_hash":
			b.Hash = d.uint()
		case key == "tokens_hash":
			b.TokensHash = d.uint()
		case key == "mm_extra_info" && d.Kind() != msgpack.Nil:
			b.MM = []convert.MMObject{}
			d.each(func(string) {
				for n := d.array(); n > 0 && d.err == nil; n-- {
					b.MM = append(b.MM, d.object())
				}
			})
		default:
			d.Skip()
		}
	})
	return b
}

func (d *fields) object() (o convert.MMObject) {
	d.each(func(key string) {
		if key == "mm_hash" {
			o.Hash = d.uint()
			return
		}
		for n := d.array(); n > 0 && d.err == nil; n-- {
			if d.array() != 2 {
				d.fail("a pair")
			}
			o.Offsets = append(o.Offsets, [2]uint64{d.uint(), d.uint()})
		}
	})
	return o
}

// finish sets the tier, and checks that e is something.
func finish(e *convert.RouterEvent, tier string) error {
	for e.Tier.String() != tier {
		if e.Tier++; e.Tier > convert.External {
			return errors.New("storage_tier is none")
		}
	}
	if e.Kind != convert.Stored && e.Kind != convert.Removed {
		return errors.New("neither stored nor removed")
	}
	return nil
}

// jsonEvent is a stored or removed router event in JSON.
type jsonEvent struct {
	Tier   string  `json:"storage_tier"`
	Domain *string `json:"residency_domain"`
	Event  struct {
		Data struct {
			Stored *struct {
				Parent *uint64     `json:"parent_hash"`
				Blocks []jsonBlock `json:"blocks"`
			} `json:"stored"`
			Removed *struct {
				Hashes []uint64 `json:"block_hashes"`
			} `json:"removed"`
		} `json:"data"`
	} `json:"event"`
	Session *string `json:"session_id"`
}

type jsonBlock struct {
	Hash       uint64 `json:"block_hash"`
	TokensHash uint64 `json:"tokens_hash"`
	MM         *struct {
		Objects []struct {
			Hash    uint64      `json:"mm_hash"`
			Offsets [][2]uint64 `json:"offsets"`
		} `json:"mm_objects"`
	} `json:"mm_extra_info"`
}

func decodeJSON(b []byte) (convert.RouterEvent, error) {
	var w jsonEvent
	if err := json.Unmarshal(b, &w); err != nil {
		return convert.RouterEvent{}, err
	}
	e := convert.RouterEvent{NoDomain: w.Domain == nil}
	if w.Session != nil {
		e.SessionID = []byte(*w.Session)
	}
	if st := w.Event.Data.Stored; st != nil {
		e.Kind = convert.Stored
		if st.Parent != nil {
			e.HasParent, e.Parent = true, *st.Parent
		}
		for _, b := range st.Blocks {
			block := convert.Block{Hash: b.Hash, TokensHash: b.TokensHash}
			if b.MM != nil {
				block.MM = []convert.MMObject{}
				for _, m := range b.MM.Objects {
					block.MM = append(block.MM, convert.MMObject{Hash: m.Hash, Offsets: m.Offsets})
				}
			}
			e.Blocks = append(e.Blocks, block)
		}
	} else if rm := w.Event.Data.Removed; rm != nil {
		e.Kind, e.Hashes = convert.Removed, rm.Hashes
	}
	return e, finish(&e, w.Tier)
}
