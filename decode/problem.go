package decode

import "strconv"

// Error says why a payload is no batch that can be read. Its seq is consumed
// all the same: it was delivered.
type Error struct {
	Reason string // one of the Reason constants
	Off    int    // byte offset in the payload where it was seen
}

// Reasons of an Error.
const (
	ReasonEmpty     = "empty payload"
	ReasonTruncated = "a value or list ends beyond the payload"
	ReasonTooDeep   = "nested too deep"
	ReasonReserved  = "reserved byte"
	ReasonNoBatch   = "no batch"
	ReasonTooMuch   = "too much for its size"
)

func (e *Error) Error() string {
	return "decode: " + e.Reason + " at offset " + strconv.Itoa(e.Off)
}

// field is a part of an event that can be wrong.
type field uint8

const (
	fEvent field = iota
	fKey
	fTag
	fHashes
	fParent
	fTokens
	fBlockSize
	fLoraID
	fMedium
	fLoraName
	fSalt
	fExtraKeys
	fMMInfos
	fGroup
	fKind
	fWindow
	fLocality
	fOwnership
	fSession
	fTail
	fOrigin
	fUnknown
	numFields
)

var fieldNames = [numFields]string{
	fEvent: "event", fKey: "key", fTag: "type", fHashes: "block_hashes", fParent: "parent_block_hash",
	fTokens: "token_ids", fBlockSize: "block_size", fLoraID: "lora_id", fMedium: "medium",
	fLoraName: "lora_name", fSalt: "cache_salt", fExtraKeys: "extra_keys", fMMInfos: "block_mm_infos",
	fGroup: "group_idx", fKind: "kv_cache_spec_kind", fWindow: "kv_cache_spec_sliding_window",
	fLocality: "locality", fOwnership: "ownership", fSession: "session_id", fTail: "tail",
	fOrigin: "origin",
}

// cause is what is wrong with a field.
type cause uint8

const (
	good cause = iota
	wrongType
	badText
	missing
	numCauses
)

// problem is a field and a cause in one number; 0: none.
type problem uint8

const numProblems = int(numFields) * int(numCauses)

// of is the problem of a field with a cause that is not good.
func (c cause) of(f field) problem {
	return problem(f)*problem(numCauses) + problem(c)
}

// String is the text of Event.Problem.
func (p problem) String() string { return problemTexts[p] }

// problemTexts are made once, so that a malformed event allocates nothing.
var problemTexts = func() (t [numProblems]string) {
	causes := [numCauses]string{wrongType: "wrong type", badText: "invalid UTF-8", missing: "missing"}
	for f := range numFields {
		for c := wrongType; c < numCauses; c++ {
			t[c.of(f)] = fieldNames[f] + ": " + causes[c]
		}
	}
	return t
}()
