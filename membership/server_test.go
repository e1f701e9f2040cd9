package membership

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/kvrelay/kvrelay/convert"
)

type testWriter struct{ t testing.TB }

func (w testWriter) Write(b []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(b)))
	return len(b), nil
}

// testLog goes to the test's own log.
func testLog(t testing.TB) *slog.Logger {
	return slog.New(slog.NewTextHandler(testWriter{t}, nil))
}

const testPath = "1000000000000000/n/c/worker_kv_query_source_5"

func at(id uint64) *uint64 { return &id }

// TestAnswers: over one pooled connection, everything that a router asks.
func TestAnswers(t *testing.T) {
	s, target := serving(t)
	r := newRank(t, 1, 300)
	for range 400 {
		r.step()
	}
	t.Cleanup(s.add(testPath, r))
	a := newAsker(t, target)
	want, last := r.published()

	fold := func(start uint64, f held) {
		t.Helper()
		if !a.send(testPath, query{Worker: 1 << 60, Rank: 2, Start: at(start), End: at(start + 3)}) {
			t.Fatal("not acknowledged")
		}
		got, _, refused := a.answer()
		if refused != "" || got.Data.Events == nil {
			t.Fatalf("answered %+v, %q", got, refused)
		}
		next := start
		read(t, got.Data.Events.Events, func(id uint64, e *convert.RouterEvent) {
			if id != next {
				t.Fatalf("event id %d, want %d", id, next)
			}
			next++
			f.apply(e)
		})
		if got.Data.Events.Last != last || next != last+1 {
			t.Errorf("events from %d: last %d, read to %d, want %d", start, got.Data.Events.Last, next-1, last)
		}
	}
	f := held{}
	fold(1, f)
	if !maps.Equal(f, want) {
		t.Errorf("the events from 1 give %d blocks, want %d", len(f), len(want))
	}
	fold(last-5, f) // again: idempotent
	if !maps.Equal(f, want) {
		t.Error("repeated events change what is held")
	}
	fold(last+1, f) // nothing

	r.lo = 100
	for _, start := range []*uint64{nil, at(50), at(last + 9)} {
		if !a.send(testPath, query{Worker: 1 << 60, Rank: 2, Start: start}) {
			t.Fatal("not acknowledged")
		}
		got, subject, _ := a.answer()
		if got == nil || got.Data.TreeDump == nil || got.Data.TreeDump.Last != last || got.Data.TreeDump.Reset != "all" {
			t.Fatalf("answered %+v", got)
		}
		if subject != fmt.Sprintf("s%d", a.n) {
			t.Errorf("subject %q", subject)
		}
		f := held{}
		read(t, got.Data.TreeDump.Events, func(_ uint64, e *convert.RouterEvent) { f.apply(e) })
		if !maps.Equal(f, want) {
			t.Errorf("the dump has %d blocks, want %d", len(f), len(want))
		}
	}

	// Refusals come at once, and leave the connection as it is.
	for path, q := range map[string]query{
		testPath + "6": {Worker: 1 << 60, Rank: 2},
		testPath:       {Worker: 1 << 60, Rank: 3},
	} {
		if !a.send(path, q) {
			t.Fatal("not acknowledged")
		}
		if _, _, refused := a.answer(); refused == "" {
			t.Errorf("%s %+v was answered", path, q)
		}
	}

	// No picture: routers that know how to be told keep what they have.
	r.lo = last + 2
	for _, knows := range []bool{true, false} {
		if !a.send(testPath, query{Worker: 1 << 60, Rank: 2, Failed: knows}) {
			t.Fatal("not acknowledged")
		}
		got, _, _ := a.answer()
		if got == nil || knows != (got.Data.TreeDumpFailed != nil) || knows == (got.Data.Error != nil) {
			t.Errorf("answered %+v", got)
		}
	}
}

// TestHostileRequests: what is no request ends its connection, and no other.
func TestHostileRequests(t *testing.T) {
	s, target := serving(t)
	r := newRank(t, 1, 10)
	t.Cleanup(s.add(testPath, r))
	good := newAsker(t, target)
	long := strings.Repeat("x", maxPath+1)
	ok := frame(testPath, "127.0.0.1:1", "s", query{Worker: 1 << 60, Rank: 2})
	head := len(ok) - len(ok[2+len(testPath)+2+len(`{"traceparent":"00-0-0-00"}`)+4:])
	wrong := append([]byte(nil), ok...)
	binary.BigEndian.PutUint64(wrong[head:], 1<<63)
	over := append([]byte(nil), ok...)
	binary.BigEndian.PutUint32(over[head-4:], maxBody+1)
	for name, b := range map[string][]byte{
		"a long path":        append(binary.BigEndian.AppendUint16(nil, uint16(len(long))), long...),
		"no path":            {0, 0, 0, 0, 0, 0, 0, 0},
		"long headers":       append(append([]byte{0, 1, 'p'}, 0xff, 0xff), long...),
		"a long body":        over,
		"lengths that lie":   wrong,
		"no JSON":            append([]byte{0, 1, 'p', 0, 0, 0, 0, 0, 28}, append(make([]byte, 15), 4, 0, 0, 0, 0, 0, 0, 0, 0, 'j', 'u', 'n', 'k')...),
		"HTTP":               []byte("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"),
		"an address missing": frame(testPath, "", "s", query{}),
	} {
		a := newAsker(t, target)
		a.write(b)
		if a.acked() {
			t.Errorf("%s was acknowledged", name)
		}
	}
	if !good.send(testPath, query{Worker: 1 << 60, Rank: 2}) {
		t.Fatal("another connection is closed too")
	}
	if got, _, _ := good.answer(); got == nil || got.Data.TreeDump == nil {
		t.Errorf("answered %+v", got)
	}
}

