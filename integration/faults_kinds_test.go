package integration

import (
	"fmt"
	"slices"
	"time"

	"github.com/kvrelay/kvrelay/consumer"
	"github.com/kvrelay/kvrelay/internal/mockengine"
	"github.com/kvrelay/kvrelay/relay"
)

// faultKind is one kind of trouble. begin strikes rank k and returns what ends
// the trouble, nil where it ends by itself.
type faultKind struct {
	number int // as docs/reliability.md counts them
	name   string
	set    func(b *bed, o *bedOptions)
	before func(k *bedRank) // before the relay starts
	begin  func(k *bedRank) (end func())
	// loses: history may be lost and is then declared so. Other kinds must lose
	// nothing, alone or together.
	loses bool
	// binary: the relay must be the built program.
	binary bool
	// replaces: the engine's process is another one afterwards.
	replaces bool
	// struck says, where the kind is alone, what proves that it struck; it gets
	// the state of the rank's source at the end.
	struck func(k *bedRank, s *relay.SourceStatus) bool
	// silent: what begin leaves must be found without later traffic.
	silent bool
}

const scaledSafe = 24 // stands for libzmq's 1000 where the ROUTER drops replies

var faultKinds = []faultKind{
	{number: 1, name: "drops", begin: func(k *bedRank) func() {
		k.publish(20+k.b.r.IntN(40), .3)
		return nil
	}, struck: func(_ *bedRank, s *relay.SourceStatus) bool { return s.Cursor.Requests > 1 && s.Cursor.Replayed > 0 }},

	{number: 2, name: "burst", set: func(_ *bed, o *bedOptions) { o.relay.HoldBytes = 8 << 10 }, begin: func(k *bedRank) func() {
		k.Silence(true) // else a quick replay is there before the bound
		k.publish(40, 1)
		k.publish(100+k.b.r.IntN(50), 0) // more than is held
		k.b.strikes("the bound is reached", func() bool { return k.cursor().Discarded > 0 })
		return func() { k.Silence(false) }
	}, struck: func(_ *bedRank, s *relay.SourceStatus) bool { return s.Cursor.Discarded > 0 && s.Cursor.Replayed > 0 }},

	{number: 3, name: "midframe", replaces: true, begin: func(k *bedRank) func() {
		for range 1 + k.b.r.IntN(2) {
			k.publish(10, .1)
			k.Cut() // in mid-frame; the process lives on
			k.publish(k.b.r.IntN(5), 0)
		}
		k.Kill()
		k.fresh()
		return func() { k.admit(); k.publish(10, .1) }
	}, struck: func(_ *bedRank, s *relay.SourceStatus) bool { return s.Connects > 1 && s.Cursor.Restarts > 0 }},

	{number: 4, name: "restart", replaces: true, begin: func(k *bedRank) func() {
		for range 1 + k.b.r.IntN(2) {
			k.Restart()
			k.fresh()
			k.publish(1+k.b.r.IntN(60), .1)
		}
		return nil
	}, struck: func(_ *bedRank, s *relay.SourceStatus) bool { return s.Cursor.Restarts > 0 }},

	{number: 5, name: "overtaken", replaces: true, begin: func(k *bedRank) func() {
		before := len(k.seqs)
		k.Kill()
		k.fresh()
		k.publish(before+[]int{-1, 0, 1, 25}[k.b.r.IntN(4)], .1)
		return k.admit
	}, struck: func(_ *bedRank, s *relay.SourceStatus) bool { return s.Cursor.Restarts > 0 }},

	{number: 6, name: "halfopen", replaces: true, set: func(_ *bed, o *bedOptions) { o.relay.ZMTP.PeerTimeout = 600 * time.Millisecond }, begin: func(k *bedRank) func() {
		before := k.b.said("live connection ended")
		if k.b.r.IntN(2) == 0 {
			k.publish(10, .1)
			k.answersPings()
			k.Freeze()
			k.publish(3, 0) // into sockets that nobody serves
			k.b.strikes("a frozen peer is found dead", func() bool { return k.b.said("live connection ended") > before })
			k.Thaw()
		}
		k.HalfOpen()
		k.fresh()
		k.publish(30, .1)
		return nil
	}, struck: func(_ *bedRank, s *relay.SourceStatus) bool { return s.Connects > 1 && s.Cursor.Restarts > 0 }},

	{number: 7, name: "stall", begin: func(k *bedRank) func() {
		k.Silence(true)
		k.publish(20, 1)
		k.publish(20, .2)
		k.b.strikes("a replay stalls", func() bool { return k.cursor().Stalled > 0 })
		return func() { k.Silence(false) }
	}},

	{number: 8, name: "truncated", set: func(b *bed, o *bedOptions) {
		o.relay.Replay.Safe = scaledSafe
		how := b.r.IntN(3)
		if o.binary {
			how = 0 // the program has no setting for scaledSafe, which holes must respect
		}
		switch how {
		case 0: // the end is missing, its marker too
			o.engine.Faults = append(o.engine.Faults, mockengine.Fault{Kind: mockengine.FaultTruncate, Value: float64(20 + b.r.IntN(20))})
		case 1: // holes in the middle, the end marker comes
			o.engine.Faults = append(o.engine.Faults, mockengine.Fault{Kind: mockengine.FaultHoles, Value: scaledSafe})
		case 2: // a queue of this length, however fast it is emptied
			o.engine.ReplayHWM = scaledSafe
		}
	}, begin: func(k *bedRank) func() {
		k.publish(80, 1)
		return nil
	}, struck: func(_ *bedRank, s *relay.SourceStatus) bool { return s.Cursor.Replayed > 0 && s.Cursor.Requests > 1 }},

	{number: 9, name: "burned", begin: func(k *bedRank) func() {
		for range 4 {
			k.publish(k.b.r.IntN(10), .2)
			k.Burn(1 + k.b.r.IntN(3))
		}
		k.publish(5, .2)
		return nil
	}, struck: func(_ *bedRank, s *relay.SourceStatus) bool { return s.Cursor.Burned > 0 }},

	{number: 10, name: "evicted", loses: true, set: func(b *bed, o *bedOptions) { o.engine.BufferSteps = 12 + b.r.IntN(10) }, begin: func(k *bedRank) func() {
		k.Silence(true)
		k.publish(60, 1)
		return func() { k.Silence(false); k.publish(3, 0) }
	}, struck: func(_ *bedRank, s *relay.SourceStatus) bool { return s.Cursor.Gone > 0 }},

	{number: 11, name: "natsgone", set: smallOut, begin: func(k *bedRank) func() {
		k.b.router.allowRepeats()
		k.b.nats.Refuse()
		k.b.nats.Cut(false)
		k.fillOut()
		return func() {
			if err := k.b.nats.Admit(); err != nil {
				k.b.t.Error(err)
			}
		}
	}, struck: func(_ *bedRank, s *relay.SourceStatus) bool { return s.Stalls > 0 }},

	{number: 12, name: "natsslow", set: smallOut, begin: func(k *bedRank) func() {
		k.b.router.allowRepeats() // a link that takes nothing is given up
		for range 3 {
			k.b.nats.Freeze()
			k.publish(60, .05)
			k.b.nats.Thaw()
		}
		k.b.nats.Freeze()
		k.fillOut()
		return k.b.nats.Thaw
	}, struck: func(_ *bedRank, s *relay.SourceStatus) bool { return s.Stalls > 0 }},

	{number: 13, name: "killed", binary: true, begin: func(k *bedRank) func() {
		k.publish(k.b.r.IntN(30), .2)
		if k.b.r.IntN(4) == 0 {
			code := k.b.program.stop()
			if !k.b.alone && code == 4 {
				k.b.program.want = code // NATS may be gone as well
			}
		} else {
			k.b.program.kill()
		}
		k.publish(20, .1)
		return k.b.startProgram
	}},

	{number: 14, name: "garbage", begin: func(k *bedRank) func() {
		for range 3 {
			k.publish(1+k.b.r.IntN(5), .2)
			k.Garbage()
		}
		k.publish(3, .2)
		return nil
	}, struck: func(k *bedRank, s *relay.SourceStatus) bool {
		cleared := slices.ContainsFunc(k.b.router.all(), func(e consumer.Event) bool { return e.Kind == consumer.Cleared && e.ID > 1 })
		return s.Undecodable >= 3 && (s.Ranks[0].State == relay.StateSuspect || cleared) // a clear ends the suspicion
	}},

	{number: 15, name: "tworanks", set: func(_ *bed, o *bedOptions) { o.ranks, o.relay.Replays = 2, 2 }, begin: func(k *bedRank) func() {
		broken := k.b.ranks[1-k.id.DP]
		if k.b.r.IntN(2) == 0 {
			broken.Silence(true)
			broken.publish(20, .5)
		} else {
			broken.Freeze()
		}
		k.publish(20, .3)
		if k.b.alone {
			k.settle() // not delayed by the other
		}
		return func() { broken.Silence(false); broken.Thaw(); broken.publish(3, 0) }
	}},

	{number: 16, name: "slowjoiner", before: func(k *bedRank) {
		k.publish(20+k.b.r.IntN(80), 0)
		k.mark(false)
	}, begin: func(*bedRank) func() { return nil }},

	{number: 17, name: "lastlost", silent: true, begin: func(k *bedRank) func() {
		k.publish(20, .1)
		if k.b.alone {
			k.settle() // so that no other gap's replay brings it by chance
		}
		k.mark(true)
		return nil
	}, struck: func(_ *bedRank, s *relay.SourceStatus) bool { return s.Cursor.Polls > 0 && s.Cursor.Replayed > 0 }},

	{number: 18, name: "gone", loses: true, set: func(_ *bed, o *bedOptions) {
		o.network = true
		o.relay.Replay.DeadAfter = 500 * time.Millisecond
	}, begin: func(k *bedRank) func() {
		k.away()
		k.publish(10, .1)
		k.uncut()
		if k.b.alone {
			k.settle() // the same cache again
		}
		k.away()
		k.Restart()
		k.fresh()
		k.publish(10, .1)
		return k.uncut
	}, struck: func(_ *bedRank, s *relay.SourceStatus) bool { return s.Cursor.Restarts > 0 }},
}

