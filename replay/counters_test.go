package replay

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
)

// counted is every counter of c that is not 0.
func counted(c Counters) string {
	var s []string
	v := reflect.ValueOf(c)
	for i := range v.NumField() {
		if n := v.Field(i).Uint(); n != 0 {
			s = append(s, fmt.Sprint(v.Type().Field(i).Name, " ", n))
		}
	}
	return strings.Join(s, ", ")
}

// Each counter counts what its comment says, and nothing else does.
func TestEveryCounter(t *testing.T) {
	alone, keep := Config{NoReplay: true}, Config{Lost: LostKeep}
	for _, c := range []struct {
		name   string
		cfg    Config
		inputs string
		want   string
	}{
		{"live in order", Config{}, "up sent end L0 L1",
			"Frames 2, Applied 2, EpochApplied 2, Requests 1, Ended 1; 0–2, 0 held"},
		{"replayed", Config{}, "up sent R0 R1 end",
			"Frames 2, Applied 2, Replayed 2, EpochApplied 2, Requests 1, Ended 1; 0–2, 0 held"},
		{"both", Config{}, "up sent R0 L1 R1 end",
			"Frames 3, Applied 2, Replayed 2, Repeated 1, EpochApplied 2, Requests 1, Ended 1; 0–2, 0 held"},
		{"unknown before", Config{}, "up sent R7 R8 end",
			"Frames 2, Applied 2, Replayed 2, EpochApplied 2, Requests 1, Ended 1; 7–9, 0 held"},
		{"repeated", Config{}, "up sent end L0 L0 L0",
			"Frames 3, Applied 1, Repeated 2, EpochApplied 1, Requests 1, Ended 1; 0–1, 0 held"},
		{"end marker's number", Config{}, "up sent end L18446744073709551615 nocredit D18446744073709551615",
			"Frames 2, Malformed 2, Requests 1, Ended 1; 0–0, 0 held"},
		{"gap", Config{}, "up sent end L0 L2 L3 L5",
			"Frames 4, Applied 1, EpochApplied 1, Gaps 1, Requests 2, Ended 1; 0–1, 3 held"},
		{"gap healed", Config{}, "up sent end L0 L3 same R0 R1 R2 R3 end",
			"Frames 6, Applied 4, Replayed 2, Repeated 2, EpochApplied 4, Gaps 1, Requests 2, Ended 2; 0–4, 0 held"},
		{"restart by sum", Config{}, "up sent end L0 L1 L0:x",
			"Frames 3, Applied 2, Discarded 1, Restarts 1, Requests 1, Ended 1; 0–0, 0 held"},
		{"restart by anchor", Config{}, "up sent end L0 L1 down up L2 sent R1:x",
			"Frames 4, Applied 2, Discarded 2, Restarts 1, Requests 2, Ended 1, Dropped 1; 0–0, 0 held"},
		{"burned", Config{}, "up sent end L0 L3 same R0 R3 end same R0 R3",
			"Frames 6, Applied 2, Repeated 4, Burned 2, EpochApplied 2, EpochBurned 2, Gaps 1, Requests 3, Ended 2; 0–4, 0 held"},
		{"gone", Config{}, "up sent end L0 L9 same R7 +100ms sent R7",
			"Frames 4, Applied 1, Discarded 3, Lost 6, Gaps 1, Losses 1, Gone 1, Requests 3, Ended 1, Dropped 2; 0–0, 0 held"},
		{"kept", keep, "up sent end L0 pong L9 same R7 +100ms sent +1ms pong R7",
			"Frames 4, Applied 2, Replayed 1, Discarded 1, Lost 6, EpochApplied 2, EpochLost 6, Gaps 1, Losses 1, Gone 1, Requests 3, Ended 1, Dropped 1; 0–8, 1 held"},
		{"exhausted", Config{Attempts: 1}, "up sent end L0 L9 same +1s",
			"Frames 2, Applied 2, Lost 8, EpochApplied 1, Gaps 1, Losses 1, Exhausted 1, Requests 2, Ended 1, Stalled 1; 9–10, 0 held"},
		{"conflict", Config{}, "up sent L1:x R0 R1",
			"Frames 3, Applied 1, Replayed 1, Discarded 2, EpochApplied 1, Conflicts 1, Requests 1, Dropped 1; 0–1, 0 held"},
		{"conflicts exhausted", Config{Attempts: 1}, "up sent L1:x R0 R1",
			"Frames 3, Applied 2, Replayed 1, Discarded 1, EpochApplied 1, Losses 1, Conflicts 1, Exhausted 1, Requests 1, Dropped 1; 1–2, 0 held"},
		{"silence", Config{}, "up sent end L0 +2s same R0 end +4s same R0 end",
			"Frames 3, Applied 1, Repeated 2, EpochApplied 1, Polls 2, Requests 3, Ended 3; 0–1, 0 held"},
		{"stalled", Config{}, "up sent +1s +100ms sent +1s",
			"Requests 2, Stalled 1; 0–0, 0 held"},
		{"connection ended", Config{}, "up sent dropped",
			"Requests 1, Stalled 1; 0–0, 0 held"},
		{"refused", Config{}, "up refused +100ms refused",
			"Requests 2, Refused 2; 0–0, 0 held"},
		{"without credit", Config{}, "up sent end L0 L2 nocredit D3 D4 L5 credit",
			"Frames 5, Applied 1, Discarded 3, EpochApplied 1, Gaps 1, Requests 3, Ended 1, Dropped 1; 0–1, 1 held"},
		{"before it is up", Config{}, "L0 D1 up sent R0 down R1 L1",
			"Frames 5, Discarded 5; 0–0, 0 held"},
		{"unproven", Config{}, "up sent end L0 L1 down up L0 L0:x L2 down",
			"Frames 5, Applied 2, Discarded 3, EpochApplied 2, Requests 2, Ended 1, Dropped 1; 0–2, 0 held"},
		{"stopped", Config{Lost: LostExit, Attempts: 1}, "up sent end L0 L9 same +1s L1 R1",
			"Frames 4, Applied 1, Discarded 3, Lost 8, EpochApplied 1, EpochLost 8, Gaps 1, Losses 1, Exhausted 1, Requests 2, Ended 1, Stalled 1; 0–9, 0 held"},
		{"no replay: restart", alone, "up L5 L6 L0",
			"Frames 3, Applied 2, Repeated 1, EpochApplied 2; 5–7, 0 held"},
		{"no replay: gap", alone, "up L5 L8 L8",
			"Frames 3, Applied 2, Repeated 1, Lost 2, EpochApplied 1, Gaps 1, Losses 1; 8–9, 0 held"},
		{"no replay: without credit", alone, "up L5 nocredit D6 D7 credit L8",
			"Frames 4, Applied 2, Discarded 2, Lost 2, EpochApplied 1, Losses 1; 8–9, 0 held"},
		{"no replay: exit", Config{NoReplay: true, Lost: LostExit}, "up L5 L8 L8",
			"Frames 3, Applied 1, Discarded 2, Lost 2, EpochApplied 1, EpochLost 2, Gaps 1, Losses 1; 5–8, 0 held"},
		{"replies skip what was applied", Config{}, "up sent R0 L1 +1s sent R0 R2",
			"Frames 4, Applied 2, Replayed 1, Repeated 1, Discarded 1, Restarts 1, Requests 2, Stalled 1, Dropped 1; 0–0, 0 held"},
		{"no room", Config{Hold: NewBudget(heldCost + 1)}, "up sent end L0 L2 L3 L1",
			"Frames 4, Applied 3, Discarded 1, EpochApplied 3, Gaps 1, Requests 2, Ended 1; 0–3, 0 held"},
		{"probes", Config{Ring: 2}, "up sent end L0 L1 L2 down up sent end same R1 R7 end",
			"Frames 5, Applied 3, Repeated 1, Discarded 1, EpochApplied 3, Requests 3, Ended 3; 0–3, 0 held"},
		{"probe: restart", Config{Ring: 2}, "up sent end L0 L1 L2 down up sent end same R1:x",
			"Frames 4, Applied 3, Discarded 1, Restarts 1, Requests 3, Ended 2, Dropped 1; 0–0, 0 held"},
		{"probe: below", Config{Ring: 2}, "up sent end L0 L1 L2 down up sent end same end same R0 end",
			"Frames 4, Applied 3, Discarded 1, EpochApplied 3, Requests 4, Ended 4; 0–3, 0 held"},
		{"answer to an earlier request", Config{}, "up sent end R0 end",
			"Frames 1, Discarded 1, Requests 1, Ended 1; 0–0, 0 held"},
	} {
		x := newTable(t, c.cfg).do(c.inputs)
		s := x.c.State()
		if got := counted(s.Counters) + fmt.Sprintf("; %d–%d, %d held", s.Base, s.Next, s.Held); got != c.want {
			t.Errorf("%s (%s):\n got %s\nwant %s", c.name, c.inputs, got, c.want)
		}
	}
}
