package decode

import (
	"math"
	"math/rand/v2"

	wire "github.com/kvrelay/kvrelay/internal/msgpack"
)

// maker writes batches that are nearly right: most values fit their place,
// some do not.
type maker struct {
	*rand.Rand
	p []byte
}

func (m *maker) oneOf(texts ...string) string { return texts[m.IntN(len(texts))] }

// odd writes any value at all.
func (m *maker) odd() {
	switch m.IntN(16) {
	case 0:
		m.p = wire.AppendNil(m.p)
	case 1:
		m.p = wire.AppendBool(m.p, m.IntN(2) == 0)
	case 2:
		m.p = wire.AppendInt(m.p, -m.Int64N(1<<40))
	case 3:
		m.p = wire.AppendFloat(m.p, [...]float64{1.5, math.NaN(), math.Inf(1)}[m.IntN(3)])
	case 4:
		m.p = wire.AppendStr(m.p, m.oneOf("", "x", "text", "GPU", "full_attention", "LOCAL", "framework", "kvcr", "REUSED"))
	case 5:
		m.p = wire.AppendBin(m.p, []byte(m.oneOf("", "x", "12345678", "BlockStored", "\xff\xfe", "a longer run of bytes")))
	case 6:
		m.p = wire.AppendStr(m.p, "\xff\xfe")
	case 7:
		m.p = wire.AppendArrayHeader(m.p, 0)
	case 8:
		m.p = wire.AppendMapHeader(m.p, 0)
	case 9:
		m.p = wire.AppendArrayHeader(m.p, 2)
		m.odd()
		m.odd()
	case 10:
		m.p = wire.AppendMapHeader(m.p, 1)
		m.odd()
		m.odd()
	case 11:
		m.p = append(m.p, 0xd6, 1, 2, 3, 4, 5)
	case 12:
		m.p = append(m.p, 0xca, 0x3f, 0xc0, 0, 0)
	case 13:
		m.p = wire.AppendUint(m.p, 1<<32-2+m.Uint64N(5))
	case 14:
		m.p = wire.AppendUint(m.p, 1<<63-2+m.Uint64N(5))
	default:
		m.p = wire.AppendUint(m.p, m.Uint64N(70000))
	}
}

// maybe writes with a small chance any value, else what f does.
func (m *maker) maybe(f func()) {
	if m.IntN(40) == 0 {
		m.odd()
	} else {
		f()
	}
}

func (m *maker) array(n int, f func(i int)) {
	m.p = wire.AppendArrayHeader(m.p, n)
	for i := range n {
		m.maybe(func() { f(i) })
	}
}

func (m *maker) text(texts ...string) {
	s := m.oneOf(texts...)
	switch m.IntN(8) {
	case 0:
		m.p = wire.AppendNil(m.p)
	case 1:
		m.p = wire.AppendBin(m.p, []byte(s))
	default:
		m.p = wire.AppendStr(m.p, s)
	}
}

func (m *maker) hash() {
	switch m.IntN(5) {
	case 0:
		m.p = wire.AppendInt(m.p, -m.Int64())
	case 1:
		m.p = wire.AppendBin(m.p, make([]byte, m.IntN(34)))
		m.p[len(m.p)-1]++
	default:
		m.p = wire.AppendUint(m.p, m.Uint64()>>m.IntN(64))
	}
}

func (m *maker) tokens() {
	n := m.IntN(20)
	switch m.IntN(6) {
	case 0:
		m.p = wire.AppendNil(m.p)
	case 1: // pairs, mostly chained
		next := m.Uint64N(70000)
		m.array(n, func(int) {
			m.p = wire.AppendArrayHeader(m.p, 2)
			m.maybe(func() { m.p = wire.AppendUint(m.p, next) })
			next = m.Uint64N(70000)
			m.p = wire.AppendUint(m.p, next)
		})
	case 2: // mixed
		m.array(n, func(int) {
			if m.IntN(2) == 0 {
				m.p = wire.AppendArrayHeader(m.p, 2)
				m.p = wire.AppendUint(m.p, m.Uint64N(3))
			}
			m.p = wire.AppendUint(m.p, m.Uint64N(3))
		})
	default:
		m.array(n, func(int) { m.p = wire.AppendUint(m.p, m.Uint64N(150000)) })
	}
}

