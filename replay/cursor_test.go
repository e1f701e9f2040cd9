package replay

import (
	"testing"
	"time"
)

func TestStart(t *testing.T) {
	// Live batches are held until the replay from 0 has ended, then follow it.
	x := newTable(t, Config{}).do("up").want("ask 0 fresh")
	x.do("sent L2 R0 R1").want("apply 0 0 replayed", "apply 1 1 replayed")
	x.do("R2 L3").want("apply 2 2 replayed")
	x.do("end").want("apply 3 3 live", "ready")

	// History before the first reply is unknown, once.
	newTable(t, Config{}).do("up sent R7 R8 end down up sent R8 R9 end").want("ask 0 fresh", "unknown 7", "apply 7 7 replayed", "apply 8 8 replayed", "ready",
		"close", "ask 8 fresh", "apply 9 9 replayed")

	// Nothing to replay while something was published: once more, then live alone.
	x = newTable(t, Config{}).do("up sent L4 end").want("ask 0 fresh")
	x.do("+200ms").want("ask 0").do("same end").want("unknown 4", "apply 4 4 live", "ready")

	// A replay that breaks off is continued from the anchor, which proves the
	// connection.
	x = newTable(t, Config{}).do("up sent R0 R1 L5 +1s").want("ask 0 fresh", "apply 0 0 replayed", "apply 1 1 replayed", "close", "ask 1 fresh")
	x.do("sent L2").want().do("R1").want("apply 2 2 live")

	// A gap that live shows on an engine that had nothing: the replay is from 0,
	// and live waits for its end.
	x = newTable(t, Config{}).do("up sent end L1").want("ask 0 fresh", "ready", "ask 0")
	x.do("same L0 R0").want("apply 0 0 replayed").do("end").want("apply 1 1 live")
}

func TestStartTwoIncarnations(t *testing.T) {
	both := []string{"close", "reopen"}
	// A reply that differs from what live brought.
	x := newTable(t, Config{}).do("up sent L1:other R0").ignore().do("R1").want(both...)
	x.do("up").want().do("+100ms").want("ask 0 fresh") // not at full speed
	// Neighbours that skip what live brought.
	newTable(t, Config{}).do("up sent L1 R0").ignore().do("R2").want(both...)
	// Not those beyond what no ROUTER drops.
	newTable(t, Config{Safe: 2}).do("up sent L2 R0 R1").ignore().do("R3").want()
	// Nor what it brought and was applied: it came from an incarnation that was
	// dying.
	newTable(t, Config{}).do("up sent R0 L1 +1s sent R0").ignore().do("R2").want("epoch 1 restart", "close", "reopen")
	// An engine that never replays what it published does not make us reconnect
	// for ever.
	x = newTable(t, Config{}).do("up sent").ignore()
	for range 7 {
		x.do("L0:live R0 up +5s").want("close", "reopen", "ask 0 fresh").do("sent")
	}
	x.do("L0:live R0").want("close", "ready", "apply 0 live live")
}

func TestUnproven(t *testing.T) {
	// Not even seq == next is applied before the anchor came back.
	x := running(t, Config{}, 5).do("down up L5 L6").want("close", "ask 4 fresh")
	x.do("sent L7 R4").want("apply 5 5 live", "apply 6 6 live", "apply 7 7 live").do("R5 R6 end").want()
	// What is held goes with its connection.
	x = running(t, Config{}, 5).do("down up L5:foreign down up sent R4 R5 end").want("close", "ask 4 fresh", "close", "ask 4 fresh", "apply 5 5 replayed")
	if s := x.c.State(); s.Held != 0 || s.Discarded != 1 {
		t.Errorf("%+v", s)
	}
	// Another anchor is a restart: everything anew.
	x = running(t, Config{}, 5).do("down up L5 sent").ignore()
	x.do("R4:other").want("epoch 1 restart", "close", "reopen").do("up").want("ask 0 fresh")
	if s := x.c.State(); s.Held != 0 || s.Begun || s.Next != 0 || s.Position.Epoch != 1 {
		t.Errorf("%+v", s)
	}
}

