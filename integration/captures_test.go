//go:build integration

package integration

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/kvrelay/kvrelay/consumer"
	"github.com/kvrelay/kvrelay/internal/capture"
)

// play is one capture on its way: engine → kvrelay → NATS → router.
type play struct {
	t       *testing.T
	c       *capture.Capture
	rank    consumer.Rank
	engine  *engine
	router  *router
	kvrelay *kvrelay
	set     settings
}

// startPlay starts all four; nothing is published yet.
func startPlay(t *testing.T, name string, profile consumer.Profile, cfg func(*engineConfig), more settings) *play {
	t.Helper()
	p := &play{t: t, c: loadCapture(t, name)}
	p.rank = consumer.Rank{Worker: 42, DP: p.c.Meta.DPRank}
	ec := configFor(p.c.Meta)
	if cfg != nil {
		cfg(&ec)
	}
	p.engine = startEngine(t, ec)
	if n := p.engine.load(capturePath(name)); n != len(p.c.Messages) {
		t.Fatalf("%d messages loaded, want %d", n, len(p.c.Messages))
	}
	url := natsServer(t, -1).ClientURL()
	p.router = newRouter(t, url, profile)
	s := settings{
		"NATS_URL": url, "PROFILE": profile.String(), "ENDPOINTS": p.engine.Pub, "REPLAY_ENDPOINTS": p.engine.Router,
		"BLOCK_SIZE": strconv.Itoa(int(p.c.Meta.BlockSize[0])),
	}
	for k, v := range more {
		s[k] = v
	}
	p.set = s
	p.kvrelay = startKvrelay(t, s)
	return p
}

// end publishes a mark behind messages [.., to) and waits for it; then the
// router must hold the truth.
func (p *play) end(to int, s *capture.State) {
	p.t.Helper()
	seq, ts := lastOf(p.t, p.c.Messages[:to])
	mark := markOf(to)
	p.engine.send(seq+1, markBatch(p.c.Meta, mark, ts+0.001))
	p.router.wait(p.t, "the mark arrives", func(pic *consumer.Picture) bool {
		_, ok := pic.Lookup(p.rank, consumer.Device, mark)
		return ok
	})
	want := truthOf(p.t, p.c.Meta, s)
	want[consumer.Device][mark] = true
	var missing map[uint64]bool
	if p.c.Meta.Case == "hybrid-3g" {
		missing = otherSize(p.t, p.c)
	}
	if d := want.diff(heldBy(p.router.picture, p.rank), missing); d != "" {
		p.t.Errorf("not the engine's truth: %s", d)
	}
	for _, k := range p.router.picture.Ranks() {
		if k != p.rank && len(heldBy(p.router.picture, k)[consumer.Device]) > 0 {
			p.t.Errorf("blocks of rank %v, want none but %v's", k, p.rank)
		}
	}
	p.router.sound(p.t)
}

// withheld picks a share of the messages [from, to).
func withheld(r *rand.Rand, from, to int, share float64) []int {
	var out []int
	for i := from; i < to; i++ {
		if r.Float64() < share {
			out = append(out, i)
		}
	}
	return out
}

// run plays the whole capture, incarnation by incarnation, with a share of the
// live messages withheld.
func (p *play) run(share float64, seed uint64) {
	p.t.Helper()
	r := rand.New(rand.NewPCG(seed, 7))
	if len(p.c.Meta.Incarnations) == 0 {
		p.engine.publish(0, len(p.c.Messages), withheld(r, 0, len(p.c.Messages), share))
		p.end(len(p.c.Messages), &p.c.Meta.State)
		return
	}
	for i := range p.c.Meta.Incarnations {
		s := &p.c.Meta.Incarnations[i].State
		to := s.FirstMessage + *s.Messages
		if i > 0 {
			p.engine.do("restart", nil)
		}
		p.engine.publish(s.FirstMessage, to, withheld(r, s.FirstMessage, to, share))
		p.end(to, s)
	}
}

// Every recorded engine stream, from real libzmq through the built binary and
// a real nats-server: the router ends with exactly what the engine held. Whole
// and from before anybody subscribed; and, followed live, with 30 % of the
// messages withheld at random.
func TestCaptures(t *testing.T) {
	for i, name := range captureNames(t) {
		for _, share := range []float64{0, .3} {
			profile := []consumer.Profile{consumer.Dynamo, consumer.JSON}[(i+int(share*10))%2]
			t.Run(fmt.Sprintf("%s,withheld=%v,%s", name, share, profile), func(t *testing.T) {
				t.Parallel()
				p := startPlay(t, name, profile, func(c *engineConfig) {
					if share > 0 {
						c.Socket = "XPUB" // a PUB that tells who subscribed
					}
				}, nil)
				if share > 0 {
					p.engine.subscriber()
					p.kvrelay.says(firstReplay)
				}
				p.run(share, uint64(i))
				if share > 0 && len(p.c.Messages) > 20 {
					if s := p.engine.do("stats", nil); s.Published >= len(p.c.Messages) || s.Replays < 2 {
						t.Errorf("%d of %d published live, %d replays: nothing was tested", s.Published, len(p.c.Messages), s.Replays)
					}
				}
			})
		}
	}
}
