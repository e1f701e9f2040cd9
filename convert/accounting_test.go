package convert

import "testing"

// accounted fails the test when the sums of design.md do not agree.
func accounted(t testing.TB, s Stats) {
	t.Helper()
	for name, c := range map[string]Tally{"events": s.Events, "blocks": s.Blocks} {
		sum := c.Published + c.Suppressed
		for _, n := range c.Dropped {
			sum += n
		}
		if sum != c.In {
			t.Errorf("%s: in %d, accounted for %d: %+v", name, c.In, sum, c)
		}
	}
}
