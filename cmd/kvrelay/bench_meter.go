package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/kvrelay/kvrelay/consumer"
	"github.com/kvrelay/kvrelay/internal/load"
)

// Bounds of what is remembered.
const (
	benchInFlight  = 1 << 16 // batches per rank whose time of sending is known; an event that comes later counts without latency
	benchLatencies = 1 << 20 // latencies kept; of more, a random choice of so many
	benchUnread    = 1 << 20 // messages that wait for the meter; further ones are dropped, and reported as such
)

// benchMeter counts what arrives.
type benchMeter struct {
	latencies bool
	sentAt    [][]atomic.Int64 // rank → seq modulo benchInFlight → ns since 1970; atomic

	events  atomic.Uint64 // each id once, cleared ones apart
	lastAt  atomic.Int64  // ns since 1970 of the newest
	readies atomic.Int64  // ranks that have been heard of

	mu       sync.Mutex // guards what follows
	last     []uint64   // newest event id, by rank
	cleared  uint64     // beyond each rank's first event
	holes    uint64     // ids that never came
	messages uint64
	bytes    uint64
	bad      uint64 // messages that could not be read
	late     []float64
	seen     uint64 // latencies seen
}

func newBenchMeter(ranks int, latencies bool) *benchMeter {
	m := &benchMeter{latencies: latencies, last: make([]uint64, ranks), sentAt: make([][]atomic.Int64, ranks)}
	if latencies {
		for i := range m.sentAt {
			m.sentAt[i] = make([]atomic.Int64, benchInFlight)
		}
	}
	return m
}

func (m *benchMeter) subscribe(nc *nats.Conn, subject string) (*nats.Subscription, error) {
	sub, err := nc.Subscribe(subject, func(msg *nats.Msg) { m.message(msg, time.Now()) })
	if err == nil {
		err = sub.SetPendingLimits(benchUnread, 1<<30)
	}
	if err == nil {
		err = nc.Flush()
	}
	if err != nil {
		return nil, fmt.Errorf("subscribing: %w", err)
	}
	return sub, nil
}

// sent notes when a batch leaves.
func (m *benchMeter) sent(rank int, seq uint64) {
	m.sentAt[rank][seq%benchInFlight].Store(time.Now().UnixNano())
}

func (m *benchMeter) message(msg *nats.Msg, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.messages++
	m.bytes += uint64(len(msg.Data))
	if !m.latencies {
		first, n, cleared, rank, ok := scanEvents(msg.Data)
		if !ok || rank >= len(m.last) {
			m.bad++
			return
		}
		m.count(rank, first, first+uint64(n)-1, uint64(cleared), now)
		return
	}
	parsed, err := consumer.ParseMessage(msg.Subject, msg.Header, msg.Data)
	if err != nil || int(parsed.Events[0].Rank.DP) >= len(m.last) {
		m.bad++
		return
	}
	cleared := uint64(0)
	rank := int(parsed.Events[0].Rank.DP)
	for i := range parsed.Events {
		switch e := &parsed.Events[i]; {
		case e.Kind == consumer.Cleared:
			cleared++
		case e.Kind == consumer.Stored && e.ID > m.last[rank]:
			m.latency(now, m.sentAt[rank][load.Seq(e.Blocks[0].Hash)%benchInFlight].Load())
		}
	}
	m.count(rank, parsed.Events[0].ID, parsed.Events[len(parsed.Events)-1].ID, cleared, now)
}

// count takes the events first to last of a rank, of which some say cleared.
// What came before is a repetition.
func (m *benchMeter) count(rank int, first, last, cleared uint64, now time.Time) {
	before := m.last[rank]
	if last <= before {
		return
	}
	if before == 0 {
		m.readies.Add(1)
		if cleared > 0 {
			m.cleared-- // that is how a publisher begins
		}
	}
	if first > before+1 {
		m.holes += first - before - 1
		before = first - 1
	}
	m.last[rank] = last
	m.cleared += cleared
	m.events.Add(last - before - min(cleared, last-before))
	m.lastAt.Store(now.UnixNano())
}

