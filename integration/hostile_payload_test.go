package integration

import (
	"bytes"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/kvrelay/kvrelay/consumer"
	"github.com/kvrelay/kvrelay/internal/msgpack"
)

// payloadRow is an engine that publishes and replays as engines do, but what
// it publishes is hostile.
type payloadRow struct {
	name     string
	payloads func() [][]byte
}

// TestHostilePayloads replaces the engine by such ones, row after row.
func TestHostilePayloads(t *testing.T) {
	inFour(t, payloadRows(), func(t *testing.T, rows []payloadRow) {
		w := newHostileWorld(t, hostileOptions{})
		w.settled("at the start")
		for _, row := range rows {
			w.digest(row)
		}
		w.discreet()
	})
}

// The largest that is let in at all. Each row's memory counts alone.
func TestHostileGiants(t *testing.T) {
	size := 60 << 20
	if raceEnabled {
		size = 8 << 20 // in the time that the race detector makes of it
	}
	w := newHostileWorld(t, hostileOptions{})
	w.settled("at the start")
	for _, row := range giantRows(size) {
		w.digest(row)
	}
	for _, row := range giantPeers() {
		m := w.watch()
		w.meet(row)
		t.Logf("%s:", row.name)
		m.end(t)
	}
	w.discreet()
}

// digest has the relay take a row's payloads in, and heal.
func (w *hostileWorld) digest(row payloadRow) {
	t := w.t
	t.Helper()
	payloads := row.payloads()
	w.prompts++
	mark := markOf(1<<30 + w.prompts)
	payloads = append(payloads, batchOf(1_790_000_001, storeEvent(mark)))
	m := w.watch()
	start := time.Now()
	w.live.turn(func(v *villain) { v.shake("PUB"); v.listen() })
	w.replay.turn(history(payloads))
	w.await(40*time.Second, "end of the payloads: "+row.name, func() bool {
		_, has := w.picture.Lookup(consumer.Rank{Worker: 42}, consumer.Device, mark)
		return has
	})
	took := time.Since(start)
	w.prompt(1)
	w.await(5*time.Second, "life of rank 1 under "+row.name, func() bool { return w.right(1) })
	w.live.turn(nil)
	w.replay.turn(nil)
	w.settled("after " + row.name)
	t.Logf("%s: taken in within %v, healed within %v", row.name, took.Round(time.Millisecond), (time.Since(start) - took).Round(time.Millisecond))
	m.end(t)
	w.undisturbed()
	if s := w.source(0); s.Panics > 0 {
		t.Errorf("%s: %d panics", row.name, s.Panics)
	}
	if t.Failed() {
		t.Fatalf("after the row %q", row.name)
	}
}

// history is the ROUTER of an engine that has published these batches. It keeps
// no copies, so that memory is the relay's.
func history(payloads [][]byte) func(*villain) {
	return func(v *villain) {
		for ok := v.shake("ROUTER"); ok; {
			var start uint64
			if start, ok = v.request(); !ok {
				return
			}
			for i := min(start, uint64(len(payloads))); ok && i < uint64(len(payloads)); i++ {
				ok = v.say(zmtpFrame(zmtpMore, nil), zmtpFrame(zmtpMore, seqOf(i)), zmtpHead(0, uint64(len(payloads[i]))), payloads[i])
			}
			ok = ok && v.say(replyEnd)
		}
	}
}

// pack makes a msgpack value of Go's.
func pack(b []byte, v any) []byte {
	switch v := v.(type) {
	case nil:
		return msgpack.AppendNil(b)
	case bool:
		return msgpack.AppendBool(b, v)
	case int:
		return msgpack.AppendInt(b, int64(v))
	case uint64:
		return msgpack.AppendUint(b, v)
	case float64:
		return msgpack.AppendFloat(b, v)
	case string:
		return msgpack.AppendStr(b, v)
	case []any:
		b = msgpack.AppendArrayHeader(b, len(v))
		for _, e := range v {
			b = pack(b, e)
		}
		return b
	case packed:
		return append(b, v...)
	}
	panic(fmt.Sprintf("%T", v))
}

// packed is msgpack already.
type packed []byte

// times is a list of n of v.
func times(n int, v any) packed {
	return append(msgpack.AppendArrayHeader(nil, n), bytes.Repeat(pack(nil, v), n)...)
}

// series is a list of n made one by one.
func series(n int, v func(i int) any) packed {
	b := msgpack.AppendArrayHeader(nil, n)
	for i := range n {
		b = pack(b, v(i))
	}
	return b
}

type list = []any

func event(fields ...any) any { return list(fields) }

// hostileBatch is a batch of these events; one that is packed is the whole list.
func hostileBatch(events ...any) []byte {
	if p, ok := events[0].(packed); ok && len(events) == 1 {
		return pack(nil, list{1.79e9, p})
	}
	return pack(nil, list{1.79e9, list(events)})
}

func each(n int, batch func(i int) []byte) [][]byte {
	var out [][]byte
	for i := range n {
		out = append(out, batch(i))
	}
	return out
}

