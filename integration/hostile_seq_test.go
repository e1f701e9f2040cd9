package integration

import (
	"bytes"
	"testing"
	"time"
)

// numbers sends batches of these numbers, each with a payload of its own.
func numbers(n int, seq func(i int) uint64) func(*villain) {
	return func(v *villain) {
		if !v.pub() {
			return
		}
		var b []byte
		for i := range n {
			if b = append(b, liveBatch(seq(i), storeBatch(uint64(i)+1<<40))...); len(b) > 32<<10 || i == n-1 {
				if !v.say(b) {
					return
				}
				b = b[:0]
			}
		}
		v.struck()
		v.listenOn()
	}
}

// mute is a ROUTER that never answers.
func mute(v *villain) { v.shake("ROUTER"); v.listen() }

// nothing is a ROUTER that has nothing.
func nothing(v *villain) {
	for ok := v.shake("ROUTER"); ok; {
		if _, ok = v.request(); ok {
			ok = v.say(replyEnd)
		}
	}
}

func sequenceRows() []hostileRow {
	jumps := func(i int) uint64 { return uint64(i%2)<<63 + uint64(i/2) }
	down := func(i int) uint64 { return 1<<40 - uint64(i) }
	same := func(int) uint64 { return 12 }
	wrap := func(i int) uint64 { return uint64(i) - 5 }
	scattered := func(i int) uint64 { return uint64(i) * 0x9e3779b97f4a7c15 }
	up := func(i int) uint64 { return uint64(i) }
	bare := func(frames ...[]byte) func(*villain) {
		return func(v *villain) {
			if v.pub() {
				v.endless(zmtpMessage(frames...), 50)
				v.struck()
				v.listenOn()
			}
		}
	}
	return []hostileRow{
		{name: "jumps to 2^63 and back", live: numbers(500, jumps)},
		{name: "jumps, no answer to a replay", live: numbers(500, jumps), replay: mute},
		{name: "jumps, nothing to replay", live: numbers(500, jumps), replay: nothing},
		{name: "decreasing", live: numbers(20_000, down)},
		{name: "decreasing, no answer to a replay", live: numbers(60_000, down), replay: mute},
		{name: "decreasing, nothing to replay", live: numbers(5000, down), replay: nothing},
		{name: "one number, many payloads", live: numbers(2000, same)},
		{name: "one number, many payloads, nothing to replay", live: numbers(2000, same), replay: nothing},
		{name: "wrap-around", live: numbers(20, wrap)},
		{name: "wrap-around, nothing to replay", live: numbers(20, wrap), replay: nothing},
		{name: "scattered", live: numbers(5000, scattered), replay: mute},
		{name: "another engine that fits", live: numbers(300, up)},
		{name: "another engine without history", live: numbers(300, up), replay: nothing},
		{name: "batches without numbers", live: bare(nil, storeBatch(77))},
		{name: "one frame alone", live: bare(storeBatch(78))},
		{name: "without numbers and without history", live: bare(storeBatch(79)), replay: nothing},
	}
}

// answers is a ROUTER that answers each request with what reply makes.
func answers(reply func(start uint64) []byte) func(*villain) {
	return func(v *villain) {
		for ok := v.shake("ROUTER"); ok; {
			var start uint64
			if start, ok = v.request(); ok {
				ok = v.say(reply(start))
				v.struck()
			}
		}
	}
}

// endlessly is one that does not stop answering.
func endlessly(n int, reply func(start uint64, i int) []byte) func(*villain) {
	return func(v *villain) {
		if !v.shake("ROUTER") {
			return
		}
		start, ok := v.request()
		for i := 0; ok && i < n; i++ {
			ok = v.say(reply(start, i))
		}
		v.struck()
		v.listen()
	}
}

