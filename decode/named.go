package decode

// fieldOf is the field that a map's key names.
func fieldOf(key []byte) field {
	switch string(key) {
	case "type":
		return fTag
	case "block_hashes":
		return fHashes
	case "parent_block_hash":
		return fParent
	case "token_ids":
		return fTokens
	case "block_size":
		return fBlockSize
	case "lora_id":
		return fLoraID
	case "medium":
		return fMedium
	case "lora_name":
		return fLoraName
	case "cache_salt":
		return fSalt
	case "extra_keys":
		return fExtraKeys
	case "block_mm_infos":
		return fMMInfos
	case "group_idx":
		return fGroup
	case "kv_cache_spec_kind":
		return fKind
	case "kv_cache_spec_sliding_window":
		return fWindow
	case "locality":
		return fLocality
	case "ownership":
		return fOwnership
	case "session_id":
		return fSession
	case "origin":
		return fOrigin
	}
	return fUnknown
}

// Which fields an event of a type has. A key that is not among them is to it
// as any unknown key.
const (
	removedFields = 1<<fHashes | 1<<fMedium | 1<<fGroup | 1<<fKind | 1<<fWindow | 1<<fLocality | 1<<fOwnership
	clearedFields = 1<<fMedium | 1<<fOwnership
)

// readNamed reads an event that is a map. The type may be its last key, and of
// a repeated key the last value counts; so what is wrong is noted per field,
// and judged when all are read.
func (b *Batch) readNamed(ev *Event) (tag []byte, p problem) {
	n, ok := b.r.Map()
	if !ok {
		return nil, wrongType.of(fEvent)
	}
	mark := b.mark()
	var seen uint32
	var wrong [numFields]cause
	for range n {
		key, c := b.key()
		if c != good {
			if b.r.Failed() {
				return nil, c.of(fKey)
			}
			wrong[fKey] = max(wrong[fKey], c)
			if c == wrongType {
				b.r.Skip()
			}
			if !b.r.Skip() {
				return nil, c.of(fKey)
			}
			continue
		}
		f := fieldOf(key)
		seen |= 1 << f
		at := b.r.Off()
		if f == fTag {
			tag, c = b.key()
		} else {
			c = b.readField(ev, f)
		}
		if wrong[f] = c; c != good {
			b.r.Seek(at)
			b.r.Skip()
		}
		if b.r.Failed() {
			return nil, wrongType.of(f)
		}
	}
	if wrong[fKey] != good {
		return tag, wrong[fKey].of(fKey)
	}
	if wrong[fTag] != good {
		return nil, wrong[fTag].of(fTag)
	}
	if seen&(1<<fTag) == 0 {
		return nil, missing.of(fTag)
	}
	return tag, b.judge(ev, tag, mark, seen, &wrong)
}

// judge says what is wrong with a map of the type tag, and leaves in ev only
// what that type has.
func (b *Batch) judge(ev *Event, tag []byte, mark marks, seen uint32, wrong *[numFields]cause) problem {
	typ := typeOf(tag)
	var has uint32
	switch typ {
	case Stored:
		has = ^uint32(0)
	case Removed:
		has = removedFields
		r := Event{IsMap: true, Hashes: ev.Hashes, BytesHash: ev.BytesHash, Medium: ev.Medium,
			Group: ev.Group, HasGroup: ev.HasGroup, Kind: ev.Kind, HasKind: ev.HasKind,
			Locality: ev.Locality, OtherLocality: ev.OtherLocality, Ownership: ev.Ownership}
		*ev = r
	case Cleared:
		// As in a tuple, a value of another type is ignored.
		for _, f := range [...]field{fMedium, fOwnership} {
			if wrong[f] == badText {
				return badText.of(f)
			}
		}
		*ev = Event{IsMap: true, Medium: ev.Medium, Ownership: ev.Ownership}
	case Unknown:
		*ev = Event{IsMap: true, Name: tag}
	default:
		*ev = Event{IsMap: true}
	}
	ev.Type = typ
	if typ != Stored && typ != Removed {
		b.back(mark)
		return 0
	}
	for f := fHashes; f < numFields; f++ {
		if wrong[f] != good && has&(1<<f) != 0 {
			return wrong[f].of(f)
		}
	}
	if seen&(1<<fHashes) == 0 {
		return missing.of(fHashes)
	}
	if typ == Stored && len(ev.Tokens) > 0 && !ev.HasBlockSz {
		return missing.of(fBlockSize)
	}
	return 0
}
