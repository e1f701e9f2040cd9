package mockengine

import (
	"maps"
	"slices"
	"testing"
)

// TestPromptMakesRoom: a prompt by hand ends requests of the workload, it is not refused.
func TestPromptMakesRoom(t *testing.T) {
	e, err := New(Options{BlockSize: 4, Blocks: 16, Workload: &Workload{Arrivals: 4, AnswerBlocks: 4}})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 300 {
		e.Step()
		if _, err := e.Prompt(from32(uint32(i), uint32(i)+50), PromptOptions{Answer: 10}); err != nil {
			t.Fatal(i, err)
		}
	}
}

// TestWorkload: prompts share prefixes, blocks are evicted, and what the events
// say is what the pool holds, at every step.
func TestWorkload(t *testing.T) {
	for _, w := range []Workload{{}, {ClearEvery: 50}, {Arrivals: 4, FollowUps: 0.9, AnswerBlocks: 6}} {
		for _, dup := range []bool{false, true} {
			r := newEventReader()
			removed, stored, cleared := 0, 0, 0
			var problem string
			e, err := New(Options{BlockSize: 4, Blocks: 48, Duplicates: dup, Workload: &w, Observe: func(b Published) {
				_, events, _, err := decodeBatch(b.Payload)
				if err != nil {
					problem = err.Error()
				}
				for _, e := range events {
					removed += boolInt(e.Kind == Removed)
					stored += boolInt(e.Kind == Stored)
					cleared += boolInt(e.Kind == Cleared)
				}
				if p := r.read(events, 4); p != "" {
					problem = p
				}
			}})
			if err != nil {
				t.Fatal(err)
			}
			hits := 0
			for step := range 2000 {
				e.Step()
				if problem != "" || !maps.Equal(r.copies, e.Rank(0).Truth()) {
					t.Fatalf("%+v step %d: %s; the events hold %d blocks, the pool %d", w, step, problem, len(r.copies), len(e.Rank(0).Truth()))
				}
				tr := e.Rank(0).traffic
				hits += boolInt(e.Rank(0).Hit(append(tr.prefixes[step%8], 1)) > 0)
			}
			if removed < 200 || stored < 200 || hits < 50 || (cleared > 0) != (w.ClearEvery > 0) {
				t.Errorf("%+v: %d stored, %d removed, %d cleared, %d hits", w, stored, removed, cleared, hits)
			}
		}
	}
}

// TestFollowUps: conversations go on with what was said, answers included.
func TestFollowUps(t *testing.T) {
	for share, want := range map[float64]bool{0.0001: false, 1: true} {
		o, err := Options{BlockSize: 4, Blocks: 256, Workload: &Workload{FollowUps: share, PrefixBlocks: 4, SuffixBlocks: 8}}.withDefaults()
		if err != nil {
			t.Fatal(err)
		}
		tr, p := newTraffic(*o.Workload, Incremental, 4, 1, 0), NewPool(4, 256, false)
		longest, goneOn := 0, 0
		for _, prefix := range tr.prefixes {
			longest = max(longest, len(prefix))
		}
		var texts [][]uint32
		for range 300 {
			tr.next(p)
			for _, text := range texts {
				for _, j := range tr.running {
					if len(text) > longest && len(j.r.Tokens()) > len(text) && slices.Equal(j.r.Tokens()[:len(text)], text) {
						goneOn++
					}
				}
			}
			texts = nil
			for _, text := range tr.past {
				texts = append(texts, slices.Clone(text))
			}
		}
		if (goneOn > 10) != want {
			t.Errorf("share %v: %d steps of requests that go on with an earlier text", share, goneOn)
		}
	}
}

func TestWorkloadEnds(t *testing.T) {
	e, err := New(Options{Workload: &Workload{Steps: 20}, Faults: faults(t, "kill=3,freeze=3")})
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for !e.Done() {
		if e.Step(); n > 2000 {
			t.Fatal("the workload does not end")
		}
		n++
	}
	for range 200 {
		if e.Step() != 0 || !e.Done() {
			t.Fatal("something happens after the end")
		}
	}
}

// TestFullReports: a share of the workload's requests announces what it reuses.
func TestFullReports(t *testing.T) {
	announced := 0
	o := Options{BlockSize: 4, Blocks: 512, Workload: &Workload{FullReports: 0.5}}
	o.Observe = func(b Published) {
		_, events, _, err := decodeBatch(b.Payload)
		if err != nil {
			t.Error(err)
		}
		for i, e := range events[1:] {
			before := events[i]
			if before.Kind == Stored && !before.HasParent && e.Kind == Stored && e.HasParent && e.Parent == before.Hashes[len(before.Hashes)-1] {
				announced++
			}
		}
	}
	e, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	for range 300 {
		e.Step()
	}
	if announced < 20 {
		t.Errorf("%d announcements with what was computed after them", announced)
	}
}
