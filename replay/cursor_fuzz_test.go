package replay

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/zeebo/xxh3"
)

// checker is a Host that holds a Cursor to what must be true whatever comes in.
type checker struct {
	t      testing.TB
	c      *Cursor
	cfg    Config
	now    time.Time
	epoch  uint64
	last   uint64 // newest applied, or passed over, of this epoch; meaningful when some
	some   bool
	live   bool
	away   bool
	credit bool
	ended  bool
	asked  uint64 // outstanding request; 0: none
	newest uint64 // request
	ready  int
}

func (k *checker) fail(format string, a ...any) {
	k.t.Helper()
	k.t.Fatalf(format+"\n%+v", append(a, k.c.State())...)
}

func (k *checker) Apply(at Position, payload []byte, _ bool) {
	switch {
	case k.ended, k.away, !k.credit:
		k.fail("applied while ended %v, away %v, credit %v", k.ended, k.away, k.credit)
	case at.Epoch != k.epoch:
		k.fail("epoch %d, not %d", at.Epoch, k.epoch)
	case k.some && at.Seq != k.last+1:
		k.fail("%d after %d", at.Seq, k.last)
	case at.Sum != xxh3.Hash(payload):
		k.fail("%d: payload is not what came in", at.Seq)
	case at.Seq == noSeq:
		k.fail("the end marker was applied")
	}
	k.last, k.some = at.Seq, true
}

// passed: the numbers [from, to) are passed over.
func (k *checker) passed(from, to uint64) {
	if k.some && from != k.last+1 || to < from {
		k.fail("passed over %d to %d after %d", from, to, k.last)
	}
	if to > from {
		k.last = to - 1
	}
}

func (k *checker) Burned(from, to uint64) { k.passed(from, to) }
func (k *checker) Unknown(first uint64) {
	if k.some || first == 0 {
		k.fail("unknown below %d", first)
	}
}
func (k *checker) NewEpoch(epoch uint64, _ Cause) {
	if epoch != k.epoch+1 {
		k.fail("epoch %d", epoch)
	}
	k.epoch, k.some, k.away = epoch, false, false
}
func (k *checker) Lost(from, to uint64, policy Policy) {
	k.passed(from, to)
	k.ended = policy == LostExit
	if policy == LostExit != (k.cfg.Lost == LostExit) || policy == LostKeep && k.cfg.Lost != LostKeep {
		k.fail("policy %d", policy)
	}
}
func (k *checker) Away() {
	if k.away || k.live {
		k.fail("away")
	}
	k.away = true
}
func (k *checker) Back() {
	if !k.away || !k.live {
		k.fail("back")
	}
	k.away = false
}
func (k *checker) Ready() { k.ready++ }
func (k *checker) Ask(r Request) {
	if k.asked != 0 || !k.live || !k.credit || k.cfg.NoReplay || r.ID <= k.newest {
		k.fail("asked %+v while %d is out, live %v", r, k.asked, k.live)
	}
	k.asked, k.newest = r.ID, r.ID
}
func (k *checker) CloseReplay() { k.asked = 0 }
func (k *checker) ReopenLive()  { k.live = false }

// input is one input; arg chooses what it says.
func (k *checker) input(op, arg byte) {
	seq := uint64(arg & 15)
	switch arg >> 6 {
	case 2:
		seq += 1000
	case 3:
		seq = math.MaxUint64 - seq
	}
	payload := fmt.Appendf(nil, "%d/%d/%d", seq, arg>>4&1, arg>>5&1)
	defer func() { clear(payload) }()
	id := k.newest - uint64(arg>>7) // now and then a stale one
	k.now = k.now.Add(time.Duration(arg) * time.Millisecond)
	switch op % 22 {
	case 0:
		k.live = !k.ended
		k.c.LiveUp(k.now)
	case 1:
		if arg > 200 {
			k.live = false
			k.c.LiveDown(k.now)
		}
	case 2, 3, 4, 5:
		k.c.Live(k.now, seq, payload)
	case 6:
		if arg > 200 {
			k.credit = false
			k.c.Discard(k.now, seq)
		}
	case 7:
		k.credit = arg&3 != 0
		k.c.Credit(k.now, k.credit)
	case 8:
		k.c.Pong(k.now, k.now.Add(-time.Duration(arg&7)*time.Second))
	case 9:
		k.c.ReplaySent(k.now, id, arg&1 != 0)
	case 10, 11, 12, 13:
		k.c.ReplayBatch(k.now, id, seq, payload)
	case 14, 15:
		if id == k.asked {
			k.asked = 0
		}
		k.c.ReplayEnd(k.now, id)
	case 16:
		if id == k.asked {
			k.asked = 0
		}
		if arg&1 != 0 {
			k.c.ReplayDown(k.now, id)
		} else {
			k.c.ReplayRefused(k.now, id)
		}
	case 17, 18:
		if at := k.c.Deadline(); !at.IsZero() && at.After(k.now) {
			k.now = at
		}
		k.tick()
	case 19:
		k.now = k.now.Add(time.Duration(arg-100) * 100 * time.Millisecond) // now may step back
		k.tick()
	case 20:
		was, held := k.c.Draining(), k.c.State().Held
		if k.c.Drain(k.now, 1+int(arg)); was && k.c.Draining() && k.c.State().Held >= held {
			k.fail("drained in vain")
		}
	case 21:
		newest := k.now.Add(-time.Duration(arg) * time.Millisecond)
		k.c.ReplayArriving(k.now, id, Arrival{newest.Add(-time.Duration(arg) * time.Second / 8), newest, arg&1 != 0, arg&6 == 6})
	}
	k.holds()
}

