package consumer

import (
	"maps"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/kvrelay/kvrelay/internal/fuzzlimit"
)

func TestPictureFold(t *testing.T) {
	k := Rank{1, 2}
	ev := func(id uint64, kind Kind, tier Tier, hs ...uint64) Event {
		e := Event{Rank: k, ID: id, Kind: kind, Tier: tier}
		for _, h := range hs {
			if kind == Stored {
				e.Blocks = append(e.Blocks, Block{Hash: h, TokensHash: 10 * h})
			} else {
				e.Hashes = append(e.Hashes, h)
			}
		}
		return e
	}
	p := NewPicture()
	steps := []struct {
		what      string
		publisher uint64
		events    []Event
		out       Outcome
		device    []uint64
	}{
		{"begins", 7, []Event{ev(1, Cleared, 0), ev(2, Stored, Device, 1, 2, 3)}, Outcome{Applied: 2, NewPublisher: true}, []uint64{1, 2, 3}},
		{"repeated", 7, []Event{ev(2, Stored, Device, 9)}, Outcome{Repeated: 1}, []uint64{1, 2, 3}},
		{"another tier", 7, []Event{ev(3, Removed, Disk, 1)}, Outcome{Applied: 1}, []uint64{1, 2, 3}},
		{"overlap", 7, []Event{ev(3, Removed, Device, 1), ev(4, Removed, Device, 2)}, Outcome{Applied: 1, Repeated: 1}, []uint64{1, 3}},
		{"a hole", 7, []Event{ev(7, Stored, Device, 4)}, Outcome{Applied: 1, Missing: 2}, []uint64{1, 3, 4}},
		{"another publisher", 8, []Event{ev(1, Cleared, 0), ev(2, Stored, Device, 5)}, Outcome{Applied: 2, NewPublisher: true}, []uint64{5}},
		{"one that is met late", 9, []Event{ev(4, Stored, Device, 6)}, Outcome{Applied: 1, NewPublisher: true, Missing: 3}, []uint64{5, 6}},
		{"one that is met at a later cleared", 10, []Event{ev(9, Cleared, 0)}, Outcome{Applied: 1, NewPublisher: true}, nil},
	}
	for _, s := range steps {
		if out := p.Fold(&Message{Publisher: s.publisher, Events: s.events}); out != s.out {
			t.Errorf("%s: %+v, want %+v", s.what, out, s.out)
		}
		got := map[uint64]bool{}
		for h := range p.Blocks(k, Device) {
			got[h] = true
		}
		want := map[uint64]bool{}
		for _, h := range s.device {
			want[h] = true
		}
		if !maps.Equal(got, want) || p.Len(k, Device) != len(want) {
			t.Errorf("%s: holds %v, want %v", s.what, got, want)
		}
		last := s.events[len(s.events)-1].ID
		if pub, at := p.Place(k); pub != s.publisher || at != last && s.out.Repeated == 0 {
			t.Errorf("%s: at %d,%d", s.what, pub, at)
		}
	}
	p.Forget(k)
	if pub, last := p.Place(k); pub != 0 || last != 0 || len(p.Ranks()) != 0 {
		t.Error("not forgotten")
	}
}

// A Picture is the fold, in every tier, with what is known of each block.
func TestPictureIsTheFold(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	p, want := NewPicture(), map[blockKey]Entry{}
	k := Rank{3, 0}
	for id := range uint64(5000) {
		e := randomEvent(r, 300)
		e.Rank, e.ID = k, id+1
		p.Fold(&Message{Publisher: 1, Events: []Event{e}})
		foldInto(want, &e)
		if id%500 == 0 && !maps.Equal(pictureOf(p, k), want) {
			t.Fatalf("not the fold at %d", id)
		}
	}
	if !maps.Equal(pictureOf(p, k), want) {
		t.Fatal("not the fold at the end")
	}
}

func FuzzParseHeartbeat(f *testing.F) {
	f.Add([]byte(`{"publisher_id":5,"started":1,"life":"x","last_event_id":7,"state":"live","engine_seq":1,"epoch":0,"blocks":3,"lag_ms":0.5}`))
	f.Add([]byte(`{"publisher_id":5,"life":12345}`))
	f.Add([]byte(`{"publisher_id":0}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		fuzzlimit.Run(t, len(data), func() { _, _ = ParseHeartbeat(data) })
		if h, err := ParseHeartbeat(data); err == nil && (h.Publisher == 0 || h.Publisher > maxPublisher) {
			t.Errorf("accepted publisher %d", h.Publisher)
		}
	})
}

// BenchmarkPictureMemory reports what a block takes.
func BenchmarkPictureMemory(b *testing.B) {
	const blocks = 1_000_000
	for b.Loop() {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		p := NewPicture()
		for h := range uint64(blocks) {
			p.Apply(&Event{Kind: Stored, Blocks: []Block{{Hash: h * 0x9e3779b97f4a7c15, TokensHash: h}}})
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/blocks, "B/block")
		runtime.KeepAlive(p)
	}
}
