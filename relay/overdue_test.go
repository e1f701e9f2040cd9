package relay

import (
	"log/slog"
	"testing"
	"time"

	"github.com/kvrelay/kvrelay/discovery"
)

// A stream whose clock should have woken long ago says so; one whose clock does
// not run on purpose, or is not due, does not.
func TestOverdue(t *testing.T) {
	s := newStream(New(Options{Log: slog.New(slog.DiscardHandler)}), discovery.Source{Endpoint: "tcp://127.0.0.1:1"})
	for _, c := range []struct {
		armed    time.Time
		resuming bool
		late     bool
	}{
		{time.Time{}, false, false},
		{time.Now().Add(time.Minute), false, false},
		{time.Now().Add(-time.Minute), false, true},
		{time.Now().Add(-time.Minute), true, false},
	} {
		s.armed, s.resuming = c.armed, c.resuming
		if d := s.status().Overdue; c.late != (d >= time.Minute) || !c.late && d != 0 {
			t.Errorf("%+v: overdue %v", c, d)
		}
	}
}