func payloadRows() []payloadRow {
	row := func(name string, batches func() [][]byte) payloadRow { return payloadRow{name, batches} }
	one := func(name string, batch func() []byte) payloadRow {
		return row(name, func() [][]byte { return [][]byte{batch()} })
	}
	raw := func(name string, b ...byte) payloadRow { return one(name, func() []byte { return b }) }
	store := func(hashes, parent, tokens, size any, more ...any) any {
		return append(list{"BlockStored", hashes, parent, tokens, size}, more...)
	}
	four := list{1, 2, 3, uint64(plantedToken)}
	named := func(pairs ...any) packed {
		b := msgpack.AppendMapHeader(nil, len(pairs)/2)
		for _, v := range pairs {
			b = pack(b, v)
		}
		return b
	}
	return []payloadRow{
		one("8 MB of nested arrays", func() []byte { return bytes.Repeat([]byte{0x91}, 8<<20) }),
		one("8 MB of nested maps", func() []byte { return bytes.Repeat([]byte{0x81, 0xa0}, 4<<20) }),
		one("nested events", func() []byte { return pack(nil, list{1, packed(bytes.Repeat([]byte{0x91}, 1<<20))}) }),
		raw("array of 2^32-1 announced", 0xdd, 0xff, 0xff, 0xff, 0xff, 1, 2),
		raw("15 bytes for 2^31 events", 0x92, 0x01, 0xdd, 0x80, 0, 0, 0, 0x93, 0xa1, 'a', 0xdd, 0x7f, 0xff, 0xff, 0xff),
		raw("string of 2^32-1 announced", 0x92, 0x01, 0x91, 0x92, 0xdb, 0xff, 0xff, 0xff, 0xff),
		raw("reserved byte", 0xc1),
		raw("half an event", 0x92, 0x01, 0x91, 0x95, 0xab, 'B', 'l', 'o', 'c', 'k'),
		one("100 000 hashes without tokens", func() []byte {
			return hostileBatch(store(series(100_000, func(i int) any { return i + 1e6 }), nil, list{}, 4))
		}),
		one("100 000 hashes removed", func() []byte {
			return hostileBatch(event("BlockRemoved", series(100_000, func(i int) any { return i + 1e6 })))
		}),
		one("100 000 hashes with tokens", func() []byte {
			return hostileBatch(store(series(100_000, func(i int) any { return i + 1e6 }), nil, times(400_000, 7), 4))
		}),
		one("one hash 100 000 times", func() []byte { return hostileBatch(store(times(100_000, 5), nil, times(400_000, 7), 4)) }),
		one("stores that hang on refused ones", func() []byte {
			return hostileBatch(series(50_000, func(i int) any { return store(list{i + 3e6}, i+3e6-1, four, 5) }))
		}),
		one("parents in a circle", func() []byte {
			return hostileBatch(series(5000, func(i int) any { return store(list{i + 4e6}, (i+1)%5000+4e6, four, 4) }))
		}),
		one("50 000 times the same key", func() []byte {
			b := msgpack.AppendMapHeader(nil, 50_001)
			b = pack(pack(b, "type"), "BlockStored")
			for range 50_000 {
				b = pack(pack(b, "block_hashes"), list{1, 2, 3})
			}
			return hostileBatch(packed(b))
		}),
		one("keys that are no text", func() []byte {
			return hostileBatch(named(list{1}, 2, 3, 4, nil, "x", "type", "BlockRemoved", "block_hashes", list{1}))
		}),
		one("a medium of 8 MB", func() []byte {
			return hostileBatch(store(list{1}, nil, four, 4, nil, string(make([]byte, 8<<20))))
		}),
		one("a session of 4 MB", func() []byte {
			return hostileBatch(named("type", "BlockStored", "block_hashes", list{1}, "parent_block_hash", nil, "token_ids", four, "block_size", 4, "session_id", string(bytes.Repeat([]byte("s"), 4<<20))))
		}),
		one("a salt of 8 MB", func() []byte {
			return hostileBatch(store(list{1}, nil, four, 4, nil, nil, named("cache_salt", plantedSalt+string(make([]byte, 8<<20)))))
		}),
		one("invalid UTF-8", func() []byte { return hostileBatch(store(list{1}, nil, four, 4, nil, "\xff\xfe"+plantedText)) }),
		row("invented ranks", func() [][]byte {
			return each(300, func(i int) []byte { return pack(nil, list{1.79e9, list{store(list{i + 1}, nil, four, 4)}, i + 2}) })
		}),
		row("the rank of another source", func() [][]byte {
			return each(50, func(i int) []byte { return pack(nil, list{1.79e9, list{event("AllBlocksCleared")}, 1}) })
		}),
		row("ranks that are none", func() [][]byte {
			return [][]byte{pack(nil, list{1.79e9, list{}, -1}), pack(nil, list{1.79e9, list{}, uint64(1 << 63)}), pack(nil, list{1.79e9, list{}, "x"})}
		}),
		one("invented groups", func() []byte {
			return hostileBatch(series(5000, func(i int) any {
				return store(list{i + 5e6}, nil, four, 4, nil, nil, nil, nil, i, "full_attention")
			}))
		}),
		one("invented kinds", func() []byte {
			return hostileBatch(series(5000, func(i int) any {
				return store(list{i + 5e6}, nil, four, 4, nil, nil, nil, nil, i%7, fmt.Sprint(plantedText, i))
			}))
		}),
		one("20 000 adapters", func() []byte {
			return hostileBatch(series(20_000, func(i int) any { return store(list{i + 7e6}, nil, four, 4, 1, nil, fmt.Sprint("adapter", i)) }))
		}),
		one("invented tiers", func() []byte {
			return hostileBatch(series(5000, func(i int) any { return store(list{i + 8e6}, nil, four, 4, nil, fmt.Sprint(plantedText, i)) }))
		}),
		one("50 000 tags", func() []byte {
			return hostileBatch(series(50_000, func(i int) any { return event(fmt.Sprint("Tag", i), plantedText) }))
		}),
		one("tags of text", func() []byte { return hostileBatch(event(plantedText), event(plantedSalt+" "), event("")) }),
		one("block sizes", func() []byte {
			return hostileBatch(store(list{1}, nil, four, 0), store(list{2}, nil, four, uint64(1<<63)), store(list{3}, nil, four, uint64(math.MaxUint64)), store(list{4}, nil, four, -1))
		}),
		one("tokens beyond 32 bits", func() []byte { return hostileBatch(store(list{1}, nil, list{uint64(1) << 32, 1, 2, 3}, 4)) }),
		one("pairs that do not chain", func() []byte {
			return hostileBatch(store(list{1}, nil, list{list{1, 2}, list{3, uint64(plantedToken)}, 5, 6}, 4))
		}),
		one("hashes of no bytes", func() []byte { return hostileBatch(store(list{packed{0xc4, 0}}, nil, four, 4)) }),
		one("multimodal objects without end", func() []byte {
			return hostileBatch(store(list{1}, nil, four, 4, nil, nil, nil, nil, list{named("mm_objects", times(20_000, named("mm_hash", 5, "offsets", times(3, list{1, 2}))))}))
		}),
		one("20 000 copies, then clears", func() []byte {
			return hostileBatch(append(packed(msgpack.AppendArrayHeader(nil, 40_000)), bytes.Repeat(append(pack(nil, store(list{9}, 8, four, 4)), pack(nil, event("AllBlocksCleared"))...), 20_000)...))
		}),
		one("times that are none", func() []byte { return pack(nil, list{math.NaN(), list{event("Ignored")}}) }),
		row("times at the ends", func() [][]byte {
			return [][]byte{pack(nil, list{math.MaxFloat64, list{}}), pack(nil, list{-math.MaxFloat64, list{}}), pack(nil, list{uint64(math.MaxUint64), list{}})}
		}),
		row("9000 empty batches", func() [][]byte { return each(9000, func(int) []byte { return []byte{0x92, 0x01, 0x90} }) }),
	}
}

