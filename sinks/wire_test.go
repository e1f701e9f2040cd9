package sinks

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"

	vmsgpack "github.com/vmihailenco/msgpack/v5"

	"github.com/kvrelay/kvrelay/convert"
)

// got is a router event as a consumer reads it, by an independent decoder.
type got struct {
	worker uint64
	rank   uint32
	id     uint64
	e      convert.RouterEvent
}

// parseEnvelope reads an EventEnvelope with the reference msgpack decoder.
func parseEnvelope(b []byte) (publisher, sequence uint64, at int64, payload []byte, err error) {
	var env map[string]any
	if err = vmsgpack.Unmarshal(b, &env); err != nil {
		return
	}
	if env["topic"] != "kv-events" || len(env) != 5 {
		err = fmt.Errorf("envelope %v", env)
		return
	}
	payload, _ = env["payload"].([]byte)
	return asUint(env["publisher_id"]), asUint(env["sequence"]), int64(asUint(env["published_at"])), payload, nil
}

func asUint(v any) uint64 {
	switch v := v.(type) {
	case int8:
		return uint64(v)
	case uint8:
		return uint64(v)
	case uint16:
		return uint64(v)
	case uint32:
		return uint64(v)
	case uint64:
		return v
	case int64:
		return uint64(v)
	case json.Number:
		var n uint64
		_ = json.Unmarshal([]byte(v), &n)
		return n
	}
	panic(fmt.Sprintf("no number: %T", v))
}

// parseEvents reads a payload of profile pr.
func parseEvents(pr Profile, payload []byte) ([]got, error) {
	var list []any
	var err error
	switch pr {
	case JSON:
		d := json.NewDecoder(bytes.NewReader(payload))
		d.UseNumber()
		err = d.Decode(&list)
	case DynamoSingle:
		var one any
		err = vmsgpack.Unmarshal(payload, &one)
		list = []any{one}
	default:
		err = vmsgpack.Unmarshal(payload, &list)
	}
	if err != nil {
		return nil, err
	}
	var out []got
	for _, v := range list {
		m := v.(map[string]any)
		ev := m["event"].(map[string]any)
		g := got{worker: asUint(m["worker_id"]), id: asUint(ev["event_id"]), rank: uint32(asUint(ev["dp_rank"]))}
		_, domain := m["residency_domain"]
		g.e.NoDomain = !domain
		for g.e.Tier.String() != m["storage_tier"] {
			if g.e.Tier++; g.e.Tier > convert.External {
				return nil, fmt.Errorf("tier %v", m["storage_tier"])
			}
		}
		if s, ok := m["session_id"].(string); ok {
			g.e.SessionID = []byte(s)
		}
		if ev["data"] == "cleared" {
			g.e.Kind = convert.Cleared
			out = append(out, g)
			continue
		}
		data := ev["data"].(map[string]any)
		if st, ok := data["stored"].(map[string]any); ok {
			g.e.Kind = convert.Stored
			if st["parent_hash"] != nil {
				g.e.HasParent, g.e.Parent = true, asUint(st["parent_hash"])
			}
			for _, b := range st["blocks"].([]any) {
				b := b.(map[string]any)
				blk := convert.Block{Hash: asUint(b["block_hash"]), TokensHash: asUint(b["tokens_hash"])}
				if mm, ok := b["mm_extra_info"].(map[string]any); ok {
					blk.MM = []convert.MMObject{}
					for _, o := range mm["mm_objects"].([]any) {
						o := o.(map[string]any)
						obj := convert.MMObject{Hash: asUint(o["mm_hash"])}
						for _, r := range o["offsets"].([]any) {
							r := r.([]any)
							obj.Offsets = append(obj.Offsets, [2]uint64{asUint(r[0]), asUint(r[1])})
						}
						blk.MM = append(blk.MM, obj)
					}
				}
				g.e.Blocks = append(g.e.Blocks, blk)
			}
		} else {
			g.e.Kind = convert.Removed
			for _, h := range data["removed"].(map[string]any)["block_hashes"].([]any) {
				g.e.Hashes = append(g.e.Hashes, asUint(h))
			}
		}
		out = append(out, g)
	}
	return out, nil
}

// fold is what a consumer knows: which block is where, under which parent.
type fold map[foldKey]foldValue

type foldKey struct {
	tier convert.Tier
	hash uint64
}

type foldValue struct {
	tokens, parent uint64
	hasParent      bool
}

func (f fold) apply(e *convert.RouterEvent) {
	switch e.Kind {
	case convert.Cleared:
		clear(f)
	case convert.Removed:
		for _, h := range e.Hashes {
			delete(f, foldKey{e.Tier, h})
		}
	case convert.Stored:
		parent, has := e.Parent, e.HasParent
		for _, b := range e.Blocks {
			f[foldKey{e.Tier, b.Hash}] = foldValue{b.TokensHash, parent, has}
			parent, has = b.Hash, true
		}
	}
}

// workload makes router events as an engine would: chains that are stored and
// removed again, sometimes a clear, sometimes large.
type workload struct {
	r     *rand.Rand
	next  uint64
	alive []uint64
	large int // blocks of a large store; 0: none
}

func newWorkload(seed uint64) *workload {
	return &workload{r: rand.New(rand.NewPCG(seed, 1)), next: 1}
}

func (w *workload) events(n int) []convert.RouterEvent {
	evs := make([]convert.RouterEvent, 0, n)
	for range n {
		evs = append(evs, w.event())
	}
	return evs
}

func (w *workload) event() convert.RouterEvent {
	e := convert.RouterEvent{Tier: convert.Tier(w.r.IntN(4))}
	switch k := w.r.IntN(100); {
	case k == 0:
		e.Kind = convert.Cleared
		e.Tier = convert.Device
		w.alive = w.alive[:0]
	case k < 40 && len(w.alive) > 0:
		e.Kind = convert.Removed
		for range 1 + w.r.IntN(5) {
			if len(w.alive) == 0 {
				break
			}
			i := w.r.IntN(len(w.alive))
			e.Hashes = append(e.Hashes, w.alive[i])
			w.alive = slices.Delete(w.alive, i, i+1)
		}
	default:
		e.Kind = convert.Stored
		if len(w.alive) > 0 && w.r.IntN(2) == 0 {
			e.HasParent, e.Parent = true, w.alive[w.r.IntN(len(w.alive))]
		}
		n := 1 + w.r.IntN(6)
		if w.large > 0 && w.r.IntN(10) == 0 {
			n = 1 + w.r.IntN(w.large)
		}
		for range n {
			h := w.next * 0x9E3779B97F4A7C15
			w.next++
			b := convert.Block{Hash: h, TokensHash: w.r.Uint64()}
			if w.r.IntN(20) == 0 {
				b.MM = []convert.MMObject{{Hash: w.r.Uint64(), Offsets: [][2]uint64{{1, 9}}}}
			}
			e.Blocks = append(e.Blocks, b)
			w.alive = append(w.alive, h)
		}
		if w.r.IntN(10) == 0 {
			e.SessionID = []byte("s\"é")
		}
	}
	return e
}
