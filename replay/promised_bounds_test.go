package replay

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// What a zero Config means is what the settings' documentation says.
func TestDefaultsAreThosePromised(t *testing.T) {
	c := NewCursor(Config{}, nobody{})
	if g := c.cfg; g.Heartbeat != 2*time.Second || g.Idle != time.Second || g.DeadAfter != 30*time.Second || g.Attempts != 8 ||
		g.Ring != 1024 || g.Safe != 1000 || c.ring.size != 1024 {
		t.Errorf("%+v", g)
	}
	if ts, ok := c.cfg.TS(nil); ts != 0 || ok {
		t.Error("a payload has a ts although nobody reads any")
	}
	if v := c.cfg.Rand(); v < 0 || v >= 1 {
		t.Errorf("jitter %g", v)
	}
	if trickle != 10*time.Second || maxPoll != 30*time.Second || maxPause != 5*time.Second {
		t.Error(trickle, maxPoll, maxPause)
	}
	one := NewCursor(Config{Heartbeat: 1, Idle: 1, DeadAfter: 1, Attempts: 1, Ring: 1, Safe: 1, Epoch: 7}, nobody{})
	if g := one.cfg; g.Heartbeat != 1 || g.Idle != 1 || g.DeadAfter != 1 || g.Attempts != 1 || g.Ring != 1 || g.Safe != 1 || one.State().Epoch != 7 {
		t.Errorf("%+v", g)
	}
	if s := c.State(); s.Begun || s.Live || s.Proven || s.Waiting || !s.Credit || s.Replaying || s.Missing || s.Ended || s.Next != 0 || !c.Deadline().IsZero() {
		t.Errorf("%+v", s)
	}
}

// Pauses begin at 0.1 s, double, and end at 5 s; jitter takes up to half away.
func TestPausesDoubleWithJitter(t *testing.T) {
	for _, c := range []struct {
		rand float64
		want []string
	}{
		{0, []string{"50ms", "100ms", "200ms", "400ms", "800ms", "1.6s", "2.5s", "2.5s", "2.5s"}},
		{.5, []string{"75ms", "150ms", "300ms", "600ms", "1.2s", "2.4s", "3.75s", "3.75s", "3.75s"}},
		{1, []string{"100ms", "200ms", "400ms", "800ms", "1.6s", "3.2s", "5s", "5s", "5s"}},
	} {
		cur := NewCursor(Config{Rand: func() float64 { return c.rand }}, nobody{})
		var got []string
		for n := range len(c.want) {
			got = append(got, fmt.Sprint(cur.backoff(n)))
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("jitter %g: %v, want %v", c.rand, got, c.want)
		}
		if d := cur.backoff(1 << 20); d > 5*time.Second || d < 2500*time.Millisecond {
			t.Errorf("after many: %v", d)
		}
	}
}

// A nil Budget has no bound and counts nothing; one that is used up gives nothing
// more until something is given back, to the byte.
func TestBudget(t *testing.T) {
	var none *Budget
	if !none.Take(1<<40) || none.Used() != 0 {
		t.Error("no budget is a bound")
	}
	none.Give(1)
	b := NewBudget(10)
	if b.Take(11) || b.Used() != 0 || !b.Take(10) || b.Used() != 10 || b.Take(1) || b.Used() != 10 || !b.Take(0) {
		t.Errorf("%d used", b.Used())
	}
	b.Give(3)
	if b.Used() != 7 || b.Take(4) || !b.Take(3) || b.Used() != 10 {
		t.Errorf("%d used", b.Used())
	}
}
