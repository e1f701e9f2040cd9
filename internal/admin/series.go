package admin

import (
	"math"
	"strconv"
	"strings"

	"github.com/kvrelay/kvrelay/relay"
)

// row is one line of the page: a rank of a source, or a source that has none yet.
type row struct {
	key  string
	src  *relay.SourceStatus
	rank *relay.RankStatus // nil: none yet
}

func rows(st *relay.Status) []row {
	var list []row
	for i := range st.Sources {
		src := &st.Sources[i]
		if len(src.Ranks) == 0 {
			list = append(list, row{key: rowKey(src.Source.Rank, src), src: src})
		}
		for j := range src.Ranks {
			list = append(list, row{key: rowKey(src.Ranks[j].Rank, src), src: src, rank: &src.Ranks[j]})
		}
	}
	return list
}

// rowKey tells rows apart, also where two sources claim one rank.
func rowKey(rank uint32, src *relay.SourceStatus) string {
	return strconv.FormatUint(uint64(rank), 10) + " " + src.Source.Endpoint
}

func (r row) number() uint32 {
	if r.rank != nil {
		return r.rank.Rank
	}
	return r.src.Source.Rank
}

func (r row) state() string {
	if r.rank != nil {
		return r.rank.State
	}
	return r.src.State
}

// batches is what the rate is the growth of.
func (r row) batches() uint64 {
	if r.rank != nil && len(r.src.Ranks) > 1 {
		return r.rank.Convert.Batches
	}
	return r.src.Cursor.Applied
}

// series is one row's samples; the one of tick t is at t mod historyTicks.
type series struct {
	from  int64                 // first tick that has one
	rate  [historyTicks]float32 // batches a second; NaN: unknown
	lag   [historyTicks]float32 // seconds, mean of that second; NaN: no batch
	state [historyTicks]byte    // 'l'ive 'r'eplaying 's'uspect 'w'aiting, ' ': unknown
	prev  row
	seen  int64 // tick of the last sample
}

func (s *series) add(tick int64, r row) {
	gap := tick - s.seen
	for t := max(s.seen+1, tick-historyTicks+1); t < tick; t++ {
		i := t % historyTicks
		s.rate[i], s.lag[i], s.state[i] = nan, nan, ' '
	}
	i := tick % historyTicks
	s.rate[i], s.lag[i] = nan, nan
	s.state[i] = r.state()[0]
	if s.prev.src != nil {
		if now, before := r.batches(), s.prev.batches(); now >= before {
			s.rate[i] = float32(float64(now-before) / float64(gap))
		}
		if r.rank != nil && s.prev.rank != nil {
			now, before := &r.rank.Lag, &s.prev.rank.Lag
			if now.N > before.N {
				s.lag[i] = float32(max(0, now.Sum-before.Sum) / float64(now.N-before.N))
			}
		}
	}
	s.prev, s.seen = r, tick
}

var nan = float32(math.NaN())

// recent is the mean rate of the last 10 ticks, of those that are known.
func (s *series) recent(tick int64) float64 {
	var sum float64
	var n int
	for t := max(s.from, tick-9); t <= tick; t++ {
		if v := float64(s.rate[t%historyTicks]); v == v {
			sum += v
			n++
		}
	}
	if n == 0 {
		return 0
	}
	return sum / float64(n)
}

// samplesJSON is a row's samples in (since, tick], in a short form.
type samplesJSON struct {
	From  int64   `json:"from"`  // tick of the first
	Rate  numbers `json:"rate"`  // batches a second
	Lag   numbers `json:"lag"`   // seconds
	State string  `json:"state"` // a letter each
}

// numbers is a JSON array of which NaN is null, with three digits that count.
type numbers []float32

func (n numbers) MarshalJSON() ([]byte, error) {
	b := []byte{'['}
	for i, v := range n {
		if i > 0 {
			b = append(b, ',')
		}
		if f := float64(v); f == f {
			b = strconv.AppendFloat(b, f, 'g', 3, 32)
		} else {
			b = append(b, "null"...)
		}
	}
	return append(b, ']'), nil
}

func (s *series) after(since, tick int64) samplesJSON {
	j := samplesJSON{From: max(since+1, s.from, tick-historyTicks+1)}
	var state strings.Builder
	for t := j.From; t <= tick; t++ {
		i := t % historyTicks
		j.Rate = append(j.Rate, s.rate[i])
		j.Lag = append(j.Lag, s.lag[i])
		state.WriteByte(s.state[i])
	}
	j.State = state.String()
	return j
}
