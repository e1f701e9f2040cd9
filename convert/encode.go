package convert

import (
	"encoding/binary"

	"github.com/kvrelay/kvrelay/internal/msgpack"
)

// The msgpack of a router event is that of Dynamo 1.6.1, byte for byte: maps
// with named fields in this order, every number in its smallest encoding.
//
//	{worker_id, storage_tier, residency_domain?, event, session_id?}
//	event {event_id, data, dp_rank}
//	data  {"stored": {parent_hash, start_position, blocks}} | {"removed": {block_hashes}} | "cleared"
//	block {block_hash, tokens_hash, mm_extra_info}
const (
	keyWorker    = "\xa9worker_id"
	keyTier      = "\xacstorage_tier"
	keyDomain    = "\xb0residency_domain\xa6worker"
	keyEvent     = "\xa5event\x83\xa8event_id"
	keySession   = "\xaasession_id"
	keyRank      = "\xa7dp_rank"
	keyStored    = "\xa4data\x81\xa6stored\x83\xabparent_hash"
	keyStart     = "\xaestart_position\xc0\xa6blocks"
	keyRemoved   = "\xa4data\x81\xa7removed\x81\xacblock_hashes"
	keyCleared   = "\xa4data\xa7cleared"
	keyBlock     = "\x83\xaablock_hash"
	keyTokens    = "\xabtokens_hash"
	keyMM        = "\xadmm_extra_info"
	keyNoMM      = keyMM + "\xc0"
	keyObjects   = "\x81\xaamm_objects"
	keyMMHash    = "\x82\xa7mm_hash"
	keyOffsets   = "\xa7offsets"
	maxUint      = 9 // bytes of the longest unsigned integer
	maxHeader    = 5 // bytes of the longest array or string header
	maxBlockSize = len(keyBlock) + maxUint + len(keyTokens) + maxUint + len(keyNoMM)

	// maxEnvelope is everything of an event but session, blocks and hashes.
	maxEnvelope = 1 + len(keyWorker) + maxUint + len(keyTier) + 12 + len(keyDomain) + len(keyEvent) + maxUint +
		len(keyStored) + maxUint + len(keyStart) + maxHeader + len(keyRank) + maxUint
)

// AppendEvent appends e in the dynamo profile's msgpack.
func AppendEvent(dst []byte, e *RouterEvent, workerID uint64, rank uint32, id uint64) []byte {
	return appendEvent(dst, e, workerID, rank, id, !e.NoDomain)
}

// AppendEventSingle appends e in the dynamo-single profile's msgpack, which has
// no residency_domain.
func AppendEventSingle(dst []byte, e *RouterEvent, workerID uint64, rank uint32, id uint64) []byte {
	return appendEvent(dst, e, workerID, rank, id, false)
}

func appendEvent(dst []byte, e *RouterEvent, workerID uint64, rank uint32, id uint64, domain bool) []byte {
	dst = grow(dst, MaxEventSize(e))
	fields, named := 3, 0
	if domain {
		fields, named = 4, 1
	}
	if e.SessionID != nil {
		fields++
	}
	dst = msgpack.AppendUint(append(append(dst, 0x80|byte(fields)), keyWorker...), workerID)
	dst = msgpack.AppendUint(append(dst, middles[named][e.Tier&tierBits]...), id)
	switch e.Kind {
	case Stored:
		dst = append(dst, keyStored...)
		if e.HasParent {
			dst = msgpack.AppendUint(dst, e.Parent)
		} else {
			dst = msgpack.AppendNil(dst)
		}
		dst = msgpack.AppendArrayHeader(append(dst, keyStart...), len(e.Blocks))
		dst = appendBlocks(dst, e.Blocks)
	case Removed:
		dst = msgpack.AppendArrayHeader(append(dst, keyRemoved...), len(e.Hashes))
		for _, h := range e.Hashes {
			dst = msgpack.AppendUint(dst, h)
		}
	case Cleared:
		dst = append(dst, keyCleared...)
	}
	dst = msgpack.AppendUint(append(dst, keyRank...), uint64(rank))
	if e.SessionID != nil {
		dst = msgpack.AppendStr(append(dst, keySession...), e.SessionID)
	}
	return dst
}

// middles is what lies between the worker's id and the event's, without the
// residency domain and with it, by tier: a store of one block is mostly names,
// and one copy is quicker than five.
var middles = func() (m [2][tierBits + 1]string) {
	for t := range m[0] {
		tier := keyTier + string(msgpack.AppendStr(nil, Tier(t).String()))
		m[0][t] = tier + keyEvent
		m[1][t] = tier + keyDomain + keyEvent
	}
	return m
}()

// appendBlocks is where encoding spends its time: most hashes need all nine
// bytes, so that whole blocks of one fixed shape are written.
func appendBlocks(dst []byte, blocks []Block) []byte {
	for i := range blocks {
		b := &blocks[i]
		if b.MM == nil && b.Hash>>32 != 0 && b.TokensHash>>32 != 0 {
			n := len(dst)
			dst = append(dst, blockShape...)
			binary.BigEndian.PutUint64(dst[n+atHash:], b.Hash)
			binary.BigEndian.PutUint64(dst[n+atTokens:], b.TokensHash)
			continue
		}
		dst = msgpack.AppendUint(append(dst, keyBlock...), b.Hash)
		dst = msgpack.AppendUint(append(dst, keyTokens...), b.TokensHash)
		if b.MM == nil {
			dst = append(dst, keyNoMM...)
			continue
		}
		dst = appendObjects(append(dst, keyMM...), b.MM)
	}
	return dst
}

// blockShape is a block with two nine-byte hashes and no multimodal objects.
const (
	blockShape = keyBlock + "\xcf12345678" + keyTokens + "\xcf12345678" + keyNoMM
	atHash     = len(keyBlock) + 1
	atTokens   = len(keyBlock) + maxUint + len(keyTokens) + 1
)

func appendObjects(dst []byte, objects []MMObject) []byte {
	dst = msgpack.AppendArrayHeader(append(dst, keyObjects...), len(objects))
	for _, o := range objects {
		dst = msgpack.AppendUint(append(dst, keyMMHash...), o.Hash)
		dst = msgpack.AppendArrayHeader(append(dst, keyOffsets...), len(o.Offsets))
		for _, r := range o.Offsets {
			dst = msgpack.AppendArrayHeader(dst, 2)
			dst = msgpack.AppendUint(msgpack.AppendUint(dst, r[0]), r[1])
		}
	}
	return dst
}

// MaxEventSize is an upper bound for what AppendEvent and AppendEventSingle add
// for e, whatever worker, rank and id are; seldom above the truth by more than
// 120 bytes and, for small hashes, 16 bytes a block.
func MaxEventSize(e *RouterEvent) int {
	n := maxEnvelope + len(e.Hashes)*maxUint + len(e.Blocks)*maxBlockSize
	if e.SessionID != nil {
		n += len(keySession) + maxHeader + len(e.SessionID)
	}
	for i := range e.Blocks {
		if mm := e.Blocks[i].MM; mm != nil {
			n += len(keyObjects) + maxHeader
			for _, o := range mm {
				n += len(keyMMHash) + maxUint + len(keyOffsets) + maxHeader + len(o.Offsets)*(1+2*maxUint)
			}
		}
	}
	return n
}

// grow makes room for n more bytes.
func grow(dst []byte, n int) []byte {
	if cap(dst)-len(dst) >= n {
		return dst
	}
	bigger := make([]byte, len(dst), max(2*cap(dst), len(dst)+n))
	copy(bigger, dst)
	return bigger
}
