//go:build integration

package integration

import (
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/kvrelay/kvrelay/internal/mockengine"
)

// trouble is what is under way: until says when end is to be called.
type trouble struct {
	name  string
	until time.Time
	end   func()
}

// strike begins a random trouble; false: what was drawn cannot be now.
func (s *soak) strike() bool {
	switch n := s.r.IntN(100); {
	case n < 30:
		return s.engineTrouble(s.anyRank())
	case n < 50:
		return s.networkTrouble(s.anyRank())
	case n < 65:
		return s.hostileTrouble(s.anyRank())
	case n < 75:
		return s.natsTrouble()
	case n < 85:
		return s.relayTrouble([]*soakRelay{s.core, s.jet}[s.r.IntN(2)])
	case n < 92:
		return s.mockTrouble()
	default:
		return s.lyingTrouble()
	}
}

func (s *soak) anyRank() *soakRank { return s.ranks[s.r.IntN(len(s.ranks))] }

// span is a random time, mostly a short one.
func (s *soak) span(most time.Duration) time.Duration {
	f := s.r.Float64()
	return time.Duration(f * f * float64(most))
}

// begin notes a trouble that lasts; one without an end is over at once.
func (s *soak) begin(name string, most time.Duration, end func()) bool {
	d := time.Duration(0)
	if end != nil {
		d = s.span(most)
	}
	s.struck++
	s.note(fmt.Sprintf("%s for %v", name, d.Round(time.Millisecond)))
	kind, _, _ := strings.Cut(name, " ")
	s.kinds[kind]++
	if end != nil {
		s.under = append(s.under, trouble{name: name, until: time.Now().Add(d), end: end})
	}
	return true
}

// on begins a trouble of one of a rank's layers.
func (s *soak) on(k *soakRank, layer int, name string, most time.Duration, end func()) bool {
	if end == nil {
		return s.begin(name+" "+k.name, 0, nil)
	}
	k.busy[layer] = true
	return s.begin(name+" "+k.name, most, func() { end(); k.busy[layer] = false })
}

