package replay

import (
	"math/rand/v2"
	"strings"
	"testing"
)

// script is a scenario made by hand, one for each rule that is easy to get
// wrong. All links take 0.5 ms, and only what the script does happens.
type script struct {
	*sim
	e *engine
	r *stream
}

// pubs publishes n batches from t on, gap seconds apart.
func (s *script) pubs(n int, t, gap float64) { s.publish(n, t, gap, nil) }

// lose publishes batches that PUB drops.
func (s *script) lose(n int, t, gap float64) {
	yes := true
	s.publish(n, t, gap, &yes)
}

func (s *script) publish(n int, t, gap float64, drop *bool) {
	for i := range n {
		s.at(t+float64(i)*gap, func() {
			if s.e.alive {
				s.e.step(drop)
			}
		})
	}
}

func (s *script) burn(t float64) { s.at(t, s.e.burn) }

// restart replaces the engine at t; the relay learns of it a millisecond later.
func (s *script) restart(t, eof float64) {
	s.at(t, func() { s.e.kill(eof) })
	s.at(t+.001, func() { s.e.revive(nil) })
}

func (s *script) deaf(from, to float64) {
	s.at(from, func() { s.e.deaf = true })
	s.at(to, func() { s.e.deaf = false })
}

type mini struct {
	name string
	p    func(p *params)
	do   func(s *script)
	want func(c Counters) bool // what was declared
	but  []string              // complaints of the oracle that are right, and meant
}

