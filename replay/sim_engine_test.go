package replay

import (
	"math"
	"math/rand/v2"
	"slices"
)

// conn is one connection of the relay to one incarnation.
type conn struct {
	live   bool
	inc    int
	open   bool
	killed int64 // when the far side died; 0: it lives
	lost   int64 // since when nothing arrives; 0: it does
	last   int64 // when the last message arrives
	sub    bool  // the subscription has arrived
}

// engine is a publisher with a block cache, a PUB, and a ROUTER with honest flaws.
type engine struct {
	s  *sim
	p  *params
	to *stream

	inc        int
	alive      bool
	seq        uint64
	log        [][]*simBatch // by incarnation and seq; nil: burned
	cache      []int         // least recently used first
	has        blocks
	buf        []*simBatch
	conns      []*conn
	frozen     int64
	cut        int64
	quiet      bool
	faults     bool
	fastTo     int64
	clockOff   float64
	setBack    bool // the clock was set back at some time …
	stepped    bool // … while an incarnation ran
	burstUntil int64
	replayOpen int64
	erng       *rand.Rand
	manual     bool // batches come only from the script
	serveFn    func(c *conn, start, id uint64, half bool)
	deaf       bool // requests vanish
	replied    int
}

func newEngine(s *sim, p *params, manual bool) *engine {
	e := &engine{s: s, p: p, log: [][]*simBatch{nil}, faults: true, manual: manual, quiet: manual}
	e.serveFn = e.serve
	e.boot()
	return e
}

func (e *engine) boot() {
	e.inc++
	e.alive, e.seq, e.cache, e.has, e.buf = true, 0, nil, blocks{}, nil
	e.log = append(e.log, nil)
	e.fastTo = -1
	e.replayOpen = e.s.t
	if e.s.rng.Float64() < e.p.late {
		e.replayOpen += sec(e.s.uniform(0, 6))
	}
	e.erng = e.s.rng
	if e.p.identical {
		e.erng = rand.New(rand.NewPCG(0, 0))
	}
	e.s.logf("ENGINE boots, incarnation %d", e.inc)
	inc := e.inc
	if !e.manual {
		e.s.at(e.s.uniform(0, .01), func() { e.tick(inc) })
	}
}

func (e *engine) tick(inc int) {
	if !e.alive || inc != e.inc {
		return
	}
	if e.s.t < e.frozen {
		e.s.atNS(e.frozen+1e6, func() { e.tick(inc) })
		return
	}
	iv := .001
	if int64(e.seq) > e.fastTo {
		iv = e.s.rng.ExpFloat64() * e.p.mean
	}
	if e.quiet {
		return
	}
	e.step(nil)
	e.s.at(iv, func() { e.tick(inc) })
}

// make runs the cache for one step and returns what it has to say.
func (e *engine) make() (ev []simEvent) {
	r := e.erng
	if r.Float64() < e.p.clear {
		e.cache, e.has = nil, blocks{}
		ev = append(ev, simEvent{what: 'c'})
	}
	if r.Float64() < .05 {
		return ev
	}
	k := 1 + r.IntN(3)
	base := r.IntN(e.p.blocks)
	var stored, removed []int
	for i := range k {
		h := (base*7 + i) % e.p.blocks
		if e.has.has(h) {
			at := slices.Index(e.cache, h)
			e.cache = append(slices.Delete(e.cache, at, at+1), h)
			continue
		}
		e.has.add(h)
		e.cache = append(e.cache, h)
		stored = append(stored, h)
	}
	if stored != nil {
		ev = append(ev, simEvent{'s', stored})
	}
	for len(e.cache) > e.p.cap {
		removed = append(removed, e.cache[0])
		e.has.del(e.cache[0])
		e.cache = e.cache[1:]
	}
	if removed != nil {
		ev = append(ev, simEvent{'r', removed})
	}
	return ev
}

// step publishes one batch; drop: nil leaves it to chance whether PUB loses it.
func (e *engine) step(drop *bool) {
	r := e.s.rng
	if e.faults && r.Float64() < e.p.burn {
		e.burn()
		return
	}
	ts := e.s.seconds() + e.clockOff
	if e.p.coarse > 0 {
		ts = math.Floor(ts/e.p.coarse) * e.p.coarse
	}
	b := &simBatch{seq: e.seq, inc: e.inc, ev: e.make(), ok: !(e.faults && r.Float64() < e.p.undec)}
	e.s.encode(b, ts, !e.p.noTS && (b.ok || r.Float64() < .5), e.p.identical)
	e.log[e.inc] = append(e.log[e.inc], b)
	e.seq++
	switch lag := e.p.lag; {
	case lag > 0:
		e.pub(b, drop)
		e.s.at(lag, func() { e.append(b) })
	case lag == 0:
		e.pub(b, drop)
		e.append(b)
	default:
		e.append(b)
		e.s.at(-lag, func() { e.pub(b, drop) })
	}
}

// burn draws a number for a batch that never comes to exist.
func (e *engine) burn() {
	e.s.logf("ENGINE burns %d", e.seq)
	e.log[e.inc] = append(e.log[e.inc], nil)
	e.seq++
}

func (e *engine) append(b *simBatch) {
	if b.inc == e.inc && e.alive {
		e.buf = append(e.buf, b)
		if len(e.buf) > e.p.buffer {
			e.buf = e.buf[1:]
		}
	}
}

func (e *engine) pub(b *simBatch, drop *bool) {
	if b.inc != e.inc || !e.alive {
		return
	}
	for _, c := range e.conns {
		if !c.live || !c.sub || !c.open {
			continue
		}
		d := e.faults && (e.s.t < e.burstUntil || e.s.rng.Float64() < e.p.loss)
		if drop != nil {
			d = *drop
		}
		if d {
			e.s.logf("PUB drops %d of incarnation %d", b.seq, b.inc)
			continue
		}
		e.send(c, 0, func() { e.to.gotLive(c, b.seq, b) })
	}
}