func TestRunning(t *testing.T) {
	// A gap: held, replayed from the anchor, then drained.
	x := running(t, Config{}, 5).do("L6 L7").want("ask 4")
	x.do("same L8 R4 R5").want("apply 5 5 replayed", "apply 6 6 live", "apply 7 7 live", "apply 8 8 live").do("R6 R7 end").want()
	if s := x.c.State(); s.Gaps != 1 || s.Repeated != 3 || s.Attempts != 0 {
		t.Errorf("%+v", s)
	}
	// Repeats, and what is none.
	x = running(t, Config{}, 5).do("L3 L4").want()
	x.do("L3:other").want("epoch 1 restart", "close", "reopen")
	// Outside the ring the wall clock decides.
	x = newTable(t, Config{Ring: 2}).do("up sent end L0:ts10 L1:ts11 L2:ts12").ignore()
	x.do("L0:ts12 L0:ts9 L0:none").want().do("L0:ts13").want("epoch 1 restart", "close", "reopen")
	// No batch has the end marker's number, live or replayed; the one before it
	// is a number like any other.
	x = running(t, Config{}, 5).do("L18446744073709551615").want().do("L6 same R4 R18446744073709551615 R5").want("ask 4", "apply 5 5 replayed", "apply 6 6 live")
	if s := x.c.State(); s.Malformed != 2 {
		t.Errorf("%+v", s)
	}
	newTable(t, Config{}).do("up sent R18446744073709551614 end L0 L18446744073709551615").want("ask 0 fresh", "unknown 18446744073709551614",
		"apply 18446744073709551614 18446744073709551614 replayed", "ready")
	// Replies to earlier requests are nothing.
	x = running(t, Config{}, 5).do("L6").ignore()
	x.c.ReplayBatch(x.now, x.id-1, 5, []byte("5"))
	x.c.ReplayEnd(x.now, x.id-1)
	x.c.ReplayDown(x.now, x.id-1)
	x.c.ReplayRefused(x.now, x.id+1)
	x.want().do("R4 R5").want("apply 5 5 replayed", "apply 6 6 live") // sent or not
}

func TestSilence(t *testing.T) {
	x := running(t, Config{}, 5)
	for _, pause := range []time.Duration{2, 4, 8, 16, 30, 30, 30} {
		x.pass(pause*time.Second - 1)
		x.want()
		x.pass(1)
		x.want("ask 4").do("same R4 end").want()
	}
	// What was lost is found, and then the silence is a new one.
	x.do("+30s same R4 R5 end").want("ask 4", "apply 5 5 replayed")
	x.do("L6").want("apply 6 6 live").do("+2s").want("ask 6")
}