func replayRows() []hostileRow {
	batch := func(seq uint64) []byte { return replyBatch(seq, storeBatch(seq|1<<41)) }
	join := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	row := func(name string, attack func(*villain)) hostileRow { return hostileRow{name: name, replay: attack} }
	return []hostileRow{
		row("never an answer", func(v *villain) { v.shake("ROUTER"); v.request(); v.struck(); v.listen() }),
		row("accepts and closes", func(*villain) {}),
		row("answers and closes", func(v *villain) { v.shake("ROUTER"); v.request() }),
		row("PUB socket", func(v *villain) { v.shake("PUB"); v.listen() }),
		row("frame of 2^62 bytes", answers(func(uint64) []byte { return zmtpHead(0, 1<<62) })),
		row("frames with MORE without end", endlessly(1<<18, func(uint64, int) []byte { return []byte{zmtpMore, 0, zmtpMore, 0} })),
		row("half a reply", answers(func(s uint64) []byte { return batch(s)[:12] })),
		row("ERROR", answers(func(uint64) []byte { return zmtpFrame(zmtpCommand, []byte("\x05ERROR\x03bad")) })),
		row("one frame", endlessly(100, func(uint64, int) []byte { return zmtpMessage(storeBatch(1)) })),
		row("end marker alone", answers(func(uint64) []byte { return replyEnd })),
		row("end markers without end", endlessly(20_000, func(uint64, int) []byte { return replyEnd })),
		row("the end's number with a payload", answers(func(uint64) []byte { return replyBatch(1<<64-1, storeBatch(1)) })),
		row("replies after the end", answers(func(s uint64) []byte { return join(replyEnd, batch(s+1), batch(s+2)) })),
		row("another anchor", answers(func(s uint64) []byte { return join(batch(s), batch(s+1), replyEnd) })),
		row("lower numbers than asked", answers(func(s uint64) []byte { return join(batch(0), batch(1), replyEnd) })),
		row("higher numbers than asked", answers(func(s uint64) []byte { return join(batch(s+1000), batch(s+1001), replyEnd) })),
		row("out of order", answers(func(s uint64) []byte { return join(batch(s+3), batch(s+1), batch(s), batch(s+2), replyEnd) })),
		row("each one twice", answers(func(s uint64) []byte { return join(batch(s), batch(s), batch(s+1), batch(s+1), replyEnd) })),
		row("the same one without end", endlessly(100_000, func(s uint64, _ int) []byte { return batch(s) })),
		row("rising without end", endlessly(50_000, func(s uint64, i int) []byte { return batch(s + uint64(i)) })),
		row("falling without end", endlessly(50_000, func(s uint64, i int) []byte { return batch(s + 1<<40 - uint64(i)) })),
		row("with holes without end", endlessly(50_000, func(s uint64, i int) []byte { return batch(s + 2*uint64(i)) })),
		row("two incarnations in turn", endlessly(2000, func(s uint64, i int) []byte {
			return replyBatch(s+uint64(i/2), storeBatch(uint64(i)|1<<42))
		})),
		row("trickling, never an end", func(v *villain) {
			if !v.shake("ROUTER") {
				return
			}
			start, ok := v.request()
			tick := time.NewTicker(50 * time.Millisecond)
			defer tick.Stop()
			for i := uint64(0); ok; i++ {
				ok = v.say(batch(start + i))
				v.struck()
				<-tick.C
			}
		}),
		row("a topic of 4 MiB", answers(func(s uint64) []byte {
			return zmtpMessage(nil, make([]byte, 4<<20), seqOf(s), storeBatch(1))
		})),
		row("garbage as payload", answers(func(s uint64) []byte { return join(replyBatch(s, []byte("\xc1"+plantedText)), replyEnd) })),
		row("no payloads", answers(func(s uint64) []byte { return join(replyBatch(s, nil), replyBatch(s+1, nil), replyEnd) })),
	}
}

// A hostile engine that names the rank of another source before that source is
// there keeps nobody out for good.
func TestHostileClaim(t *testing.T) {
	w := newHostileWorld(t, hostileOptions{later: true})
	w.replay.turn(nothing)
	w.live.turn(func(v *villain) {
		if v.pub() {
			for i := range uint64(40) {
				v.say(liveBatch(i, rankBatch(uint32(i), storeEvent(i))))
			}
			v.listenOn()
		}
	})
	all := w.sources()
	w.update(all[:1])
	w.await(hostileHeal, "claim of rank 1", func() bool { return len(w.source(0).Ranks) > 2 })
	w.update(all)
	w.prompt(1)
	w.await(hostileHeal, "rank 1 beside a source that named it", func() bool { return w.right(1) })
	w.live.turn(nil)
	w.replay.turn(nil)
	w.settled("after somebody named all ranks")
	w.discreet()
}
