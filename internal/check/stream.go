package check

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/kvrelay/kvrelay/convert"
	"github.com/kvrelay/kvrelay/decode"
	"github.com/kvrelay/kvrelay/replay"
)

// Bounds on what an engine can make a report list. What goes beyond is counted
// under "other", or not listed.
const (
	maxNames = 32 // topics, tags, kinds, media, block sizes, adapters
	maxRanks = 64 // ranks in one stream; batches of further ones count as undecodable
	maxText  = 40 // bytes of a name
)

// Stream is everything seen of one source. Its methods must not be called at
// the same time.
type Stream struct {
	Name    string  `json:"name"`
	Own     uint32  `json:"rank"` // of batches that name none
	Live    Live    `json:"live"`
	Replay  Replay  `json:"replay"`
	Numbers Numbers `json:"numbers"`
	Wire    Wire    `json:"wire"`
	Ranks   []*Rank `json:"ranks"`

	prefix []byte // subscription; topics must equal it with exact
	exact  bool
	config convert.Config
	batch  decode.Batch
	out    convert.Output
	next   uint64 // seq expected; meaningful when begun
	begun  bool
	sum    uint64 // XXH3 of the batch before next
}

// NewStream is a Stream without history. rank is the source's own, c its
// conversion settings.
func NewStream(name string, rank uint32, c convert.Config) *Stream {
	c.Rank = rank
	return &Stream{
		Name: name, Own: rank, config: c,
		Live:   Live{Frames: map[string]uint64{}, Topics: []string{}},
		Replay: Replay{Frames: map[string]uint64{}, EndFrames: map[string]uint64{}},
		Wire: Wire{
			Unknown: map[string]uint64{}, Malformed: map[string]uint64{}, BlockSizes: map[string]uint64{},
			Groups: []Group{}, Media: []Medium{}, adapters: map[uint64]struct{}{},
		},
		Ranks: []*Rank{},
	}
}

// count adds n to m[name], or to "other" where m is full.
func count(m map[string]uint64, name string, n uint64) {
	if _, ok := m[name]; !ok && len(m) >= maxNames {
		name = "other"
	}
	m[name] += n
}

