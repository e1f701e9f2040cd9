package kube

import (
	"strings"
	"testing"
	"time"
)

// TestLateEvents: what a watch tells of is older than what was written since.
// Nobody took anything away then, and nothing is put back.
func TestLateEvents(t *testing.T) {
	f, config := newFake(t)
	s, said := telling(t, config, aKey)
	f.mu.Lock()
	old := f.objects["ns/p-0"].DeepCopy()
	f.mu.Unlock()
	for i := range oftenRepaired + 1 {
		if err := s.Put(t.Context(), aKey+strings.Repeat("2", i+1), []byte(`{}`)); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if err := s.repair(t.Context(), old); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(began); d >= repairPause {
			t.Errorf("it waited %s for nothing", d)
		}
	}
	if text := said.String(); strings.Contains(text, "put back") || strings.Contains(text, "again and again") {
		t.Errorf("the log tells: %s", text)
	}
}
