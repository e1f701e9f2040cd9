package convert

import (
	"fmt"
	"testing"

	"github.com/zeebo/xxh3"
)

// placed is a (tier, hash), as consumers know it.
type placed struct {
	tier Tier
	hash uint64
}

// told is what a router event said of it last.
type told struct {
	tokens, parent uint64
	hasParent      bool
	mm             string
}

// picture is the fold of router events: what a consumer that missed nothing holds.
type picture map[placed]told

func (p picture) apply(events []RouterEvent) {
	for i := range events {
		e := &events[i]
		switch e.Kind {
		case Stored:
			hasParent, parent := e.HasParent, e.Parent
			for _, b := range e.Blocks {
				p[placed{e.Tier, b.Hash}] = told{b.TokensHash, parent, hasParent, mmText(b.MM)}
				hasParent, parent = true, b.Hash
			}
		case Removed:
			for _, h := range e.Hashes {
				delete(p, placed{e.Tier, h})
			}
		case Cleared:
			clear(p)
		}
	}
}

func mmText(mm []MMObject) string {
	if mm == nil {
		return ""
	}
	return fmt.Sprint(mm)
}

// ledgerPicture is what Walk says is published.
func ledgerPicture(r *Rank) picture {
	p := picture{}
	var out Output
	newest := r.Newest()
	for from := uint64(1); from <= newest; {
		out.Reset()
		next := r.Walk(from, newest, &out)
		if next <= from {
			panic("Walk does not advance")
		}
		p.apply(out.Events)
		from = next
	}
	return p
}

// samePicture fails the test where the ledger and the fold differ.
func samePicture(t testing.TB, r *Rank, fold picture) {
	t.Helper()
	walked := ledgerPicture(r)
	for k, v := range fold {
		if w, ok := walked[k]; !ok || w != v {
			t.Errorf("%v %d: published %+v, the ledger has %+v (there: %t)", k.tier, k.hash, v, w, ok)
			break
		}
	}
	for k := range walked {
		if _, ok := fold[k]; !ok {
			t.Errorf("%v %d: in the ledger, not published", k.tier, k.hash)
			break
		}
	}
	if s := r.Stats(); s.Present != len(fold) {
		t.Errorf("Present %d, published %d", s.Present, len(fold))
	}
}

// hashBytes is the tokens_hash of the base model.
func hashBytes(b []byte) uint64 { return xxh3.HashSeed(b, routerSeed) }
