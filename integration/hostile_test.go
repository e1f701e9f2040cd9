package integration

import (
	"bytes"
	"sync/atomic"
	"testing"
	"time"
)

// hostileRow is somebody hostile in the place of rank 0's sockets.
type hostileRow struct {
	name         string
	live, replay func(*villain)        // nil: the engine's own socket
	during       func(w *hostileWorld) // more to be seen while it is there
	after        func(w *hostileWorld) // and once the engine is back
}

// TestHostilePeers puts somebody hostile in the place of an engine's sockets,
// row after row, before one relay. Whatever it says: memory stays bounded, the
// other rank notices nothing, nothing leaks, and once the engine is back at its
// address the router's picture is its cache again.
func TestHostilePeers(t *testing.T) {
	for name, rows := range map[string][]hostileRow{
		"handshake": handshakeRows(),
		"live":      liveRows(),
		"sequence":  sequenceRows(),
		"replay":    replayRows(),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			runHostile(t, rows)
		})
	}
}

func runHostile(t *testing.T, rows []hostileRow) {
	w := newHostileWorld(t, hostileOptions{})
	w.settled("at the start")
	m := w.watch()
	defer m.end(t)
	for _, row := range rows {
		start := time.Now()
		w.meet(row)
		t.Logf("%s: %v", row.name, time.Since(start).Round(time.Millisecond))
		if t.Failed() {
			t.Fatalf("after the row %q", row.name)
		}
	}
	w.discreet()
}

// attackTime is how long an attack goes on after it has struck.
const attackTime = 100 * time.Millisecond

// meet has the relay meet a row, and heal.
func (w *hostileWorld) meet(row hostileRow) {
	w.t.Helper()
	var struck atomic.Int64
	as := func(attack func(*villain)) func(*villain) {
		if attack == nil {
			return nil
		}
		return func(v *villain) {
			v.struck = func() { struck.Add(1) }
			attack(v)
			v.struck()
		}
	}
	if row.live != nil {
		w.live.turn(as(row.live))
	}
	if row.replay != nil {
		w.replay.turn(as(row.replay))
	}
	if row.live == nil {
		w.prompt(0) // silence is polled soon after it
	}
	w.await(20*time.Second, "attack: "+row.name, func() bool { return struck.Load() > 0 })
	<-time.After(attackTime)
	w.prompt(1)
	w.await(5*time.Second, "life of rank 1 under "+row.name, func() bool { return w.right(1) })
	if row.during != nil {
		row.during(w)
	}
	if row.live != nil {
		w.live.turn(nil)
	}
	if row.replay != nil {
		w.replay.turn(nil)
	}
	w.settled("after " + row.name)
	w.undisturbed()
	if row.after != nil {
		row.after(w)
	}
}

// storm counts connections for a second.
func storm(most int64) func(w *hostileWorld) {
	return func(w *hostileWorld) {
		w.t.Helper()
		before := w.live.came.Load() + w.replay.came.Load()
		eventually(time.Second, func() bool { return w.live.came.Load()+w.replay.came.Load()-before > most })
		if n := w.live.came.Load() + w.replay.came.Load() - before; n > most {
			w.t.Errorf("%d connections in a second, at most %d are sensible", n, most)
		}
	}
}

func handshakeRows() []hostileRow {
	// Rows of both sockets: a stream must also get over a replay endpoint of that kind.
	hello := zmtpHello("NULL")
	both := func(name string, attack func(*villain)) hostileRow {
		return hostileRow{name: name, live: attack, replay: attack}
	}
	after := func(rest ...[]byte) func(*villain) {
		return func(v *villain) { v.say(hello); v.say(rest...); v.struck(); v.listen() }
	}
	closing := both("accepts and closes", func(*villain) {})
	closing.during = storm(20)
	return []hostileRow{
		closing,
		both("accepts and says nothing", func(v *villain) { v.struck(); v.listen() }),
		both("closes within its greeting", func(v *villain) { v.say(hello[:20]) }),
		both("drips its greeting", func(v *villain) { v.struck(); v.drip(hello, 30*time.Millisecond) }),
		both("drips its READY", func(v *villain) { v.say(hello); v.struck(); v.drip(zmtpReady("PUB"), 50*time.Millisecond) }),
		both("HTTP", func(v *villain) { v.say([]byte("HTTP/1.1 400 Bad Request\r\n\r\n")); v.listen() }),
		both("ZMTP 2", func(v *villain) { v.say([]byte{0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 1, 2, 0, 0}); v.listen() }),
		both("mechanism CURVE", func(v *villain) { v.say(zmtpHello("CURVE")); v.listen() }),
		both("PULL socket", func(v *villain) { v.shake("PULL"); v.listen() }),
		both("READY of a megabyte", after(zmtpReady("PUB", "X", string(make([]byte, 1<<20))))),
		both("READY of 2^62 bytes", after(zmtpHead(zmtpCommand, 1<<62))),
		both("READY that lies within", after(zmtpFrame(zmtpCommand, []byte("\x05READY\x0bSocket-Type\xff\xff\xff\xff")))),
		both("ERROR for a greeting", after(zmtpFrame(zmtpCommand, []byte("\x05ERROR\xffno\x1b[2J")))),
		both("commands without end", func(v *villain) { v.say(hello); v.endless(zmtpFrame(zmtpCommand, []byte("\x04PING\x00\x00")), 1<<20) }),
		both("zeroes without end", func(v *villain) { v.endless(make([]byte, 64<<10), 1<<14) }),
	}
}