func (m *maker) extraKeys() {
	if m.IntN(3) == 0 {
		m.p = wire.AppendNil(m.p)
		return
	}
	m.array(m.IntN(4), func(int) {
		if m.IntN(3) == 0 {
			m.p = wire.AppendNil(m.p)
			return
		}
		m.array(m.IntN(4), func(int) {
			switch m.IntN(6) {
			case 0:
				m.p = wire.AppendInt(m.p, m.Int64()-m.Int64())
				return
			case 1:
				m.p = append(m.p, 0xc3)
				return
			case 2:
				m.p = wire.AppendFloat(m.p, 0.5)
				return
			case 3:
				m.p = wire.AppendArrayHeader(m.p, 2)
				m.p = wire.AppendStr(m.p, m.oneOf("id", "image-7", "dynamo-cache-salt:s"))
				m.maybe(func() { m.p = wire.AppendInt(m.p, m.Int64N(9)-4) })
				return
			case 4:
				m.p = wire.AppendBin(m.p, []byte(m.oneOf("", "\xff", "some bytes")))
				return
			}
			m.p = wire.AppendStr(m.p, m.oneOf("", "abc", "abcd", "lora", "dynamo-cache-salt:s"))
		})
	})
}

func (m *maker) record(values ...func()) {
	names := []string{"mm_objects"}
	if len(values) == 2 {
		names = []string{"mm_hash", "offsets"}
	}
	if m.IntN(3) == 0 {
		m.p = wire.AppendArrayHeader(m.p, len(values))
		for _, f := range values {
			m.maybe(f)
		}
		return
	}
	n := len(values)
	extra := m.IntN(6) == 0
	twice := m.IntN(6) == 0
	if extra {
		n++
	}
	if twice {
		n++
	}
	m.p = wire.AppendMapHeader(m.p, n)
	if extra {
		m.maybe(func() { m.p = wire.AppendStr(m.p, "other") })
		m.odd()
	}
	if twice {
		m.p = wire.AppendStr(m.p, names[0])
		if m.IntN(2) == 0 {
			m.odd()
		} else {
			values[0]()
		}
	}
	for i, f := range values {
		m.maybe(func() { m.p = wire.AppendStr(m.p, names[i]) })
		m.maybe(f)
	}
}

func (m *maker) mmInfos() {
	m.array(m.IntN(4), func(int) {
		if m.IntN(3) == 0 {
			m.p = wire.AppendNil(m.p)
			return
		}
		m.record(func() {
			m.array(m.IntN(3), func(int) {
				m.record(func() { m.p = wire.AppendUint(m.p, m.Uint64()) }, func() {
					m.array(m.IntN(3), func(int) {
						m.p = wire.AppendUint(wire.AppendUint(wire.AppendArrayHeader(m.p, 2), m.Uint64N(9)), m.Uint64N(9))
					})
				})
			})
		})
	})
}

// value writes a value that fits a field.
func (m *maker) value(field string, tuple bool) {
	switch field {
	case "type":
		m.p = wire.AppendStr(m.p, m.oneOf("BlockStored", "BlockRemoved", "AllBlocksCleared", "Ignored", "BlockTransferred"))
	case "block_hashes":
		m.array(m.IntN(6), func(int) { m.hash() })
	case "parent_block_hash":
		if m.IntN(2) == 0 {
			m.p = wire.AppendNil(m.p)
		} else {
			m.hash()
		}
	case "token_ids":
		m.tokens()
	case "block_size", "group_idx", "kv_cache_spec_sliding_window":
		if m.IntN(9) == 0 {
			m.p = wire.AppendNil(m.p)
		} else {
			m.p = wire.AppendUint(m.p, m.Uint64N(20))
		}
	case "lora_id":
		m.p = wire.AppendInt(m.p, m.Int64N(3)-1)
	case "medium":
		m.text("GPU", "CPU", "", "kvcr")
	case "lora_name":
		if tuple && m.IntN(3) == 0 {
			m.p = wire.AppendMapHeader(m.p, 2)
			m.maybe(func() { m.p = wire.AppendStr(m.p, m.oneOf("other", "cache_salt")) })
			m.odd()
			m.p = wire.AppendStr(m.p, "cache_salt")
			m.maybe(func() { m.text("s", "") })
			return
		}
		m.text("adapter", "")
	case "extra_keys":
		m.extraKeys()
	case "block_mm_infos":
		m.mmInfos()
	case "kv_cache_spec_kind":
		m.text("full_attention", "mla_attention", "sliding_window", "mamba", "unheard_of")
	case "locality":
		m.text("LOCAL", "REMOTE", "local")
	case "ownership":
		m.text("framework", "kvcr")
	case "origin":
		m.text("NEW", "REUSED")
	default:
		m.text("text")
	}
}

