package integration

import (
	"encoding/binary"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"testing"

	"github.com/kvrelay/kvrelay/consumer"
	"github.com/kvrelay/kvrelay/decode"
	"github.com/kvrelay/kvrelay/internal/capture"
	"github.com/kvrelay/kvrelay/internal/msgpack"
)

// held is a set of block hashes per tier.
type held map[consumer.Tier]map[uint64]bool

// mainGroups are the cache groups whose blocks routers hear of.
func mainGroups(m *capture.Meta) []string {
	if len(m.Groups) == 0 {
		return []string{"0"}
	}
	var out []string
	for i, g := range m.Groups {
		if kind, _, _ := strings.Cut(g, ":"); kind == "full" || kind == "mla" {
			out = append(out, strconv.Itoa(i))
		}
	}
	return out
}

// truthOf is what the engine itself held, in the main-attention groups.
func truthOf(t testing.TB, m *capture.Meta, s *capture.State) held {
	t.Helper()
	out := held{consumer.Device: {}, consumer.HostPinned: {}}
	for _, g := range mainGroups(m) {
		for name, tier := range map[string]consumer.Tier{g: consumer.Device, g + "/CPU": consumer.HostPinned} {
			hs, err := s.Truth.Hashes(name)
			if err != nil {
				t.Fatal(err)
			}
			for h := range hs {
				out[tier][h] = true
			}
		}
	}
	return out
}

// heldBy is what a picture has of a rank.
func heldBy(p *consumer.Picture, k consumer.Rank) held {
	out := held{}
	for tier := range consumer.Tier(consumer.NumTiers) {
		if hs := hashes(p, k, tier); len(hs) > 0 || tier <= consumer.HostPinned {
			out[tier] = hs
		}
	}
	return out
}

// diff says how got differs from want: "" when it does not. missing may be
// lacking without being a difference.
func (want held) diff(got held, missing map[uint64]bool) string {
	var out []string
	for _, tier := range []consumer.Tier{consumer.Device, consumer.HostPinned, consumer.Disk, consumer.External} {
		w, g := maps.Clone(want[tier]), maps.Clone(got[tier])
		maps.DeleteFunc(w, func(h uint64, _ bool) bool { return got[tier][h] || missing[h] })
		maps.DeleteFunc(g, func(h uint64, _ bool) bool { return want[tier][h] })
		if len(w) > 0 || len(g) > 0 {
			out = append(out, fmt.Sprintf("%s: %d of %d blocks missing, %d false", tier, len(w), len(want[tier]), len(g)))
		}
	}
	return strings.Join(out, "; ")
}

// batches decodes a capture's messages one after the other.
func batches(t testing.TB, c *capture.Capture, each func(i int, b *decode.Batch)) {
	t.Helper()
	var b decode.Batch
	for i, m := range c.Messages {
		if err := b.Decode(m.Payload()); err != nil {
			t.Fatalf("message %d: %v", i, err)
		}
		each(i, &b)
	}
}

// otherSize are the hashes of main-group stores whose block size is not the
// group's: hybrid engines send such partial stores, and they are not published.
func otherSize(t testing.TB, c *capture.Capture) map[uint64]bool {
	t.Helper()
	out := map[uint64]bool{}
	batches(t, c, func(_ int, b *decode.Batch) {
		for i := range b.Events {
			if e := &b.Events[i]; e.Type == decode.Stored && e.Group == 0 && e.BlockSize != uint64(c.Meta.BlockSize[0]) {
				for _, h := range e.Hashes {
					out[h] = true
				}
			}
		}
	})
	return out
}

// A mark is a block that no engine has. Stored behind message n, its arrival
// proves that everything before it was applied.
func markOf(n int) uint64 { return 0x6d61726b_00000000 + uint64(n) }

// markBatch stores a mark. ts goes on from the batch that it follows.
func markBatch(m *capture.Meta, mark uint64, ts float64) []byte {
	n := int(m.BlockSize[0])
	b := msgpack.AppendArrayHeader(nil, 3)
	b = msgpack.AppendFloat(b, ts)
	b = msgpack.AppendArrayHeader(b, 1)
	b = msgpack.AppendArrayHeader(b, 5)
	b = msgpack.AppendStr(b, "BlockStored")
	b = msgpack.AppendArrayHeader(b, 1)
	b = msgpack.AppendUint(b, mark)
	b = msgpack.AppendNil(b)
	b = msgpack.AppendArrayHeader(b, n)
	for i := range uint64(n) {
		if strings.Contains(m.Case, "eagle") && m.Engine == "sglang" {
			b = msgpack.AppendArrayHeader(b, 2)
			b = msgpack.AppendUint(b, i)
			i++
		}
		b = msgpack.AppendUint(b, i)
	}
	b = msgpack.AppendUint(b, uint64(n))
	return msgpack.AppendUint(b, uint64(m.DPRank))
}

// lastOf is the seq and ts of the last of some messages.
func lastOf(t testing.TB, ms []capture.Message) (seq uint64, ts float64) {
	t.Helper()
	m := ms[len(ms)-1]
	ts, ok := decode.PeekTS(m.Payload())
	if !ok || len(m.Frames) != 3 {
		t.Fatal("the last message has no ts or no seq")
	}
	return binary.BigEndian.Uint64(m.Frames[1]), ts
}
