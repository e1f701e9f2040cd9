package admin

import "github.com/kvrelay/kvrelay/convert"

// DropReasons explains the reasons, for the page and the documentation.
func DropReasons() map[string]string {
	m := map[string]string{}
	for r, text := range reasonTexts {
		m[convert.Reason(r).String()] = text
	}
	return m
}

var reasonTexts = [convert.NumReasons]string{
	convert.ReasonUndecodable:    "a whole batch that is no msgpack of any engine",
	convert.ReasonMalformed:      "an event with impossible fields",
	convert.ReasonUnknownTag:     "an event of a kind that kvrelay does not know",
	convert.ReasonIgnored:        "an event that says nothing about blocks",
	convert.ReasonForeignOwner:   "about blocks of another owner than this engine",
	convert.ReasonNonLocal:       "about blocks that are not on this host",
	convert.ReasonUnknownMedium:  "on a medium that kvrelay does not know",
	convert.ReasonNonMainKind:    "of a cache group that routers do not match: not main attention",
	convert.ReasonUnknownKind:    "of a cache group whose kind is unknown",
	convert.ReasonNonMainGroup:   "of another cache group than the main one",
	convert.ReasonUnlearnedGroup: "of a cache group that has not told its kind",
	convert.ReasonUnnamedLora:    "of a LoRA adapter without a name",
	convert.ReasonAmbiguousSalt:  "the cache salt of its parent cannot be told",
	convert.ReasonSelfReference:  "a block that is its own parent",
	convert.ReasonEmpty:          "an event without blocks",
	convert.ReasonNoTokens:       "a store without tokens of blocks that are not known",
	convert.ReasonBlockSize:      "blocks of another size than expected: check BLOCK_SIZE and the engine's block size",
	convert.ReasonShortTokens:    "fewer tokens than its blocks need",
	convert.ReasonSurplusTokens:  "more tokens than its blocks hold",
	convert.ReasonOrphan:         "its parent was dropped",
	convert.ReasonLedgerFull:     "the ledger is full",
	convert.ReasonTooLarge:       "one block alone exceeds NATS' max_payload",
}

// reasons are the drop reasons that a rank can give. too_large is given by the
// sink, which counts it for the whole process.
func reasons() []convert.Reason {
	var list []convert.Reason
	for r := range convert.NumReasons {
		if r != convert.ReasonTooLarge {
			list = append(list, r)
		}
	}
	return list
}

func reasonNames() []string {
	var list []string
	for _, r := range reasons() {
		list = append(list, r.String())
	}
	return list
}
