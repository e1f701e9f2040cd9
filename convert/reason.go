package convert

import "strconv"

// Reason says why an event, or some of its blocks, is not published. The list
// is closed: it labels metrics.
type Reason uint8

const (
	// Why whole events never became more than bytes or a tag.
	ReasonUndecodable Reason = iota
	ReasonMalformed
	ReasonUnknownTag
	ReasonIgnored
	// Whose event it is, and where.
	ReasonForeignOwner
	ReasonNonLocal
	ReasonUnknownMedium
	// Which cache group.
	ReasonNonMainKind
	ReasonUnknownKind
	ReasonNonMainGroup
	ReasonUnlearnedGroup
	// Which tokens_hash it would have.
	ReasonUnnamedLora
	ReasonAmbiguousSalt
	// The store itself.
	ReasonSelfReference
	ReasonEmpty
	ReasonNoTokens
	ReasonBlockSize
	ReasonShortTokens
	ReasonSurplusTokens
	ReasonOrphan
	// ReasonLedgerFull: Config.MaxBlocks is reached.
	ReasonLedgerFull
	// ReasonTooLarge is given by sinks: one block above max_payload.
	ReasonTooLarge

	// NumReasons is the length of the list.
	NumReasons
)

var reasonNames = [NumReasons]string{
	"undecodable_batch", "malformed_event", "unknown_tag", "ignored_event",
	"foreign_owner", "non_local", "unknown_medium",
	"non_main_attention_kind", "unknown_kind", "non_main_attention_group", "unlearned_group",
	"unnamed_lora", "ambiguous_salt",
	"self_reference", "empty", "no_tokens", "block_size_mismatch", "short_tokens", "surplus_tokens", "orphan",
	"ledger_full", "too_large",
}

// String is the reason's name in metrics, status and `kvrelay decode`.
func (r Reason) String() string {
	if int(r) < len(reasonNames) {
		return reasonNames[r]
	}
	return "reason(" + strconv.Itoa(int(r)) + ")"
}
