//go:build integration && dynamo

package integration

import (
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// worker is the one that startKvrelay names.
const worker = 42

func tokens(first uint32, n int) prompt {
	p := prompt{}
	for i := range uint32(n) {
		p.Tokens = append(p.Tokens, first+i)
	}
	return p
}

// A stock router sees every block come and go at both ranks, through kvrelay and no Dynamo process.
func TestDynamoLife(t *testing.T) { dynamoLife(t, newDynamoWorld(t, 2)) }

// dynamoLife is that story in a world of two ranks.
func dynamoLife(t *testing.T, w *dynamoWorld) {
	t.Helper()
	early := w.router(w.nats) // before there is anything
	k := startKvrelay(t, w.set)
	a, b := tokens(11, 8), tokens(100, 12)

	early.sees("before a store", a, worker, 0, 0)
	w.store(0, a)
	early.sees("stored", a, worker, 0, 2)
	early.sees("rank 1 beside rank 0", a, worker, 1, 0)
	w.store(1, b)
	early.sees("stored at rank 1", b, worker, 1, 3)
	early.sees("not at rank 0", b, worker, 0, 0)
	w.evict(0, a)
	early.sees("evicted", a, worker, 0, 0)
	w.store(0, a)
	early.sees("stored anew", a, worker, 0, 2)

	late := w.router(w.nats)
	late.sees("a router that starts late", a, worker, 0, 2)
	late.sees("a router that starts late, rank 1", b, worker, 1, 3)
	k.says("a router has recovered", "blocks")

	w.clear(0)
	for _, r := range []dynamoRouter{early, late} {
		r.sees("cleared", a, worker, 0, 0)
		r.sees("the other rank is not", b, worker, 1, 3)
	}
	w.store(0, b)
	for _, r := range []dynamoRouter{early, late} {
		r.sees("after the clear", b, worker, 0, 3)
	}

	// An engine that restarts has nothing.
	w.ranks[1].Restart()
	w.store(1, a)
	for _, r := range []dynamoRouter{early, late} {
		r.sees("stored by the new engine", a, worker, 1, 2)
		r.sees("forgotten with the old engine", b, worker, 1, 0)
	}
}

// Blocks of adapters and salts are found under their own names alone.
func TestDynamoNames(t *testing.T) {
	w := newDynamoWorld(t, 1)
	r := w.router(w.nats)
	startKvrelay(t, w.set)
	name := "adapter"
	plain, lora, salt := tokens(11, 8), tokens(11, 8), tokens(11, 8)
	lora.Lora, salt.Salt = &name, &name
	all := []prompt{plain, lora, salt}
	for i, p := range all {
		w.store(0, p)
		for j, q := range all {
			r.sees("prompt "+strconv.Itoa(j)+" after store "+strconv.Itoa(i), q, worker, 0, map[bool]int{true: 2}[j <= i])
		}
	}
}

// What NATS lost is asked for and had from the ring.
func TestDynamoLostMessages(t *testing.T) {
	w := newDynamoWorld(t, 1)
	link := newCable(t, w.nats)
	r := w.router(link.url())
	k := startKvrelay(t, w.set)
	direct := w.router(w.nats) // tells when NATS has it
	a, b, c := tokens(11, 8), tokens(100, 12), tokens(200, 4)
	w.store(0, a)
	r.sees("stored", a, worker, 0, 2)
	link.set(true)
	w.store(0, b)
	w.evict(0, a)
	direct.sees("lost on the cut link", b, worker, 0, 3)
	link.set(false)
	// Messages are noticed as lost when another one comes, and the router's
	// client needs a moment to come back.
	another := time.NewTicker(200 * time.Millisecond)
	defer another.Stop()
	for i, end := uint32(0), time.Now().Add(patience); r.overlap(b, worker, 0) != 3; i++ {
		if time.Now().After(end) {
			t.Fatal("the router never asks for what it missed")
		}
		w.store(0, tokens(1000+10*i, 4))
		<-another.C
	}
	k.says("a router has recovered", "events")
	w.store(0, c)
	r.sees("behind the gap", c, worker, 0, 1)
	r.sees("stored in the gap", b, worker, 0, 3)
	r.sees("evicted in the gap", a, worker, 0, 0)
}

// A relay that stops takes its records along; one that crashed is followed by
// another, and routers end with what the engine holds.
func TestDynamoRestarts(t *testing.T) {
	w := newDynamoWorld(t, 1)
	r := w.router(w.nats)
	a, b := tokens(11, 8), tokens(100, 12)
	k := startKvrelay(t, w.set)
	w.store(0, a)
	r.sees("stored", a, worker, 0, 2)
	if code := k.stop(); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	left, err := filepath.Glob(filepath.Join(w.root, "v1", "*", "*"))
	if err != nil || len(left) != 0 {
		t.Errorf("left %q, %v", left, err)
	}
	k = startKvrelay(t, w.set)
	w.store(0, b)
	r.sees("after a restart", b, worker, 0, 3)
	r.sees("from before the restart", a, worker, 0, 2)

	k.kill()
	w.evict(0, a) // while nobody relays
	startKvrelay(t, w.set)
	r.sees("evicted while there was no relay", a, worker, 0, 0)
	r.sees("after a crash", b, worker, 0, 3)
	w.store(0, a)
	r.sees("stored after the crash", a, worker, 0, 2)
}

// Beside a Dynamo worker that registered the engine and publishes nothing itself.
func TestDynamoWorkerBeside(t *testing.T) {
	w := newDynamoWorld(t, 1)
	beside := dynamoPython(t, "dynamo_worker.py", w.root, w.nats, "dynamo.backend.generate", strconv.Itoa(dynamoBlock))
	beside.line()
	id := instanceIn(t, w.root)
	r := w.router(w.nats)
	w.set["REGISTER_WORKER"], w.set["WORKER_ID"] = "false", strconv.FormatUint(id, 10)
	startKvrelay(t, w.set)
	a := tokens(11, 8)
	w.store(0, a)
	r.sees("stored", a, id, 0, 2)
	w.evict(0, a)
	r.sees("evicted", a, id, 0, 0)
}

// instanceIn waits until a Dynamo worker is on record, and returns its id.
func instanceIn(t *testing.T, root string) uint64 {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); time.Now().Before(end); <-tick.C {
		names, err := filepath.Glob(filepath.Join(root, "v1", "instances", "dynamo%2Fbackend%2Fgenerate%2F*"))
		if err != nil {
			t.Fatal(err)
		}
		if len(names) == 0 {
			continue
		}
		id, err := strconv.ParseUint(names[0][strings.LastIndex(names[0], "%2F")+3:], 16, 64)
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	t.Fatal("the worker is never on record")
	return 0
}