// smallOut makes OUT_BYTES so small that an outage of NATS is longer than it.
func smallOut(_ *bed, o *bedOptions) {
	o.relay.OutBytes = 24 << 10
	if o.relay.HoldBytes == 0 {
		o.relay.HoldBytes = 64 << 10
	}
}

// fillOut publishes until the relay has no credit left, and then some.
func (k *bedRank) fillOut() {
	k.publish(100, .05)
	k.b.strikes("no credit is left", func() bool {
		s := k.source()
		if s == nil || s.Withheld {
			return true
		}
		k.publish(5, .05)
		return false
	})
	k.publish(50, .05)
}

// answersPings waits until the engine has answered one: a peer that never has
// may be one that cannot, and is not taken for dead for its silence.
func (k *bedRank) answersPings() {
	polls := k.cursor().Polls
	k.b.strikes("a quiet engine is polled, and sent PINGs", func() bool { return k.cursor().Polls >= polls+2 })
}

// admit lets clients to an engine that was killed.
func (k *bedRank) admit() {
	if err := k.Start(); err != nil {
		k.b.t.Error(err)
	}
}

// away cuts the network until the engine counts as dead.
func (k *bedRank) away() {
	const line = "the engine has not been reachable"
	before := k.b.said(line)
	k.cut()
	k.b.strikes(line, func() bool {
		return k.b.said(line) > before && (!k.b.alone || len(hashes(k.b.router.picture, k.id, consumer.Device)) == 0)
	})
}

func kindNamed(name string) (faultKind, error) {
	for _, x := range faultKinds {
		if x.name == name || fmt.Sprint(x.number) == name {
			return x, nil
		}
	}
	return faultKind{}, fmt.Errorf("no kind of fault is called %q", name)
}