// TestRouterThatHangs: routers that cannot be reached, or do not read, do not
// keep others waiting, and nothing is left of them.
func TestRouterThatHangs(t *testing.T) {
	s, target := serving(t)
	r := newRank(t, 1, 3000)
	for range 3000 {
		r.step()
	}
	t.Cleanup(s.add(testPath, r))
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts in the kernel, and reads nothing
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	a := newAsker(t, target)
	for _, address := range []string{closed.Addr().String(), "nowhere", silent.Addr().String()} {
		a.write(frame(testPath, address, "s", query{Worker: 1 << 60, Rank: 2}))
		if !a.acked() {
			t.Fatal("not acknowledged")
		}
	}
	began := time.Now()
	if !a.send(testPath, query{Worker: 1 << 60, Rank: 2}) {
		t.Fatal("not acknowledged")
	}
	if got, _, _ := a.answer(); got == nil || got.Data.TreeDump == nil {
		t.Errorf("answered %+v", got)
	}
	if d := time.Since(began); d > patience/2 {
		t.Errorf("another router waited %v", d)
	}
	eventually(t, "nothing is left of them", func() bool { return len(s.answers) == 0 && len(s.dumps) == 0 })
}

// TestTooManyAnswers: what is too much is refused without an acknowledgement.
func TestTooManyAnswers(t *testing.T) {
	s, target := serving(t)
	r := newRank(t, 1, 10)
	t.Cleanup(s.add(testPath, r))
	for range maxAnswers {
		s.answers <- struct{}{}
	}
	a := newAsker(t, target)
	if a.send(testPath, query{Worker: 1 << 60, Rank: 2}) {
		t.Error("one more was acknowledged")
	}
	for range maxAnswers {
		<-s.answers
	}
	a = newAsker(t, target)
	if !a.send(testPath, query{Worker: 1 << 60, Rank: 2}) {
		t.Error("not acknowledged again")
	}
	a.answer()
}

// TestRouterThatHasEnough: a router that closes once it has the data has been
// answered, whatever becomes of the rest.
func TestRouterThatHasEnough(t *testing.T) {
	s, _ := serving(t)
	r := newRank(t, 1, 300)
	for range 100 {
		r.step()
	}
	t.Cleanup(s.add(testPath, r))
	ours, theirs := net.Pipe() // unbuffered: what is not read is not written
	go func() {
		defer theirs.Close()
		for range 3 { // handshake, prologue, data
			var head [partHead]byte
			if _, err := io.ReadFull(theirs, head[:]); err != nil {
				t.Error(err)
			}
			n := binary.BigEndian.Uint64(head[:]) + binary.BigEndian.Uint64(head[8:])
			if _, err := io.CopyN(io.Discard, theirs, int64(n)); err != nil {
				t.Error(err)
			}
		}
	}()
	defer ours.Close()
	what, err := s.respond(t.Context(), ours, &request{Path: testPath, WorkerID: 1 << 60, Rank: 2, Home: home{Address: "a", Subject: "s"}})
	if err != nil || !strings.HasSuffix(what, "blocks") {
		t.Errorf("%q, %v", what, err)
	}
	// One that closes within the data has not.
	ours, theirs = net.Pipe()
	go func() {
		defer theirs.Close()
		if _, err := io.CopyN(io.Discard, theirs, 200); err != nil {
			t.Error(err)
		}
	}()
	defer ours.Close()
	if what, err := s.respond(t.Context(), ours, &request{Path: testPath, WorkerID: 1 << 60, Rank: 2, Home: home{Address: "a", Subject: "s"}}); err == nil {
		t.Errorf("answered %q", what)
	}
}

// TestTooManyConnections: whoever holds all connections open keeps no router
// out: the one that was idle for longest makes room, and one in use stays.
func TestTooManyConnections(t *testing.T) {
	s, target := serving(t)
	r := newRank(t, 1, 10)
	t.Cleanup(s.add(testPath, r))
	open := func() int { s.mu.Lock(); defer s.mu.Unlock(); return len(s.conns) }
	ask := func(a *asker) {
		t.Helper()
		if !a.send(testPath, query{Worker: 1 << 60, Rank: 2}) {
			t.Fatal("not acknowledged")
		}
		if got, _, _ := a.answer(); got == nil || got.Data.TreeDump == nil {
			t.Errorf("answered %+v", got)
		}
	}
	first := newAsker(t, target)
	var idle []net.Conn
	for n := 2; n <= maxConns; n++ {
		c, err := net.Dial("tcp", target)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		idle = append(idle, c)
		eventually(t, "it is let in", func() bool { return open() == n })
	}
	ask(first)                                          // so that it is not the idlest any more
	if _, err := idle[1].Write([]byte{0}); err != nil { // one that has begun a request
		t.Fatal(err)
	}
	late := newAsker(t, target)
	ask(late)
	ask(first)
	closed := func(c net.Conn) bool {
		_ = c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		_, err := c.Read(make([]byte, 1))
		return !errors.Is(err, os.ErrDeadlineExceeded)
	}
	if !closed(idle[0]) || closed(idle[1]) || closed(idle[2]) {
		t.Error("another one than the idlest was closed")
	}
	for range 2 * maxConns { // and again and again
		ask(newAsker(t, target))
		if n := open(); n > maxConns {
			t.Fatalf("%d are open", n)
		}
	}
}