func TestIdentity(t *testing.T) {
	nothing := running(t, Config{Ring: 3}, 5).do("L5").ignore() // the ring is 3 4 5
	ask := func(t *testing.T) *table {
		x := running(t, Config{Ring: 3}, 6).do("+1s down up sent").ignore()
		return x.do("end").want("ask 3")
	}
	if s := nothing.c.State(); s.Next != 6 {
		t.Fatalf("%+v", s)
	}
	t.Run("ring same", func(t *testing.T) { // proves nothing: asked again, at the next poll
		x := ask(t).do("same R3 R4 end").want()
		if x.c.State().Proven {
			t.Error("proven")
		}
		x.do("+2s same R5").want("ask 5")
		if !x.c.State().Proven {
			t.Error("not proven")
		}
	})
	t.Run("ring same, batches wait", func(t *testing.T) { // asked again, soon
		ask(t).do("same L6 R3 R4 end").want().do("+200ms").want("ask 5")
	})
	t.Run("ring same, for long", func(t *testing.T) { // no engine appends so late
		x := ask(t).do("same R3 R4 end")
		for range 4 {
			x.do("+30s same end same R3 R4 end")
			if x.c.State().Restarts > 0 {
				break
			}
		}
		x.want("ask 5", "ask 3", "epoch 1 restart", "close", "reopen")
	})
	t.Run("ring other", func(t *testing.T) { ask(t).do("same R3 R4:other").want("epoch 1 restart", "close", "reopen") })
	t.Run("number not in the ring", func(t *testing.T) {
		x := newTable(t, Config{}).do("up sent R3 R5 end same R3 R5 end").want("ask 0 fresh", "unknown 3", "apply 3 3 replayed", "ask 3", "burned 4-5", "apply 5 5 replayed", "ready")
		x.do("down up sent end same R3").ignore().do("R4").want("epoch 1 restart", "close", "reopen")
	})
	t.Run("only above", func(t *testing.T) { // history moved on between the two
		ask(t).do("same R9 end").want().do("+2s sent R9").want("ask 5", "close").do("+100ms sent R9").want("ask 5 fresh", "lost 6-9 clear", "epoch 1 lost", "close", "reopen")
	})
	t.Run("only below", func(t *testing.T) {
		ask(t).do("same end").want("ask 0").do("same R0 R1").want().do("end").want("epoch 1 restart", "close", "reopen")
	})
	t.Run("only below, cut short", func(t *testing.T) {
		ask(t).do("same end same R0 +1s").want("ask 0", "close", "epoch 1 restart", "reopen")
	})
	t.Run("only below a ring that has just begun", func(t *testing.T) { // what is in it may not be appended yet
		x := running(t, Config{Attempts: 2, NoReplay: false}, 3).do("L9 same +1s +200ms sent +1s").ignore()
		x.do("L11 sent end same end same R0 R1 R2 end").want("ask 9 fresh", "ask 9", "ask 0")
		x.do("+200ms same end same end +1s same R0 R1 R2 end").want("ask 9", "ask 9", "ask 0", "epoch 2 restart", "close", "reopen")
	})
	t.Run("nothing at all, replayed before", func(t *testing.T) {
		x := newTable(t, Config{}).do("up sent R0 R1 end down up sent end").ignore()
		x.do("same end").want("epoch 1 restart", "close", "reopen")
	})
	t.Run("nothing at all, unproven", func(t *testing.T) { // if it repeats
		x := ask(t).do("same end same end").want("ask 0").do("+999ms").want().do("+1ms same end same end same end")
		x.want("ask 5", "ask 3", "ask 0", "epoch 1 restart", "close", "reopen")
	})
	t.Run("nothing at all, proven", func(t *testing.T) { // an engine whose replay is for show
		x := running(t, Config{}, 3).do("+2s same end same end").want("ask 2", "ask 0")
		x.do("+4s same end same end L3").want("ask 2", "ask 0", "apply 3 3 live")
	})
	t.Run("more than asked for", func(t *testing.T) { // what lies below is compared
		running(t, Config{}, 5).do("down up sent R0 R3 R4 R5 end").want("close", "ask 4 fresh", "apply 5 5 replayed")
		running(t, Config{}, 5).do("down up sent R0 R3:other").want("close", "ask 4 fresh", "epoch 1 restart", "close", "reopen")
	})
}

func TestBurned(t *testing.T) {
	// Two rounds that show the same neighbours; no end marker is needed.
	x := running(t, Config{}, 3).do("L4 same R2 R4 R6 end").want("ask 2", "ask 2")
	x.do("same R2 R4").want("burned 3-4", "apply 4 4 live").do("R6 +1s").want("burned 5-6", "apply 6 6 replayed", "close", "ask 6 fresh")
	running(t, Config{}, 3).do("L4 same R2 R4 +1s sent R2 R4").want("ask 2", "close", "ask 2 fresh", "burned 3-4", "apply 4 4 live")
	// Other neighbours the second time: it did exist.
	x = running(t, Config{}, 3).do("L4 same R2 R4 end same R2 R3").want("ask 2", "ask 2", "apply 3 3 replayed", "apply 4 4 live")
	if x.c.State().Burned != 0 {
		t.Error("burned")
	}
	// A live batch is no neighbour: what it skips may not have been appended yet.
	running(t, Config{}, 3).do("L4 same R2 end +5s same R2 end +5s").want("ask 2", "ask 2", "ask 2")
	// Beyond what no ROUTER drops nothing is burned.
	x = running(t, Config{Safe: 2}, 3).do("L3 L9 same R2 R3 R5 end").want("apply 3 3 live", "ask 3")
	x.do("+5s").ignore().do("same R3 R5 end same R3 R5").want("ask 3", "burned 4-5", "apply 5 5 replayed")
}

