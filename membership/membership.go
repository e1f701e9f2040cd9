// Package membership makes a stock Dynamo router believe kvrelay: it puts each
// (worker, data-parallel rank) on record as an event source, where routers look
// for sources, and answers their recovery requests on Dynamo's own request
// plane. No Dynamo process is needed. What is said here was measured with Dynamo 1.6.1.
package membership

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/kvrelay/kvrelay/convert"
)

// Source is a rank that goes on record; sinks.Outbox is one.
type Source interface {
	WorkerID() uint64
	Rank() uint32
	PublisherID() uint64
	// BlockSize is the engine's, in tokens, as far as known; 0: not yet.
	BlockSize() uint64
	// SetUnregistered is told why the rank cannot be put on record; "": there is no
	// such trouble (any more).
	SetUnregistered(why string)

	// Since calls f with every router event from id from on to the newest. last
	// is the last one's id, from − 1 when there is none; ok is false when from is not at hand.
	Since(from uint64, f func(id uint64, e *convert.RouterEvent)) (last uint64, ok bool)
	// Newest is the number given last to a published block, and the newest event id then.
	Newest() (number, lastID uint64)
	// Walk appends the published blocks with numbers from … to as stores, at most
	// 1024; next is where to go on, lastID the newest event id then.
	Walk(from, to uint64, out *convert.Output) (next, lastID uint64)
}

// Endpoint names a Dynamo endpoint.
type Endpoint struct {
	Namespace string `json:"namespace"`
	Component string `json:"component"`
	Name      string `json:"name"`
}

// Options are a Registry's fixed surroundings.
type Options struct {
	Endpoint Endpoint // the worker's; also the subject of its events
	Store    Store
	// RecoveryAddr is host:port where routers ask for recovery; port 0: a free
	// one. Without a host, or "": the address that this host's default route has.
	RecoveryAddr string
	// NATS, when not nil, has routers ask over NATS (Dynamo's NATS request plane)
	// instead of at RecoveryAddr: it connects to the routers' servers. trouble,
	// which does not block, is to be called with what goes wrong on the
	// connection; dead is to be closed when it is.
	NATS func(ctx context.Context, trouble func(error)) (nc *nats.Conn, dead <-chan struct{}, err error)
	// RegisterWorker puts the worker and a model card on record too, where no
	// Dynamo process does.
	RegisterWorker bool
	Log            *slog.Logger // nil: none
}

// Registry keeps ranks on record. Use New.
type Registry struct {
	o      Options
	log    *slog.Logger
	server *server
	up     chan struct{} // closed when the server can be asked
	target string        // host:port that is advertised; set before up is closed
	nats   *natsPlane    // likewise; nil: routers ask over TCP

	worker theWorker

	lookEvery time.Duration // lookForWorker
	cardEvery time.Duration // lookForChange

	mu       sync.Mutex
	told     time.Time         // when trouble with the store was logged last
	onRecord map[string]record // event sources that are, by key
}

