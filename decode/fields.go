package decode

import (
	"encoding/binary"
	"math"

	"github.com/kvrelay/kvrelay/internal/msgpack"
)

// readField reads the value of one field into ev, over what an earlier key of
// the same name may have left there.
func (b *Batch) readField(ev *Event, f field) (c cause) {
	switch f {
	case fHashes:
		return b.readHashes(ev)
	case fParent:
		return b.readParent(ev)
	case fTokens:
		return b.readTokens(ev)
	case fBlockSize:
		ev.BlockSize, ev.HasBlockSz, c = b.unsigned()
	case fLoraID:
		ev.LoraID, c = b.readLoraID()
	case fMedium:
		ev.Medium, c = b.text()
	case fLoraName:
		ev.LoraName, c = b.text()
	case fSalt:
		ev.CacheSalt, c = b.text()
		ev.HasSalt = ev.CacheSalt != nil
	case fExtraKeys:
		return b.readExtraKeys(ev)
	case fMMInfos:
		return b.readMMInfos(ev)
	case fGroup:
		var v uint64
		v, ev.HasGroup, c = b.unsigned()
		ev.setGroup(v)
	case fKind:
		ev.Kind, c = b.text()
		ev.HasKind = ev.Kind != nil
	case fWindow:
		_, _, c = b.unsigned()
	case fLocality:
		ev.Locality, c = b.text()
		if ev.OtherLocality = c == wrongType; ev.OtherLocality {
			b.r.Skip()
			c = good
		}
	case fOwnership:
		ev.Ownership, c = b.text()
	case fSession:
		ev.SessionID, c = b.text()
	case fOrigin:
		// Proposed only, and it decides no more than a copy count: what is no
		// text says nothing.
		v, ok := b.r.Text()
		if ev.Reused = string(v) == "REUSED"; !ok {
			b.r.Skip()
		}
	default:
		b.r.Skip()
	}
	return c
}

// unsigned reads an integer from 0 up, or nil.
func (b *Batch) unsigned() (v uint64, has bool, c cause) {
	v, has = b.r.Uint()
	if !has && !b.r.Nil() {
		c = wrongType
	}
	return v, has, c
}

// setGroup takes a group index; one above 2^32−1 counts as absent.
func (ev *Event) setGroup(v uint64) {
	ev.Group = uint32(v)
	if v > math.MaxUint32 {
		ev.Group, ev.HasGroup = 0, false
	}
}

func (b *Batch) readLoraID() (int64, cause) {
	v, neg, ok := b.r.Bits64()
	switch {
	case !ok && !b.r.Nil():
		return 0, wrongType
	case !neg && v > math.MaxInt64:
		return math.MaxInt64, good
	}
	return int64(v), good
}

func (b *Batch) readHashes(ev *Event) cause {
	ev.Hashes, ev.BytesHash = nil, false
	n, ok := b.r.Array()
	if !ok {
		return wrongType
	}
	if b.hashes.used+n > maxHashes {
		b.tooMany = true
		return wrongType
	}
	dst := b.hashes.take(n)
	i := 0
	if dst != nil {
		i = b.r.Ints(dst) // all of them, nearly always
	}
	for i < n {
		room := b.spareH[:min(n-i, len(b.spareH))]
		if dst != nil {
			room = dst[i:]
		}
		k := b.r.Ints(room)
		i += k
		if k == len(room) {
			continue
		}
		if room[k], ok = b.bytesHash(); !ok {
			return wrongType
		}
		ev.BytesHash = true
		i++
	}
	ev.Hashes = dst
	return good
}

func (b *Batch) readParent(ev *Event) cause {
	ev.Parent, ev.HasParent = 0, false
	if b.r.Nil() {
		return good
	}
	v, _, ok := b.r.Bits64()
	if !ok {
		if v, ok = b.bytesHash(); !ok {
			return wrongType
		}
	}
	ev.Parent, ev.HasParent = v, true
	return good
}

// bytesHash reads a hash that is bytes: the last eight of them, big-endian,
// fewer are padded on the left.
func (b *Batch) bytesHash() (h uint64, ok bool) {
	v, ok := b.r.Bin()
	if !ok || len(v) == 0 {
		return 0, false
	}
	if len(v) >= 8 {
		return binary.BigEndian.Uint64(v[len(v)-8:]), true
	}
	for _, c := range v {
		h = h<<8 | uint64(c)
	}
	return h, true
}

func (b *Batch) readTokens(ev *Event) cause {
	ev.Tokens, ev.HasTokens, ev.Pairs = nil, false, NoPairs
	if b.r.Nil() {
		return good
	}
	n, ok := b.r.Array()
	if !ok {
		return wrongType
	}
	ev.HasTokens = true
	if n == 0 {
		return good
	}
	at, mark := b.r.Off(), b.tokens.used
	dst := b.tokens.take(4 * n)
	done := 0
	if dst != nil {
		done = b.r.Uint32s(dst) // all of them, nearly always
	}
	for more := true; more && done < n; {
		room := b.spareT[:min(4*(n-done), len(b.spareT))]
		if dst != nil {
			room = dst[4*done:]
		}
		k := b.r.Uint32s(room)
		done += k
		more = 4*k == len(room)
	}
	if done == n {
		ev.Tokens = b.someTokens(dst)
		return good
	}
	if b.r.Kind() != msgpack.Array {
		return wrongType
	}
	b.r.Seek(at)
	b.tokens.used = mark
	return b.readPairs(ev, n)
}

// readPairs reads n EAGLE pairs (t[i], t[i+1]) as the n+1 tokens they stand
// for. Where they do not chain, or plain tokens are among them, the first
// members are taken and ev says that they are unsound.
func (b *Batch) readPairs(ev *Event, n int) cause {
	dst := b.tokens.take(4 * (n + 1))
	ev.Pairs = ChainedPairs
	var prev uint32 // second member of the pair before
	var pair bool
	for i := range n {
		var size int
		size, pair = b.r.Array()
		if pair && size != 2 {
			return wrongType
		}
		first, ok := b.token()
		if !ok {
			return wrongType
		}
		if !pair || i > 0 && first != prev {
			ev.Pairs = UnsoundPairs
		}
		if dst != nil {
			binary.LittleEndian.PutUint32(dst[4*i:], first)
		}
		prev = first
		if pair {
			if prev, ok = b.token(); !ok {
				return wrongType
			}
		}
	}
	if dst != nil {
		if pair {
			binary.LittleEndian.PutUint32(dst[4*n:], prev)
		} else {
			dst = dst[:4*n]
		}
	}
	ev.Tokens = b.someTokens(dst)
	return good
}

// someTokens returns dst, or, in a counting pass, tokens of no meaning: there
// are some, which is all that the pass needs to know.
func (b *Batch) someTokens(dst []byte) Tokens {
	if dst == nil {
		return b.spareT[:4]
	}
	return dst
}

func (b *Batch) token() (uint32, bool) {
	v, ok := b.r.Uint()
	return uint32(v), ok && v <= math.MaxUint32
}
