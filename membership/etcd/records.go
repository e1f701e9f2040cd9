package etcd

import (
	"context"
	"errors"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/kvrelay/kvrelay/membership"
)

// Put writes a record under its lease, which Run renews from then on. After an
// error the record may be there, until its lease ends or Delete.
func (s *Store) Put(ctx context.Context, key string, value []byte) error {
	unlock, err := s.lock(ctx, key)
	if err != nil {
		return err
	}
	defer unlock()
	s.mu.Lock()
	r := s.mine[key]
	s.mine[key] = r // so that Delete knows the key for ours, whatever comes of this
	s.mu.Unlock()
	err = s.do(ctx, func(ctx context.Context, c *clientv3.Client) error {
		return s.place(ctx, c, key, value, r)
	})
	if err == nil {
		s.wakeUp()
	}
	return err
}

// place writes a record under r's lease, or a new one where that has ended. The
// lease is remembered before anything is written under it.
func (s *Store) place(ctx context.Context, c *clientv3.Client, key string, value []byte, r record) error {
	for {
		fresh := r.lease == clientv3.NoLease
		if fresh {
			g, err := c.Grant(ctx, int64(s.o.Lease.Seconds()))
			if err != nil {
				return err
			}
			r.lease = g.ID
			s.set(key, r)
		}
		_, err := c.Put(ctx, key, string(value), clientv3.WithLease(r.lease))
		switch {
		case err == nil:
			r.value, r.placed = value, true
			s.set(key, r)
			return nil
		case fresh || !errors.Is(err, rpctypes.ErrLeaseNotFound):
			return err
		}
		r.lease = clientv3.NoLease
	}
}

// set says what is known of key's record. Where it was withdrawn meanwhile it is
// to go, whatever became of its writing.
func (s *Store) set(key string, r record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, wanted := s.mine[key]; !wanted {
		s.leaving[key] = r.lease
		s.wakeUp()
		return
	}
	s.mine[key] = r
}

// Delete removes a record. From its begin on nobody keeps the record alive:
// also after an error it goes with its lease. A record of ours is removed by its
// lease alone, again after an error: the key may be another process's by then.
func (s *Store) Delete(ctx context.Context, key string) error {
	s.mu.Lock()
	if s.restoring == key {
		s.giveUp()
	}
	s.mu.Unlock()
	unlock, err := s.lock(ctx, key)
	s.mu.Lock()
	if r, ok := s.mine[key]; ok {
		delete(s.mine, key)
		s.leaving[key] = r.lease
	}
	lease, known := s.leaving[key]
	s.mu.Unlock()
	if err == nil {
		defer unlock()
		if known {
			err = s.revoke(ctx, key, lease)
		} else {
			err = s.do(ctx, func(ctx context.Context, c *clientv3.Client) error {
				_, err := c.Delete(ctx, key)
				return err
			})
		}
	}
	if err != nil && known {
		s.wakeUp()
	}
	return err
}

// revoke removes a record of ours, where it still is under the lease.
func (s *Store) revoke(ctx context.Context, key string, lease clientv3.LeaseID) error {
	if lease != clientv3.NoLease { // else nothing was written
		err := s.do(ctx, func(ctx context.Context, c *clientv3.Client) error {
			_, err := c.Revoke(ctx, lease)
			if errors.Is(err, rpctypes.ErrLeaseNotFound) {
				return nil // it has gone with its lease
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leaving[key] == lease {
		delete(s.leaving, key)
	}
	return nil
}

// wakeUp has Run see to the records.
func (s *Store) wakeUp() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// List reads the records whose keys begin with prefix, as of one moment. Dead is
// only what we have not been able to withdraw: what nobody keeps alive is no
// longer there.
func (s *Store) List(ctx context.Context, prefix string) (out []membership.Entry, err error) {
	err = s.do(ctx, func(ctx context.Context, c *clientv3.Client) error {
		list, err := c.Get(ctx, prefix, clientv3.WithPrefix())
		if err != nil {
			return err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, kv := range list.Kvs {
			lease, leaving := s.leaving[string(kv.Key)]
			out = append(out, membership.Entry{Key: string(kv.Key), Value: kv.Value, Dead: leaving && int64(lease) == kv.Lease})
		}
		return nil
	})
	return out, err
}

// lock waits until nobody else is at key.
func (s *Store) lock(ctx context.Context, key string) (unlock func(), err error) {
	for {
		s.mu.Lock()
		other, busy := s.locked[key]
		if !busy {
			done := make(chan struct{})
			s.locked[key] = done
			s.mu.Unlock()
			return func() {
				s.mu.Lock()
				delete(s.locked, key)
				s.mu.Unlock()
				close(done)
			}, nil
		}
		s.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}
