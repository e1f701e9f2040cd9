package replay

import (
	"testing"
	"time"
)

// What a live connection, and the rounds beside it, seemed to show does not outlive
// it: the next one may lead to another engine.

// Where an epoch was to begin is forgotten with the batch that was held for it:
// the next engine may begin below, and none of its batches is a repeat.
func TestBeginningDoesNotOutlive(t *testing.T) {
	other := "up sent end L0 L1 L2"
	// Nothing to replay, twice, so live alone must do, from 7 on; then the engine goes.
	x := newTable(t, twoAtOnce).do("up L7 sent end +200ms same end").want("ask 0 fresh", "ask 0").do("down").ignore()
	x.do(other).want("ask 0 fresh", "ready", "apply 0 0 live", "apply 1 1 live", "apply 2 2 live")
	if s := x.c.State(); s.Base != 0 || s.Repeated != 0 {
		t.Errorf("%+v", s)
	}
	// Replay refuses for DEAD_AFTER, and there is no credit for what is held.
	x = newTable(t, twoAtOnce).do("up L7")
	for range 9 {
		x.do("refused +5s")
	}
	x.do("nocredit down").ignore().do("up credit sent end L0").want("ask 0 fresh", "apply 0 0 live")
	// History is lost by exhaustion, and what was to come next waits for Drain.
	x = running(t, Config{Portion: 1, Attempts: 1}, 3).do("L7 nocredit credit").ignore()
	for range 9 {
		x.do("refused +5s")
	}
	x.do("down").ignore().do(other).want("ask 0 fresh", "apply 0 0 live", "apply 1 1 live", "apply 2 2 live")
	// Said once, with what is applied: that the beginning is unknown.
	x = newTable(t, twoAtOnce).do("up L7 sent end +200ms same end down").ignore()
	x.do("up L8 sent end +200ms same end").want("ask 0 fresh", "ask 0").do("drain").want("unknown 8", "apply 8 8 live", "ready")
}

// While the engine is away nobody refuses: DEAD_AFTER begins anew with the first
// refusal after it.
func TestRefusalsWhileAway(t *testing.T) {
	for _, lost := range []Policy{LostClear, LostKeep, LostExit} {
		// A dying engine closes its ROUTER first; the next one opens it late.
		x := running(t, Config{Lost: lost}, 5).do("L6 refused +50ms down +29s").ignore().do("+2s").want("away")
		x.do("up L7 L8 refused").want("ask 4 fresh").do("+5s").want("ask 4 fresh")
		for range 5 {
			x.do("refused +5s").want("ask 4 fresh")
		}
		x.do("sent R4").want("back")
	}
	// But short interruptions do not begin it anew, or a live connection that flaps
	// would wait for ever.
	x := newTable(t, Config{})
	for range 4 {
		x.do("up L3 refused +8s refused down +1s")
	}
	if s := x.c.State(); s.Exhausted != 1 {
		t.Errorf("%+v", s)
	}
}

// LostKeep applies nothing of a round that nobody has vouched for yet, whatever
// fills the gap before it.
func TestKeepAppliesNothingUnproven(t *testing.T) {
	keep := Config{Lost: LostKeep}
	gone := "+2s sent R8:new +100ms sent R8:new R9:new"
	x := running(t, keep, 5).do(gone).ignore().do("L5 L6 L7").want("apply 5 5 live", "apply 6 6 live", "apply 7 7 live")
	x.do("R8:new R10:new").want()
	x.do("down").ignore().do("up sent R9:new").want("ask 7 fresh", "close") // above the anchor: it is not the engine's whose 7 was applied
	// Credit that goes ends the wait, and what waited with it.
	x = running(t, keep, 5).do(gone).do("nocredit credit").ignore().do("L5 L6 L7").want("apply 5 5 live", "apply 6 6 live", "apply 7 7 live")
	if s := x.c.State(); s.Held != 0 {
		t.Errorf("%+v", s)
	}
	// With the PONG it goes on behind the hole, in order.
	running(t, keep, 5).do(gone).ignore().do("L5 R7:new +1ms pong").want("apply 5 5 live", "lost 6-7 keep", "apply 7 new replayed", "apply 8 new replayed", "apply 9 new replayed")
}

// What an engine for a moment sent is no evidence against the one before, when that
// is back: nothing is missing, so nothing changes when replay refuses.
func TestDenialDoesNotOutlive(t *testing.T) {
	x := running(t, Config{}, 5).do("down up L1:other down up").ignore()
	for range 9 {
		x.do("refused +5s")
	}
	if s := x.c.State(); s.Restarts != 0 || s.Epoch != 0 {
		t.Errorf("%+v", s)
	}
	if x := running(t, Config{}, 5).do("down up L1:other").ignore(); !x.c.denied {
		t.Error("not denied")
	}
}

// Two connections that found nothing are not one that found nothing twice.
func TestEmptinessDoesNotOutlive(t *testing.T) {
	x := running(t, Config{}, 1).do("down +5ms up sent end same end").ignore()
	x.do("down +5ms up sent end").want("close", "ask 0 fresh", "ask 0").do("same end").want()
	x.do("+999ms").want().do("+1ms").want("ask 0")
	x.do("same R0 end").want()
	if s := x.c.State(); s.Restarts != 0 || !s.Proven || x.now.Sub(simBegin) > 2*time.Second {
		t.Errorf("%+v", s)
	}
}

// Replies are merged by their numbers: one that comes twice is no neighbour of the
// next.
func TestReplyTwice(t *testing.T) {
	x := newTable(t, Config{}).do("up sent R0 R1 R2 R1 R3 R3 R0 R4 end").ignore()
	if s := x.c.State(); s.Next != 5 || s.Restarts != 0 || s.Repeated != 3 || s.Conflicts != 0 {
		t.Errorf("%+v", s)
	}
	// Nor with live batches between.
	x = running(t, Config{}, 3).do("L5 L6 L7 same R2 R3 R4 R3 R5 R4 R6 R7 R3 R8 end").ignore()
	if s := x.c.State(); s.Next != 9 || s.Restarts != 0 || s.Conflicts != 0 {
		t.Errorf("%+v", s)
	}
}