func TestStall(t *testing.T) {
	x := running(t, Config{}, 3).do("L4 same").want("ask 2")
	for _, pause := range []string{"200ms", "400ms", "800ms", "1600ms", "3200ms", "5s", "5s"} {
		x.do("+1s").want("close").do("+" + pause).want("ask 2 fresh").do("sent")
	}
	x.do("+1s").want("close", "lost 3-4 clear", "epoch 1 goingon", "apply 4 4 live")
	// Progress begins the count anew. A connection that ends is a stall at once.
	running(t, Config{Attempts: 2}, 3).do("L9 same dropped +5s sent R2 R3 dropped sent dropped +5s").want("ask 2", "close", "ask 2 fresh",
		"apply 3 3 replayed", "close", "ask 3 fresh", "close", "ask 3 fresh")
	// Exhausted without anything missing changes nothing.
	running(t, Config{Attempts: 1}, 3).do("+2s same +1s +4s").want("ask 2", "close", "ask 2 fresh")
	// Batches that wait on an unproven connection are missing something: who sent
	// them.
	running(t, Config{Attempts: 1}, 3).do("down up sent L3 +1s").want("close", "ask 2 fresh", "close", "lost 3-3 clear", "epoch 1 goingon", "apply 3 3 live")
	// Only what came live is gone on with.
	running(t, Config{Attempts: 1}, 3).do("L9 same R2 R5 +1s sent R2 R7 +1s").want("ask 2", "close", "lost 3-5 clear", "epoch 1 goingon", "apply 9 9 live")
	// Nothing came live: from 0.
	running(t, Config{Attempts: 1}, 3).do("nocredit D3 credit sent +1s").want("ask 2", "close", "lost 3-4 clear", "epoch 1 goingon", "ask 0 fresh")
}

// An engine that sends no end markers is never known to have ended.
func TestNoMarkers(t *testing.T) {
	x := newTable(t, Config{Attempts: 3}).do("up sent R0 R1 +1s sent R1 +1s").want("ask 0 fresh", "apply 0 0 replayed", "apply 1 1 replayed", "close", "ask 1 fresh", "close", "ready")
	x.do("L2 +1s sent R2 +1s +1s").want("apply 2 2 live", "ask 2 fresh", "close", "ask 2 fresh")
	// Its restart shows where a live batch is not what was applied; replay, which
	// is silent, cannot tell.
	running(t, Config{Attempts: 1}, 5).do("down up sent L0:other +1s").want("close", "ask 4 fresh", "close", "epoch 1 restart", "reopen")
	running(t, Config{Attempts: 1}, 5).do("down up sent L4 +1s").want("close", "ask 4 fresh", "close")
	// A hint ends with the attempts.
	running(t, Config{Attempts: 1}, 5).do("D9 credit sent R4 +1s").want("ask 4", "close")
}

func TestTrickle(t *testing.T) {
	x := running(t, Config{}, 3).do("L99 same R2").ignore()
	for range 19 {
		x.do("+500ms R2").want()
	}
	x.do("R3 +500ms").want("apply 3 3 replayed", "close", "ask 3 fresh") // slot given up, then goes on where it was
}

