package replay

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
)

// said is what a State says besides its counters, what is zero or false left out.
func said(s State) string {
	var out []string
	v := reflect.ValueOf(s)
	for i := range v.NumField() {
		f := v.Type().Field(i)
		if f.Anonymous || v.Field(i).IsZero() || f.Name == "Position" || f.Name == "HeldBytes" {
			continue
		}
		if f.Type.Kind() == reflect.Bool {
			out = append(out, f.Name)
		} else {
			out = append(out, fmt.Sprint(f.Name, " ", v.Field(i)))
		}
	}
	return strings.Join(out, ", ")
}

// State says what is the matter at every step.
func TestStateAtEveryStep(t *testing.T) {
	for _, c := range []struct {
		cfg    Config
		inputs string
		want   string
	}{
		{Config{}, "",
			"Credit"},
		{Config{}, "up",
			"Live, Credit, Replaying"},
		{Config{}, "up sent",
			"Live, Credit, Replaying"},
		{Config{}, "up sent R3",
			"Begun, Base 3, Next 4, Live, Credit, Replaying"},
		{Config{}, "up sent L1",
			"Live, Credit, Replaying, Missing, Held 1"},
		{Config{}, "up sent end",
			"Live, Proven, Credit"},
		{Config{}, "up sent end L0",
			"Begun, Next 1, Live, Proven, Credit"},
		{Config{}, "up sent end L0 L2",
			"Begun, Next 1, Live, Proven, Credit, Replaying, Missing, Held 1"},
		{Config{}, "up sent end L0 L2 same R0 R1",
			"Begun, Next 3, Live, Proven, Credit, Replaying"},
		{Config{}, "up sent end L0 L2 same +1s",
			"Begun, Next 1, Live, Proven, Credit, Replaying, Missing, Held 1, Attempts 1"},
		{Config{}, "up sent end L0 L2 same +1s +200ms sent +1s",
			"Begun, Next 1, Live, Proven, Credit, Replaying, Missing, Held 1, Attempts 2"},
		{Config{}, "up sent end L0 +2s same +1s +200ms sent R0 end",
			"Begun, Next 1, Live, Proven, Credit"},
		{Config{}, "up sent end L0 L2 same R0 R1 end",
			"Begun, Next 3, Live, Proven, Credit"},
		{Config{}, "up sent end L0 nocredit",
			"Begun, Next 1, Live, Proven"},
		{Config{}, "up sent end L0 nocredit D5",
			"Begun, Next 1, Live, Proven, Missing"},
		{Config{}, "up sent end L0 nocredit D5 credit",
			"Begun, Next 1, Live, Proven, Credit, Replaying, Missing"},
		{Config{}, "up sent end L0 down",
			"Begun, Next 1, Credit"},
		{Config{}, "up sent end L0 down +30s",
			"Begun, Next 1, Waiting, Credit"},
		{Config{}, "up sent end L0 down +30s up",
			"Begun, Next 1, Live, Waiting, Credit, Replaying"},
		{Config{}, "up sent end L0 down +30s up sent R0",
			"Begun, Next 1, Live, Proven, Credit, Replaying"},
		{Config{}, "up sent end L0 L0:x",
			"Epoch 1, Credit"},
		{Config{}, "up sent end L0 L5 same R3 +100ms sent R3",
			"Epoch 1, Credit"},
		{Config{Lost: LostKeep}, "up sent end L0 L5 same R3 +100ms sent R3 end",
			"Begun, Next 1, Live, Proven, Credit, Replaying, Missing, Held 2"},
		{Config{Lost: LostExit}, "up sent end L0 L5 same R3 +100ms sent R3",
			"Begun, Next 3, Live, Proven, Credit, Ended"},
		{Config{NoReplay: true}, "up",
			"Live, Proven, Credit"},
		{Config{NoReplay: true}, "up L4",
			"Begun, Base 4, Next 5, Live, Proven, Credit"},
		{Config{NoReplay: true}, "up L4 nocredit D5",
			"Begun, Base 4, Next 5, Live, Proven, Missing"},
		{Config{NoReplay: true, Epoch: 3}, "up L4 L6",
			"Epoch 4, Begun, Base 6, Next 7, Live, Proven, Credit"},
	} {
		x := newTable(t, c.cfg).do(c.inputs)
		s := x.c.State()
		if got := said(s); got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.inputs, got, c.want)
		}
		if want := int64(s.Held) * (heldCost + 1); s.HeldBytes != want {
			t.Errorf("%s: %d bytes held, want %d", c.inputs, s.HeldBytes, want)
		}
		if s.Begun && s.Position != (Position{s.Epoch, x.c.anchor.seq, x.c.anchor.sum}) {
			t.Errorf("%s: %+v", c.inputs, s.Position)
		}
	}
}
