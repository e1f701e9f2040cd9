package sinks

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
)

// OwnerError ends a Publisher: another relay has one of its ranks.
type OwnerError struct {
	WorkerID  uint64
	Rank      uint32
	Publisher uint64 // of the other relay, from its heartbeat
	Life      uint64
	Started   time.Time
	Waited    bool // it did not leave in time; false: it is older than this one
}

func (e *OwnerError) Error() string {
	why := "it is the older one, so this one leaves"
	if e.Waited {
		why = "it did not leave in time"
	}
	return fmt.Sprintf("worker %d, rank %d has another relay (publisher %d, life %d, started %s): %s; give each engine its own WORKER_ID, or stop one of the two",
		e.WorkerID, e.Rank, e.Publisher, e.Life, e.Started.UTC().Format(time.RFC3339), why)
}

// heartbeat is what is said of a rank every second and at each change.
type heartbeat struct {
	Publisher   uint64  `json:"publisher_id"`
	Started     int64   `json:"started"` // ms since 1970
	Life        uint64  `json:"life"`
	LastEventID uint64  `json:"last_event_id"` // confirmed
	State       string  `json:"state"`
	EngineSeq   uint64  `json:"engine_seq"`
	Epoch       uint64  `json:"epoch"`
	Blocks      int     `json:"blocks"`
	LagMS       float64 `json:"lag_ms"`
}

// before says that h has the older right to a rank than x.
func (h *heartbeat) before(x *heartbeat) bool {
	switch {
	case h.Started != x.Started:
		return h.Started < x.Started
	case h.Publisher != x.Publisher:
		return h.Publisher < x.Publisher
	}
	return h.Life < x.Life
}

const (
	// maxHeartbeat is the longest heartbeat that is read.
	maxHeartbeat = 4096
	// maxOthers bounds the other lives that are known of a rank. Further ones
	// are not waited for; as owners they are told apart by the rule for two.
	maxOthers = 64
	// soonest is the least time between two heartbeats, so that a state that
	// flaps costs little.
	soonest = 50 * time.Millisecond
)

// other is another life heard of.
type other struct {
	last heartbeat
	at   time.Time
}

// watch listens to a rank's heartbeats and sends ours.
type watch struct {
	s        *service
	o        *Outbox
	link     *serviceLink   // the present one
	withdraw func()         // nil: the rank is not ours yet
	waiting  time.Time      // when another relay was first heard by own
	in       chan *nats.Msg // capacity 64: more are dropped by the library; the next ones say the same
	others   map[uint64]other
	state    string // told last
	sentAt   time.Time
}

func (w *watch) subscribe() (*nats.Subscription, error) {
	w.in = make(chan *nats.Msg, 64)
	return w.link.nc.ChanSubscribe(w.o.serviceSubject("heartbeat"), w.in)
}

// hear reads a heartbeat of another life; nil when it is none.
func (w *watch) hear(m *nats.Msg) *heartbeat {
	var h heartbeat
	if m == nil || len(m.Data) > maxHeartbeat || json.Unmarshal(m.Data, &h) != nil || h.Publisher == 0 || h.Life == w.s.p.life {
		return nil
	}
	if _, known := w.others[h.Life]; h.State == StateLeaving {
		delete(w.others, h.Life)
	} else if known || len(w.others) < maxOthers {
		w.others[h.Life] = other{h, time.Now()}
	}
	return &h
}

