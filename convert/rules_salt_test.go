package convert

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kvrelay/kvrelay/decode"
)

// TestSaltSpread: who inherits which salt, and when it is not known.
func TestSaltSpread(t *testing.T) {
	x := newTester(t, Config{})
	hash := func(h uint64) uint64 { return x.fold[placed{Device, h}].tokens }
	x.batch(stored(0, []uint64{1, 2}, salted("a")), stored(2, []uint64{3}), stored(0, []uint64{8}), stored(8, []uint64{9}))
	if hash(3) == hash(9) {
		t.Error("a child of a salted block has the hash of an unsalted one")
	}
	x.batch(stored(0, []uint64{11, 12}, salted("b")), stored(12, []uint64{13}))
	if hash(13) == hash(3) || hash(13) == hash(9) {
		t.Error("two salts give the same hash")
	}
	x.want("S device 3>4", stored(3, []uint64{4}, salted("b"))) // a salt of its own wins
	x.batch(stored(3, []uint64{5}))
	if hash(5) != hash(3) || hash(4) != hash(13) {
		t.Error("salt inherited through a chain differs")
	}
	// Seen under two salts: its unsalted children cannot be hashed. This stays
	// beyond its removal, until a clear.
	x.want("S device 11>2; ambiguous_salt 1", stored(11, []uint64{2}), stored(2, []uint64{20}))
	x.want("S device 2>20", stored(2, []uint64{20}, salted("a")))
	x.batch(removed(2), removed(2))
	x.want("ambiguous_salt 1", stored(2, []uint64{21}))
	x.want("C; S device 2>21", decode.Event{Type: decode.Cleared}, stored(2, []uint64{21}))
	// Salted, and as a plain root, in both orders and on two tiers.
	x.want("S device ->30; S host_pinned ->30; ambiguous_salt 1", stored(0, []uint64{30}, salted("a")), stored(0, []uint64{30}, on("CPU")), stored(30, []uint64{31}))
	x.want("S device ->40; S device ->40; ambiguous_salt 1", stored(0, []uint64{40}), stored(0, []uint64{40}, salted("a")), stored(40, []uint64{41}))
	// Forgotten with the last copy.
	x.batch(stored(0, []uint64{50}, salted("a")), stored(0, []uint64{50}, on("CPU"), salted("a")))
	x.batch(removed(50), stored(50, []uint64{51}))
	x.batch(apply(removed(50), on("CPU")), stored(50, []uint64{52}))
	x.batch(stored(0, []uint64{60}))
	if hash(51) == hash(52) || hash(52) != hash(60) {
		t.Error("a salt lives as long as a copy on any tier, and no longer")
	}
	// Dropped events spread none.
	x.want("R device 70; S device 70>71; surplus_tokens 1", stored(0, []uint64{70}, salted("a"), tokens(5)), apply(removed(70)), stored(70, []uint64{71}))
}

// TestSaltNotKept: what is kept of a salt is its seed.
func TestSaltNotKept(t *testing.T) {
	x := newTester(t, Config{})
	x.batch(stored(0, []uint64{1}, salted("tenant-secret")))
	if got := fmt.Sprintf("%+v", *x.r); strings.Contains(got, "tenant-secret") {
		t.Error("the salt itself is kept")
	}
}

// TestGroups: kinds are learned from local stores, per group; a clear keeps
// them, a restart does not.
func TestGroups(t *testing.T) {
	x := newTester(t, Config{})
	x.want("unlearned_group 1", stored(0, []uint64{1}, in(3, "")))
	x.want("S disk ->1", stored(0, []uint64{1}, in(3, ""), on("DISK")))
	x.want("unlearned_group 1", stored(0, []uint64{1}, in(3, "")))
	x.want("non_local 1", stored(0, []uint64{1}, in(3, "full_attention"), func(ev *decode.Event) { ev.Locality = []byte("REMOTE") }))
	x.want("unlearned_group 1", stored(0, []uint64{1}, in(3, "")))
	x.want("R device 1", apply(removed(1), in(3, "full_attention"))) // not from removes
	x.want("unlearned_group 1", stored(0, []uint64{1}, in(3, "")))
	x.want("S device ->1; S device ->2", stored(0, []uint64{1}, in(3, "full_attention")), stored(0, []uint64{2}, in(3, "")))
	x.want("non_main_attention_kind 1; non_main_attention_group 1", stored(0, []uint64{4}, in(0, "mamba")), stored(0, []uint64{4}, in(0, "")))
	x.want("S device ->4", stored(0, []uint64{4})) // names neither
	x.want("C; S device ->5; non_main_attention_group 1", decode.Event{Type: decode.Cleared}, stored(0, []uint64{5}, in(3, "")), stored(0, []uint64{4}, in(0, "")))
	x.want("unknown_kind 2", stored(0, []uint64{6}, in(3, "odd")), apply(removed(5), in(3, "")))
	x.want("S device ->6", stored(0, []uint64{6}, in(3, "sink_full_attention")))
	x.r.Restart()
	x.fold = picture{}
	x.want("S device ->4; unlearned_group 1", stored(0, []uint64{7}, in(3, "")), stored(0, []uint64{4}, in(0, "")))
}
