package etcd

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// held is a record whose lease is renewed.
type held struct {
	key   string
	lease clientv3.LeaseID
}

// Run renews the leases of what was put, three times in their life, until ctx
// ends. It writes again what etcd has lost: with its data, with the lease while
// kvrelay could not reach it, or by someone's hand.
func (s *Store) Run(ctx context.Context) {
	s.hold(true)
	defer s.hold(false)
	failed := 0
	var told time.Time
	well := func() {
		if !told.IsZero() {
			s.log.Info("etcd answers again: the records are kept alive")
		}
		failed, told = 0, time.Time{}
	}
	for ctx.Err() == nil {
		if len(s.held()) == 0 {
			select {
			case <-s.wake:
			case <-ctx.Done():
			}
			continue
		}
		err := s.keep(ctx, well)
		if err == nil || ctx.Err() != nil {
			continue
		}
		// One failure is a connection that ended, or an election.
		if failed++; failed > 1 && time.Since(told) > repeatLog {
			told = time.Now()
			s.log.Error("records in etcd cannot be kept alive: routers forget this engine when their leases end", "lease", s.o.Lease, "error", err)
		}
		pause(ctx, retryAfter+rand.N(retryAfter))
	}
}

// held are the records to renew.
func (s *Store) held() []held {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []held
	for key, r := range s.mine {
		if r.placed {
			list = append(list, held{key, r.lease})
		}
	}
	return list
}

// keep renews over one stream of requests until nothing is on record, ctx ends,
// or an answer does not come in time. The next stream goes to another server
// where there are several: so one that hangs is left while the lease lasts. The
// client's own renewals stay with it. well is called after each round.
func (s *Store) keep(ctx context.Context, well func()) error {
	patience := s.o.Lease / 4
	sctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// bounded calls f, and ends the stream when that takes too long.
	bounded := func(f func() error) error {
		t := time.AfterFunc(patience, cancel)
		err := f()
		if !t.Stop() {
			err = context.DeadlineExceeded
		}
		return s.explain(err)
	}
	uctx, stop := context.WithTimeout(ctx, tryFor)
	c, done, err := s.use(uctx)
	stop()
	if err != nil {
		return s.explain(err)
	}
	defer done()
	var stream pb.Lease_LeaseKeepAliveClient
	if err := bounded(func() (err error) { stream, err = clientv3.RetryLeaseClient(c).LeaseKeepAlive(sctx); return err }); err != nil {
		return err
	}
	for {
		began := time.Now()
		list := s.held()
		if len(list) == 0 {
			return nil
		}
		for _, h := range list {
			var ttl int64
			err := bounded(func() error {
				if err := stream.Send(&pb.LeaseKeepAliveRequest{ID: int64(h.lease)}); err != nil && !errors.Is(err, io.EOF) {
					return err // EOF: Recv tells why
				}
				a, err := stream.Recv()
				ttl = a.GetTTL()
				return err
			})
			if err == nil {
				err = s.look(ctx, h, ttl > 0)
			}
			if err != nil {
				return err
			}
		}
		well()
		if !pause(ctx, s.o.Lease/3-time.Since(began)) {
			return nil
		}
	}
}

// look writes a record again that is not there, though nobody deleted it here.
func (s *Store) look(ctx context.Context, h held, leased bool) error {
	if leased {
		there := false
		err := s.do(ctx, func(ctx context.Context, c *clientv3.Client) error {
			a, err := c.Get(ctx, h.key, clientv3.WithCountOnly())
			there = err == nil && a.Count > 0
			return err
		})
		if err != nil || there {
			return err
		}
	}
	rctx, cancel := context.WithCancel(ctx)
	defer cancel()
	unlock, err := s.lock(rctx, h.key)
	if err != nil {
		return err
	}
	defer unlock()
	s.mu.Lock()
	r, known := s.mine[h.key]
	if known = known && r.lease == h.lease; known {
		s.restoring, s.giveUp = h.key, cancel
	}
	s.mu.Unlock()
	if !known {
		return nil // deleted meanwhile, or put again
	}
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.restoring, s.giveUp = "", nil
	}()
	if !leased {
		r.lease = clientv3.NoLease
	}
	err = s.do(rctx, func(ctx context.Context, c *clientv3.Client) error { return s.place(ctx, c, h.key, r.value, r) })
	switch {
	case rctx.Err() != nil && ctx.Err() == nil:
		return nil // deleted
	case err == nil:
		s.log.Info("a record that etcd had lost is there again", "key", h.key)
	}
	return err
}

// pause waits; false: ctx has ended.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
