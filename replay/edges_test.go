package replay

import (
	"testing"
	"time"
)

// A connection that stood begins refusals anew: the next pause is the shortest.
func TestRefusalsBeginAnewAfterAConnection(t *testing.T) {
	x := running(t, Config{}, 3).do("L4 refused +100ms refused +200ms refused").want("ask 2", "ask 2 fresh", "ask 2 fresh")
	x.do("+399ms").want().do("+1ms").want("ask 2 fresh")
	x.do("sent dropped").want("close").do("+5s").want("ask 2 fresh")
	x.do("refused +99ms").want().do("+1ms").want("ask 2 fresh")
	// And so does what was applied.
	x.do("refused +200ms").want("ask 2 fresh").do("L3").want("apply 3 3 live", "apply 4 4 live")
	x.do("refused +2s").ignore().do("L6 refused +99ms").want().do("+1ms").want("ask 4 fresh")
}

// The deadline is the soonest of all that wait.
func TestDeadlineIsTheSoonest(t *testing.T) {
	in := func(x *table, want time.Duration) {
		t.Helper()
		if got := x.c.Deadline().Sub(x.now); got != want {
			t.Errorf("Tick is due in %v, want %v", got, want)
		}
	}
	x := newTable(t, Config{})
	in(x, 30*time.Second) // dead
	x.do("+10s up")
	if !x.c.Deadline().IsZero() {
		t.Error("a request that is not sent waits for the host, not for time")
	}
	in(x.do("sent"), time.Second)         // idle
	in(x.do("+400ms R0"), time.Second)    // begins anew with each reply
	in(x.do("+600ms end"), 2*time.Second) // silence
	in(x.do("+500ms L1"), 2*time.Second)  // which begins anew with each batch
	x = running(t, Config{}, 3).do("down")
	in(x, 30*time.Second)
	in(x.do("+29s"), time.Second)
	if x.do("+1s"); !x.c.Deadline().IsZero() {
		t.Error("after Away nothing is due")
	}
	x = running(t, Config{}, 3).do("L4 refused")
	in(x, 100*time.Millisecond)
	// A PONG is waited for no longer, though the round could go on.
	x = running(t, Config{Lost: LostKeep, Heartbeat: 100 * time.Millisecond}, 3).do("L9 same R7 +100ms sent R7")
	in(x, 500*time.Millisecond)
	x.ignore().do("+499ms").want().do("+1ms").want("lost 3-7 clear", "epoch 1 lost", "close", "reopen")
	// Nor does a round that trickles go on for ever.
	x = running(t, Config{}, 3).do("L99 same")
	for range 19 {
		x.do("+500ms R2")
	}
	in(x, 500*time.Millisecond)
	if x.c.Stop(); !x.c.Deadline().IsZero() {
		t.Error("after Stop nothing is due")
	}
}

// Of several answered PINGs the newest counts, whatever order they are told in.
func TestOldPongsTakeNothingBack(t *testing.T) {
	x := running(t, Config{Lost: LostKeep}, 3).do("L9 same R7 +100ms sent +10ms pong +1ms").ignore()
	x.c.Pong(x.now, x.now.Add(-time.Hour))
	x.do("R7").want("lost 3-7 keep", "apply 7 7 replayed")
}

// What LostKeep waits for is forgotten without credit: nothing is decided then,
// and the next rounds find it again.
func TestKeepDecidesNothingWithoutCredit(t *testing.T) {
	x := running(t, Config{Lost: LostKeep}, 3).do("L9 same R7 +100ms sent R7").ignore()
	x.do("nocredit").want("close").do("+1m pong").want()
	x.do("credit").want("ask 2 fresh").do("sent R7").want().do("+1ms pong").want("lost 3-7 keep", "apply 7 7 replayed")
}

// Another engine begins with all its attempts, and the shortest pause.
func TestAttemptsBeginAnewWithAnEpoch(t *testing.T) {
	x := running(t, Config{Attempts: 3}, 2).do("L4 same +1s +200ms sent +1s +400ms sent").want("ask 1", "close", "ask 1 fresh", "close", "ask 1 fresh")
	x.do("L0:x").want("epoch 1 restart", "close", "reopen").do("up sent +1s").want("ask 0 fresh", "close")
	x.do("+199ms").want().do("+1ms sent +1s").want("ask 0 fresh", "close").do("+399ms").want().do("+1ms").want("ask 0 fresh")
}

