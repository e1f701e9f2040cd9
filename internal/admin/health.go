package admin

import (
	"errors"
	"fmt"
	"time"

	"github.com/kvrelay/kvrelay/config"
	"github.com/kvrelay/kvrelay/relay"
)

// Health is nil while the process can make progress: the locks of its streams
// can be taken, their clocks run, its publisher publishes. It depends on
// neither engine nor NATS, and never waits.
func (s *Server) Health() error {
	s.mu.Lock()
	running, snap, mute := s.running, s.snap, s.outboxAt
	s.mu.Unlock()
	now := time.Now()
	if !running {
		return errors.New("not started")
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
	} else if k.LastError != "" {
		reasons = append(reasons, "events are refused: "+k.LastError)
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
	} else if snap.relay.Sink.LastError != "" {
		sink += ", but events are refused"
	}
	return fmt.Sprintf("%d of %s live, %s", live, plural(uint64(len(snap.relay.Sources)), "rank"), sink)
}