// New makes a Registry. It does no I/O.
func New(o Options) (*Registry, error) {
	var errs []error
	if o.Store == nil {
		errs = append(errs, errors.New("no store"))
	}
	if o.Endpoint.Namespace == "" || o.Endpoint.Component == "" || o.Endpoint.Name == "" {
		errs = append(errs, errors.New("namespace, component and endpoint must not be empty"))
	}
	if o.RecoveryAddr == "" {
		o.RecoveryAddr = ":0"
	}
	if _, _, err := net.SplitHostPort(o.RecoveryAddr); err != nil {
		errs = append(errs, fmt.Errorf("RECOVERY_ADDR: %w", err))
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Registry{
		lookEvery: lookForWorker, cardEvery: lookForChange,
		o: o, log: o.Log, server: newServer(o.Log), up: make(chan struct{}),
		worker:   theWorker{turn: make(chan struct{}, 1)},
		onRecord: map[string]record{},
	}, errors.Join(errs...)
}

// Run answers recovery requests and keeps the records alive until ctx ends,
// and returns nil then. Its error says why it cannot listen. What is on record
// when it returns is withdrawn by those who registered it, or expires.
func (r *Registry) Run(ctx context.Context) error {
	var ln net.Listener // nil: routers ask over NATS
	if r.o.NATS == nil {
		var err error
		if ln, r.target, err = listen(ctx, r.o.RecoveryAddr); err != nil {
			return fmt.Errorf("listening for Dynamo's recovery requests (RECOVERY_ADDR): %w", err)
		}
		close(r.up)
		r.log.Info("answering Dynamo routers' recovery requests", "addr", r.target)
	}
	var wg sync.WaitGroup
	wg.Go(func() { r.o.Store.Run(ctx) })
	wg.Go(func() { r.lookForRivals(ctx) })
	if r.o.RegisterWorker {
		wg.Go(func() { r.renewCards(ctx) })
	} else {
		wg.Go(func() { r.lookForWorkers(ctx) })
	}
	if ln != nil {
		r.server.run(ctx, ln)
	} else {
		r.runNATS(ctx)
	}
	wg.Wait()
	return nil
}

// Register puts src on record. It returns when the record is there, or with
// ctx's error; trouble is logged and tried again. withdraw takes it back.
//
// Two records of one rank make routers drop the state of both. So a record that
// another life left is waited for, and removed once nobody keeps it alive.
func (r *Registry) Register(ctx context.Context, src Source) (withdraw func(), err error) {
	select {
	case <-r.up:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	rec := r.record(src)
	remove := r.server.add(rec.Path, src)
	leave := func(context.Context) {}
	put := false
	deafen, err := r.hear(ctx, src, rec.Path)
	if err == nil {
		err = r.untilAlone(ctx, src, rec)
	}
	if err == nil && r.o.RegisterWorker {
		if err = r.joinWorker(ctx, src); err == nil {
			leave = func(ctx context.Context) { r.leaveWorker(ctx, src) }
			err = r.untilAlone(ctx, src, rec) // again: the engine's first store may have been long in coming
		}
	}
	if err == nil {
		err = r.retry(ctx, src, "putting the event source on record", func() error {
			put = true // whatever it returns
			return r.o.Store.Put(ctx, rec.Key, rec.Value)
		})
	}
	withdraw = func() {
		ctx, cancel := takingBack(ctx)
		defer cancel()
		r.mu.Lock()
		delete(r.onRecord, rec.Key)
		r.mu.Unlock()
		if put {
			r.withdraw(ctx, rec.Key)
		}
		leave(ctx)
		deafen(ctx)
		remove()
	}
	if err != nil {
		withdraw()
		return nil, err
	}
	r.mu.Lock()
	r.onRecord[rec.Key] = rec
	r.mu.Unlock()
	r.log.Info("on record for Dynamo routers", "worker_id", src.WorkerID(), "dp_rank", src.Rank(), "publisher_id", src.PublisherID(), "key", rec.Key)
	return withdraw, nil
}

const (
	// retryAfter is the pause after trouble with the store; it doubles up to retryMost.
	retryAfter = time.Second
	retryMost  = 15 * time.Second
	// lookAgain is how often another life's record is looked at, and lookSeldom
	// when it has been there for longer than withinLease.
	lookAgain  = 250 * time.Millisecond
	lookSeldom = 3 * time.Second
	// rareLooks is how many times longer than lookForWorker the longest pause
	// between two looks for rivals or the worker is, while all is well: each reads
	// all sources of the endpoint, or all instances, from the store.
	rareLooks = 16
	// withdrawFor bounds taking back all records of a rank; after it they expire
	// by themselves. With the 3 s that NATS has at the end it fits into the 5 s
	// that a process has.
	withdrawFor = time.Second
	// withdrawAgain is the pause after a withdrawal that failed.
	withdrawAgain = 100 * time.Millisecond
	// repeatLog is the least time between two log lines about the same trouble.
	repeatLog = time.Minute
)

// retry calls f, which puts src on record, until it succeeds or ctx ends.
func (r *Registry) retry(ctx context.Context, src Source, doing string, f func() error) error {
	troubled := false
	err := again(ctx, func(err error) {
		troubled = true
		src.SetUnregistered(unregistered + doing + ": " + err.Error())
		r.tell(doing, err)
	}, f)
	if troubled && err == nil {
		src.SetUnregistered("")
	}
	return err
}

// unregistered begins what Sources are told.
const unregistered = "not on record for Dynamo routers, so nothing is published: "

// again calls f until it succeeds or ctx ends; tell hears of every failure.
func again(ctx context.Context, tell func(error), f func() error) error {
	for pause := retryAfter; ; pause = min(2*pause, retryMost) {
		err := f()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err == nil {
			return nil
		}
		tell(err)
		if !sleep(ctx, pause/2+rand.N(pause/2)) { // so that relays do not come all at once
			return ctx.Err()
		}
	}
}

// tell logs trouble with the store, once a minute.
func (r *Registry) tell(doing string, err error) {
	r.mu.Lock()
	quiet := time.Since(r.told) < repeatLog
	if !quiet {
		r.told = time.Now()
	}
	r.mu.Unlock()
	if !quiet {
		r.log.Error("Dynamo routers cannot be told of this engine yet: nothing is published until they are", "doing", doing, "error", err)
	}
}

// takingBack is the time for taking records back, also after ctx has ended.
func takingBack(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), withdrawFor)
}

// withdraw takes a record back. Routers would go on asking for recovery where
// nobody answers, so it is tried until ctx ends.
func (r *Registry) withdraw(ctx context.Context, key string) {
	var why error
	for {
		err := r.o.Store.Delete(ctx, key)
		if err == nil {
			return
		}
		if why == nil || ctx.Err() == nil {
			why = err
		}
		if !sleep(ctx, withdrawAgain) {
			r.log.Warn("a record could not be withdrawn: routers keep it until it expires", "key", key, "error", why)
			return
		}
	}
}

// sleep waits; false: ctx has ended.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
