//go:build integration

package integration

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvrelay/kvrelay/consumer"
)

var (
	soakFor  = flag.Duration("soak", 12*time.Second, "how long TestSoak makes trouble and looks, beside its last calm phase")
	soakSeed = flag.Uint64("soak-seed", 1, "seed of TestSoak's trouble")
)

// soak is a running soak.
type soak struct {
	t     *testing.T
	r     *rand.Rand
	seed  uint64
	began time.Time

	server *soakServer
	core   *soakRelay // NATS core, static endpoints, four ranks
	jet    *soakRelay // JetStream, discovery, two ranks of `kvrelay mock`
	ranks  []*soakRank
	mock   *soakMock

	under    []trouble
	natsBusy bool
	struck   int
	kinds    map[string]int
	recent   []string
	rounds   []round
}

// Bounds of a soak.
const (
	soakStorm   = 40 * time.Second       // trouble, before each calm
	soakTick    = 50 * time.Millisecond  // of traffic
	soakEvery   = 700 * time.Millisecond // mean time between two troubles
	soakHeal    = 60 * time.Second       // until the pictures are exact and everything is at rest
	soakRecent  = 40                     // troubles told where a promise is broken
	soakLongest = 2000                   // batches of one incarnation, to be folded in moments
	soakSource  = 128 << 10              // bytes of a source without an engine
)

// TestSoak is trouble of all kinds at once, then calm, again and again, for
// -soak; `make soak` runs it for an hour. In each calm the consumers' pictures
// must be the engines' caches, and the relays' memory, goroutines, descriptors
// and series within their bounds. The first broken promise ends it.
func TestSoak(t *testing.T) {
	s := newSoak(t)
	s.calm("at the start")
	for _, x := range s.relays() {
		x.base = s.atRest(x, sample{})
		x.before = x.base
	}
	s.say("at rest: core %s; jet %s", s.core.base, s.jet.base)
	for end := s.began.Add(*soakFor); time.Now().Before(end); {
		s.storm(min(soakStorm, time.Until(end)))
		s.look()
	}
	s.end()
}

func newSoak(t *testing.T) *soak {
	s := &soak{t: t, seed: *soakSeed, r: rand.New(rand.NewPCG(*soakSeed, 11)), began: time.Now(), kinds: map[string]int{}}
	t.Cleanup(func() {
		if t.Failed() {
			s.say("BROKEN in round %d. Seed %d; to rerun: make soak SOAK=%v SEED=%d. The last troubles, newest last:\n  %s",
				len(s.rounds)+1, s.seed, *soakFor, s.seed, strings.Join(s.recent, "\n  "))
		}
	})
	s.say("seed %d, %v, trouble every %v on average", s.seed, *soakFor, soakEvery)
	s.server = startNATSProcess(t)
	const mib = 1 << 20
	shared := settings{
		"HEARTBEAT": "500ms", "REPLAY_IDLE": "500ms", "PEER_TIMEOUT": "2s", "DEAD_AFTER": "6s", "LOG_LEVEL": "info",
		"HOLD_BYTES": "8MiB", "OUT_BYTES": "8MiB", "RECENT_BYTES": "4MiB", "MAX_FRAME_BYTES": "4MiB",
	}
	fixed := int64(32+8+8) * mib
	// Somebody hostile has each of a rank's two connections hold a frame.
	frames := func(ranks int64) int64 { return ranks * 2 * 4 * mib }
	b := &bed{t: t, r: s.r, o: bedOptions{network: true}, router: &router{}}
	f := &faultWorld{t: t, r: s.r}
	core := maps.Clone(shared)
	s.core = s.newRelay("core", 42, core, "", 4, fixed+4*4*mib+frames(4))
	b.router.picture = s.core.picture
	var live, replay []string
	for i := range uint32(4) {
		if i < 2 {
			s.ranks = append(s.ranks, s.newOwn(b, i))
		} else {
			s.ranks = append(s.ranks, s.newZMQ(f, i))
		}
		k := s.ranks[i]
		live, replay = append(live, "tcp://"+k.hops[0].proxy.Addr()), append(replay, "tcp://"+k.hops[1].proxy.Addr())
	}
	core["ENDPOINTS"], core["REPLAY_ENDPOINTS"] = strings.Join(live, ","), strings.Join(replay, ",")
	core["BLOCK_SIZE"] = "16"
	s.mock = s.newMock()
	jet := maps.Clone(shared)
	jet["SINK"], jet["DISCOVERY_URL"] = "jetstream", s.mock.asks.URL
	// Discovery that lies may name 1024 sources (more are refused), which nobody serves.
	s.jet = s.newRelay("jet", 43, jet, "KVRELAY", 2, fixed+2*4*mib+frames(2)+1024*soakSource)
	for _, x := range s.relays() {
		x.start()
	}
	return s
}

func (s *soak) relays() []*soakRelay { return []*soakRelay{s.core, s.jet} }

// storm makes trouble for d.
func (s *soak) storm(d time.Duration) {
	s.t.Helper()
	tick := time.NewTicker(soakTick)
	defer tick.Stop()
	for end := time.Now().Add(d); time.Now().Before(end); <-tick.C {
		s.heal(func(x trouble) bool { return time.Now().After(x.until) })
		if s.r.Float64() < float64(soakTick)/float64(soakEvery) {
			for !s.strike() {
			}
		}
		s.traffic()
		s.alive()
	}
}

// traffic is what the engines do at all times.
func (s *soak) traffic() {
	for _, k := range s.ranks {
		k.publish(s.r.IntN(3), .05)
	}
	s.mock.publish(s.r, s.r.IntN(2))
}

