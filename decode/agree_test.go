package decode

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/kvrelay/kvrelay/internal/fuzzlimit"
)

// agree decodes payload into b and fails t where that differs from the reference.
func agree(t *testing.T, b *Batch, payload []byte) {
	t.Helper()
	err := b.Decode(payload)
	tree, deep, refErr := parse(payload)
	if deep {
		return // it is enough that nothing broke
	}
	var want Batch
	ok := refErr == nil
	if ok {
		want, ok = refBatch(tree)
	}
	var e *Error
	if errors.As(err, &e) && e.Reason == ReasonTooMuch && ok && len(want.Events) > FoldAfter {
		return
	}
	if (err == nil) != ok {
		t.Fatalf("%x: error %v, the reference says %v, batch %v", payload, err, refErr, ok)
	}
	if err != nil {
		if len(b.Events) != 0 || b.HasTS || b.HasRank || b.BadRank || b.IsMap {
			t.Fatalf("%x: an undecodable batch leaves something behind", payload)
		}
		return
	}
	if b.TS != want.TS || b.HasTS != want.HasTS || b.Rank != want.Rank || b.HasRank != want.HasRank ||
		b.BadRank != want.BadRank || b.IsMap != want.IsMap {
		t.Fatalf("%x: ts %v %v rank %d %v bad %v map %v, want %v %v %d %v %v %v", payload,
			b.TS, b.HasTS, b.Rank, b.HasRank, b.BadRank, b.IsMap,
			want.TS, want.HasTS, want.Rank, want.HasRank, want.BadRank, want.IsMap)
	}
	if len(want.Events) > FoldAfter {
		total := 0
		for i := range b.Events {
			total += 1 + int(b.Events[i].Folded)
		}
		if total != len(want.Events) {
			t.Fatalf("%d events, want %d", total, len(want.Events))
		}
		return
	}
	if len(b.Events) != len(want.Events) {
		t.Fatalf("%x: %d events, want %d", payload, len(b.Events), len(want.Events))
	}
	for i := range b.Events {
		got, want := &b.Events[i], &want.Events[i]
		if g, w := show(got), show(want); g != w {
			t.Fatalf("%x: event %d (%s)\n got %s\nwant %s", payload, i, got.Problem, g, w)
		}
		if got.Folded != 0 || (got.Type == Malformed) != (got.Problem != "") {
			t.Fatalf("event %d: type %d, problem %q, folded %d", i, got.Type, got.Problem, got.Folded)
		}
	}
}

// Every nearly right batch decodes as the reference says, whole and cut off,
// also into a Batch that was used before.
func TestAgreesWithReference(t *testing.T) {
	m := &maker{Rand: rand.New(rand.NewPCG(11, 13))}
	const rounds = 6000
	var used Batch
	types := map[Type]int{}
	for range rounds {
		p := m.batch()
		agree(t, &used, p)
		for _, ev := range used.Events {
			types[ev.Type]++
		}
		agree(t, new(Batch), p[:m.IntN(len(p)+1)])
		broken := append([]byte(nil), p...)
		broken[m.IntN(len(p))] ^= 1 << m.IntN(8)
		agree(t, &used, broken)
	}
	for typ := Malformed; typ <= Unknown; typ++ {
		if types[typ] < rounds/100 {
			t.Errorf("only %d events of type %d: the batches test little", types[typ], typ)
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, v := range vectors(f) {
		f.Add(v.payload)
	}
	m := &maker{Rand: rand.New(rand.NewPCG(17, 19))}
	for range 50 {
		f.Add(append([]byte(nil), m.batch()...))
	}
	var used Batch
	f.Fuzz(func(t *testing.T, p []byte) {
		if len(p) > 64<<10 {
			return
		}
		fuzzlimit.Run(t, len(p), func() {
			var fresh Batch
			_ = fresh.Decode(p)
		})
		agree(t, &used, p)
		var fresh Batch
		if got := allocated(func() { _ = fresh.Decode(p) }); got > 16*uint64(len(p))+minMemory {
			t.Fatalf("%d bytes allocated for %d", got, len(p))
		}
		ts, ok := PeekTS(p)
		if used.HasTS && !used.IsMap && (ts != used.TS || !ok) {
			t.Fatalf("PeekTS %v %v, Decode %v", ts, ok, used.TS)
		}
	})
}
