package admin

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/kvrelay/kvrelay/config"
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
	// cannot cause it: a link that answers no ping ends within 15 s, and a rank
	// that another relay has is waited for 30 s at most.
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
	idle                                       bool // nothing waits, or no connection
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
	now := progress{k.Envelopes, k.ConfirmedEvents, k.Reconnects, k.Failures, !k.Connected || k.UnconfirmedEvents == 0}
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

// fresh is a look that is younger than the call, or the last one where the
// relay is stuck.
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

// Health is nil while the process can make progress: the locks of its streams
// can be taken, their clocks run, its publisher publishes. It depends on
// neither engine nor NATS, and never waits.
func (s *Server) Health() error {
	s.mu.Lock()
	running, snap, mute := s.running, s.snap, s.outboxAt
	s.mu.Unlock()
	now := time.Now()
	if !running {
		return fmt.Errorf("not started")
	}
	if d := now.Sub(snap.at); d > s.stuck {
		return fmt.Errorf("stuck: a lock has not been free for %v", d.Round(time.Second))
	}
	for i := range snap.relay.Sources {
		if src := &snap.relay.Sources[i]; src.Overdue > s.stuck {
			return fmt.Errorf("stuck: the stream of %s is %v behind its own clock", src.Source.Name(), src.Overdue.Round(time.Second))
		}
	}
	if d := now.Sub(mute); s.o.Sink == config.SinkNATS && d > mutePublisher {
		return fmt.Errorf("stuck: the publisher has not published for %v although NATS is connected", d.Round(time.Second))
	}
	return nil
}

// maxReasons bounds what /readyz and the page list.
const maxReasons = 8

// unready is why the relay is not ready; nothing when it is.
func (s *Server) unready(snap *snapshot) (reasons []string) {
	if d := time.Since(snap.at); d > s.stuck {
		reasons = append(reasons, fmt.Sprintf("kvrelay is stuck: nothing is known since %v", d.Round(time.Second)))
	}
	sources := snap.relay.Sources
	if len(sources) == 0 {
		why := "no rank is known yet"
		switch d := &snap.discovery; {
		case d.Awaiting != "":
			why += ": " + d.Awaiting
		case d.LastError != "" && d.LastFailed.After(d.LastAnswer):
			why += ": the engine does not say where its events are: " + d.LastError
		}
		reasons = append(reasons, why)
	}
	if k := &snap.relay.Sink; !k.Connected {
		why := "NATS is not connected"
		if k.LastError != "" {
			why += ": " + k.LastError
		}
		reasons = append(reasons, why)
	}
	for i := range sources {
		if src := &sources[i]; !src.Ready {
			why := src.Reason
			if why == "" {
				why = "the first replay has not ended"
			}
			reasons = append(reasons, fmt.Sprintf("rank %d: %s", src.Source.Rank, why))
		}
	}
	if n := len(reasons) - maxReasons; n > 0 {
		reasons = append(reasons[:maxReasons], fmt.Sprintf("and %d more", n))
	}
	return reasons
}

// Line is the relay in one line, for `systemctl status`. It never waits.
func (s *Server) Line() string {
	s.mu.Lock()
	snap := s.snap
	s.mu.Unlock()
	live := 0
	for i := range snap.relay.Sources {
		if snap.relay.Sources[i].State == relay.StateLive {
			live++
		}
	}
	sink := "NATS connected"
	if !snap.relay.Sink.Connected {
		sink = "NATS not connected"
	} else if s.o.Sink == config.SinkStdout {
		sink = "writing to stdout"
	}
	return fmt.Sprintf("%d of %s live, %s", live, plural(uint64(len(snap.relay.Sources)), "rank"), sink)
}