// own waits until the rank is ours: nobody was heard for a while, or everybody
// heard has left. owned is false when ctx or the outbox ended before.
func (w *watch) own(ctx context.Context) (owned bool, err error) {
	t := &w.s.p.timing
	tick := time.NewTicker(max(t.listen/30, time.Millisecond))
	defer tick.Stop()
	nc := w.link.nc
	var since time.Time // of the subscription on the present link; zero: none
	links := nc.Stats().Reconnects
	for {
		select {
		case <-ctx.Done():
			return false, nil
		case <-w.o.gone:
			return false, nil
		case <-w.link.dead:
			return false, errLinkLost
		case m := <-w.in:
			if h := w.hear(m); h != nil && h.State != StateLeaving && w.waiting.IsZero() {
				w.waiting = time.Now()
				w.s.p.o.Logger.Warn("another relay has this rank: waiting until it leaves",
					"worker_id", w.o.workerID, "dp_rank", w.o.rank, "its_publisher", h.Publisher, "its_life", h.Life, "at_most", t.patience.String())
			}
			continue
		case <-tick.C:
		}
		now := time.Now()
		if n := nc.Stats().Reconnects; !nc.IsConnected() || n != links {
			links, since = n, time.Time{} // what was said meanwhile is unknown
		}
		if since.IsZero() && nc.IsConnected() && flush(ctx, nc) == nil {
			since = time.Now()
		}
		var there *heartbeat
		for life, x := range w.others {
			if now.Sub(x.at) > t.silence {
				delete(w.others, life)
				continue
			}
			there = &x.last
		}
		switch {
		case there != nil && now.Sub(w.waiting) > t.patience:
			return false, w.lost(there, true)
		case there == nil && !since.IsZero() && time.Since(since) >= t.listen:
			if !w.waiting.IsZero() {
				w.s.p.o.Logger.Info("the other relay has left: this rank is ours", "worker_id", w.o.workerID, "dp_rank", w.o.rank)
			}
			return true, nil
		}
	}
}

func (w *watch) lost(h *heartbeat, waited bool) error {
	return &OwnerError{
		WorkerID: w.o.workerID, Rank: w.o.rank, Publisher: h.Publisher, Life: h.Life,
		Started: time.UnixMilli(h.Started), Waited: waited,
	}
}

// beat sends heartbeats until the outbox is done or ctx ends (nil), an older
// relay of the rank is heard, or the link is closed.
func (w *watch) beat(ctx context.Context) error {
	next := time.NewTimer(0)
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-w.o.gone:
			return nil
		case <-w.link.dead:
			return errLinkLost
		case m := <-w.in:
			if h := w.hear(m); h != nil && h.State != StateLeaving {
				own := w.make("")
				if h.before(&own) {
					return w.lost(h, false)
				}
			}
		case <-w.o.changed:
			if st := w.o.source.RankState(); st.State == w.state {
				continue
			}
			if early := soonest - time.Since(w.sentAt); early > 0 {
				next.Reset(early)
				continue
			}
			w.send("")
			next.Reset(w.s.p.untilBeat())
		case <-next.C:
			w.send("")
			next.Reset(w.s.p.untilBeat())
		}
	}
}

// untilBeat is how long it is until the next heartbeat is due: at the same time
// for all ranks, so that they wake the process and cross the link together. It
// is between half a beat and one and a half, so that none is early.
func (p *Publisher) untilBeat() time.Duration {
	beat := p.timing.beat
	at := time.Since(p.born) % beat
	if at > beat/2 {
		return 2*beat - at
	}
	return beat - at
}

// make is the heartbeat of now; state replaces the source's when not "".
func (w *watch) make(state string) heartbeat {
	st := w.o.source.RankState()
	if state != "" {
		st.State = state
	}
	w.o.mu.Lock()
	defer w.o.mu.Unlock()
	return heartbeat{
		Publisher: w.o.id, Started: w.o.started, Life: w.s.p.life, LastEventID: w.o.confirmed,
		State: st.State, EngineSeq: st.Seq, Epoch: st.Epoch, Blocks: st.Blocks, LagMS: st.LagMS,
	}
}

// send publishes a heartbeat. What cannot be sent now is not sent later.
func (w *watch) send(state string) {
	h := w.make(state)
	w.state, w.sentAt = h.State, time.Now()
	b, err := json.Marshal(h)
	if err != nil {
		panic(err) // numbers and a string cannot fail; LagMS is finite
	}
	if err := w.link.nc.Publish(w.o.serviceSubject("heartbeat"), b); err != nil {
		w.s.p.o.Logger.Debug("a heartbeat was not sent", "error", err)
	}
}