// heal ends the troubles that are due.
func (s *soak) heal(due func(trouble) bool) {
	var left []trouble
	for _, x := range s.under {
		if due(x) {
			x.end()
		} else {
			left = append(left, x)
		}
	}
	s.under = left
}

// alive: no relay has ended by itself, and no consumer saw ids out of order.
func (s *soak) alive() {
	s.t.Helper()
	for _, x := range s.relays() {
		if why := x.lives(); why != "" {
			s.broken("%s", why)
		}
		x.mu.Lock()
		wrong := slices.Clone(x.broken)
		x.mu.Unlock()
		if len(wrong) > 0 {
			s.broken("%s: %s", x.name, strings.Join(wrong, "; "))
		}
	}
}

// calm ends all trouble and waits until each picture is the engine's cache.
func (s *soak) calm(when string) time.Duration {
	s.t.Helper()
	s.heal(func(trouble) bool { return true })
	began := time.Now()
	late := time.AfterFunc(soakHeal/3, func() { s.say("still waiting for the pictures to be exact") })
	defer late.Stop()
	for _, k := range s.ranks {
		if len(k.w.batches) > soakLongest {
			if k.own != nil {
				k.own.Restart()
				k.fresh()
			} else {
				k.zmq.restart()
				k.bases = nil
			}
			k.publish(3, 0)
		}
		k.mark()
	}
	s.mock.publish(s.r, 2)
	for _, k := range s.ranks {
		d, all := "", false
		if !eventually(soakHeal, func() bool {
			if d = k.differs(false); d != "" && !all && time.Since(began) > soakHeal/4 && s.lost() > 0 {
				all = true // once: it takes long
				d = k.differs(true)
			}
			s.alive()
			return d == ""
		}) {
			s.broken("%s: %v after the last trouble the picture of %s is not its cache, %d batches: %s", when, soakHeal, k.name, len(k.w.batches), d)
		}
	}
	d, swept := "", false
	if !eventually(soakHeal, func() bool {
		d = s.mock.differs()
		s.alive()
		if !swept && d != "" && time.Since(began) > soakHeal/2 && s.jet.losses+s.jet.lossesNow() > 0 {
			s.mock.sweep()
			swept = true
		}
		return d == ""
	}) {
		s.broken("%s: %v after the last trouble the picture of the mock is not its cache: %s", when, soakHeal, d)
	}
	took := time.Since(began)
	for _, x := range s.relays() {
		if n := x.consumer.Stats().Malformed; n > 0 {
			s.broken("%s: %d messages cannot be read", x.name, n)
		}
		if !eventually(soakHeal, func() bool { return s.followed(x) }) {
			s.broken("%s: a rank is not followed live: %+v", x.name, x.consumer.Ranks())
		}
	}
	return took
}

func (s *soak) followed(x *soakRelay) bool {
	return !slices.ContainsFunc(x.consumer.Ranks(), func(r consumer.RankStatus) bool {
		return r.State != consumer.Live && r.Rank.DP < x.ranks // further ones were invented by discovery
	})
}

// atRest waits until a relay has no more goroutines and descriptors than
// before all trouble, and checks its memory.
func (s *soak) atRest(x *soakRelay, base sample) (m sample) {
	s.t.Helper()
	var err error
	stable := sample{}
	late := time.AfterFunc(soakHeal/3, func() { s.say("still waiting for %s to be at rest", x.name) })
	defer late.Stop()
	if !eventually(soakHeal, func() bool {
		if m, err = x.sample(); err != nil {
			return false
		}
		if base.goroutines == 0 { // wait for the same twice
			same := m.goroutines == stable.goroutines && m.fds == stable.fds
			stable = m
			return same
		}
		return m.goroutines <= base.goroutines+soakSlack && m.fds <= base.fds+soakSlack
	}) {
		s.broken("%s: %v after all trouble: %s, at rest before it: %s, %v; open are:\n%s", x.name, soakHeal, m, base, err, x.open())
	}
	x.peak = max(x.peak, x.k.rss())
	if int64(x.peak) > x.limit && !raceEnabled {
		s.broken("%s took %d MiB, its formula and a quarter are %d", x.name, x.peak>>20, x.limit>>20)
	}
	if most := base.series*1.25 + 50; base.series > 0 && m.series > most {
		s.broken("%s: %.0f series, %.0f before all trouble", x.name, m.series, base.series)
	}
	return m
}

// soakSlack are goroutines and descriptors that come and go at rest: a poll, a
// scrape.
const soakSlack = 3

func (m sample) String() string {
	return fmt.Sprintf("%.0f MiB, %.0f goroutines, %.0f fds, %.0f series", m.rss/(1<<20), m.goroutines, m.fds, m.series)
}

// must is for what the soak itself does.
func (s *soak) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// broken ends the soak: a promise does not hold.
func (s *soak) broken(format string, args ...any) {
	s.t.Helper()
	s.t.Fatalf(format, args...)
}

func (s *soak) note(what string) {
	s.recent = append(s.recent, fmt.Sprintf("%7.1f s  %s", time.Since(s.began).Seconds(), what))
	s.recent = s.recent[max(0, len(s.recent)-soakRecent):]
}

// say tells the person who waits; also where go test shows nothing before the end.
func (s *soak) say(format string, args ...any) {
	fmt.Fprintf(os.Stdout, "soak %s "+format+"\n", append([]any{time.Now().Format("15:04:05")}, args...)...)
}
