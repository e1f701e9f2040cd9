package convert

import (
	"testing"

	"github.com/kvrelay/kvrelay/decode"
)

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

// TestBatchCounters: what is counted of batches, and whose they are.
func TestBatchCounters(t *testing.T) {
	r := New(Config{})
	var out Output
	r.Convert(&decode.Batch{BadRank: true, Events: []decode.Event{stored(0, []uint64{1}), stored(1, []uint64{2}), removed(3)}}, &out)
	r.Convert(&decode.Batch{}, &out)
	r.Undecodable()
	s := r.Stats()
	if s.Batches != 2 || s.BadRank != 1 || s.Undecodable != 1 || s.RouterEvents != 2 || s.Events.In != 3 || s.Events.Published != 3 ||
		s.Blocks.In != 3 || s.Blocks.Published != 3 || s.Drops(ReasonUndecodable) != 1 || s.Drops(ReasonMalformed) != 0 {
		t.Errorf("%+v", s)
	}
	for _, c := range []struct {
		b    decode.Batch
		want uint32
	}{
		{decode.Batch{}, 5}, {decode.Batch{BadRank: true}, 5}, {decode.Batch{HasRank: true, Rank: 7}, 7}, {decode.Batch{HasRank: true}, 0},
	} {
		if got := RankOf(&c.b, 5); got != c.want {
			t.Errorf("rank %d, want %d", got, c.want)
		}
	}
}