var makerKeys = []string{"type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium",
	"lora_name", "cache_salt", "extra_keys", "block_mm_infos", "group_idx", "kv_cache_spec_kind",
	"kv_cache_spec_sliding_window", "locality", "ownership", "session_id", "origin", "token_offset", "storage_tier"}

func (m *maker) event() {
	switch m.IntN(12) {
	case 0, 1, 2, 3, 4: // a map
		keys := append([]string(nil), makerKeys[:5]...)
		for _, k := range makerKeys[5:] {
			if m.IntN(3) == 0 {
				keys = append(keys, k)
			}
		}
		if m.IntN(4) == 0 { // one more time, with whatever value
			keys = append(keys, makerKeys[m.IntN(len(makerKeys))])
		}
		if m.IntN(4) == 0 { // one less
			i := m.IntN(len(keys))
			keys = append(keys[:i], keys[i+1:]...)
		}
		if m.IntN(2) == 0 {
			m.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
		}
		m.p = wire.AppendMapHeader(m.p, len(keys))
		for _, k := range keys {
			if m.IntN(200) == 0 {
				m.odd()
			} else {
				m.p = wire.AppendStr(m.p, k)
			}
			m.maybe(func() { m.value(k, false) })
		}
	case 5, 6, 7, 8: // a stored tuple
		n := 1 + m.IntN(17)
		m.p = wire.AppendArrayHeader(m.p, n)
		m.p = wire.AppendStr(m.p, "BlockStored")
		slots := []string{"block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name", "extra_keys"}
		for i := range n - 1 {
			if i < len(slots) {
				m.maybe(func() { m.value(slots[i], true) })
			} else {
				m.tail(i - len(slots))
			}
		}
	case 9, 10: // a removed tuple
		n := 1 + m.IntN(9)
		m.p = wire.AppendArrayHeader(m.p, n)
		m.p = wire.AppendStr(m.p, "BlockRemoved")
		for i := range n - 1 {
			switch i {
			case 0:
				m.maybe(func() { m.value("block_hashes", true) })
			case 1:
				m.maybe(func() { m.value("medium", true) })
			default:
				m.tail(i - 2)
			}
		}
	default: // another tuple
		n := 1 + m.IntN(3)
		m.p = wire.AppendArrayHeader(m.p, n)
		m.maybe(func() { m.p = wire.AppendStr(m.p, m.oneOf("AllBlocksCleared", "Ignored", "BlockInactive", "")) })
		for range n - 1 {
			m.maybe(func() { m.value("medium", true) })
		}
	}
}

// tail writes slot i of a positional tail: in the fixed order, or any.
func (m *maker) tail(i int) {
	fixed := []string{"group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window", "locality", "ownership", "session_id"}
	switch k := m.IntN(10); {
	case k < 6 && i < len(fixed):
		m.value(fixed[i], true)
	case k < 7:
		m.mmInfos()
	case k < 8:
		m.odd()
	default:
		m.value(fixed[m.IntN(len(fixed))], true)
	}
}

func (m *maker) batch() []byte {
	m.p = nil
	events := func() { m.array(m.IntN(6), func(int) { m.event() }) }
	ts := func() { m.p = wire.AppendFloat(m.p, 1.79e9) }
	rank := func() { m.p = wire.AppendUint(m.p, m.Uint64N(3)) }
	if m.IntN(3) == 0 {
		keys := map[string]func(){"ts": ts, "events": events, "data_parallel_rank": rank, "dp_rank": rank, "more": m.odd}
		var names []string
		for _, k := range []string{"ts", "events", "data_parallel_rank", "dp_rank", "more", "events"} {
			if m.IntN(4) > 0 {
				names = append(names, k)
			}
		}
		m.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
		m.p = wire.AppendMapHeader(m.p, len(names))
		for _, k := range names {
			m.maybe(func() { m.p = wire.AppendStr(m.p, k) })
			m.maybe(keys[k])
		}
	} else {
		n := 2 + m.IntN(3)
		m.p = wire.AppendArrayHeader(m.p, n)
		for _, f := range []func(){ts, events, rank, m.odd}[:n] {
			m.maybe(f)
		}
	}
	return m.p
}