// say is a PUB that says b and then nothing.
func say(name string, b ...[]byte) hostileRow {
	return hostileRow{name: name, live: func(v *villain) {
		if v.pub() {
			v.say(b...)
			v.struck()
			v.listenOn()
		}
	}}
}

// flood is a PUB that says b n times.
func flood(name string, b []byte, n int) hostileRow {
	return hostileRow{name: name, live: func(v *villain) {
		if v.pub() {
			v.endless(b, n)
		}
	}}
}

// giantPeers make the relay take in as much as it will.
func giantPeers() []hostileRow {
	return []hostileRow{
		say("64 MiB announced, then silence", []byte{zmtpMore, 0}, zmtpFrame(zmtpMore, seqOf(9)), zmtpHead(0, 64<<20), make([]byte, 100)),
		flood("megabytes with MORE without end", zmtpFrame(zmtpMore, make([]byte, 1<<20)), 1000),
		say("a topic of 32 MiB", zmtpFrame(zmtpMore, make([]byte, 32<<20)), zmtpMessage(seqOf(3), storeBatch(1))),
	}
}

func liveRows() []hostileRow {
	ping := zmtpFrame(zmtpCommand, []byte("\x04PING\x00\x0a0123456789abcdef"))
	half := liveBatch(7, storeBatch(1))
	one := say("one message, then gone", liveBatch(0, storeBatch(1)))
	one.live = func(v *villain) {
		if v.pub() {
			v.say(liveBatch(0, storeBatch(1)))
		}
	}
	one.during = storm(100)
	return []hostileRow{
		say("frame of 2^62 bytes", zmtpHead(0, 1<<62), storeBatch(1)),
		say("frame of 2^64-1 bytes", zmtpHead(zmtpMore, 1<<64-1)),
		flood("empty frames with MORE without end", []byte{zmtpMore, 0}, 1<<20),
		say("half a message, then silence", half[:len(half)/2]),
		say("reserved flags", []byte{0xf8, 1, 2}),
		say("command with MORE", []byte{zmtpCommand | zmtpMore, 0}),
		say("command of 4 GB", zmtpHead(zmtpCommand, 4<<30)),
		say("command without a name", []byte{zmtpCommand, 1, 0}),
		say("PING without a TTL", zmtpFrame(zmtpCommand, []byte("\x04PING"))),
		flood("PINGs without end", bytes.Repeat(ping, 100), 3000),
		flood("unknown commands without end", bytes.Repeat(zmtpFrame(zmtpCommand, []byte("\x05HELLO"+plantedText)), 100), 3000),
		flood("commands within a message without end", append([]byte{zmtpMore, 0}, bytes.Repeat(ping, 10_000)...), 10),
		say("ERROR later", zmtpFrame(zmtpCommand, []byte("\x05ERROR\xffgo away"))),
		flood("subscriptions to us", bytes.Repeat(zmtpFrame(0, []byte("\x01topic")), 100), 100),
		flood("five frames", bytes.Repeat(zmtpMessage(nil, nil, nil, seqOf(1), storeBatch(1)), 10), 200),
		flood("a seq of four bytes", bytes.Repeat(zmtpMessage(nil, []byte{0, 0, 0, 1}, storeBatch(1)), 10), 200),
		flood("the end marker's seq", bytes.Repeat(liveBatch(1<<64-1, storeBatch(1)), 10), 200),
		{name: "one-byte segments", live: func(v *villain) {
			if v.pub() {
				v.struck()
				v.drip(bytes.Repeat(half, 20), time.Millisecond)
			}
		}},
		one,
		flood("payloads that are none", bytes.Repeat(liveBatch(5, []byte("\xc1"+plantedText)), 10), 1000),
		flood("empty payloads", bytes.Repeat(liveBatch(6, nil), 10), 1000),
	}
}

// listenOn waits until the relay has gone, where another goroutine reads.
func (v *villain) listenOn() {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for v.say(zmtpFrame(zmtpCommand, []byte("\x04PONG"))) {
		<-tick.C
	}
}
