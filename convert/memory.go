package convert

// memory is a set of hashes with an upper limit: the oldest is forgotten.
// The zero value with a limit is ready.
type memory struct {
	limit  int
	where  map[uint64]uint32 // index in items
	items  []remembered      // grows as needed, up to limit
	free   uint32            // index + 1
	oldest uint32            // index + 1
	newest uint32            // index + 1
}

type remembered struct {
	hash       uint64
	prev, next uint32 // index + 1; of a free item: next is the next free one
}

func (m *memory) has(hash uint64) bool {
	if len(m.where) == 0 {
		return false
	}
	_, ok := m.where[hash]
	return ok
}

// add remembers hash; one that is known keeps its age. It reports whether
// another was forgotten for it.
func (m *memory) add(hash uint64) (forgot bool) {
	if m.has(hash) {
		return false
	}
	if len(m.where) == m.limit {
		m.drop(m.items[m.oldest-1].hash)
		forgot = true
	}
	ref := m.free
	if ref != 0 {
		m.free = m.items[ref-1].next
	} else {
		m.items = append(m.items, remembered{})
		ref = uint32(len(m.items))
	}
	m.items[ref-1] = remembered{hash: hash, prev: m.newest}
	if m.newest != 0 {
		m.items[m.newest-1].next = ref
	} else {
		m.oldest = ref
	}
	m.newest = ref
	if m.where == nil {
		m.where = make(map[uint64]uint32)
	}
	m.where[hash] = ref - 1
	return forgot
}

func (m *memory) drop(hash uint64) {
	if len(m.where) == 0 {
		return
	}
	i, ok := m.where[hash]
	if !ok {
		return
	}
	delete(m.where, hash)
	it := &m.items[i]
	if it.prev != 0 {
		m.items[it.prev-1].next = it.next
	} else {
		m.oldest = it.next
	}
	if it.next != 0 {
		m.items[it.next-1].prev = it.prev
	} else {
		m.newest = it.prev
	}
	*it = remembered{next: m.free}
	m.free = i + 1
}

func (m *memory) clear() { *m = memory{limit: m.limit} }
