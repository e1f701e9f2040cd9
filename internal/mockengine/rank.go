package mockengine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"

	"github.com/zeebo/xxh3"
)

var (
	// ErrDown is returned for a rank that is dead or frozen.
	ErrDown = errors.New("mockengine: rank is down")
	// ErrPrompt is returned for a prompt that the pool can never hold, or that
	// has no tokens.
	ErrPrompt = errors.New("mockengine: prompt does not fit")
)

// Rank is one data-parallel rank: a pool, its publisher and its share of the
// workload. Safe for concurrent use. What Publisher can be told while it runs
// works here too; where a process ends, so does its cache.
type Rank struct {
	*Publisher

	o      *Options
	number int
	enc    Encoder

	mu      sync.Mutex // before Publisher's own
	pool    *Pool
	traffic *traffic // nil: no workload
	inj     *Injector
	bound   bool
	dead    bool // until Start
	frozen  bool // until Thaw
	wait    int  // steps until a fault's dead or frozen state ends
	late    int  // steps until the ROUTER opens
}

func newRank(o *Options, i int) *Rank {
	number := o.FirstRank + i
	r := &Rank{
		o: o, number: number,
		enc: Encoder{Batch: o.BatchEncoding, Event: o.Encoding, Hashes: o.Hashes, BlockSize: o.BlockSize, Rank: number, OmitRank: o.OmitRank},
		inj: NewInjector(o.Faults, o.Seed, number),
		Publisher: NewPublisher(PublisherOptions{
			Rank: number, Topic: o.Topic, Replay: o.Replay, BufferSteps: o.BufferSteps, HWM: o.HWM, ReplayHWM: o.ReplayHWM,
			EventAddr: hostPort(o.Host, o.EventPort, i), ReplayAddr: hostPort(o.Host, o.ReplayPort, i),
			Faults: o.Faults, Seed: o.Seed, Observe: o.Observe,
		}),
	}
	r.pool = NewPool(o.BlockSize, o.Blocks, o.Duplicates)
	if o.Workload != nil {
		r.traffic = newTraffic(*o.Workload, o.Report, o.BlockSize, o.Seed, number)
	}
	return r
}

// Number is the data-parallel rank.
func (r *Rank) Number() int { return r.number }

// Endpoint is where its PUB is: tcp://host:port, with the host as in Options.
// Empty: it is not bound, or the engine publishes nothing.
func (r *Rank) Endpoint() string { return r.endpoint(r.EventPort()) }

// ReplayEndpoint is where its ROUTER is; empty also with NoReplay.
func (r *Rank) ReplayEndpoint() string { return r.endpoint(r.ReplayPort()) }

func (r *Rank) endpoint(port int) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.bound || port == 0 {
		return ""
	}
	return "tcp://" + net.JoinHostPort(r.o.Host, strconv.Itoa(port))
}

func (r *Rank) listen() error {
	if err := r.Listen(); err != nil {
		return fmt.Errorf("rank %d: %w", r.number, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.bound = true
	r.begin()
	return nil
}

// begin is what a new process begins with; mu is held.
func (r *Rank) begin() {
	if n, ok := r.inj.Has(FaultLate); ok {
		r.CloseReplay()
		r.late = int(n)
	}
}

// reset empties the cache for a new process; mu is held.
func (r *Rank) reset() {
	r.pool = NewPool(r.o.BlockSize, r.o.Blocks, r.o.Duplicates)
	if r.traffic != nil {
		r.traffic.restarted()
	}
}

// Truth is what the rank holds now: block hash → physical blocks. Consumers
// can know it after Step or Flush.
func (r *Rank) Truth() map[uint64]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pool.Held()
}

// Hit is how many tokens of a prompt would be found cached now.
func (r *Rank) Hit(tokens []uint32) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pool.Hit(tokens)
}

// Done reports whether the rank's workload has come to its end and no fault
// keeps the rank down.
func (r *Rank) Done() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return (r.traffic == nil || r.traffic.done()) && r.wait == 0 && r.late == 0
}

// complete is a whole request within the present step; with bySteps each token
// of the answer is a step of its own, before which what was done leaves. It
// returns the tokens that were a hit and the answer's: always the same for the
// same text.
func (r *Rank) complete(tokens []uint32, mode ReportMode, answer int, bySteps bool) (hit int, out []uint32, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.dead || r.frozen {
		return 0, nil, ErrDown
	}
	if len(tokens) == 0 || len(tokens)+answer > r.o.Blocks*r.o.BlockSize {
		return 0, nil, ErrPrompt
	}
	var req *Request
	for {
		if req, hit, err = r.pool.Admit(tokens, mode); err == nil {
			break
		}
		if r.traffic == nil || !r.traffic.preempt(r.pool) {
			return 0, nil, err
		}
	}
	defer r.pool.Free(req)
	for range answer {
		if bySteps {
			r.publish()
		}
		t := nextToken(req.Tokens())
		for r.pool.Extend(req, t) != nil {
			if r.traffic == nil || !r.traffic.preempt(r.pool) {
				return hit, out, ErrFull
			}
		}
		out = append(out, t)
	}
	return hit, out, nil
}

// nextToken is the model: a hash of the last tokens of the text.
func nextToken(text []uint32) uint32 {
	var b []byte
	for _, t := range text[max(len(text)-8, 0):] {
		b = append(b, byte(t), byte(t>>8), byte(t>>16), byte(t>>24))
	}
	return uint32(xxh3.Hash(b) % 32000)
}

// Clear resets the whole cache; requests of the workload end.
func (r *Rank) Clear() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.dead || r.frozen {
		return ErrDown
	}
	if r.traffic != nil {
		r.traffic.clear(r.pool)
		return nil
	}
	return r.pool.Clear()
}

// Restart is a new process at once: see Publisher.Restart.
func (r *Rank) Restart() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reset()
	r.Publisher.Restart()
	r.begin()
}

// Kill ends the process: see Publisher.Kill. Steps do nothing until Start.
func (r *Rank) Kill() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.kill(0)
}

func (r *Rank) kill(steps int) {
	r.dead, r.wait = true, steps
	r.reset()
	r.Publisher.Kill()
}

// Start begins a new process after Kill.
func (r *Rank) Start() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.start()
}

func (r *Rank) start() error {
	r.dead, r.wait = false, 0
	err := r.Publisher.Start()
	r.begin()
	return err
}

// HalfOpen is a new process on a host that lost its power: see Publisher.HalfOpen.
func (r *Rank) HalfOpen() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reset()
	r.Publisher.HalfOpen()
	r.begin()
}

// Freeze stops the process; steps do nothing until Thaw.
func (r *Rank) Freeze() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.frozen, r.wait = true, 0
	r.Publisher.Freeze()
}

// Thaw ends Freeze.
func (r *Rank) Thaw() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.frozen, r.wait = false, 0
	r.Publisher.Thaw()
}

// Flush publishes what has happened since the last batch, and returns when
// everything sent has been handed to the kernel.
func (r *Rank) Flush(ctx context.Context) error {
	r.mu.Lock()
	r.publish()
	r.mu.Unlock()
	return r.Publisher.Flush(ctx)
}