func TestRefused(t *testing.T) {
	// Tried again with growing pauses; DeadAfter of it counts as exhausted, and
	// trying goes on.
	x := running(t, Config{}, 3).do("L4").want("ask 2")
	begin, tries := x.now, 0
	for x.c.State().Lost == 0 && tries < 50 {
		x.do("+5s refused")
		tries++
	}
	if d := x.now.Sub(begin); d < 30*time.Second || d > 45*time.Second || tries > 20 {
		t.Errorf("%d tries in %v", tries, d)
	}
	x.ignore().do("L6").want("ask 4 fresh")
	// While nothing depends on it, the next poll is soon enough, and no refusal
	// counts.
	x = running(t, Config{}, 3)
	for range 9 {
		x.do("+30s refused")
	}
	x.ignore().do("L4 refused +30s").want("ask 2 fresh", "ask 2 fresh")
	// At Start: live alone, from its lowest batch on.
	x = newTable(t, Config{}).do("up refused L7 L8").want("ask 0 fresh")
	x.do("+5s refused +5s refused +5s refused +5s refused +5s refused +5s").ignore().do("refused").want("ready", "unknown 7", "apply 7 7 live", "apply 8 8 live")
}

// An endpoint that refuses for ever does not hold up an engine that begins at 0.
func TestRefusedFromTheBeginning(t *testing.T) {
	x := newTable(t, Config{}).do("up")
	for range 10 {
		x.do("refused +5s")
	}
	x.ignore().do("refused L0 L1").want("apply 0 0 live", "apply 1 1 live")
}

func TestGone(t *testing.T) {
	// Twice, on fresh connections; then history is lost, and it begins as after a
	// restart.
	x := running(t, Config{}, 3).do("L9 same R7").want("ask 2", "close").do("+100ms sent R7").want("ask 2 fresh", "lost 3-7 clear", "epoch 1 lost", "close", "reopen")
	x.do("up sent R7 R8 R9 end").want("ask 0 fresh", "unknown 7", "apply 7 7 replayed", "apply 8 8 replayed", "apply 9 9 replayed")
	// Once only: forgotten.
	running(t, Config{}, 3).do("L4 same R7 +100ms sent R2 R3 end L6 same R7").want("ask 2", "close", "ask 2 fresh", "apply 3 3 replayed", "apply 4 4 live", "ask 4", "close")
	// Also where the first reply would be next.
	running(t, Config{}, 3).do("down up sent R3").want("close", "ask 2 fresh", "close")
	x = running(t, Config{Lost: LostExit}, 3).do("L9 same R7 +100ms sent R7").want("ask 2", "close", "ask 2 fresh", "lost 3-7 exit", "close")
	x.do("L3 up down +1h R3 pong credit").want()
	if s := x.c.State(); !s.Ended || s.HeldBytes != 0 || s.Frames != s.Applied+s.Repeated+s.Discarded {
		t.Errorf("%+v", s)
	}
}

