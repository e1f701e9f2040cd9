package sinks

import (
	"bytes"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvrelay/kvrelay/convert"
	"github.com/kvrelay/kvrelay/internal/fuzzlimit"
)

// TestSplitAgain: max_payload shrinks from link to link while consumers have
// got any prefix of what each link carried, and some of them also know
// envelopes by their sequence. Ignoring the ids (and sequences) that they
// know, all end at the published state.
func TestSplitAgain(t *testing.T) {
	for seed := range uint64(80) {
		r := rand.New(rand.NewPCG(seed, 3))
		pr := Profile(r.IntN(3))
		p := newTest(t, Options{Profile: pr, RecentEvents: 50})
		limit := 1 << 16
		p.maxEvent.Store(p.eventLimit(int64(limit)))
		o := open(t, p, r.Uint64(), 3, nil)
		w := newWorkload(seed)
		w.large = 400

		type consumer struct {
			last  uint64
			state fold
			seqs  map[uint64]bool
		}
		cs := make([]consumer, 6)
		for i := range cs {
			cs[i].state = fold{}
			if i%2 == 1 && pr != JSON {
				cs[i].seqs = map[uint64]bool{}
			}
		}
		want := fold{}
		charged, freed := 0, 0
		for link := 0; ; link++ {
			end := link == 5
			if limit > minMaxPayload && r.IntN(2) == 0 {
				limit = max(minMaxPayload, limit/(2+r.IntN(20)))
				p.maxEvent.Store(p.eventLimit(int64(limit)))
			}
			o.rewind()
			if o.sent != o.confirmed {
				t.Fatal("rewound to the wrong place")
			}
			reach := make([]int, len(cs)) // messages of this link that each consumer gets
			for i := range reach {
				reach[i] = r.IntN(12)
			}
			for n := 0; end || n < 12; n++ {
				if !end && r.IntN(2) == 0 {
					evs := w.events(1 + r.IntN(4))
					for i := range evs {
						want.apply(&evs[i])
					}
					charged += o.Append(Place{}, evs)
				}
				seq := o.firstSeq + uint64(o.resend)
				msg, ok, _, _ := o.take(nil)
				if !ok && end {
					break
				} else if !ok {
					continue
				}
				if pr != JSON && len(msg) > limit {
					t.Fatalf("seed %d: %d bytes under %d", seed, len(msg), limit)
				}
				evs := parseMessage(t, o, msg, seq)
				for i := range cs {
					c := &cs[i]
					if n > reach[i] && !end {
						continue
					}
					if c.seqs != nil && c.seqs[seq] {
						continue
					}
					if c.seqs != nil {
						c.seqs[seq] = true
					}
					for k := range evs {
						if evs[k].id <= c.last {
							continue
						}
						if evs[k].id != c.last+1 {
							t.Fatalf("seed %d, consumer %d: id %d after %d", seed, i, evs[k].id, c.last)
						}
						c.last = evs[k].id
						c.state.apply(&evs[k].e)
					}
				}
				// The server confirms at most what every consumer has got.
				least := o.sent
				for i := range cs {
					least = min(least, cs[i].last)
				}
				if r.IntN(3) == 0 {
					b, _ := o.confirm(min(least, o.sent))
					freed += b
				}
			}
			if end {
				break
			}
		}
		b, _ := o.confirm(o.LastID())
		if freed += b; freed != charged {
			t.Fatalf("seed %d: released %d bytes of %d", seed, freed, charged)
		}
		if n := p.unconfirmedEvents.Load(); n != int64(o.LastID()) { // confirm alone does not count them
			t.Fatalf("seed %d: %d events counted, last id %d", seed, n, o.LastID())
		}
		for i := range cs {
			if !maps.Equal(cs[i].state, want) {
				t.Fatalf("seed %d: consumer %d ends elsewhere", seed, i)
			}
		}
	}
}

// TestSplitAgainTooLarge: a block that a smaller server cannot take keeps its
// id, as a removal: numbers never move down.
func TestSplitAgainTooLarge(t *testing.T) {
	p := newTest(t, Options{})
	o := open(t, p, 7, 0, nil)
	n := o.Append(Place{}, []convert.RouterEvent{
		{Kind: convert.Stored, Tier: convert.Disk, SessionID: make([]byte, 3000), Blocks: []convert.Block{{Hash: 1}, {Hash: 2}}},
		{Kind: convert.Cleared},
	})
	p.maxEvent.Store(p.eventLimit(minMaxPayload))
	o.rewind()
	evs := drainAll(t, o, minMaxPayload)
	if len(evs) != 2 || evs[0].e.Kind != convert.Removed || evs[0].e.Tier != convert.Disk ||
		!slices.Equal(evs[0].e.Hashes, []uint64{1, 2}) || evs[1].e.Kind != convert.Cleared {
		t.Fatalf("%+v", evs)
	}
	if p.tooLarge.Load() != 2 {
		t.Errorf("%d too large", p.tooLarge.Load())
	}
	if b, _ := o.confirm(2); b != n {
		t.Errorf("released %d bytes of %d", b, n)
	}
}

// FuzzOwnEvents: an encoded event decodes to itself, and renumbered it is what
// the encoder writes for the other id.
func FuzzOwnEvents(f *testing.F) {
	f.Add(uint64(1), uint64(1), uint64(300), true, "s")
	f.Add(uint64(7), uint64(1)<<40, uint64(0), false, "\"event_id\":9")
	f.Add(uint64(0xa86576656e745f69), uint64(127), uint64(128), true, "\xa8event_id")
	f.Fuzz(func(t *testing.T, seed, id, other uint64, isJSON bool, session string) {
		e := newWorkload(seed).event()
		if e.Kind == convert.Cleared {
			return
		}
		enc := convert.AppendEvent
		if isJSON {
			enc = convert.AppendEventJSON
		}
		if e.Kind == convert.Stored && session != "" {
			e.SessionID = []byte(session)
		}
		b := enc(nil, &e, seed, 4, id)
		if got, want := renumber(nil, b, other, isJSON), enc(nil, &e, seed, 4, other); !bytes.Equal(got, want) {
			t.Fatalf("renumbered\n%q\n%q", got, want)
		}
		d, err := decodeEvent(b, isJSON)
		if err != nil {
			t.Fatal(err)
		}
		if got := enc(nil, &d, seed, 4, id); !bytes.Equal(got, b) {
			t.Fatalf("decoded and encoded\n%q\n%q", got, b)
		}
	})
}

// FuzzDecodeEvent: whatever comes, an error and no panic.
func FuzzDecodeEvent(f *testing.F) {
	e := newWorkload(1).event()
	f.Add(convert.AppendEvent(nil, &e, 1, 2, 3), false)
	f.Add(convert.AppendEventJSON(nil, &e, 1, 2, 3), true)
	f.Fuzz(func(t *testing.T, b []byte, isJSON bool) {
		fuzzlimit.Run(t, len(b), func() { _, _ = decodeEvent(b, isJSON) })
		if e, err := decodeEvent(b, isJSON); err == nil && e.Kind != convert.Stored && e.Kind != convert.Removed {
			t.Fatalf("%+v", e)
		}
	})
}
