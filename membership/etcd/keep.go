package etcd

import (
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/kvrelay/kvrelay/membership"
)

// held is a record whose lease is renewed.
type held struct {
	key   string
	lease clientv3.LeaseID
	value []byte
}

const (
	// renewAtOnce is how many renewals are asked for before an answer is read: what
	// they take on the way is far less than what gRPC has room for.
	renewAtOnce = 256
	// lookAtOnce is how many keys one request looks at; etcd takes 128.
	lookAtOnce = 100
)

// Run renews the leases of what was put, three times in their life, until ctx
// ends. It writes again what etcd has lost: with its data, with the lease while
// kvrelay could not reach it, or by someone's hand, and what someone has overwritten. It removes what Delete could not.
func (s *Store) Run(ctx context.Context) {
	s.hold(true)
	defer s.hold(false)
	failed, troubled := 0, false
	var told time.Time
	well := func() {
		if troubled {
			s.log.Info("etcd answers again: the records are kept alive")
		}
		failed, troubled = 0, false
	}
	for ctx.Err() == nil {
		if s.idle() {
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
		// One failure is a connection that ended, or an election. Where nothing is
		// on record the withdrawals have been told of.
		if failed++; failed > 1 && time.Since(told) > repeatLog && len(s.held()) > 0 {
			told, troubled = time.Now(), true
			s.log.Error("records in etcd cannot be kept alive: routers forget this engine when their leases end", "lease", s.o.Lease, "error", err)
		}
		pause(ctx, retryAfter+rand.N(retryAfter))
	}
}

// idle says that there is nothing to do until wake.
func (s *Store) idle() bool {
	s.mu.Lock()
	owes := len(s.leaving) > 0
	s.mu.Unlock()
	return !owes && len(s.held()) == 0
}

// removeLeft removes what Delete could not, or is about to.
func (s *Store) removeLeft(ctx context.Context) error {
	s.mu.Lock()
	left := maps.Clone(s.leaving)
	s.mu.Unlock()
	for key, lease := range left {
		if err := s.revoke(ctx, key, lease); err != nil {
			return err
		}
	}
	return nil
}

// held are the records to renew.
func (s *Store) held() []held {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []held
	for key, r := range s.mine {
		if r.placed {
			list = append(list, held{key, r.lease, r.value})
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
	// renew asks for some leases at once, and adds those that have ended to ended.
	renew := func(list []held, ended map[clientv3.LeaseID]bool) error {
		err := bounded(func() error {
			for _, h := range list {
				if err := stream.Send(&pb.LeaseKeepAliveRequest{ID: int64(h.lease)}); err != nil && !errors.Is(err, io.EOF) {
					return err // EOF: Recv tells why
				}
			}
			return nil
		})
		for i := 0; i < len(list) && err == nil; i++ {
			err = bounded(func() error {
				a, err := stream.Recv()
				if err == nil && a.TTL <= 0 {
					ended[clientv3.LeaseID(a.ID)] = true
				}
				return err
			})
		}
		return err
	}
	for {
		began := time.Now()
		list := s.held()
		if len(list) == 0 {
			return s.removeLeft(ctx)
		}
		ended := map[clientv3.LeaseID]bool{}
		for some := range slices.Chunk(list, renewAtOnce) {
			if err := renew(some, ended); err != nil {
				return err
			}
		}
		if err := s.restore(ctx, list, ended, began.Add(s.o.Lease/3)); err != nil {
			return err
		}
		well()
		_ = s.removeLeft(ctx) // what stays is tried again in the next round: renewals come first
		if !pause(ctx, s.o.Lease/3-time.Since(began)) {
			return nil
		}
	}
}

// restore writes again what is not there of list, some of whose leases have ended,
// or what somebody has overwritten. What is left at the end of its time waits for
// the next renewals.
func (s *Store) restore(ctx context.Context, list []held, ended map[clientv3.LeaseID]bool, end time.Time) error {
	var lost, changed restored
	defer func() {
		s.lost.tell(&lost, func() {
			s.log.Info("records that etcd had lost are there again", "records", lost.n, "key", lost.key, "so_far", s.lost.n)
		})
		s.changed.tell(&changed, func() {
			s.log.Warn("records in etcd that somebody had overwritten are there again", "records", changed.n, "key", changed.key, "so_far", s.changed.n)
		})
	}()
	again := func(list []held, leased bool, done *restored) error {
		for _, h := range list {
			if time.Now().After(end) {
				return nil
			}
			there, err := s.look(ctx, h, leased)
			if err != nil {
				return err
			}
			if there {
				done.n, done.key = done.n+1, h.key
			}
		}
		return nil
	}
	var leased, not []held
	for _, h := range list {
		if ended[h.lease] {
			not = append(not, h)
		} else {
			leased = append(leased, h)
		}
	}
	if err := again(not, false, &lost); err != nil {
		return err
	}
	for some := range slices.Chunk(leased, lookAtOnce) {
		gone, others, err := s.missing(ctx, some)
		if err == nil {
			err = again(gone, true, &lost)
		}
		if err == nil {
			err = again(others, true, &changed)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// restored are records that were written again, and when that was told of.
type restored struct {
	n    int
	key  string // of the last
	told time.Time
}

// tell counts what was restored, and has it told of once a minute.
func (r *restored) tell(now *restored, say func()) {
	if r.n += now.n; now.n > 0 && time.Since(r.told) > repeatLog {
		r.told = time.Now()
		say()
	}
}

// missing are those of list that are not there, though their leases are, and
// those in whose place something else is.
func (s *Store) missing(ctx context.Context, list []held) (gone, others []held, err error) {
	taken := ""
	err = s.do(ctx, func(ctx context.Context, c *clientv3.Client) error {
		var ops []clientv3.Op
		for _, h := range list {
			ops = append(ops, clientv3.OpGet(h.key))
		}
		a, err := c.Txn(ctx).Then(ops...).Commit()
		if err != nil {
			return err
		}
		for i, r := range a.Responses {
			h, kvs := list[i], r.GetResponseRange().GetKvs()
			switch {
			case len(kvs) == 0:
				gone = append(gone, h)
			case s.is(h, kvs[0]):
			case membership.Restorable(h.key, kvs[0].Value):
				others = append(others, h)
			default:
				taken = h.key
			}
		}
		return nil
	})
	if taken != "" && time.Since(s.toldTaken) > repeatLog {
		s.toldTaken = time.Now()
		s.log.Error(membership.TakenOver, "key", taken)
	}
	return gone, others, err
}

// is says whether kv is what was put for h; or whether something else was put
// since, and may be there or not. What is under another lease, or none, would not
// go with us.
func (s *Store) is(h held, kv *mvccpb.KeyValue) bool {
	if bytes.Equal(kv.Value, h.value) && clientv3.LeaseID(kv.Lease) == h.lease {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	_, busy := s.locked[h.key]
	r := s.mine[h.key]
	return busy || r.lease != h.lease || !bytes.Equal(r.value, h.value)
}

// look writes a record again that is not there, unless it was deleted here. there:
// it was written.
func (s *Store) look(ctx context.Context, h held, leased bool) (there bool, err error) {
	rctx, cancel := context.WithCancel(ctx)
	defer cancel()
	unlock, err := s.lock(rctx, h.key)
	if err != nil {
		return false, err
	}
	defer unlock()
	s.mu.Lock()
	r, known := s.mine[h.key]
	if known = known && r.lease == h.lease; known {
		s.restoring, s.giveUp = h.key, cancel
	}
	s.mu.Unlock()
	if !known {
		return false, nil // deleted meanwhile, or put again
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
	if rctx.Err() != nil && ctx.Err() == nil {
		return false, nil // deleted
	}
	return err == nil, err
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