func TestKeep(t *testing.T) {
	twice := func(t *testing.T) *table {
		x := running(t, Config{Lost: LostKeep}, 3).do("pong L9 same R7 +100ms sent +10ms").want("ask 2", "close", "ask 2 fresh")
		return x
	}
	t.Run("answered before the reply", func(t *testing.T) {
		twice(t).do("pong R7").want("lost 3-7 keep", "apply 7 7 replayed").do("R8").want("apply 8 8 replayed", "apply 9 9 live").do("R9 end").want()
	})
	t.Run("answered later", func(t *testing.T) {
		x := twice(t).do("R7 R8 R9 end +5s").want().do("pong").want("lost 3-7 keep", "apply 7 7 replayed", "apply 8 8 replayed", "apply 9 9 live")
		x.do("L10 +2s").want("apply 10 10 live", "ask 10")
	})
	t.Run("a PING from before does not count", func(t *testing.T) {
		x := twice(t).do("R7")
		x.c.Pong(x.now, x.now.Add(-10*time.Millisecond))
		x.want()
	})
	t.Run("not answered", func(t *testing.T) {
		twice(t).do("R7 end +9999ms").want().do("+1ms").want("lost 3-7 clear", "epoch 1 lost", "close", "reopen")
	})
	t.Run("connection ends while waiting", func(t *testing.T) { // unproven then, so as clear
		twice(t).do("R7 down +1m").want("close", "away").do("up sent R7").want("ask 2 fresh", "lost 3-7 clear", "epoch 1 lost", "close", "reopen")
	})
	t.Run("unproven", func(t *testing.T) {
		running(t, Config{Lost: LostKeep}, 3).do("down up sent R7 +100ms sent +1ms pong R7").want("close", "ask 2 fresh", "close", "ask 2 fresh", "lost 3-7 clear", "epoch 1 lost", "close", "reopen")
	})
	t.Run("only the anchor has left", func(t *testing.T) {
		running(t, Config{Lost: LostKeep}, 3).do("+2s same R3 +100ms sent +1ms pong R3").want("ask 2", "close", "ask 2 fresh", "apply 3 3 replayed")
	})
	t.Run("every hole below the buffer", func(t *testing.T) {
		running(t, Config{Lost: LostKeep}, 3).do("L4 L6 L8 same R8 +100ms sent +1ms pong R8").want("ask 2", "close", "ask 2 fresh",
			"lost 3-4 keep", "apply 4 4 live", "lost 5-6 keep", "apply 6 6 live", "lost 7-8 keep", "apply 8 8 live")
	})
	t.Run("exhausted", func(t *testing.T) {
		running(t, Config{Lost: LostKeep, Attempts: 1}, 3).do("L4 L6 same +1s").want("ask 2", "close").do("pong").want("lost 3-4 keep", "apply 4 4 live", "ask 4 fresh")
	})
	t.Run("exhausted with nothing to go on from", func(t *testing.T) {
		x := running(t, Config{Lost: LostKeep, Attempts: 1}, 3).do("nocredit D4 credit sent +1s pong").want("ask 2", "close")
		x.do("L5 sent +1s pong").want("ask 2 fresh", "close", "lost 3-5 keep", "apply 5 5 live")
	})
	t.Run("numbers in the hole do exist", func(t *testing.T) {
		x := twice(t).do("pong R7 end").ignore().do("L5 down up sent end same R5 end").want("close", "ask 7 fresh", "ask 7")
		if x.c.State().Restarts != 0 {
			t.Error("restart")
		}
	})
}

func TestHold(t *testing.T) {
	// The newest are dropped, and what was dropped is replayed.
	b := NewBudget(2 * (heldCost + 1))
	x := running(t, Config{Hold: b}, 3).do("L4 L6 L5").want("ask 2")
	if s := x.c.State(); s.Held != 2 || s.Discarded != 1 || b.Used() != s.HeldBytes {
		t.Errorf("%+v", s)
	}
	x.do("same R2 R3 end").want("apply 3 3 replayed", "apply 4 4 live", "apply 5 5 live", "ask 5").do("same R5 R6 end").want("apply 6 6 replayed")
	if b.Used() != 0 {
		t.Error(b.Used())
	}
	// Another one's bytes leave no room; replay gets along without, burned
	// numbers too.
	b.Take(2 * (heldCost + 1))
	x = running(t, Config{Hold: b}, 3).do("L4 same R2 R4 R5 end same R2 R4 R5 end").want("ask 2", "ask 2", "burned 3-4", "apply 4 4 replayed", "apply 5 5 replayed")
	x.do("L7").want("ask 5")
	x.c.Stop()
	b.Give(2 * (heldCost + 1))
	// A batch larger than the bound is never held.
	running(t, Config{Hold: NewBudget(heldCost)}, 3).do("L4 same R2 R3 R4 end").want("ask 2", "apply 3 3 replayed", "apply 4 4 replayed")
	// Stop gives back.
	x = running(t, Config{Hold: b}, 3).do("L4 L5")
	x.c.Stop()
	if b.Used() != 0 || !x.c.Deadline().IsZero() {
		t.Error(b.Used())
	}
}

