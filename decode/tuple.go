package decode

// readTuple reads an event that is an array with its tag first.
func (b *Batch) readTuple(ev *Event) (tag []byte, p problem) {
	n, ok := b.r.Array()
	if !ok {
		return nil, wrongType.of(fEvent)
	}
	if n == 0 {
		return nil, missing.of(fTag)
	}
	tag, c := b.key()
	if c != good {
		return nil, c.of(fTag)
	}
	n--
	switch ev.Type = typeOf(tag); ev.Type {
	case Stored:
		p = b.storedTuple(ev, n)
	case Removed:
		p = b.removedTuple(ev, n)
	case Cleared:
		p = b.clearedTuple(ev, n)
	case Unknown:
		ev.Name = tag
		fallthrough
	default:
		b.r.SkipN(n)
	}
	return tag, p
}

// storedTuple reads the n elements after the tag: block_hashes,
// parent_block_hash, token_ids, block_size, lora_id?, medium?, lora_name?,
// extra_keys?, …tail. A tuple may stop after block_size.
func (b *Batch) storedTuple(ev *Event, n int) problem {
	in, at := b.r.Input(), b.r.Off() // the Reader is put there only for what is not quick
	for i := range min(n, 8) {
		f := fHashes + field(i) // the fields' constants are in this order, but for the last
		if i == 7 {
			f = fExtraKeys
		}
		if size := ev.quick(f, in[at:]); size > 0 {
			at += size
			continue
		}
		b.r.Seek(at)
		var c cause
		if f == fLoraName {
			c = b.loraSlot(ev)
		} else {
			c = b.readField(ev, f)
		}
		if c != good {
			return c.of(f)
		}
		at = b.r.Off()
	}
	b.r.Seek(at)
	switch {
	case n < 1:
		return missing.of(fHashes)
	case n < 3:
		return missing.of(fTokens)
	case n < 4:
		return missing.of(fBlockSize)
	}
	if len(ev.Tokens) > 0 && !ev.HasBlockSz {
		return wrongType.of(fBlockSize) // nil
	}
	return b.readTail(ev, max(n-8, 0))
}

// removedTuple reads block_hashes, medium?, …tail.
func (b *Batch) removedTuple(ev *Event, n int) problem {
	if n < 1 {
		return missing.of(fHashes)
	}
	if c := b.readField(ev, fHashes); c != good {
		return c.of(fHashes)
	}
	if n < 2 {
		return 0
	}
	if c := b.readField(ev, fMedium); c != good {
		return c.of(fMedium)
	}
	return b.readTail(ev, n-2)
}

// clearedTuple reads a medium or an ownership, whichever it is, and ignores
// anything else: a clear that is lost leaves a false cache behind.
func (b *Batch) clearedTuple(ev *Event, n int) problem {
	if n == 0 {
		return 0
	}
	v, c := b.text()
	if c == badText {
		return c.of(fMedium)
	}
	if c == wrongType {
		b.r.Skip()
	}
	ev.Medium = v
	b.r.SkipN(n - 1)
	return 0
}

// loraSlot reads the slot of lora_name, where SGLang may put a map
// {"cache_salt": str|nil} instead.
func (b *Batch) loraSlot(ev *Event) cause {
	n, ok := b.r.Map()
	if !ok {
		return b.readField(ev, fLoraName)
	}
	ev.HasSlotSalt = true
	result := good
	for range n {
		k, c := b.key()
		if c != good {
			return c
		}
		if string(k) != "cache_salt" {
			b.r.Skip()
			continue
		}
		at := b.r.Off()
		if ev.SlotSalt, result = b.text(); result != good {
			b.r.Seek(at)
			b.r.Skip()
		}
	}
	return result
}
