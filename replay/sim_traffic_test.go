package replay

import "testing"

// TestSimTraffic: what replay costs, per hour. Unscaled: Safe is small all the
// same, but nothing here comes near it.
func TestSimTraffic(t *testing.T) {
	for _, c := range []struct {
		name     string
		p        func(p *params)
		rate     float64 // batches a second
		hours    float64
		requests [2]float64 // an hour, least and most
		replayed float64    // frames an hour, most
	}{
		{"idle", nil, 0, 1, [2]float64{115, 128}, 260},
		{"a batch each five seconds", nil, .2, 1, [2]float64{600, 850}, 1700},
		{"busy, one in a thousand lost", func(p *params) { p.loss = .001; p.serve = .01 }, 100, .1, [2]float64{200, 600}, 4000},
		{"busy, slow links", func(p *params) { p.loss = .001; p.serve = .1; p.latL, p.latR = .01, .01 }, 100, .1, [2]float64{200, 600}, 6000},
		{"busy, one in a hundred burned", func(p *params) { p.loss, p.burn = .001, .01; p.serve = .001 }, 100, .1, [2]float64{6000, 9000}, 30000},
		{"idle, no end markers", func(p *params) { p.noMarker = true }, 0, 1, [2]float64{500, 1000}, 1000},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSim(1)
			s.limit = 1e9
			s.hold = NewBudget(1 << 20)
			p := &params{buffer: 10000, blocks: 200, cap: 30, latL: .0005, latR: .0005, rhwm: 1 << 20, rgap: 1e-5, redial: .1, ring: 1024, serve: .1, mean: 1e9}
			if c.p != nil {
				c.p(p)
			}
			if c.rate > 0 {
				p.mean = 1 / c.rate
			}
			e := newEngine(s, p, c.rate == 0)
			st := newStream(s, p, e)
			s.at(1, func() { e.step(nil) })
			s.run(3600 * c.hours)
			n, frames := float64(len(st.requests))/c.hours, float64(e.replied)/c.hours
			t.Logf("%.0f requests and %.0f replayed frames an hour", n, frames)
			if n < c.requests[0] || n > c.requests[1] || frames > c.replayed || len(st.viol) > 0 {
				t.Errorf("%.0f requests, %.0f frames an hour; %v; %+v", n, frames, st.viol, st.c.State())
			}
		})
	}
}
