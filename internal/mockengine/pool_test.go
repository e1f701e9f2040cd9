package mockengine

import (
	"errors"
	"maps"
	"reflect"
	"slices"
	"testing"
)

// The golden prompt of Dynamo's mock engine, block size 4.
var golden = []uint32{11, 22, 33, 44, 55, 66, 77, 88}

func TestGoldenHashes(t *testing.T) {
	if got := []uint64{TokensHash(golden[:4]), TokensHash(golden[4:])}; !slices.Equal(got, []uint64{4117275816416024698, 6081346995852963768}) {
		t.Errorf("tokens hashes %d", got)
	}
	if got := BlockHashes(golden, 4); !slices.Equal(got, []uint64{4117275816416024698, 5947898228081096063}) {
		t.Errorf("block hashes %d", got)
	}
	if got := BlockHashes(golden[:7], 4); len(got) != 1 {
		t.Errorf("a partial block has a hash: %d", got)
	}
}

// TestGoldenStream makes the requests behind the recorded stream of Dynamo's
// mock engine and expects its events; only that it reports all blocks of one
// eviction in one event, and vLLM one by one.
func TestGoldenStream(t *testing.T) {
	p := NewPool(4, 6, false)
	run := func(tokens []uint32) []Event {
		t.Helper()
		r, _, err := p.Admit(tokens, Incremental)
		if err != nil {
			t.Fatal(err)
		}
		p.Free(r)
		var out []Event
		for _, e := range p.Take() {
			if n := len(out); n > 0 && e.Kind == Removed && out[n-1].Kind == Removed {
				out[n-1].Hashes = append(out[n-1].Hashes, e.Hashes...)
				continue
			}
			out = append(out, e)
		}
		return out
	}
	from := func(n uint32) (out []uint32) {
		for i := range uint32(16) {
			out = append(out, n+i)
		}
		return out
	}
	for i, want := range recorded(t, "live-dynamo-mocker-1.6.1-golden") {
		got := run([][]uint32{golden, from(100), from(200), golden}[i])
		if !reflect.DeepEqual(got, want.events) {
			t.Errorf("batch %d:\n got %v\nwant %v", i, got, want.events)
		}
	}
}

func TestHitNeverWhole(t *testing.T) {
	p := NewPool(4, 8, false)
	r, hit, err := p.Admit(golden, Incremental)
	if err != nil || hit != 0 {
		t.Fatal(hit, err)
	}
	p.Free(r)
	for tokens, want := range map[int]int{0: 0, 3: 0, 4: 0, 5: 4, 7: 4, 8: 4} {
		if got := p.Hit(golden[:tokens]); got != want {
			t.Errorf("Hit of %d cached tokens = %d, want %d", tokens, got, want)
		}
	}
	if got := p.Hit(append(slices.Clone(golden), 1)); got != 8 {
		t.Errorf("Hit with one token more = %d, want 8", got)
	}
}

// TestReportModes: with full reporting a hit is two stores in one step, the
// reused prefix and then what was computed, whose parent is the last reused
// block; incremental reports only the second.
func TestReportModes(t *testing.T) {
	prompt := append(slices.Clone(golden), 1, 2, 3, 4, 5)
	hashes := BlockHashes(prompt, 4)
	computed := Event{Kind: Stored, Hashes: hashes[2:3], Parent: hashes[1], HasParent: true, Tokens: prompt[8:12]}
	announced := Event{Kind: Stored, Hashes: hashes[:2], Tokens: prompt[:8]}
	for mode, want := range map[ReportMode][]Event{Full: {announced, computed}, Incremental: {computed}} {
		p := NewPool(4, 8, false)
		r, _, err := p.Admit(golden, mode)
		if err != nil {
			t.Fatal(err)
		}
		p.Free(r)
		if first := p.Take(); !reflect.DeepEqual(first, []Event{announced}) {
			t.Errorf("%s: a miss is %v", mode, first)
		}
		r, hit, err := p.Admit(prompt, mode)
		if err != nil || hit != 8 {
			t.Fatal(hit, err)
		}
		if got := p.Take(); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %v, want %v", mode, got, want)
		}
		p.Free(r)
		// Nothing new: only full says anything, and nothing is held twice.
		r, _, err = p.Admit(prompt[:12+1], mode)
		if err != nil {
			t.Fatal(err)
		}
		p.Free(r)
		if got := p.Take(); (mode == Full) != (len(got) == 1) || len(got) > 1 {
			t.Errorf("%s: a complete hit is %v", mode, got)
		}
		for h, n := range p.Held() {
			if n != 1 {
				t.Errorf("%s: %d copies of %d", mode, n, h)
			}
		}
	}
}

func TestFullReportWhileWaiting(t *testing.T) {
	p := NewPool(4, 3, false)
	first, _, err := p.Admit(golden, Incremental)
	if err != nil {
		t.Fatal(err)
	}
	p.Take()
	for range 2 {
		if _, _, err := p.Admit(append(slices.Clone(golden), golden...), Full); !errors.Is(err, ErrFull) {
			t.Fatalf("error %v", err)
		}
		if got := p.Take(); len(got) != 1 || got[0].HasParent || len(got[0].Hashes) != 2 {
			t.Errorf("announced %v", got)
		}
	}
	p.Free(first)
	if p.FreeBlocks() != 3 {
		t.Errorf("%d free blocks: the refused request kept some", p.FreeBlocks())
	}
}

func TestDuplicates(t *testing.T) {
	for _, dup := range []bool{false, true} {
		p := NewPool(4, 8, dup)
		for range 2 { // the last block of a prompt of whole blocks is computed again
			r, _, err := p.Admit(golden, Incremental)
			if err != nil {
				t.Fatal(err)
			}
			p.Free(r)
		}
		h := BlockHashes(golden, 4)
		want := map[uint64]int{h[0]: 1, h[1]: 1 + boolInt(dup)}
		if got := p.Held(); !maps.Equal(got, want) {
			t.Errorf("duplicates %v: held %v, want %v", dup, got, want)
		}
		if got := len(p.Take()); got != 1+boolInt(dup) {
			t.Errorf("duplicates %v: %d events", dup, got)
		}
	}
}

func TestClear(t *testing.T) {
	p := NewPool(4, 8, false)
	r, _, err := p.Admit(golden, Incremental)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Clear(); !errors.Is(err, ErrInUse) {
		t.Errorf("Clear while in use: %v", err)
	}
	p.Free(r)
	p.Take()
	if err := p.Clear(); err != nil {
		t.Fatal(err)
	}
	if got := p.Take(); len(got) != 1 || got[0].Kind != Cleared || len(p.Held()) != 0 || p.Hit(append(golden, 1)) != 0 {
		t.Errorf("after Clear: %v, held %v", got, p.Held())
	}
}
