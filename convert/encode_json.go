package convert

import (
	"strconv"
	"unicode/utf8"
)

// AppendEventJSON appends e as JSON, the same fields in the same order as the
// msgpack of the dynamo profile. Numbers are full 64-bit integers.
func AppendEventJSON(dst []byte, e *RouterEvent, workerID uint64, rank uint32, id uint64) []byte {
	dst = strconv.AppendUint(append(dst, `{"worker_id":`...), workerID, 10)
	dst = append(append(append(dst, `,"storage_tier":"`...), e.Tier.String()...), '"')
	if !e.NoDomain {
		dst = append(dst, `,"residency_domain":"worker"`...)
	}
	dst = strconv.AppendUint(append(dst, `,"event":{"event_id":`...), id, 10)
	switch e.Kind {
	case Stored:
		dst = append(dst, `,"data":{"stored":{"parent_hash":`...)
		if e.HasParent {
			dst = strconv.AppendUint(dst, e.Parent, 10)
		} else {
			dst = append(dst, "null"...)
		}
		dst = append(dst, `,"start_position":null,"blocks":[`...)
		for i := range e.Blocks {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = appendBlockJSON(dst, &e.Blocks[i])
		}
		dst = append(dst, "]}}"...)
	case Removed:
		dst = append(dst, `,"data":{"removed":{"block_hashes":[`...)
		for i, h := range e.Hashes {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = strconv.AppendUint(dst, h, 10)
		}
		dst = append(dst, "]}}"...)
	case Cleared:
		dst = append(dst, `,"data":"cleared"`...)
	}
	dst = append(strconv.AppendUint(append(dst, `,"dp_rank":`...), uint64(rank), 10), '}')
	if e.SessionID != nil {
		dst = appendStringJSON(append(dst, `,"session_id":`...), e.SessionID)
	}
	return append(dst, '}')
}

func appendBlockJSON(dst []byte, b *Block) []byte {
	dst = strconv.AppendUint(append(dst, `{"block_hash":`...), b.Hash, 10)
	dst = strconv.AppendUint(append(dst, `,"tokens_hash":`...), b.TokensHash, 10)
	if b.MM == nil {
		return append(dst, `,"mm_extra_info":null}`...)
	}
	dst = append(dst, `,"mm_extra_info":{"mm_objects":[`...)
	for i, o := range b.MM {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(strconv.AppendUint(append(dst, `{"mm_hash":`...), o.Hash, 10), `,"offsets":[`...)
		for j, r := range o.Offsets {
			if j > 0 {
				dst = append(dst, ',')
			}
			dst = strconv.AppendUint(append(dst, '['), r[0], 10)
			dst = append(strconv.AppendUint(append(dst, ','), r[1], 10), ']')
		}
		dst = append(dst, "]}"...)
	}
	return append(dst, "]}}"...)
}

// appendStringJSON quotes text. What is no UTF-8 becomes U+FFFD: JSON has no other way.
func appendStringJSON(dst, text []byte) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	for len(text) > 0 {
		r, n := utf8.DecodeRune(text)
		switch {
		case r == '"' || r == '\\':
			dst = append(dst, '\\', byte(r))
		case r < ' ':
			dst = append(dst, '\\', 'u', '0', '0', hex[r>>4], hex[r&15])
		default:
			dst = utf8.AppendRune(dst, r)
		}
		text = text[n:]
	}
	return append(dst, '"')
}
