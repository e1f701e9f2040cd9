package convert

import "github.com/zeebo/xxh3"

// What an entry knows of its salt, besides a salt's id.
const (
	saltNone  = 0      // nothing
	saltPlain = 0xffff // it was stored by a root without a salt
	maxSalts  = 0xfffd // ids 1 … maxSalts; BoundSalts when all are in use
)

// saltSeed is what a salt adds to the seed of tokens_hash, and all that is kept
// of it: the salt itself is a tenant's secret.
func saltSeed(salt []byte) uint64 { return xxh3.HashSeed(salt, 1) }

// salts gives the salts of present blocks two-byte ids.
type salts struct {
	ids  map[uint64]uint16 // seed → id
	used []salt            // by id − 1
	free []uint16          // ids
}

type salt struct {
	seed uint64
	refs uint32
}

// inUse reports whether any present block has a salt.
func (s *salts) inUse() bool { return len(s.ids) > 0 }

func (s *salts) seed(id uint16) uint64 { return s.used[id-1].seed }

// acquire is the id of a seed, for one entry more; false when there is none left.
func (s *salts) acquire(seed uint64) (id uint16, ok bool) {
	id, known := s.ids[seed]
	if !known {
		switch n := len(s.free); {
		case n > 0:
			id = s.free[n-1]
			s.free = s.free[:n-1]
		case len(s.used) < maxSalts:
			s.used = append(s.used, salt{})
			id = uint16(len(s.used))
		default:
			return 0, false
		}
		if s.ids == nil {
			s.ids = make(map[uint64]uint16)
		}
		s.ids[seed] = id
		s.used[id-1].seed = seed
	}
	s.used[id-1].refs++
	return id, true
}

// share is the same id for one entry more.
func (s *salts) share(id uint16) uint16 {
	if id != saltPlain {
		s.used[id-1].refs++
	}
	return id
}

// release undoes one acquire; saltNone and saltPlain are no ids.
func (s *salts) release(id uint16) {
	if id == saltNone || id == saltPlain {
		return
	}
	it := &s.used[id-1]
	if it.refs--; it.refs == 0 {
		delete(s.ids, it.seed)
		s.free = append(s.free, id)
	}
}