func (m *benchMeter) latency(now time.Time, sent int64) {
	if sent == 0 {
		return
	}
	ms := float64(now.UnixNano()-sent) / 1e6
	m.seen++
	if len(m.late) < benchLatencies {
		m.late = append(m.late, ms)
	} else if i := rand.Uint64N(m.seen); i < benchLatencies {
		m.late[i] = ms
	}
}

// percentiles are those of the latencies, in ms, and the largest kept; nil: there are none.
func (m *benchMeter) percentiles() map[string]float64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.late) == 0 {
		return nil
	}
	slices.Sort(m.late)
	at := func(q float64) float64 { return m.late[min(len(m.late)-1, int(q*float64(len(m.late))))] }
	return map[string]float64{"p50": at(0.5), "p90": at(0.9), "p99": at(0.99), "p999": at(0.999), "max": m.late[len(m.late)-1]}
}

var errBenchRelay = errors.New("the relay ended before it was told to; its last lines say why")

// ready waits for the first event of every rank.
func (m *benchMeter) ready(ctx context.Context, ended <-chan struct{}, most time.Duration) error {
	switch m.until(ctx, ended, most, func() bool { return int(m.readies.Load()) == len(m.last) }) {
	case untilTrue:
		return nil
	case untilEnded:
		return errBenchRelay
	case untilCancelled:
		return context.Cause(ctx)
	}
	return fmt.Errorf("the relay published nothing within %v", most)
}

// drain waits until want events have arrived, or nothing comes for quiet.
func (m *benchMeter) drain(ctx context.Context, ended <-chan struct{}, want uint64, quiet time.Duration) {
	last, since := m.events.Load(), time.Now()
	m.until(ctx, ended, time.Hour, func() bool {
		n := m.events.Load()
		if n != last {
			last, since = n, time.Now()
		}
		return n >= want || time.Since(since) > quiet
	})
}

type untilWhy uint8

const (
	untilTrue untilWhy = iota
	untilEnded
	untilCancelled
	untilLate
)

// until waits for ok.
func (m *benchMeter) until(ctx context.Context, ended <-chan struct{}, most time.Duration, ok func() bool) untilWhy {
	late := time.NewTimer(most)
	defer late.Stop()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-ended:
			return untilEnded
		case <-ctx.Done():
			if ok() {
				return untilTrue
			}
			return untilCancelled
		case <-late.C:
			return untilLate
		case <-tick.C:
		}
	}
	return untilTrue
}

var (
	keyID      = []byte("event_id")
	keyRank    = []byte("dp_rank")
	keyCleared = []byte("cleared")
)

// scanEvents looks for the first id, the number of events, and the rank of a
// message without decoding it: at full speed the meter must not be what limits.
// A hash that spells a key would be counted wrongly, once in 10^19.
func scanEvents(data []byte) (first uint64, n, cleared, rank int, ok bool) {
	at := bytes.Index(data, keyID)
	if at < 0 {
		return 0, 0, 0, 0, false
	}
	if first, ok = numberAt(data[at+len(keyID):]); !ok {
		return 0, 0, 0, 0, false
	}
	rest := bytes.Index(data, keyRank)
	if rest < 0 {
		return 0, 0, 0, 0, false
	}
	r, ok := numberAt(data[rest+len(keyRank):])
	return first, bytes.Count(data, keyID), bytes.Count(data, keyCleared), int(min(r, 1<<16)), ok
}

// numberAt reads the value behind a key, in msgpack or JSON.
func numberAt(b []byte) (v uint64, ok bool) {
	if bytes.HasPrefix(b, []byte(`":`)) {
		for _, c := range b[2:] {
			if c < '0' || c > '9' {
				return v, ok
			}
			v, ok = v*10+uint64(c-'0'), true
		}
		return v, ok
	}
	if len(b) == 0 {
		return 0, false
	}
	size := 0
	switch c := b[0]; {
	case c < 0x80:
		return uint64(c), true
	case c >= 0xcc && c <= 0xcf:
		size = 1 << (c - 0xcc)
	}
	if size == 0 || len(b) <= size {
		return 0, false
	}
	var wide [8]byte
	copy(wide[8-size:], b[1:1+size])
	return binary.BigEndian.Uint64(wide[:]), true
}