// plain is text that an engine sent, if it looks like a name; else only how
// long it is: engines' text may be a user's.
func plain(text []byte) string {
	ok := len(text) > 0 && len(text) <= maxText
	for _, c := range text {
		ok = ok && (c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-' || c == '.')
	}
	if ok {
		return string(text)
	}
	return fmt.Sprintf("(text of %d bytes)", len(text))
}

// topic is a topic fit to be shown.
func topic(text []byte) string {
	if len(text) > 128 {
		return fmt.Sprintf("(%d bytes)", len(text))
	}
	q := strconv.QuoteToASCII(string(text))
	return q[1 : len(q)-1]
}

// message counts one live message. ok: it is a batch of ours.
func (s *Stream) message(frames [][]byte) (m replay.Live, ok bool) {
	s.Live.Messages++
	count(s.Live.Frames, strconv.Itoa(len(frames)), 1)
	m, problem := replay.ParseLive(frames)
	if problem != "" {
		if s.Live.Odd++; s.Live.OddWhy == "" {
			s.Live.OddWhy = problem
		}
		return m, false
	}
	if t := topic(m.Topic); !slices.Contains(s.Live.Topics, t) && len(s.Live.Topics) < maxNames {
		s.Live.Topics = append(s.Live.Topics, t)
	}
	if s.exact && !bytes.Equal(m.Topic, s.prefix) {
		s.Live.Filtered++
		return m, false
	}
	s.Live.Bytes += uint64(len(m.Payload))
	if !m.HasSeq {
		s.Live.Unnumber++
	}
	return m, true
}

// lag takes the age of a live batch.
func (s *Stream) lag(now time.Time) {
	if !s.batch.HasTS {
		return
	}
	ms := float64(now.UnixMicro())/1e3 - s.batch.TS*1e3
	s.Live.lagSum += ms
	s.Live.lagN++
	s.Live.LagMS = s.Live.lagSum / float64(s.Live.lagN)
	if s.Live.lagN == 1 || ms > s.Live.LagMaxMS {
		s.Live.LagMaxMS = ms
	}
}

// restart is what the relay does when the engine begins anew.
func (s *Stream) restart() {
	s.Numbers.Restarts++
	s.begun = false
	for _, r := range s.Ranks {
		s.out.Reset()
		r.conv.Cleared(&s.out, false)
		r.conv.Restart()
	}
}

// numbered applies the batch seq, which is next or above: what lies between is
// missing.
func (s *Stream) numbered(seq uint64, payload []byte) {
	n := &s.Numbers
	if s.begun && seq > s.next {
		n.Missing += seq - s.next
	}
	if n.First == nil {
		first := seq
		n.First = &first
	}
	last := seq
	n.Last = &last
	s.begun, s.next, s.sum = true, seq+1, xxh3.Hash(payload)
	s.apply(strconv.FormatUint(seq, 10), payload)
}

// apply decodes and converts one batch. name stands for it in examples.
func (s *Stream) apply(name string, payload []byte) {
	s.Numbers.Applied++
	broken := s.batch.Decode(payload)
	if broken == nil {
		s.facts()
	}
	r := s.rank(convert.RankOf(&s.batch, s.Own))
	if r == nil {
		return
	}
	s.out.Reset()
	if broken != nil {
		r.conv.Undecodable()
	} else {
		r.conv.Convert(&s.batch, &s.out)
	}
	s.examples(r, name, broken)
}

// rank is the conversion of one rank; nil beyond maxRanks.
func (s *Stream) rank(number uint32) *Rank {
	for _, r := range s.Ranks {
		if r.Rank == number {
			return r
		}
	}
	if len(s.Ranks) == maxRanks {
		return nil
	}
	c := s.config
	c.Rank = number
	r := &Rank{Rank: number, conv: convert.New(c), Drops: map[string]Drop{}}
	s.Ranks = append(s.Ranks, r)
	return r
}

// finish brings the counters of the ranks into the report.
func (s *Stream) finish() {
	slices.SortFunc(s.Ranks, func(a, b *Rank) int { return int(a.Rank) - int(b.Rank) })
	s.Wire.Adapters = len(s.Wire.adapters)
	for _, r := range s.Ranks {
		st := r.conv.Stats()
		r.Batches, r.Undecodable, r.BadRank = st.Batches, st.Undecodable, st.BadRank
		r.Events, r.Published, r.Suppressed = st.Events.In, st.Events.Published, st.Events.Suppressed
		r.Blocks, r.BlocksOut, r.RouterEvents = st.Blocks.In, st.Blocks.Published, st.RouterEvents
		r.Present, r.BlockSize, r.OtherSize = st.Present, st.BlockSize, st.OtherSize
		r.Mismatched, r.FullReporting, r.Untrusted = st.Mismatched, st.FullReporting, st.Untrusted
		for reason := range convert.NumReasons {
			if n := st.Drops(reason); n > 0 {
				d := r.Drops[reason.String()]
				d.Events, d.Blocks = n, st.Blocks.Dropped[reason]
				r.Drops[reason.String()] = d
			}
		}
	}
	slices.SortFunc(s.Wire.Groups, func(a, b Group) int {
		return int(groupOrder(a)) - int(groupOrder(b))
	})
}

func groupOrder(g Group) int64 {
	if g.Index == nil {
		return -1
	}
	return int64(*g.Index)
}

// names are the keys of m, the most frequent first.
func names(m map[string]uint64) []string {
	list := slices.Sorted(maps.Keys(m))
	slices.SortStableFunc(list, func(a, b string) int {
		switch {
		case m[a] > m[b]:
			return -1
		case m[a] < m[b]:
			return 1
		}
		return 0
	})
	return list
}
