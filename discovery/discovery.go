package discovery

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"
)

// Options say whom to ask, and how what they set themselves goes before what
// the engine says.
type Options struct {
	Kind   string   // KindAuto and so on; "": auto, or static when Static is set
	URL    string   // grpc://, grpcs://, http:// or https:// host:port; "": the usual ports of this host
	Token  string   // bearer token; "": none. Only over TLS or to a loopback host: New refuses the rest
	Static []Source // the sources of KindStatic, told as they are

	// Ranks and FirstRank choose the ranks that are used, of those the engine
	// has: where each of its hosts has a kvrelay of its own. Ranks 0: all.
	Ranks, FirstRank uint32
	// Replay replaces the engine's replay endpoints: one, to which several
	// ranks add their number, or one for each rank in ascending order.
	Replay     []string
	NoReplay   bool   // run without replay whatever the engine offers
	Topic      string // replaces the engine's topic; "": the engine's
	TopicExact bool
	BlockSize  uint32 // replaces the engine's block size; 0: the engine's
	// RewriteLoopback: dial the host of URL where the engine advertises a
	// loopback address.
	RewriteLoopback bool

	Interval time.Duration // how often an engine that has answered is asked again; 0: 10 s
	TLS      *tls.Config   // for grpcs and https; nil: the system's authorities
	Log      *slog.Logger  // nil: silent
}

const defaultInterval = 10 * time.Second

// Discoverer asks an engine for its sources, again and again.
type Discoverer struct {
	o       Options
	probers []prober
	lost    chan struct{} // capacity 1: ask again at once

	mu    sync.Mutex
	state State
}

// New makes a Discoverer, or says everything that is wrong with o. It does no I/O.
func New(o Options) (*Discoverer, error) {
	if o.Kind == "" {
		o.Kind = KindAuto
	}
	if o.Kind == KindAuto && len(o.Static) > 0 {
		o.Kind = KindStatic
	}
	if o.Interval <= 0 {
		o.Interval = defaultInterval
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	d := &Discoverer{o: o, lost: make(chan struct{}, 1)}
	if o.Kind == KindStatic {
		if len(o.Static) == 0 {
			return nil, errors.New("discovery: kind static without sources")
		}
		d.state.Engine, d.state.Kind = o.Static[0].Engine, KindStatic
		return d, nil
	}
	targets, err := targetsOf(o.URL)
	if err != nil {
		return nil, fmt.Errorf("discovery: %w", err)
	}
	var errs []error
	for _, t := range targets {
		if err := t.allows(o.Token); err != nil {
			errs = append(errs, err)
		}
		d.probers = append(d.probers, probersOf(t, &d.o)...)
	}
	if len(d.probers) == 0 {
		errs = append(errs, fmt.Errorf("no engine of kind %s is asked at %s: want %s", o.Kind, o.URL, schemesOf(o.Kind)))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("discovery: %w", err)
	}
	return d, nil
}

// Lost has the engine asked again at once: a stream of it ended, so it may have
// moved. It never blocks, and may be called from anywhere, also often: an
// engine is asked once per second at most.
func (d *Discoverer) Lost() {
	select {
	case d.lost <- struct{}{}:
	default:
	}
}

// State is what is known of the engine now. It never waits for an answer.
func (d *Discoverer) State() State {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.state
	s.Sources = slices.Clone(s.Sources)
	s.Refused = slices.Clone(s.Refused)
	s.Warnings = slices.Clone(s.Warnings)
	return s
}

func (d *Discoverer) set(change func(*State)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	change(&d.state)
}

// State is a snapshot of a Discoverer, for status and metrics.
type State struct {
	Kind     string // of the engine that answered last; "": none yet
	Engine   string // address it answered at
	Version  string // of the engine; "": it does not say
	Instance string // its name for this life of it; "": it does not say
	Role     string // aggregated, prefill, decode; "": it does not say

	Asked      uint64    // rounds of asking
	Failed     uint64    // of these, without an answer
	LastAnswer time.Time // zero: none yet
	LastError  string    // why the last failed round failed
	LastFailed time.Time

	Awaiting string    // what must happen before sources are there; "": nothing
	Since    time.Time // since when that has been so

	Sources  []Source  // as told, by rank
	Refused  []Refusal // advertised, but not usable
	Warnings []string  // usable, but probably not as meant
}

// Refusal is an advertised source that is not used, and why.
type Refusal struct {
	Source string // "rank 1 at tcp://*:5558"
	Reason string
}

func (r Refusal) String() string { return r.Source + ": " + r.Reason }

// Watch tells the sources once they are known and whenever they change, until
// ctx ends; then it returns nil. While an engine does not answer, what it said
// last holds. An engine that is not there is waited for: no answer is an error.
func (d *Discoverer) Watch(ctx context.Context, update func([]Source)) error {
	if d.o.Kind == KindStatic {
		warnings := missingSockets(d.o.Static)
		d.set(func(s *State) { s.Sources, s.Warnings = d.o.Static, warnings })
		for _, w := range warnings {
			d.o.Log.Warn(w)
		}
		update(slices.Clone(d.o.Static))
		<-ctx.Done()
		return nil
	}
	w := watcher{d: d, update: update}
	w.run(ctx)
	return nil
}