func (e *engine) send(c *conn, extra float64, do func()) {
	lat := e.p.latR
	if c.live {
		lat = e.p.latL
	}
	t := max(e.s.t+sec(lat*e.s.uniform(.3, 1.5)+extra), c.last+1000)
	c.last = t
	sent := e.s.t + sec(extra)
	e.s.atNS(t, func() { e.deliver(c, sent, do) })
}

func (e *engine) deliver(c *conn, sent int64, do func()) {
	switch {
	case !c.open:
	case c.killed > 0 && sent > c.killed:
	case c.lost > 0 && e.s.t >= c.lost:
	case e.s.t < e.cut:
		c.last = max(c.last, e.cut)
		e.s.atNS(e.cut, func() { e.deliver(c, sent, do) })
	default:
		do()
	}
}

// answers says whether the far side of c would answer a PING now.
func (e *engine) answers(c *conn) bool {
	return c.open && c.killed == 0 && c.lost == 0 && e.s.t >= e.frozen && e.s.t >= e.cut
}

// kill ends the process; the relay's sockets learn of it after eof seconds.
func (e *engine) kill(eof float64) {
	e.s.logf("ENGINE dies, incarnation %d, seq %d", e.inc, e.seq)
	e.alive = false
	for _, c := range e.conns {
		c.killed = max(e.s.t, 1)
		if c.open {
			e.s.atNS(max(e.s.t+sec(eof), c.last+1000), func() { e.to.closed(c) })
		}
	}
	e.conns = nil
}

// revive boots a new process; fast ≥ −3: it publishes at once up to the old seq
// plus fast.
func (e *engine) revive(fast *int) {
	if e.alive {
		return
	}
	old := int64(e.seq)
	e.boot()
	if fast != nil {
		e.fastTo = old + int64(*fast)
	}
}

const simPeerTimeout = 10.0

func (e *engine) freeze(d float64) {
	e.s.logf("ENGINE frozen for %g", d)
	e.frozen = max(e.frozen, e.s.t+sec(d))
	if d > simPeerTimeout {
		for _, c := range e.conns {
			e.s.at(simPeerTimeout, func() { e.peerDead(c) })
		}
	}
}

func (e *engine) peerDead(c *conn) {
	if c.open && c.killed == 0 && (e.s.t < e.frozen || c.lost > 0) {
		e.forget(c)
		e.to.closed(c)
	}
}

func (e *engine) forget(c *conn) {
	e.conns = slices.DeleteFunc(slices.Clone(e.conns), func(x *conn) bool { return x == c })
}

// cutNet: nothing passes for d seconds; longer than the peer timeout, the
// connections are lost.
func (e *engine) cutNet(d float64) {
	e.s.logf("NET cut for %g", d)
	e.cut = max(e.cut, e.s.t+sec(d))
	if d > simPeerTimeout {
		for _, c := range e.conns {
			c.lost = max(e.s.t, 1)
			e.s.at(simPeerTimeout, func() { e.peerDead(c) })
		}
	}
}

// request arrives at the ROUTER.
func (e *engine) request(c *conn, start, id uint64) {
	if !e.alive || c.inc != e.inc || e.deaf {
		return
	}
	d := e.s.uniform(0, e.p.serve)
	if e.s.t < e.frozen {
		d += float64(e.frozen-e.s.t) / 1e9
	}
	half := false
	if e.faults && e.s.rng.Float64() < e.p.stall {
		switch x := e.s.rng.Float64(); {
		case x < .4:
			e.s.logf("ROUTER silent")
			return
		case x < .7:
			d += e.s.uniform(.8, 4) // stale by then
		default:
			half = true
		}
	}
	e.s.at(d, func() { e.serveFn(c, start, id, half) })
}

func (e *engine) serve(c *conn, start, id uint64, half bool) {
	if !e.alive || c.inc != e.inc || !c.open {
		return
	}
	if e.s.t < e.frozen {
		e.s.atNS(e.frozen+1e6, func() { e.serve(c, start, id, half) })
		return
	}
	var l []*simBatch
	for _, b := range e.buf {
		if b.seq >= start {
			l = append(l, b)
		}
	}
	end, n, h := true, len(l), e.p.rhwm
	switch {
	case half:
		l, end = l[:e.s.rng.IntN(n+1)], false
	case n > h && !e.p.middle:
		l, end = l[:h], false
	case n > h: // as measured with libzmq
		o := slices.Clone(l[:h])
		for i := h; i < n; {
			i += 1 + e.s.rng.IntN(h)
			if i < n {
				o = append(o, l[i:min(n, i+max(1, h/2))]...)
			}
			i += max(1, h/2)
		}
		l, end = o, e.s.rng.Float64() < .6
	}
	e.reply(c, id, l, end && !e.p.noMarker)
}

func (e *engine) reply(c *conn, id uint64, l []*simBatch, end bool) {
	if e.s.trace != nil {
		var first []uint64
		for _, b := range l[:min(6, len(l))] {
			first = append(first, b.seq)
		}
		e.s.logf("ROUTER answers %d with %d %v… end %v", id, len(l), first, end)
	}
	e.replied += len(l)
	for i, b := range l {
		e.send(c, float64(i)*e.p.rgap, func() { e.to.gotReply(c, id, b) })
	}
	if end {
		e.replied++
		e.send(c, float64(len(l))*e.p.rgap, func() { e.to.gotEnd(c, id) })
	}
}
