package decode

import "testing"

// In a tail that is read by type every kind that engines have is known by its
// name, wherever it stands; any other text is an owner beside it.
func TestTailKnowsEveryKind(t *testing.T) {
	kinds := []string{"full_attention", "mla_attention", "sink_full_attention", "sliding_window", "sliding_window_mla",
		"mamba", "chunked_local_attention", "encoder_only_attention", "cross_attention"}
	for _, kind := range kinds {
		for _, tail := range [][]any{{kind, "owner"}, {"owner", kind}, {0, "owner", kind}} {
			ev := one(t, tailed(tail...))
			if string(ev.Kind) != kind || !ev.HasKind || string(ev.Ownership) != "owner" {
				t.Errorf("%v: kind %q, owner %q", tail, ev.Kind, ev.Ownership)
			}
		}
		for i := range len(kind) { // nearly a kind is none
			near := []byte(kind)
			near[i] ^= 1
			ev := one(t, tailed(string(near), "mamba"))
			if string(ev.Kind) != "mamba" || string(ev.Ownership) != string(near) {
				t.Errorf("%q before mamba: kind %q, owner %q", near, ev.Kind, ev.Ownership)
			}
		}
	}
	for _, c := range []struct {
		tail                      []any
		kind, locality, ownership string
	}{
		{[]any{"LOCAL"}, "", "LOCAL", ""}, {[]any{"REMOTE"}, "", "REMOTE", ""}, {[]any{"framework"}, "", "", "framework"},
		{[]any{"local"}, "local", "", ""}, {[]any{"LOCAM"}, "LOCAM", "", ""}, {[]any{"REMOTF"}, "REMOTF", "", ""}, {[]any{"framewors"}, "framewors", "", ""},
		{[]any{"mamba", "framework", "LOCAL"}, "mamba", "LOCAL", "framework"},
		{[]any{"mamba", "framework", "owner"}, "mamba", "", "owner"},
		{[]any{"one", "two"}, "two", "", ""},
	} {
		ev := one(t, tailed(c.tail...))
		if string(ev.Kind) != c.kind || string(ev.Locality) != c.locality || string(ev.Ownership) != c.ownership || ev.HasKind != (c.kind != "") {
			t.Errorf("%v: kind %q, locality %q, owner %q", c.tail, ev.Kind, ev.Locality, ev.Ownership)
		}
	}
}