func TestCredit(t *testing.T) {
	x := running(t, Config{}, 3).do("L4 same R2 nocredit").want("ask 2", "close").do("R3 L5 D6 D7 +30s").want()
	x.do("credit").want("ask 2 fresh").do("sent R2 R3 R4 R5 R6").want("apply 3 3 replayed", "apply 4 4 live", "apply 5 5 replayed", "apply 6 6 replayed")
	x.do("end").want("ask 6").do("same R6 R7 end").want("apply 7 7 replayed").do("+1s").want() // 7 was the highest
	if s := x.c.State(); s.Frames != s.Applied+s.Repeated+s.Discarded || s.Missing {
		t.Errorf("%+v", s)
	}
	// Only a hint: it ends when there is nothing above the anchor.
	running(t, Config{}, 3).do("D9 credit same R2 end +1s").want("ask 2")
	// Nothing was missed: nothing is asked.
	running(t, Config{}, 3).do("nocredit credit").want()
	// Held batches wait for credit, too.
	running(t, Config{}, 3).do("down up L3 sent nocredit").ignore().do("R2 end").want().do("credit sent R2").want("ask 2 fresh", "apply 3 3 live")
}

func TestAway(t *testing.T) {
	x := running(t, Config{}, 3).do("down").want("close").do("+29999ms").want().do("+1ms").want("away").do("+1h").want()
	x.do("up L3 sent").want("ask 2 fresh").do("R2").want("back", "apply 3 3 live")
	x.do("down +30s up sent").want("close", "away", "ask 3 fresh")
	x.do("R3:other").want("epoch 1 restart", "close", "reopen").do("+30s").want("away") // unreachable again
	// A connection that proves nothing does not make the time begin anew, one that does makes it.
	x = running(t, Config{}, 3).do("down +20s up +10s refused down +9s").ignore().do("+999ms").want().do("+1ms").want("away")
	x.do("up +1h down +1h up sent R2").ignore().do("down").want("close").do("+29999ms").want().do("+1ms").want("away")
	running(t, Config{}, 3).do("down +20s up refused +30s down").ignore().do("+29999ms").want().do("+1ms").want("away")
	running(t, Config{NoReplay: true}, 3).do("down +20s up +10s down +29999ms").want().do("+1ms").want("away")
	// Never reached at all.
	newTable(t, Config{}).do("+30s").want("away").do("up sent R0").want("ask 0 fresh", "back", "apply 0 0 replayed")
	newTable(t, Config{}).do("+30s").want("away").do("up sent end").want("ask 0 fresh", "back", "ready")
}

func TestAlone(t *testing.T) {
	alone := Config{NoReplay: true}
	x := newTable(t, alone).do("up").want("ready").do("L5 L6 L6 +1h").want("unknown 5", "apply 5 5 live", "apply 6 6 live")
	x.do("L8").want("lost 7-8 clear", "epoch 1 goingon", "apply 8 8 live")
	x.do("down up L9").want("apply 9 9 live") // no proof
	x.do("L8:other").want("epoch 2 restart", "unknown 8", "apply 8 other live").do("L0:ts1 L1").want()
	x.do("down +30s").want("away").do("up").want().do("L9").want("back", "apply 9 9 live")
	x.do("down +30s up L9").want("away", "back")
	x.do("down +30s up L11").want("away", "lost 10-11 clear", "epoch 3 goingon", "apply 11 11 live")
	// Discarded without credit is lost, once that is over.
	x.do("nocredit D12 D13").want().do("credit").want("lost 12-14 clear", "epoch 4 goingon").do("L14").want("unknown 14", "apply 14 14 live")

	keep := Config{NoReplay: true, Lost: LostKeep}
	x = newTable(t, keep).do("up L0 L2").ignore().do("L4").want("lost 3-4 keep", "apply 4 4 live")
	x.do("nocredit D5 credit L6").want("lost 5-6 keep", "apply 6 6 live")
	x.do("down up L8").want("lost 7-8 clear", "epoch 1 goingon", "apply 8 8 live") // who knows whose
	newTable(t, Config{NoReplay: true, Lost: LostExit}).do("up L0 L2 L3").want("ready", "apply 0 0 live", "lost 1-2 exit")
}