func (k *checker) tick() {
	k.c.Tick(k.now)
	if at := k.c.Deadline(); !at.IsZero() && !at.After(k.now) {
		k.fail("deadline %v does not move", at)
	}
}

func (k *checker) holds() {
	s := k.c.State()
	switch {
	case s.Frames != s.Applied+s.Repeated+s.Discarded+s.Malformed+uint64(s.Held):
		k.fail("frames do not add up")
	case s.Begun && s.Next-s.Base != s.EpochApplied+s.EpochBurned+s.EpochLost:
		k.fail("numbers do not add up")
	case s.HeldBytes != k.cfg.Hold.Used() || s.HeldBytes > k.cfg.Hold.max || s.Held == 0 != (s.HeldBytes == 0):
		k.fail("held bytes do not add up: %d", k.cfg.Hold.Used())
	case s.Requests-s.Counters.Ended-s.Stalled-s.Refused-s.Dropped != uint64(min(k.asked, 1)):
		k.fail("requests do not add up: %d is out", k.asked)
	case s.Live != k.live && !k.ended || s.Waiting != k.away || s.Epoch != k.epoch || k.ready > 1:
		k.fail("live %v, away %v, epoch %d, ready %d", k.live, k.away, k.epoch, k.ready)
	}
	if k.c.starting && !k.c.busy() {
		k.fail("live waits for a Start that is not under way")
	}
	k.heldInOrder()
}

func (k *checker) heldInOrder() {
	for _, l := range []*batchList{&k.c.held.live, &k.c.held.replayed} {
		list := slices.Concat(l.chunks...)
		if !slices.IsSortedFunc(list, func(a, b heldBatch) int { return int(int64(a.seq/2) - int64(b.seq/2)) }) {
			k.fail("held out of order")
		}
		for _, b := range list {
			if b.seq < k.c.next {
				k.fail("%d is still held, next is %d", b.seq, k.c.next)
			}
		}
	}
}

// FuzzCursor: whatever comes in, in whatever order, nothing is applied twice or
// out of order, everything adds up, memory stays within the budget, and time is
// never waited for in vain.
func FuzzCursor(f *testing.F) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 64 {
		b := make([]byte, 2+r.IntN(600))
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) < 2 {
			return
		}
		cfg := Config{
			Epoch: uint64(data[0] >> 6), Lost: Policy(data[0] & 3 % 3), NoReplay: data[0]&0x1c == 0, Attempts: 1 + int(data[0]>>5),
			Ring: 1 + int(data[1]&7), Safe: 1 + int(data[1]>>3&7), Hold: NewBudget(int64(data[1]>>6) * 150),
			Portion: int(data[0] >> 5 & 1), // one batch at a time, or no bound
			TS:      func(p []byte) (float64, bool) { return float64(p[len(p)-1]), p[0] != '3' }, Rand: func() float64 { return .5 },
		}
		k := &checker{t: t, cfg: cfg, now: simBegin, epoch: cfg.Epoch, credit: true}
		k.c = NewCursor(cfg, k)
		for data = data[2:]; len(data) >= 2; data = data[2:] {
			k.input(data[0], data[1])
		}
		k.c.Stop()
		if cfg.Hold.Used() != 0 {
			t.Fatal("held bytes were not given back")
		}
	})
}
