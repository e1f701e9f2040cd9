package admin

import (
	"context"
	"sync"
	"time"

	"github.com/kvrelay/kvrelay/discovery"
	"github.com/kvrelay/kvrelay/relay"
)

const (
	// lookEvery is also the distance of samples on the page.
	lookEvery = time.Second
	// stuckAfter: a look that takes so long, or a stream whose clock is so late,
	// is stuck. A look waits for nothing but locks that are held for moments.
	stuckAfter = 10 * time.Second
	// mutePublisher: a publisher that is connected to NATS core, has events
	// and neither sends, confirms nor loses its link for so long is stuck. NATS
	// cannot cause it: a link that answers no ping ends within 15 s. While a rank is
	// waited for that another relay has, or that is not on record, nobody looks.
	mutePublisher = time.Minute
	// freshWithin is how long an answer waits for a new look before it shows the last one.
	freshWithin = 2 * time.Second
)

// snapshot is one look at the relay.
type snapshot struct {
	at        time.Time
	relay     relay.Status
	discovery discovery.State
	omitted   int // ranks beyond maxRanks
}

// monitor looks at a relay and remembers.
type monitor struct {
	o     *Options
	began time.Time
	want  chan struct{} // capacity 1: someone waits for a new look
	stuck time.Duration // stuckAfter

	mu      sync.Mutex // guards what follows; never held during a look
	running bool
	snap    snapshot
	looked  chan struct{} // closed at the next look
	history history

	outbox   progress  // of the publisher at the last change
	outboxAt time.Time // of that change
}

// progress is what moves while a publisher lives.
type progress struct {
	envelopes, confirmed, reconnects, failures uint64
	idle                                       bool // nothing waits, no connection, or a rank must not publish yet
}

func newMonitor(o *Options) monitor {
	return monitor{o: o, began: time.Now(), want: make(chan struct{}, 1), stuck: stuckAfter, looked: make(chan struct{})}
}

// watch looks once a second, and when asked, until ctx ends.
func (m *monitor) watch(ctx context.Context) {
	m.mu.Lock()
	m.running, m.snap.at = true, time.Now() // the first look has its time, too
	m.outboxAt = m.snap.at
	m.mu.Unlock()
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	m.look(true)
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			m.look(true)
		case <-m.want:
			m.look(false)
		}
	}
}

// look makes a snapshot, and remembers it when it is one of those once a second.
func (m *monitor) look(sample bool) {
	snap := snapshot{relay: m.o.Status(), discovery: m.o.Discovery()}
	snap.at = time.Now()
	snap.bound()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.snap = snap
	close(m.looked)
	m.looked = make(chan struct{})
	if sample {
		m.history.add(int64(snap.at.Sub(m.began)/lookEvery), &snap)
	}
	k := &snap.relay.Sink
	now := progress{k.Envelopes, k.ConfirmedEvents, k.Reconnects, k.Failures, !k.Connected || k.UnconfirmedEvents == 0 || k.Unowned > 0}
	if now != m.outbox || now.idle {
		m.outbox, m.outboxAt = now, snap.at
	}
}

// maxRanks bounds rows and series: further ranks are left out of metrics,
// status and page, and counted as kvrelay_ranks_omitted.
const maxRanks = 256

// bound leaves out what is beyond maxRanks.
func (s *snapshot) bound() {
	left := maxRanks
	for i := range s.relay.Sources {
		src := &s.relay.Sources[i]
		n := max(1, len(src.Ranks))
		if n > left {
			s.omitted += n - left
			src.Ranks = src.Ranks[:min(left, len(src.Ranks))]
			n = left
		}
		left -= n
	}
	if len(s.relay.Sources) > maxRanks {
		s.relay.Sources = s.relay.Sources[:maxRanks]
	}
}

// FirstLook is closed once the relay has been looked at. It is to be asked for
// before Run; until then Health has nothing to go by.
func (m *monitor) FirstLook() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.looked
}

// fresh is a look made for the caller, or one that was under way; the last one
// where the relay is stuck.
func (m *monitor) fresh(ctx context.Context) snapshot {
	m.mu.Lock()
	looked := m.looked
	m.mu.Unlock()
	select {
	case m.want <- struct{}{}:
	default: // someone else has asked
	}
	timer := time.NewTimer(freshWithin)
	defer timer.Stop()
	select {
	case <-looked:
	case <-timer.C:
	case <-ctx.Done():
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.snap
}
