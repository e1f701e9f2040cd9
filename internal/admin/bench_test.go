package admin

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/kvrelay/kvrelay/config"
)

// What showing 64 ranks costs: the look once a second, a scrape, and the page's question.
func BenchmarkShow(b *testing.B) {
	w := newWorld(64)
	s := New(Options{Addr: config.Off, Status: w.status, Sink: config.SinkNATS})
	b.Run("look", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			s.look(true)
		}
	})
	snap := snapshot{at: time.Now(), relay: w.status()}
	b.Run("scrape", func(b *testing.B) {
		b.ReportAllocs()
		g := gatherer(&snap)
		for b.Loop() {
			if _, err := g.Gather(); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("status", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			j := s.statusOf(&snap)
			j.History = s.historySince(-1, 0)
			if _, err := json.Marshal(j); err != nil {
				b.Fatal(err)
			}
		}
	})
}
