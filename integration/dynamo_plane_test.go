//go:build integration && dynamo

package integration

import (
	"testing"
	"time"
)

// overNATS has the routers of a world ask for recovery over NATS.
func (w *dynamoWorld) overNATS() {
	w.plane = "nats"
	delete(w.set, "RECOVERY_ADDR")
	w.set["REQUEST_PLANE"] = "nats"
}

// Routers whose request plane is NATS get everything when they start late, what
// NATS lost, and what a relay that follows another one has.
func TestDynamoNATSPlane(t *testing.T) {
	w := newDynamoWorld(t, 2)
	w.overNATS()
	link := newCable(t, w.nats)
	cut := w.router(link.url())
	k := startKvrelay(t, w.set)
	direct := w.router(w.nats) // tells when NATS has it
	a, b, c := tokens(11, 8), tokens(100, 12), tokens(200, 4)
	w.store(0, a)
	w.store(1, b)
	for _, r := range []dynamoRouter{cut, direct} {
		r.sees("stored", a, worker, 0, 2)
		r.sees("stored at rank 1", b, worker, 1, 3)
	}
	late := w.router(w.nats)
	late.sees("a router that starts late", a, worker, 0, 2)
	late.sees("a router that starts late, rank 1", b, worker, 1, 3)
	k.says("a router has recovered", "blocks", "worker_kv_query_source_", "-2a")

	link.set(true)
	w.store(0, b)
	w.evict(0, a)
	direct.sees("lost on the cut link", b, worker, 0, 3)
	link.set(false)
	another := time.NewTicker(200 * time.Millisecond)
	defer another.Stop()
	for i, end := uint32(0), time.Now().Add(patience); cut.overlap(b, worker, 0) != 3; i++ {
		if time.Now().After(end) {
			t.Fatal("the router never asks for what it missed")
		}
		w.store(0, tokens(1000+10*i, 4))
		<-another.C
	}
	k.says("a router has recovered", "events")
	w.store(0, c)
	for _, r := range []dynamoRouter{cut, direct, late} {
		r.sees("behind the gap", c, worker, 0, 1)
		r.sees("evicted in the gap", a, worker, 0, 0)
	}

	if code := k.stop(); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	startKvrelay(t, w.set)
	later := w.router(w.nats)
	for _, r := range []dynamoRouter{cut, direct, late, later} {
		r.sees("after a restart", b, worker, 0, 3)
		r.sees("rank 1 after a restart", b, worker, 1, 3)
	}
}