func (s *soak) engineTrouble(k *soakRank) bool {
	if k.busy[layerEngine] {
		return false
	}
	r := s.r
	type kind struct {
		name string
		most time.Duration
		do   func() (end func())
	}
	once := func(do func()) func() func() { return func() func() { do(); return nil } }
	kinds := []kind{
		{"drops", 0, once(func() { k.publish(20+r.IntN(30), .4) })},
		{"burst", 0, once(func() { k.publish(40, 1); k.publish(100+r.IntN(100), 0) })},
	}
	if z := k.zmq; z != nil {
		mode := func(mode string, arg int) func() func() {
			return func() func() {
				z.engine.do("replay", map[string]any{"mode": mode, "arg": arg})
				k.publish(30, .3)
				return func() { z.engine.do("replay", map[string]any{"mode": "ok"}) }
			}
		}
		kinds = append(kinds,
			kind{"engine-restart", 0, once(func() { z.restart(); k.bases = nil; k.publish(r.IntN(40), .1) })},
			kind{"engine-killed", 5 * time.Second, func() func() {
				z.engine.kill()
				k.fresh()
				k.stopped = true
				return func() {
					z.engine = startEngine(s.t, z.cfg)
					k.hops[0].front.retarget(strings.TrimPrefix(z.engine.Pub, "tcp://"))
					k.hops[1].front.retarget(strings.TrimPrefix(z.engine.Router, "tcp://"))
					k.stopped = false
					k.publish(r.IntN(40), .1)
				}
			}},
			kind{"engine-stopped", 6 * time.Second, func() func() {
				z.engine.stop()
				k.stopped = true
				return func() { z.engine.cont(); k.stopped = false }
			}},
			kind{"replay-stall", 4 * time.Second, mode("stall", 0)},
			kind{"replay-no-end", 4 * time.Second, mode("noend", 0)},
			kind{"replay-truncated", 4 * time.Second, mode("truncate", 5+r.IntN(20))},
			kind{"replay-slow", 4 * time.Second, mode("slow", 1+r.IntN(20))},
			kind{"replay-old", 4 * time.Second, mode("old", 1+r.IntN(5))},
			kind{"replay-closed", 4 * time.Second, func() func() {
				z.engine.do("close_router", nil)
				k.publish(20, .3)
				return func() { z.engine.do("open_router", nil) }
			}},
			kind{"forgets", 0, once(func() { k.publish(20, .5); z.engine.do("forget", nil); k.forgets(0) })},
			kind{"burned", 0, once(func() { z.w.seq += uint64(1 + r.IntN(3)); k.publish(5, .2) })},
			kind{"garbage", 0, once(func() { z.garbage(); k.publish(5, .2) })},
		)
	}
	if o := k.own; o != nil {
		kinds = append(kinds,
			kind{"cut-mid-frame", 0, once(o.Cut)},
			kind{"engine-restart", 0, once(func() { o.Restart(); k.fresh(); k.publish(r.IntN(60), .1) })},
			kind{"overtaken", 5 * time.Second, func() func() {
				before := len(o.seqs)
				o.Kill()
				k.fresh()
				k.publish(min(before, 2000)+[]int{-1, 0, 1, 25}[r.IntN(4)], .1)
				return o.admit
			}},
			kind{"silent-swap", 0, once(func() { o.HalfOpen(); k.fresh(); k.publish(30, .1) })},
			kind{"engine-stopped", 6 * time.Second, func() func() { o.Freeze(); return o.Thaw }},
			kind{"replay-stall", 4 * time.Second, func() func() { o.Silence(true); k.publish(30, .3); return func() { o.Silence(false) } }},
			kind{"replay-closed", 4 * time.Second, func() func() { o.CloseReplay(); k.publish(20, .3); return func() { s.must(o.OpenReplay()) } }},
			kind{"forgets", 2 * time.Second, func() func() {
				o.Silence(true)
				k.publish(40, 1)
				o.EvictHistory(12)
				k.forgets(12)
				return func() { o.Silence(false) }
			}},
			kind{"burned", 0, once(func() { o.Burn(1 + r.IntN(3)); k.publish(5, .2) })},
			kind{"garbage", 0, once(func() { o.Garbage(); k.publish(5, .2) })},
		)
	}
	x := kinds[r.IntN(len(kinds))]
	if k.stopped {
		return false
	}
	return s.on(k, layerEngine, x.name, x.most, x.do())
}

func (s *soak) networkTrouble(k *soakRank) bool {
	if k.busy[layerNetwork] {
		return false
	}
	admit := func(p *mockengine.Proxy) { s.must(p.Admit()) }
	const most = 5 * time.Second
	switch s.r.IntN(6) {
	case 0:
		k.network(func(p *mockengine.Proxy) { p.Cut(s.r.IntN(2) == 0) })
		return s.on(k, layerNetwork, "cut", 0, nil)
	case 1:
		k.network((*mockengine.Proxy).HalfOpen)
		return s.on(k, layerNetwork, "half-open", 0, nil)
	case 2:
		k.network(func(p *mockengine.Proxy) { p.Refuse(); p.Cut(false) })
		return s.on(k, layerNetwork, "unreachable", 9*time.Second, func() { k.network(admit) }) // at times longer than DEAD_AFTER
	case 3:
		k.network((*mockengine.Proxy).Freeze)
		return s.on(k, layerNetwork, "frozen", most, func() { k.network((*mockengine.Proxy).Thaw) })
	case 4:
		k.hops[0].proxy.Limit(int64(s.r.IntN(4000)), mockengine.EndClose)
		return s.on(k, layerNetwork, "cut-after-bytes", 0, nil)
	default:
		slow := func(d time.Duration) {
			for _, h := range k.hops {
				h.front.slow(d)
			}
		}
		slow(time.Duration(1+s.r.IntN(20)) * time.Millisecond)
		return s.on(k, layerNetwork, "throttled", most, func() { slow(0) })
	}
}

