package mockengine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Engine is a mock engine with its data-parallel ranks. Safe for concurrent use.
type Engine struct {
	o     Options
	ranks []*Rank

	mu        sync.Mutex
	listened  bool
	listenErr error

	// Of Start: the goroutine that Close waits for.
	cancel context.CancelFunc
	ended  chan error
}

// New makes an engine, or says everything that is wrong with o. It does no I/O.
func New(o Options) (*Engine, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("mock engine: %w", err)
	}
	e := &Engine{o: o}
	for i := range o.Ranks {
		e.ranks = append(e.ranks, newRank(&e.o, i))
	}
	return e, nil
}

// Listen binds the sockets of every rank. A rank whose address is taken is in
// the error, advertises nothing and stays without sockets; the others work.
// With RoleDecode nothing is bound. Only the first call does anything.
func (e *Engine) Listen() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.listened {
		return e.listenErr
	}
	e.listened = true
	if e.o.Role == Decode {
		return nil
	}
	var errs []error
	for _, r := range e.ranks {
		errs = append(errs, r.listen())
	}
	e.listenErr = errors.Join(errs...)
	return e.listenErr
}

// Run serves, and steps Rate times a second, until ctx ends; then it closes
// everything and waits for it. When Listen has not been called Run does, and
// fails if that fails.
func (e *Engine) Run(ctx context.Context) error {
	e.mu.Lock()
	listened := e.listened
	e.mu.Unlock()
	if !listened {
		if err := e.Listen(); err != nil {
			return errors.Join(err, e.release())
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	errs := make([]error, len(e.ranks))
	var wg sync.WaitGroup
	for i, r := range e.ranks {
		if r.Endpoint() == "" {
			continue
		}
		wg.Go(func() {
			if errs[i] = r.Run(ctx); errs[i] != nil {
				cancel()
			}
		})
	}
	e.clock(ctx)
	wg.Wait()
	return errors.Join(errs...)
}

// release closes what Listen bound when nobody will serve it.
func (e *Engine) release() error {
	var errs []error
	for _, r := range e.ranks {
		r.gates(func(g *Gate) { errs = append(errs, g.Close()) })
	}
	return errors.Join(errs...)
}

// clock steps Rate times a second.
func (e *Engine) clock(ctx context.Context) {
	if e.o.Rate == 0 {
		<-ctx.Done()
		return
	}
	interval := max(time.Duration(float64(time.Second)/e.o.Rate), time.Millisecond)
	tick := time.NewTicker(interval)
	defer tick.Stop()
	last, due := time.Now(), 0.0
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			// An engine that cannot keep up does fewer steps: at most a tenth of a
			// second's worth, or one, is caught up with.
			due = min(due+now.Sub(last).Seconds()*e.o.Rate, max(e.o.Rate/10, 1))
			for last = now; due >= 1 && ctx.Err() == nil; due-- {
				e.Step()
			}
		}
	}
}

// Start is New, Listen, and Run in a goroutine that Close ends: for tests. An
// address that is taken is an error.
func Start(o Options) (*Engine, error) {
	e, err := New(o)
	if err != nil {
		return nil, err
	}
	if err := e.Listen(); err != nil {
		return nil, errors.Join(err, e.release())
	}
	ctx, cancel := context.WithCancel(context.Background())
	e.cancel, e.ended = cancel, make(chan error, 1)
	go func() { e.ended <- e.Run(ctx) }()
	return e, nil
}

// Close ends an engine that Start made and waits for it. A second call does nothing.
func (e *Engine) Close() error {
	if e.cancel == nil {
		return nil
	}
	e.cancel()
	err := <-e.ended
	e.cancel = nil
	return err
}

// Rank is the i-th rank, from 0 whatever its number is.
func (e *Engine) Rank(i int) *Rank { return e.ranks[i] }

// Ranks are all ranks in order.
func (e *Engine) Ranks() []*Rank { return e.ranks }

// BlockSize is in tokens.
func (e *Engine) BlockSize() int { return e.o.BlockSize }

// PromptOptions says how a prompt is run.
type PromptOptions struct {
	Rank   int        // index of the rank, from 0
	Report ReportMode // "": as Options.Report
	Answer int        // tokens to generate

	// bySteps: the prompt and each token of the answer are steps with a batch
	// of their own, as with a client. Readers tell full reporting from
	// incremental by what stands in one batch.
	bySteps bool
}

// Prompt runs a whole request: it looks up what is cached, stores the rest and
// the answer, and ends. What happened leaves with the rank's next batch, at
// Step or Flush. It returns how many of the prompt's tokens were a hit. Errors:
// ErrPrompt, ErrFull, ErrDown.
func (e *Engine) Prompt(tokens []uint32, p PromptOptions) (hitTokens int, err error) {
	hit, _, err := e.complete(tokens, p)
	return hit, err
}

func (e *Engine) complete(tokens []uint32, p PromptOptions) (int, []uint32, error) {
	if p.Rank < 0 || p.Rank >= len(e.ranks) {
		return 0, nil, fmt.Errorf("mockengine: no rank with index %d", p.Rank)
	}
	def(&p.Report, e.o.Report)
	return e.ranks[p.Rank].complete(tokens, p.Report, p.Answer, p.bySteps)
}

// Step is one scheduler step of every rank; it returns how many batches left.
func (e *Engine) Step() int {
	n := 0
	for _, r := range e.ranks {
		n += boolInt(r.Step())
	}
	return n
}

// Flush is Rank.Flush of every rank.
func (e *Engine) Flush(ctx context.Context) error {
	for _, r := range e.ranks {
		if err := r.Flush(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Restart restarts every rank.
func (e *Engine) Restart() {
	for _, r := range e.ranks {
		r.Restart()
	}
}

// Kill kills every rank.
func (e *Engine) Kill() {
	for _, r := range e.ranks {
		r.Kill()
	}
}

// Done reports whether every rank's workload has come to its end.
func (e *Engine) Done() bool {
	for _, r := range e.ranks {
		if !r.Done() {
			return false
		}
	}
	return true
}