// Only what is missing next is burned: neighbours seen twice further on wait
// until everything below them has been settled.
func TestBurnedOnlyWhereSomethingIsMissing(t *testing.T) {
	x := running(t, Config{}, 3).do("L9 same R2 R5 R7 end").want("ask 2", "ask 2")
	x.do("same R2 R4 R5 R7").want() // (5, 7) for the second time, and 3 is still unknown
	x.do("end same R2 R4").want("ask 2", "burned 3-4", "apply 4 4 replayed", "apply 5 5 replayed")
	x.do("R5 R7").want("burned 6-7", "apply 7 7 replayed")
}

// A keep that no PONG confirms is a clear, of the sort that the loss was.
func TestKeepUnansweredAfterExhaustion(t *testing.T) {
	x := running(t, Config{Lost: LostKeep, Attempts: 1}, 3).do("L4 L6 same +1s").want("ask 2", "close")
	x.do("+9999ms").want().do("+1ms").want("lost 3-4 clear", "epoch 1 goingon", "apply 4 4 live", "ask 4 fresh")
	if s := x.c.State(); s.Gone != 0 || s.Losses != 1 || s.Base != 4 {
		t.Errorf("%+v", s)
	}
}

// A request is sent once: hearing of it again moves no deadline.
func TestSentCountsOnce(t *testing.T) {
	running(t, Config{}, 3).do("L4 same +900ms same +99ms").want("ask 2").do("+1ms").want("close")
	x := running(t, Config{Lost: LostKeep}, 3).do("L9 same R7 +100ms sent +1ms pong +1ms sent R7")
	x.want("ask 2", "close", "ask 2 fresh", "lost 3-7 keep", "apply 7 7 replayed") // the PING is newer than the connection
}

// A first replay that breaks off says nothing of being ready, whether it had
// nothing or only the very first batch.
func TestSilenceAtStartIsNotReady(t *testing.T) {
	newTable(t, Config{}).do("up sent +1s").want("ask 0 fresh", "close")
	newTable(t, Config{}).do("up sent dropped +1s").want("ask 0 fresh", "close", "ask 0 fresh")
	newTable(t, Config{}).do("up sent R0 +1s").want("ask 0 fresh", "apply 0 0 replayed", "close", "ask 0 fresh")
}

// A request waits for what only waits to be applied: it starts at what is the
// anchor then.
func TestRequestsWaitForDrain(t *testing.T) {
	x := running(t, twoAtOnce, 3).do("L4 L5 L6 L7 same R2 R3 end").ignore()
	x.do("nocredit D10 credit").want().do("drain drain").want("apply 4 4 live", "apply 5 5 live", "apply 6 6 live", "apply 7 7 live", "ask 7")
	// Also one that nothing but a replay that was dropped gave reason for.
	x = running(t, twoAtOnce, 3).do("L4 L5 L6 L7 same R2 R3").ignore()
	x.do("nocredit").want("close").do("credit").want().do("drain drain").want("apply 4 4 live", "apply 5 5 live", "apply 6 6 live", "apply 7 7 live", "ask 7 fresh")
}

// What is still arriving for a request of before, or for none, moves nothing.
func TestArrivingForAnotherRequest(t *testing.T) {
	x := running(t, Config{}, 3)
	fast := func(at time.Time) Arrival { return Arrival{First: at, Newest: at, Fast: true} }
	x.c.ReplayArriving(x.now, x.id, fast(x.now)) // it has ended
	x.do("L4").ignore()
	x.c.ReplayArriving(x.now, x.id, fast(x.now)) // not sent yet
	x.do("same +900ms").want()
	x.c.ReplayArriving(x.now, x.id-1, fast(x.now))
	x.do("+99ms").want().do("+1ms").want("close")
	// News that is older than what came takes nothing back.
	x = running(t, Config{}, 3).do("L4 same +900ms R2").ignore()
	x.c.ReplayArriving(x.now, x.id, fast(x.now.Add(-800*time.Millisecond)))
	x.do("+999ms").want().do("+1ms").want("close")
	x = running(t, Config{}, 3).do("L4 same").ignore() // nor what came before the request
	x.c.ReplayArriving(x.now, x.id, fast(x.now.Add(-800*time.Millisecond)))
	x.do("+999ms").want().do("+1ms").want("close")
	// What began before it, and has gone on since, does count.
	x = running(t, Config{}, 3).do("L4 same +900ms R2 +500ms").ignore()
	x.c.ReplayArriving(x.now, x.id, Arrival{First: x.now.Add(-600 * time.Millisecond), Newest: x.now, Fast: true})
	x.do("+999ms").want().do("+1ms").want("close")
}