func (s *soak) hostileTrouble(k *soakRank) bool {
	if k.busy[layerHostile] {
		return false
	}
	row := hostileSockets(s.r)
	as := func(attack func(*villain)) func(*villain) {
		return func(v *villain) { v.struck = func() {}; attack(v) }
	}
	turn := [2]func(*villain){row.live, row.replay}
	for i, attack := range turn {
		if attack != nil {
			k.hops[i].front.turn(as(attack))
		}
	}
	return s.on(k, layerHostile, "hostile ("+row.name+")", 4*time.Second, func() {
		for i, attack := range turn {
			if attack != nil {
				k.hops[i].front.turn(nil)
			}
		}
	})
}

func (s *soak) natsTrouble() bool {
	if s.natsBusy {
		return false
	}
	s.natsBusy = true
	done := func(end func()) func() { return func() { end(); s.natsBusy = false } }
	both := func(do func(p *mockengine.Proxy)) { do(s.core.nats); do(s.jet.nats) }
	one := []*soakRelay{s.core, s.jet}[s.r.IntN(2)]
	switch s.r.IntN(5) {
	case 0:
		s.server.kill()
		return s.begin("nats-killed", 5*time.Second, done(s.server.start))
	case 1:
		both(func(p *mockengine.Proxy) { p.Cut(s.r.IntN(2) == 0) })
		return s.begin("nats-cut", 0, done(func() {}))
	case 2:
		one.nats.Refuse()
		one.nats.Cut(false)
		return s.begin("nats-partition "+one.name, 6*time.Second, done(func() { s.must(one.nats.Admit()) }))
	case 3:
		both((*mockengine.Proxy).Freeze)
		return s.begin("nats-slow", 4*time.Second, done(func() { both((*mockengine.Proxy).Thaw) }))
	default:
		s.server.signal(s.t, syscall.SIGSTOP)
		return s.begin("nats-stopped", 4*time.Second, done(func() { s.server.signal(s.t, syscall.SIGCONT) }))
	}
}

func (s *soak) relayTrouble(x *soakRelay) bool {
	if x.k == nil || x.stopped {
		return false
	}
	switch s.r.IntN(3) {
	case 0:
		x.kill()
		return s.begin("relay-killed "+x.name, 3*time.Second, x.start)
	case 1:
		// 4: NATS did not confirm everything in time, which it may be unable to. −1,
		// the signal itself: it had only just begun, and said nothing yet.
		young := len(x.k.log()) == 0
		began := time.Now()
		code := x.k.stop()
		if took := time.Since(began); took > 8*time.Second {
			s.broken("%s took %v to end", x.name, took.Round(time.Millisecond))
		}
		if code != 0 && code != 4 && (code != -1 || !young) || code == 4 && !s.natsBusy {
			s.broken("%s: exit code %d after SIGTERM", x.name, code)
		}
		x.k.want = code
		x.gone()
		return s.begin("relay-ended "+x.name, 3*time.Second, x.start)
	default:
		s.must(x.k.cmd.Process.Signal(syscall.SIGSTOP))
		x.stopped = true
		return s.begin("relay-stopped "+x.name, 3*time.Second, func() {
			s.must(x.k.cmd.Process.Signal(syscall.SIGCONT))
			x.stopped = false
		})
	}
}

func (s *soak) mockTrouble() bool {
	if s.mock.m == nil {
		return false
	}
	s.mock.kill()
	return s.begin("engine-killed mock", 5*time.Second, s.mock.start)
}

func (s *soak) lyingTrouble() bool {
	if s.mock.lie.Load() != nil {
		return false
	}
	return s.begin("discovery-lies ("+s.mock.lies(s.r)+")", 12*time.Second, func() { s.mock.lie.Store(nil) })
}
