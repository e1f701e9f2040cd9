package replay

import (
	"testing"
	"time"
)

// However many large replies come, and however fast, the round ends behind the one
// that was coming when its time was up: others wait for the slot.
func TestArrivingOneBehindTheOther(t *testing.T) {
	const each = " +900ms coming +900ms coming +900ms coming +300ms"
	x := running(t, Config{}, 3).do("L7 same R2").ignore()
	x.do(each+" R3"+each+" R4"+each+" R5").want("apply 3 3 replayed", "apply 4 4 replayed", "apply 5 5 replayed")
	x.do(each).want().do("R6").want("apply 6 6 replayed", "apply 7 7 live") // until 12 s: it began at 9.9 s
	x.do("coming +1ms").want("close", "ask 7 fresh")                        // what begins now does not
}

// A reply that is whole and waits to be given is no silence, for as long as it
// waits; given, it is news of the past.
func TestArrivedWhole(t *testing.T) {
	whole := func(x *table, ago time.Duration) {
		at := x.now.Add(-ago)
		x.c.ReplayArriving(x.now, x.id, Arrival{First: at, Newest: at, Whole: true})
	}
	x := running(t, Config{}, 3).do("L4 same R2").ignore()
	came := x.now.Add(time.Millisecond)
	for range 3 { // 12 s: the round's time is up as well
		x.now = x.now.Add(4 * time.Second) // no tick before the news
		whole(x, x.now.Sub(came))
		x.c.Tick(x.now)
	}
	x.want().do("R3 +1ms").want("apply 3 3 replayed", "apply 4 4 live", "close", "ask 4 fresh")

	x = running(t, Config{}, 3).do("L4 same +500ms R2 +900ms").ignore()
	whole(x, 901*time.Millisecond) // the reader has not begun its next receive
	x.do("+99ms").want().do("+1ms").want("close")

	// Nor does one prolong the round that began after its time.
	x = running(t, Config{}, 3).do("L9 same").ignore()
	for range 11 {
		x.do("+900ms R2")
	}
	x.now = x.now.Add(200 * time.Millisecond)
	whole(x, 50*time.Millisecond)
	x.do("+0s").want("close")
}
