package convert

import (
	"fmt"
	"slices"
	"testing"
)

// The names of reasons label metrics, and people and alerts know them.
func TestReasonNames(t *testing.T) {
	want := []string{
		"undecodable_batch", "malformed_event", "unknown_tag", "ignored_event", "foreign_owner", "non_local", "unknown_medium",
		"non_main_attention_kind", "unknown_kind", "non_main_attention_group", "unlearned_group", "unnamed_lora", "ambiguous_salt",
		"self_reference", "empty", "no_tokens", "block_size_mismatch", "short_tokens", "surplus_tokens", "orphan", "ledger_full", "too_large",
	}
	reasons := []Reason{
		ReasonUndecodable, ReasonMalformed, ReasonUnknownTag, ReasonIgnored, ReasonForeignOwner, ReasonNonLocal, ReasonUnknownMedium,
		ReasonNonMainKind, ReasonUnknownKind, ReasonNonMainGroup, ReasonUnlearnedGroup, ReasonUnnamedLora, ReasonAmbiguousSalt,
		ReasonSelfReference, ReasonEmpty, ReasonNoTokens, ReasonBlockSize, ReasonShortTokens, ReasonSurplusTokens, ReasonOrphan, ReasonLedgerFull, ReasonTooLarge,
	}
	for i, r := range reasons {
		if r.String() != want[i] || r != Reason(i) {
			t.Errorf("reason %d is %q, want %q", i, r, want[i])
		}
	}
	if len(reasons) != int(NumReasons) {
		t.Errorf("%d reasons here, %d there", len(reasons), NumReasons)
	}
}

// What a person reads: both numbers, and which setting to look at.
func TestNoticeTexts(t *testing.T) {
	for _, c := range []struct {
		n    Notice
		want string
	}{
		{Notice{Kind: NoticeBlockSize, Got: 16}, "block size 16 learned from the engine's first store"},
		{Notice{Kind: NoticeMismatch, Want: 16, Got: 32}, "the engine stores blocks of 32 tokens, but 16 are expected: nothing is published; set BLOCK_SIZE=32, or correct what discovery says"},
		{Notice{Kind: NoticeMismatch, Want: 16, Got: 32, Learned: true}, "the engine stores blocks of 32 tokens, but its first store taught 16: nothing is published; set BLOCK_SIZE=32 if that is the engine's size"},
		{Notice{Kind: NoticeMismatch, Want: 16}, "the engine stores blocks of 0 tokens, which cannot be, and 16 are expected: nothing is published; is this an engine's event stream?"},
		{Notice{Kind: NoticeMismatch, Want: 16, Got: 1 << 32, Learned: true}, "the engine stores blocks of 4294967296 tokens, which cannot be, and 16 are expected: nothing is published; is this an engine's event stream?"},
		{Notice{Kind: NoticeMismatch, Want: 16, Got: 1<<32 - 1}, "the engine stores blocks of 4294967295 tokens, but 16 are expected: nothing is published; set BLOCK_SIZE=4294967295, or correct what discovery says"},
		{Notice{Kind: NoticeFullReporting}, "the engine reports fully (kv_cache_report_mode=full): announcements of reused blocks no longer count as copies"},
		{Notice{Kind: NoticeUntrusted}, "the engine's block hashes stand for several places or name wrong parents (SGLang ≤ 0.5.5 does so): prefixes of this engine version cannot be trusted"},
		{Notice{Kind: NoticeBound, Bound: BoundBlocks}, "a bound was reached: blocks in the ledger (MaxBlocks): further stores are dropped"},
		{Notice{Kind: NoticeBound, Bound: BoundRefused}, "a bound was reached: refused hashes: the oldest are forgotten"},
		{Notice{Kind: NoticeBound, Bound: BoundAmbiguous}, "a bound was reached: ambiguous salts: the oldest are forgotten"},
		{Notice{Kind: NoticeBound, Bound: BoundSalts}, "a bound was reached: cache salts in use: blocks of further ones lose their unsalted children"},
		{Notice{Kind: NoticeBound, Bound: BoundGroups}, "a bound was reached: cache groups: further ones are counted as one"},
		{Notice{Kind: NoticeBound, Bound: BoundMultimodal}, "a bound was reached: multimodal information: snapshots have none for further blocks"},
		{Notice{Kind: NoticeBound, Bound: BoundCopies}, "a bound was reached: copies of one block, or blocks of several groups: more are not counted"},
		{Notice{Kind: NoticeBound, Bound: BoundTags}, "a bound was reached: unknown tags: further ones are counted together"},
		{Notice{Kind: 6}, "notice(6)"}, {Notice{}, "notice(0)"},
	} {
		if got := c.n.String(); got != c.want {
			t.Errorf("got  %s\nwant %s", got, c.want)
		}
	}
	kinds := []NoticeKind{NoticeBlockSize, NoticeMismatch, NoticeFullReporting, NoticeUntrusted, NoticeBound}
	if !slices.Equal(kinds, []NoticeKind{1, 2, 3, 4, 5}) || fmt.Sprint(numBounds) != "bound(8)" {
		t.Error(kinds, numBounds)
	}
}