func giantRows(size int) []payloadRow {
	one := func(name string, batch func() []byte) payloadRow {
		return payloadRow{name, func() [][]byte { return [][]byte{batch()} }}
	}
	tiny := func(e any) func() []byte {
		return func() []byte { return hostileBatch(times(size/len(pack(nil, e)), e)) }
	}
	return []payloadRow{
		one("a frame of nil events", tiny(nil)),
		one("a frame of empty events", tiny(list{})),
		one("a frame of ignored events", tiny(event("Ignored"))),
		one("a frame of removes", tiny(event("BlockRemoved", list{1}))),
		one("a frame of clears", tiny(event("AllBlocksCleared"))),
		one("a frame of small hashes", func() []byte { return hostileBatch(event("BlockRemoved", times(size, 1))) }),
		one("millions of hashes", func() []byte {
			return hostileBatch(event("BlockRemoved", series(min(7_000_000, size/5), func(i int) any { return i })))
		}),
		one("a frame of tokens", func() []byte { return hostileBatch(event("BlockStored", list{1}, nil, times(size, 7), 4)) }),
		one("a frame of one text", func() []byte { return hostileBatch(event("X", string(make([]byte, size)))) }),
		one("a frame of nesting", func() []byte {
			deep := append(bytes.Repeat([]byte{0x91}, 500), 0xc0)
			return hostileBatch(times(size/len(deep), packed(deep)))
		}),
		one("70 000 salts", func() []byte {
			return hostileBatch(series(70_000, func(i int) any {
				return event("BlockStored", list{i + 6e6}, nil, list{1, 2, 3, 4}, 4, nil, nil, packed(pack(pack([]byte{0x81}, "cache_salt"), fmt.Sprint(plantedSalt, i))))
			}))
		}),
		one("170 000 stores", func() []byte {
			return hostileBatch(series(170_000, func(i int) any { return event("BlockStored", list{i + 1<<33}, i+1<<33-1, list{1, 2, 3, 4}, 4) }))
		}),
	}
}
