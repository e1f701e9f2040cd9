package convert

import "slices"

const (
	maxMMBlocks  = 1 << 16 // blocks with multimodal information: BoundMultimodal
	maxMMNumbers = 1 << 20 // numbers in them, 8 bytes each: BoundMultimodal
)

// multimodal keeps the multimodal information of present blocks: hash-only
// stores, snapshots and a returned engine's blocks need it. Each is flat: of
// every object its hash, the number of offsets, and these.
type multimodal struct {
	infos   map[uint32][]uint64
	last    uint32
	numbers int
}

// put keeps objects under ref (0: a new one) and returns it; 0 when there is no
// room, or nothing to keep. It allocates only for what differs.
func (m *multimodal) put(ref uint32, objects []MMObject) (kept uint32, full bool) {
	if objects == nil {
		if ref != 0 {
			m.drop(ref)
		}
		return 0, false
	}
	if ref != 0 {
		if m.same(m.infos[ref], objects) {
			return ref, false
		}
		m.drop(ref)
	}
	n := 0
	for _, o := range objects {
		n += 2 + 2*len(o.Offsets)
	}
	if len(m.infos) == maxMMBlocks || m.numbers+n > maxMMNumbers {
		return 0, true
	}
	flat := make([]uint64, 0, n)
	for _, o := range objects {
		flat = append(flat, o.Hash, uint64(len(o.Offsets)))
		for _, r := range o.Offsets {
			flat = append(flat, r[0], r[1])
		}
	}
	if m.infos == nil {
		m.infos = make(map[uint32][]uint64)
	}
	for m.last++; m.last == 0 || m.infos[m.last] != nil; m.last++ {
	}
	m.infos[m.last] = flat
	m.numbers += n
	return m.last, false
}

func (m *multimodal) same(flat []uint64, objects []MMObject) bool {
	for _, o := range objects {
		if len(flat) < 2 || flat[0] != o.Hash || flat[1] != uint64(len(o.Offsets)) {
			return false
		}
		flat = flat[2:]
		for _, r := range o.Offsets {
			if flat[0] != r[0] || flat[1] != r[1] {
				return false
			}
			flat = flat[2:]
		}
	}
	return len(flat) == 0
}

func (m *multimodal) drop(ref uint32) {
	m.numbers -= len(m.infos[ref])
	delete(m.infos, ref)
}

// objects appends the objects kept under ref, if any, to o's arenas.
func (m *multimodal) objects(ref uint32, o *Output) []MMObject {
	if ref == 0 {
		return nil
	}
	flat := m.infos[ref]
	from := len(o.objects)
	for len(flat) > 0 {
		hash, n := flat[0], int(flat[1])
		at := len(o.offsets)
		for i := range n {
			o.offsets = append(o.offsets, [2]uint64{flat[2+2*i], flat[3+2*i]})
		}
		o.objects = append(o.objects, MMObject{Hash: hash, Offsets: slices.Clip(o.offsets[at:])})
		flat = flat[2+2*n:]
	}
	if len(o.objects) == from {
		return []MMObject{} // said to be there, and empty
	}
	return slices.Clip(o.objects[from:])
}
