package replay

import "testing"

// twoAtOnce has batches of one digit applied two at a time.
var twoAtOnce = Config{Portion: 2 * (heldCost + 1)}

// What is held is applied in portions, in order and by Drain alone, and nothing is
// decided in between that what is held would contradict.
func TestDrain(t *testing.T) {
	x := running(t, twoAtOnce, 3).do("L4 L5 L6 L7 L8 same R2").want("ask 2").do("R3").want("apply 3 3 replayed")
	if !x.c.Draining() {
		t.Fatal("nothing waits")
	}
	x.do("end").want() // it is not asked again for what is only waiting
	x.do("L9 +1ms").want().do("drain").want("apply 4 4 live", "apply 5 5 live").do("drain").want("apply 6 6 live", "apply 7 7 live")
	x.do("drain").want("apply 8 8 live", "apply 9 9 live").do("drain drain").want()
	if s := x.c.State(); x.c.Draining() || s.Held != 0 || s.Gaps != 1 {
		t.Errorf("%+v", s)
	}
	// A hole behind the portion is asked for when it is reached.
	x = running(t, twoAtOnce, 3).do("L4 L5 L6 L9 same R2").ignore().do("R3 end").want("apply 3 3 replayed").do("drain").want("apply 4 4 live", "apply 5 5 live")
	x.do("drain").want("apply 6 6 live", "ask 6").do("same R6 R7 R8").want("apply 7 7 replayed", "apply 8 8 replayed").do("drain").want("apply 9 9 live")
	// A live gap that opens meanwhile, too, and is counted by then.
	running(t, twoAtOnce, 3).do("L4 L5 L6 same R2 R3 L9 end").ignore().do("drain drain").want("apply 4 4 live", "apply 5 5 live", "apply 6 6 live", "ask 6")
	// A replay brings it faster.
	running(t, twoAtOnce, 3).do("L4 L5 L6 same R2").ignore().do("R3 R4 R5 R6").want("apply 3 3 replayed", "apply 4 4 replayed", "apply 5 5 replayed", "apply 6 6 replayed").do("drain").want()
}

func TestDrainWaits(t *testing.T) {
	// Without credit nothing is applied, and nothing spins.
	x := running(t, twoAtOnce, 3).do("L4 L5 L6 L7 same R2 R3 end").ignore().do("nocredit")
	if x.c.Draining() {
		t.Error("draining without credit")
	}
	x.do("drain +30s").want().do("credit drain").want("apply 4 4 live", "apply 5 5 live")
	// Ready waits for all of it.
	x = newTable(t, twoAtOnce).do("up L0 L1 L2 L3 sent end").want("ask 0 fresh").do("drain").want("apply 0 0 live", "apply 1 1 live")
	x.do("drain").want("apply 2 2 live", "apply 3 3 live", "ready")
	// Behind what a returned engine's blocks are published again with.
	running(t, twoAtOnce, 3).do("down +30s up L3 sent").ignore().do("R2 +1ms").want("back").do("drain").want("apply 3 3 live")
	// Asked for in between: afterwards, from what is the anchor then.
	running(t, twoAtOnce, 3).do("L4 L5 L6 L7 same R2 R3 end").ignore().do("+2s").want().do("drain drain +2s").want("apply 4 4 live", "apply 5 5 live", "apply 6 6 live", "apply 7 7 live", "ask 7")
}

func TestDrainEnds(t *testing.T) {
	// With the connection.
	x := running(t, twoAtOnce, 3).do("L4 L5 L6 L7 same R2 R3 end").ignore().do("down")
	if s := x.c.State(); x.c.Draining() || s.Held != 0 {
		t.Errorf("%+v", s)
	}
	// A live batch that is not what waits under its number is another engine's.
	running(t, twoAtOnce, 3).do("L4 L5 L6 L7 same R2 R3").ignore().do("L6:other").want("epoch 1 restart", "close", "reopen")
	running(t, twoAtOnce, 3).do("L4 L5 L6 L7 same R2 R3").ignore().do("L7").want()
	// LOST=keep goes on over several portions and holes.
	x = running(t, Config{Lost: LostKeep, Portion: 1}, 3).do("L4 L5 L7 L9 same R9 +100ms sent +1ms pong").ignore().do("R9")
	x.want("lost 3-4 keep").do("drain").want("apply 4 4 live").do("drain").want("apply 5 5 live", "lost 6-7 keep")
	x.do("drain").want("apply 7 7 live", "lost 8-9 keep").do("drain").want("apply 9 9 live").do("drain").want()
}

// A large reply that comes slowly is no silence.
func TestArriving(t *testing.T) {
	x := running(t, Config{}, 3).do("L4 same R2").ignore()
	for range 40 { // longer than a round has
		x.do("+900ms coming").want()
	}
	x.do("R3 end").want("apply 3 3 replayed", "apply 4 4 live")
	// It stops: as any stall.
	running(t, Config{}, 3).do("L4 same R2 +900ms coming +999ms").ignore().do("+1ms").want("close")
	// It creeps: the round ends when it has to.
	x = running(t, Config{}, 3).do("L4 same R2").ignore()
	for range 11 {
		x.do("+900ms creeping").want()
	}
	x.do("+100ms").want("close")
	// Then it is whole, and the round has its old end.
	x = running(t, Config{}, 3).do("L5 same R2").ignore()
	for range 12 {
		x.do("+900ms coming").want()
	}
	x.do("R3 +1ms").want("apply 3 3 replayed", "close", "ask 3 fresh")
}
