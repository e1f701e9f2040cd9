package decode

import (
	"encoding/hex"
	"testing"
)

// What an earlier slot of a tail gave stays, whatever a later one is or fails
// to be; and where no slot gave it, only a list with a map in it is taken.
func TestTailKeepsItsInfos(t *testing.T) {
	infos := list{dict{"mm_objects", list{dict{"mm_hash", 42, "offsets", list{list{0, 2}}}}}}
	more := list{dict{"mm_objects", list{dict{"mm_hash", 43, "offsets", list{}}}}}
	wrong := list{dict{"mm_objects", 5}}
	none := list{}
	for _, c := range []struct {
		name string
		tail list
		has  bool
		hash uint64 // 0: none
	}{
		{"infos alone", list{infos}, true, 42},
		{"an empty list behind", list{infos, 0, "full_attention", none}, true, 42},
		{"a list of nil behind", list{infos, 0, "full_attention", list{nil}}, true, 42},
		{"a list of lists behind", list{infos, 0, "full_attention", list{list{1, 2}}}, true, 42},
		{"infos as arrays behind", list{infos, 0, list{list{list{list{43, list{}}}}}}, true, 42},
		{"token ids behind", list{infos, 0, list{1, 2}}, true, 42},
		{"infos behind infos", list{infos, more}, true, 42},
		{"wrong infos behind infos", list{infos, wrong}, true, 42},
		{"a list behind infos in a later slot", list{0, infos, none}, true, 42},
		{"infos in a later slot", list{0, "full_attention", infos}, true, 42},
		{"infos behind a list that is none", list{list{list{1}}, 0, infos}, true, 42},
		{"empty infos first", list{none, 0, "full_attention"}, true, 0},
		{"empty infos first, others behind", list{none, 0, more}, true, 0},
		{"an empty list in a later slot", list{0, "full_attention", none}, false, 0},
		{"a list of nil in a later slot", list{0, "full_attention", list{nil}}, false, 0},
		{"a list of lists in a later slot", list{0, list{list{list{list{43, list{}}}}}}, false, 0},
	} {
		ev := one(t, tailed(c.tail...))
		var hash uint64
		if len(ev.MM) == 1 {
			hash = ev.MM[0].Hash
		}
		if ev.Type != Stored || ev.HasMM != c.has || hash != c.hash {
			t.Errorf("%s: type %d (%s), infos %t %v", c.name, ev.Type, ev.Problem, ev.HasMM, ev.MM)
		}
	}
}

// A batch as it was seen to lose its infos.
func TestTailKeepsItsInfosOnTheWire(t *testing.T) {
	p, err := hex.DecodeString("93cb3ff0000000000000919dab426c6f636b53746f7265649101c092010202c0c0c0c0" +
		"9181aa6d6d5f6f626a656374739182a76d6d5f686173682aa76f6666736574739192000200ae66756c6c5f617474656e74696f6e9000")
	if err != nil {
		t.Fatal(err)
	}
	var b Batch
	if err := b.Decode(p); err != nil {
		t.Fatal(err)
	}
	if ev := &b.Events[0]; !ev.HasMM || len(ev.MM) != 1 || ev.MM[0].Hash != 42 || !ev.HasGroup || string(ev.Kind) != "full_attention" {
		t.Error(show(ev))
	}
}

// A second kind or locality is no better than an owner's name: it does not
// make main attention of another kind, nor a local block of a remote one.
func TestTailKeepsItsNames(t *testing.T) {
	for _, c := range []struct {
		tail                      list
		kind, locality, ownership string
	}{
		{list{"mamba", "full_attention"}, "mamba", "", "full_attention"},
		{list{"full_attention", "mamba"}, "full_attention", "", "mamba"},
		{list{"mamba", "REMOTE", "LOCAL"}, "mamba", "REMOTE", "LOCAL"},
		{list{"REMOTE", "LOCAL"}, "LOCAL", "REMOTE", ""},
	} {
		ev := one(t, tailed(c.tail...))
		if string(ev.Kind) != c.kind || string(ev.Locality) != c.locality || string(ev.Ownership) != c.ownership {
			t.Errorf("%v: kind %q, locality %q, owner %q", c.tail, ev.Kind, ev.Locality, ev.Ownership)
		}
	}
}
