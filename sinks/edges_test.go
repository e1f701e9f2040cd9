package sinks

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"net"
	"sync"
	"testing"
	"time"

	reference "github.com/kvrelay/kvrelay/consumer"
	"github.com/kvrelay/kvrelay/convert"
	"github.com/kvrelay/kvrelay/decode"
)

// muteConn swallows what it is given from the subscription to heartbeats on, as
// a link does that died unseen, and tells of the first PING swallowed.
type muteConn struct {
	net.Conn
	muted bool // writes come one at a time
	asked func()
}

func (c *muteConn) Write(b []byte) (int, error) {
	c.muted = c.muted || bytes.Contains(b, []byte(".heartbeat "))
	if !c.muted {
		return c.Conn.Write(b)
	}
	if bytes.Contains(b, []byte("PING\r\n")) {
		c.asked()
	}
	return len(b), nil
}

// TestRunEndsWhileOwning: a link that answers nothing while a rank is listened
// for does not hold up the end, most of whose time Drain may have taken.
func TestRunEndsWhileOwning(t *testing.T) {
	s := startServer(t, nil)
	asked := make(chan struct{})
	var once sync.Once
	p := newTest(t, Options{Servers: []string{s.ClientURL()}, Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
		var d net.Dialer
		c, err := d.DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &muteConn{Conn: c, asked: func() { once.Do(func() { close(asked) }) }}, nil
	}}) // usual timing
	openRank(t, p, 7, 1, 50)
	stop := run(t, p)
	select {
	case <-asked:
	case <-time.After(patience):
		t.Fatal("nothing is asked")
	}
	start := time.Now()
	if err := stop(); err != nil {
		t.Error(err)
	}
	if d := time.Since(start); d > 1500*time.Millisecond {
		t.Errorf("Run ended after %v", d)
	}
}

// TestDropOfAClosedOutbox: an outbox that loses the last it had after Close is
// forgotten, or its rank's next one would wait for it for ever.
func TestDropOfAClosedOutbox(t *testing.T) {
	p := newTest(t, Options{Kind: JetStream, Servers: []string{"nats://127.0.0.1:1"}})
	o, err := p.OpenRank(7, 0, RankOptions{})
	if err != nil {
		t.Fatal(err)
	}
	o.Append(Place{Kind: PlaceEmpty}, []convert.RouterEvent{{Kind: convert.Cleared}})
	o.Close()
	next, err := p.OpenRank(7, 0, RankOptions{})
	if err != nil {
		t.Fatal(err)
	}
	o.drop()
	select {
	case <-o.gone:
	default:
		t.Error("the closed outbox is not forgotten")
	}
	if w := (writer{j: &jsRun{p: p}, o: next}); !w.turn() {
		t.Error("the next outbox waits for it")
	}
}

// edgeOutbox has events 1 … n, each a `cleared`.
func edgeOutbox(t *testing.T, n int) *Outbox {
	t.Helper()
	p := newTest(t, Options{Kind: JetStream, Servers: []string{"nats://127.0.0.1:1"}})
	o, err := p.OpenRank(7, 0, RankOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for range n {
		o.Append(Place{}, []convert.RouterEvent{{Kind: convert.Cleared}})
	}
	return o
}

// TestSnapshotOfWhatIsGone: the outbox may lose its events between two looks at them.
func TestSnapshotOfWhatIsGone(t *testing.T) {
	o := edgeOutbox(t, 5)
	s := &snapshot{since: 2}
	if !o.young(s) {
		t.Error("not young")
	}
	o.mu.Lock()
	o.log.release()
	o.mu.Unlock()
	if o.young(s) {
		t.Error("young without its log")
	}
}

// TestSinceADrop: what was the newest at the beginning may be dropped meanwhile.
func TestSinceADrop(t *testing.T) {
	o := edgeOutbox(t, chunkBlocks+50)
	o.confirm(chunkBlocks)
	last, ok := o.Since(1, func(id uint64, _ *convert.RouterEvent) {
		if id == chunkBlocks {
			o.drop()
		}
	})
	if last != chunkBlocks || !ok {
		t.Errorf("up to %d, %v", last, ok)
	}
}

// TestRecoveryOfLongEvents: an event that was published when max_payload was
// larger fits into no answer now. Who misses it gets a snapshot, and a snapshot
// with it in its log is given up for a new one; no consumer asks in vain for ever.
func TestRecoveryOfLongEvents(t *testing.T) {
	const limit = 4096
	p := newTest(t, Options{Servers: []string{"nats://127.0.0.1:1"}})
	k := openRank(t, p, 7, 1, 50)
	r := newRecovery(k.o)
	ask := func(format string, a ...any) reply {
		t.Helper()
		got, err := r.ask(fmt.Appendf(nil, format, a...), limit)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	old := ask("").number[headerSnapshot]
	e := decode.Event{}
	for i := range uint64(1000) {
		e.Hashes = append(e.Hashes, 1000+i)
	}
	k.step([]decode.Event{store(e)})
	k.step([]decode.Event{store(decode.Event{Hashes: []uint64{1, 2}})})
	if a := ask(`{"publisher_id":%d,"from":3}`, k.o.PublisherID()); a.kind != "events" {
		t.Errorf("behind it: %+v", a)
	}
	if _, err := r.ask(fmt.Appendf(nil, `{"snapshot":%q,"part":1}`, old), limit); err != errToken {
		t.Errorf("the log of an older snapshot: %v, want %v", err, errToken)
	}
	a := ask(`{"publisher_id":%d,"from":2}`, k.o.PublisherID())
	x := &router{f: fold{}}
	for part := 0; ; {
		evs, err := reference.ParseEvents("", a.body)
		if err != nil || a.kind != "snapshot" || len(a.body) > limit {
			t.Fatalf("part %d: %s of %d bytes, %v", part, a.kind, len(a.body), err)
		}
		for i := range evs {
			x.apply(&evs[i])
		}
		if !a.more {
			break
		}
		part++
		a = ask(`{"snapshot":%q,"part":%d}`, a.number[headerSnapshot], part)
	}
	if !maps.Equal(x.f, k.published()) || a.number[headerDone] != "3" {
		t.Errorf("%d blocks of %d, as of %s", len(x.f), len(k.published()), a.number[headerDone])
	}
}