var minis = []mini{
	{name: "M1 a live batch equal to next on a reconnected socket, restart at the same seq, first answer lost",
		do: func(s *script) {
			s.pubs(5, 1, .01)
			s.restart(2, .001)
			s.pubs(5, 2.0011, .00001)
			s.deaf(2, 2.9)
			s.pubs(6, 2.3, .02)
			s.pubs(3, 5, .1)
		}, want: func(c Counters) bool { return c.Restarts == 1 && c.Losses == 0 }},
	{name: "M2 batches held of the old incarnation do not survive a restart",
		p: func(p *params) { p.latR, p.redial = .3, .02 },
		do: func(s *script) {
			s.pubs(5, 1, .01)
			s.lose(1, 1.1, 0)
			s.pubs(3, 1.11, .01)
			s.restart(1.2, .001)
			s.pubs(4, 1.3, .01)
			s.burn(1.5)
			s.pubs(1, 3, 0)
			s.lose(3, 3.01, .01)
			s.pubs(1, 3.04, 0)
		}, want: func(c Counters) bool { return c.Restarts == 1 && c.Burned == 1 && c.Losses == 0 }},
	{name: "M3 the retry after a stall, engine restarted meanwhile",
		do: func(s *script) {
			s.pubs(5, 1, .01)
			s.deaf(1.5, 3.6)
			s.restart(3.5, 10)
			s.pubs(8, 3.6, .001)
		}, want: func(c Counters) bool { return c.Restarts == 1 }},
	{name: "M4 credit back, engine restarted while there was none",
		do: func(s *script) {
			s.pubs(5, 1, .01)
			s.at(1.5, func() { s.r.setCredit(false) })
			s.pubs(2, 1.6, .01)
			s.restart(1.7, .001)
			s.pubs(9, 1.75, .01)
			s.at(3, func() { s.r.setCredit(true) })
		}, want: func(c Counters) bool { return c.Restarts == 1 && c.Losses == 0 }},
	{name: "M5 the anchor's number burned in the new incarnation, so that the first reply is next",
		do: func(s *script) {
			s.pubs(5, 1, .01)
			s.restart(2, .001)
			s.pubs(4, 2.01, .0001)
			s.burn(2.0109)
			s.pubs(4, 2.012, .0001)
		}, want: func(c Counters) bool { return c.Gone == 1 && c.Burned == 1 }},
	{name: "M6 the high-water mark leaves the same hole in two rounds, end marker present",
		p: func(p *params) { p.middle, p.rhwm = true, 30 },
		do: func(s *script) {
			s.pubs(2, 1, .01)
			s.lose(200, 1.1, .0005)
			s.pubs(1, 1.25, 0)
			s.e.serveFn = func(c *conn, start, id uint64, _ bool) {
				var l []*simBatch
				for _, b := range s.e.buf {
					if b.seq >= start {
						l = append(l, b)
					}
				}
				if len(l) > 30 {
					l = append(l[:30:30], l[min(60, len(l)):]...)
				}
				s.e.reply(c, id, l, true)
			}
		}, want: func(c Counters) bool { return c.Burned == 0 && c.Losses == 0 }},
	{name: "M7 a burned number, more than a high-water mark of batches behind it: no round ever ends",
		p: func(p *params) { p.rhwm, p.relayStart = 30, 1 },
		do: func(s *script) {
			s.pubs(3, .01, .0001)
			s.burn(.015)
			s.pubs(90, .02, .0001)
		}, want: func(c Counters) bool { return c.Burned == 1 && c.Losses == 0 }},
	{name: "M8 an engine that publishes before it appends: the anchor is not yet in its buffer",
		p: func(p *params) { p.lag = .3 },
		do: func(s *script) {
			s.pubs(1, 1, 0)
			s.pubs(1, 2.5, 0)
			s.at(2.55, func() { s.r.in(s.r.c.want) })
		}, want: func(c Counters) bool { return c.Restarts == 0 }},
	{name: "M9 a lost batch not yet appended, two quick rounds: not burned",
		p: func(p *params) { p.lag = .3 },
		do: func(s *script) {
			s.pubs(3, 1, .01)
			s.lose(1, 1.5, 0)
			s.pubs(1, 1.51, 0)
		}, want: func(c Counters) bool { return c.Burned == 0 && c.Losses == 0 }},
	{name: "M10 a restarted engine that has published nothing",
		do: func(s *script) {
			s.pubs(5, 1, .01)
			s.restart(2, .001)
		}, want: func(c Counters) bool { return c.Restarts == 1 }},
	{name: "M11 the poll of an idle engine that hangs for a minute is not answered",
		do: func(s *script) {
			s.pubs(5, 1, .01)
			s.deaf(2, 60)
		}, want: func(c Counters) bool { return c.Losses == 0 && c.Restarts == 0 && c.Exhausted > 0 }},
	{name: "M12 history lost and engine replaced: held batches of the old one do not follow the clear",
		p: func(p *params) { p.buffer, p.latR, p.redial = 4, .3, .02 },
		do: func(s *script) {
			s.pubs(5, 1, .01)
			for i := range 3 {
				s.lose(1, 1.1+.02*float64(i), 0)
				s.pubs(1, 1.11+.02*float64(i), 0)
			}
			s.pubs(8, 1.16, .001)
			s.restart(1.2, .001)
			s.pubs(12, 1.21, .002)
			s.pubs(2, 2.9, .01)
		}, want: func(c Counters) bool { return c.Gone+c.Restarts >= 1 }},
	{name: "M13 a replay endpoint that refuses for ever",
		do: func(s *script) {
			s.e.replayOpen = sec(1e6)
			s.pubs(5, 1, .01)
			s.lose(1, 1.1, 0)
			s.pubs(10, 1.2, .01)
		}, want: func(c Counters) bool { return c.Lost == 1 && c.Ended == 0 && c.Applied == 15 }},
	{name: "M14 seq 2^64-1 as a live frame",
		do: func(s *script) {
			s.pubs(5, 1, .01)
			s.at(1.2, s.e.malformed)
			s.pubs(5, 1.3, .01)
		}, want: func(c Counters) bool { return c.Malformed == 1 && c.Restarts == 0 && c.Gaps == 0 }},
	{name: "M15 keep: lost history after a reconnect that was a restart",
		p: func(p *params) { p.lost, p.buffer = LostKeep, 3 },
		do: func(s *script) {
			s.pubs(5, 1, .01)
			s.restart(2, .001)
			s.pubs(12, 2.01, .0001)
		}, want: func(c Counters) bool { return c.Gone == 1 }},
	// Identical bytes from seq 0 on mean an identical cache: no false block
	// arises, although the oracle knows better who sent them.
	{name: "M16 two incarnations alike, byte for byte", but: []string{"MIXED"},
		p: func(p *params) { p.coarse, p.identical = 1e6, true },
		do: func(s *script) {
			s.pubs(3, 1, .01)
			s.restart(2, .001)
			s.pubs(3, 2.01, .001)
			s.at(2.02, func() { s.e.erng = rand.New(rand.NewPCG(9, 9)) })
			s.pubs(3, 2.03, .01)
		}, want: func(c Counters) bool { return c.Losses == 0 }},
	{name: "M17 dead for DEAD_AFTER, the same incarnation comes back, history lost meanwhile",
		p: func(p *params) { p.buffer = 3 },
		do: func(s *script) {
			s.pubs(5, 1, .01)
			s.at(2, func() { s.e.cutNet(50) })
			s.pubs(20, 10, .1)
			s.pubs(3, 60, .1)
		}, want: func(c Counters) bool { return c.Gone == 1 }},
	{name: "M18 the high-water mark on the very first replay, and seq 0 burned",
		p: func(p *params) { p.rhwm, p.relayStart = 30, 1 },
		do: func(s *script) {
			s.burn(.01)
			s.pubs(100, .02, .00001)
		}, want: func(c Counters) bool { return c.Applied == 100 && c.Burned == 0 && c.Losses == 0 }},

	// What the model above does not have.
	{name: "N1 dead, the same incarnation comes back whole: its blocks are announced again",
		do: func(s *script) {
			s.pubs(5, 1, .01)
			s.at(2, func() { s.e.cutNet(50) })
			s.pubs(20, 10, .1)
		}, want: func(c Counters) bool { return c.Losses == 0 && c.Restarts == 0 && c.Applied == 25 }},
	{name: "N2 batches of a dying incarnation arrive while the replay from 0 leads to the next",
		p: func(p *params) { p.latL, p.relayStart = .3, .9 },
		do: func(s *script) {
			s.pubs(2, .5, .01)                  // 0, 1
			s.at(.95, func() { s.e.step(nil) }) // 2 is under way for long …
			s.restart(.9501, 10)                // … from an engine that is no more
			s.pubs(2, .9512, .0001)             // 0, 1 of the next one: 2 fits behind them
			s.deaf(.9, .96)
		}, want: func(c Counters) bool { return c.Restarts == 1 }},
	{name: "N3 an engine that sends no end markers",
		p: func(p *params) { p.noMarker = true },
		do: func(s *script) {
			s.pubs(5, .5, .01)
			s.lose(2, 1, .01)
			s.pubs(3, 1.1, .01)
			s.lose(1, 3, 0)
		}, want: func(c Counters) bool { return c.Applied == 11 && c.Losses == 0 }},
	{name: "N4 undecodable anchors without a ts, restart overtakes",
		p: func(p *params) { p.undec, p.noTS = 1, true },
		do: func(s *script) {
			s.pubs(5, 1, .01)
			s.restart(2, .001)
			s.pubs(9, 2.0011, .00001)
		}, want: func(c Counters) bool { return c.Restarts == 1 }},
	{name: "N5 the last batch before a long silence is lost",
		do: func(s *script) {
			s.pubs(5, 1, .01)
			s.lose(1, 1.5, 0)
		}, want: func(c Counters) bool { return c.Applied == 6 && c.Losses == 0 && c.Gaps == 0 }},
	{name: "N6 keep: history lost while the connection stands",
		p: func(p *params) { p.lost, p.buffer = LostKeep, 3 },
		do: func(s *script) {
			s.pubs(5, 1, .01)
			s.lose(9, 1.1, .01)
			s.pubs(2, 1.3, .01)
		}, want: func(c Counters) bool { return c.Gone == 1 && c.Lost == 8 && c.Applied == 8 }},
	{name: "N7 exit: history lost", p: func(p *params) { p.lost, p.buffer = LostExit, 3 },
		do: func(s *script) {
			s.pubs(5, 1, .01)
			s.lose(9, 1.1, .01)
			s.pubs(2, 1.3, .01)
		}, want: func(c Counters) bool { return c.Gone == 1 && c.Applied == 5 }},
	{name: "N8 a held batch that the engine denies having: far ahead, as a fault of memory would make it",
		do: func(s *script) {
			s.pubs(5, 1, .01)
			s.at(1.5, func() {
				b := &simBatch{seq: 1 << 62, inc: s.e.inc, ok: true}
				s.encode(b, s.seconds(), true, false)
				s.r.gotLive(s.r.l, b.seq, b)
			})
		}, want: func(c Counters) bool {
			return c.Lost == 1<<62-5 && c.Exhausted == 1 && c.Restarts == 1 && c.EpochApplied == 5
		}, but: []string{"NEEDLESS_RESTART"}},
}

// TestSimMini plays the scenarios made by hand.
func TestSimMini(t *testing.T) {
	for _, m := range minis {
		t.Run(strings.Fields(m.name)[0], func(t *testing.T) {
			s := newSim(5)
			s.trace = &strings.Builder{}
			s.hold = NewBudget(1 << 20)
			p := &params{buffer: 1000, blocks: 60, cap: 30, mean: 1e9, latL: .0005, latR: .0005, rhwm: 1000, rgap: 1e-5, redial: .1, ring: 1024}
			if m.p != nil {
				m.p(p)
			}
			e := newEngine(s, p, true)
			sc := &script{s, e, newStream(s, p, e)}
			m.do(sc)
			ok := s.run(300)
			viol := sc.r.judge(sec(120), ok)
			for _, b := range m.but {
				if viol[b] == 0 {
					t.Errorf("%s: no %s", m.name, b)
				}
				delete(viol, b)
			}
			if c := sc.r.c.State().Counters; len(viol) > 0 || !m.want(c) {
				t.Errorf("%s: %v\n%s%+v", m.name, viol, s.trace, c)
			}
			if sc.r.readies != 1 {
				t.Errorf("%s: Ready was said %d times", m.name, sc.r.readies)
			}
		})
	}
}
