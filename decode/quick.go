package decode

import "encoding/binary"

// quick reads the value of a field that is of the plainest sort – nil, a small
// number, a short ASCII text, one hash of nine bytes – into ev, as readField
// would, and returns its size. 0: it is something else, and nothing was read.
//
// These are seven fields of ten. Through the Reader each of them waits for the
// one before: its position goes to memory and back at every step, which took
// about a tenth of the time of decoding short stores. The caller of quick keeps the
// position in a register. The price is that these cases are written twice;
// FuzzDecode and TestQuickAgrees hold them to the same meaning.
func (ev *Event) quick(f field, in []byte) (size int) {
	if len(in) == 0 {
		return 0
	}
	c := in[0]
	switch f {
	case fParent:
		if c == 0xc0 {
			ev.Parent, ev.HasParent = 0, false
			return 1
		}
		if (c == 0xcf || c == 0xd3) && len(in) >= 9 {
			ev.Parent, ev.HasParent = binary.BigEndian.Uint64(in[1:9]), true
			return 9
		}
		return 0
	case fBlockSize, fLoraID, fGroup, fWindow:
		if c > 0x7f && c != 0xc0 {
			return 0
		}
		v, has := uint64(c&0x7f), true
		if c == 0xc0 {
			v, has = 0, false
		}
		switch f {
		case fBlockSize:
			ev.BlockSize, ev.HasBlockSz = v, has
		case fLoraID:
			ev.LoraID = int64(v)
		case fGroup:
			ev.Group, ev.HasGroup = uint32(v), has
		}
		return 1
	case fExtraKeys, fMMInfos:
		if c != 0xc0 {
			return 0
		}
		if f == fExtraKeys {
			ev.ExtraKeys = nil
		} else {
			ev.MM, ev.HasMM = nil, false
		}
		return 1
	case fMedium, fLoraName, fSalt, fKind, fLocality, fOwnership, fSession:
	default:
		return 0
	}
	v, size := quickText(in)
	if size == 0 {
		return 0
	}
	switch f {
	case fMedium:
		ev.Medium = v
	case fLoraName:
		ev.LoraName = v
	case fSalt:
		ev.CacheSalt, ev.HasSalt = v, v != nil
	case fKind:
		ev.Kind, ev.HasKind = v, v != nil
	case fLocality:
		ev.Locality, ev.OtherLocality = v, false
	case fOwnership:
		ev.Ownership = v
	case fSession:
		ev.SessionID = v
	}
	return size
}

// quickText is a nil, or a string of at most 16 ASCII characters, and its size.
func quickText(in []byte) (v []byte, size int) {
	c := in[0]
	if c == 0xc0 {
		return nil, 1
	}
	size = 1 + int(c&0x1f)
	if c&0xe0 != 0xa0 || size > 17 || size > len(in) || !ascii(in[1:size]) {
		return nil, 0
	}
	return in[1:size:size], size
}

// ascii is whether the at most 16 bytes of v are ASCII.
func ascii(v []byte) bool {
	const high = 0x8080808080808080
	if n := len(v); n >= 8 {
		return (binary.LittleEndian.Uint64(v)|binary.LittleEndian.Uint64(v[n-8:]))&high == 0 // they may overlap
	}
	var all byte
	for _, c := range v {
		all |= c
	}
	return all < 0x80
}