// A batch that replay brought and live has confirmed counts as live: it stays
// when history is lost by exhaustion.
func TestConfirmedByLive(t *testing.T) {
	running(t, Config{Attempts: 1}, 3).do("L9 same R2 R5 L5 +1s").want("ask 2", "close", "lost 3-5 clear", "epoch 1 goingon", "apply 5 5 live", "ask 5 fresh")
}

// LOST=keep goes on at the next hole, however many portions lie before it.
func TestKeepOverManyPortions(t *testing.T) {
	x := running(t, Config{Lost: LostKeep, Portion: 1}, 3).do("L4 L5 L6 L9 same R9 +100ms sent +1ms pong").ignore()
	x.do("R9").want("lost 3-4 keep").do("drain drain").want("apply 4 4 live", "apply 5 5 live")
	x.do("drain").want("apply 6 6 live", "lost 7-9 keep").do("drain").want("apply 9 9 live")
}

// What waits to be applied is no loss: a hole behind it is asked for first.
func TestDrainDeclaresNothing(t *testing.T) {
	x := running(t, Config{Lost: LostKeep, Portion: 1}, 3).do("pong L4 L5 L6 L7 L9 same R2 R3 end").ignore()
	x.do("drain drain drain").want("apply 4 4 live", "apply 5 5 live", "apply 6 6 live").do("drain").want("apply 7 7 live", "ask 7")
}

// The hint is the highest number that was discarded, not the last.
func TestHintIsTheHighest(t *testing.T) {
	x := running(t, Config{}, 3).do("nocredit D9 D5 D7 credit").want("ask 2")
	x.do("same R2 R3 R4 R5 R6 R7 end").ignore()
	if s := x.c.State(); !s.Missing || s.Next != 8 {
		t.Errorf("%+v", s)
	}
}

// DEAD_AFTER counts from the end of the connection, not from what came last on it
// or from its end being said again.
func TestDeadAfterCountsFromTheEnd(t *testing.T) {
	x := running(t, Config{}, 3)
	x.now = x.now.Add(time.Second) // without an input
	x.do("down +29s down +999ms").want("close").do("+1ms").want("away")
}

// After Stop nothing happens, whatever is open and whatever ends.
func TestNothingAfterStop(t *testing.T) {
	x := running(t, Config{}, 3).do("L4 same").ignore()
	x.c.Stop()
	x.do("down up R2 R3 end dropped refused credit drain +1m").want()
}

// Exhausted, the attempts begin anew also where nothing is decided yet: LOST=keep
// waits for a PONG, and is interrupted.
func TestAttemptsBeginAnewWhenExhausted(t *testing.T) {
	x := running(t, Config{Lost: LostKeep, Attempts: 2}, 3).do("L9 same +1s +200ms sent +1s").want("ask 2", "close", "ask 2 fresh", "close")
	if s := x.c.State(); s.Exhausted != 1 || s.Attempts != 0 {
		t.Errorf("%+v", s)
	}
	x.do("nocredit credit sent +1s").want("ask 2 fresh", "close").do("+200ms").want("ask 2 fresh")
	if s := x.c.State(); s.Exhausted != 1 {
		t.Errorf("%+v", s)
	}
}

// Exhausted by conflicts, the next connection asks without a pause for them: they
// are counted anew.
func TestConflictsBeginAnewWhenExhausted(t *testing.T) {
	// L1:x is denied by what was applied, and live and replay differ at 7.
	x := running(t, Config{Attempts: 1}, 3).do("down up L1:x L7:x sent R7").want("close", "ask 2 fresh", "close", "epoch 1 restart", "reopen")
	x.do("up").want("ask 0 fresh")
	if s := x.c.State(); s.Conflicts != 1 || s.Exhausted != 1 {
		t.Errorf("%+v", s)
	}
}

// Drain says Ready when that is due, not whenever it is through: the first replay
// goes on.
func TestDrainIsNotReady(t *testing.T) {
	x := newTable(t, Config{Portion: 1}).do("up sent R0 L2 L3 +1s sent R0 R1").want("ask 0 fresh", "apply 0 0 replayed", "close", "ask 0 fresh", "apply 1 1 replayed")
	x.do("drain drain drain").want("apply 2 2 live", "apply 3 3 live").do("end").want("ready")
	// Nor where nothing but Drain is under way: the next round may find more.
	x = newTable(t, Config{Portion: 1}).do("up sent R0 L2 L3 +1s sent R0 R1 dropped").ignore()
	x.do("drain drain").want("apply 2 2 live", "apply 3 3 live", "ask 3 fresh")
}
