package sinks

import (
	"context"
	"maps"
	"sync/atomic"
	"testing"

	"github.com/kvrelay/kvrelay/convert"
)

// TestSince: what is read back is what was appended, of every kind, under its
// id, in every encoding; what is not at hand is said to be so.
func TestSince(t *testing.T) {
	for _, pr := range []Profile{Dynamo, DynamoSingle, JSON} {
		p := newTest(t, Options{Profile: pr, RecentEvents: 100})
		o := open(t, p, 1<<63+7, 3, nil)
		w := newWorkload(uint64(pr) + 5)
		want := map[uint64]fold{} // by id
		f := fold{}
		kinds := map[convert.Kind]int{}
		for id := uint64(1); id <= 600; id++ {
			e := w.event()
			o.Append(Place{}, []convert.RouterEvent{e})
			f.apply(&e)
			want[id] = maps.Clone(f)
			kinds[e.Kind]++
		}
		if len(kinds) != 3 {
			t.Fatalf("the workload has kinds %v only", kinds)
		}
		f = fold{}
		next := uint64(1)
		last, ok := o.Since(1, func(id uint64, e *convert.RouterEvent) {
			f.apply(e)
			if id != next || !maps.Equal(f, want[id]) {
				t.Fatalf("%v: event %d given as %d; the states agree: %v", pr, next, id, maps.Equal(f, want[id]))
			}
			next++
		})
		if last != 600 || !ok || next != 601 {
			t.Fatalf("%v: read to %d, %v", pr, last, ok)
		}
		none := func(id uint64, _ *convert.RouterEvent) { t.Errorf("%v: event %d was given", pr, id) }
		if last, ok := o.Since(601, none); last != 600 || !ok {
			t.Errorf("%v: behind the newest: %d, %v", pr, last, ok)
		}
		if _, ok := o.Since(602, none); ok {
			t.Errorf("%v: an id that is not there yet is at hand", pr)
		}
		o.confirm(600) // the ring keeps 100
		if _, ok := o.Since(500, none); ok {
			t.Errorf("%v: a lost id is at hand", pr)
		}
		n := 0
		if last, ok := o.Since(501, func(uint64, *convert.RouterEvent) { n++ }); last != 600 || !ok || n != 100 {
			t.Errorf("%v: the ring gives %d events to %d, %v", pr, n, last, ok)
		}
	}
}

// TestSinceCleared: a cleared comes back with and without its residency domain,
// and a store whose session looks like one is none.
func TestSinceCleared(t *testing.T) {
	for _, pr := range []Profile{Dynamo, JSON} {
		p := newTest(t, Options{Profile: pr})
		o := open(t, p, 7, 0, nil)
		in := []convert.RouterEvent{
			{Kind: convert.Cleared, NoDomain: true},
			{Kind: convert.Cleared},
			{Kind: convert.Stored, SessionID: []byte("\xa8event_id\x01\xa4data\xa7cleared"), Blocks: []convert.Block{{Hash: 1, TokensHash: 2}}},
			{Kind: convert.Stored, SessionID: []byte(`"event_id":1,"data":"cleared"`), Blocks: []convert.Block{{Hash: 3, TokensHash: 4}}},
		}
		o.Append(Place{}, in)
		o.Since(1, func(id uint64, e *convert.RouterEvent) {
			if want := &in[id-1]; e.Kind != want.Kind || e.NoDomain != want.NoDomain {
				t.Errorf("%v: event %d is %+v", pr, id, e)
			}
		})
	}
}

// TestRegisterGate: nothing is published before a rank is on record, heartbeats
// go on meanwhile, and the record goes before the rank's successor gets one.
func TestRegisterGate(t *testing.T) {
	s := startServer(t, nil)
	nc := connect(t, s.ClientURL())
	heard := beats(t, nc)
	var onRecord, registered atomic.Int64
	admit := make(chan struct{}, 1)
	p := newTest(t, Options{Servers: []string{s.ClientURL()}, Register: func(ctx context.Context, o *Outbox) (func(), error) {
		select {
		case <-admit:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if n := onRecord.Add(1); n != 1 {
			t.Errorf("%d records at once", n)
		}
		registered.Add(1)
		return func() { onRecord.Add(-1) }, nil
	}})
	p.timing = brisk
	a := openRank(t, p, 7, 1, 50)
	stop, ended := runs(p)
	eventually(t, "heartbeats before the record", func() bool { return len(heard()) > 5 })
	if a.o.Confirmed() != 0 || onRecord.Load() != 0 {
		t.Error("published before the record")
	}
	admit <- struct{}{}
	eventually(t, "the first event", func() bool { return a.o.Confirmed() == 1 })

	a.o.Close()
	admit <- struct{}{}
	b := openRank(t, p, 7, 2, 50)
	eventually(t, "the successor's first event", func() bool { return b.o.Confirmed() == 1 })
	if registered.Load() != 2 || onRecord.Load() != 1 {
		t.Errorf("%d registered, %d on record", registered.Load(), onRecord.Load())
	}
	// One that never gets its record does not keep the publisher from ending.
	b.o.Close()
	c := openRank(t, p, 7, 3, 50)
	eventually(t, "the record to go", func() bool { return onRecord.Load() == 0 })
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if c.o.Confirmed() != 0 || registered.Load() != 2 {
		t.Errorf("published without a record: %d confirmed", c.o.Confirmed())
	}
}
