package sinks

import (
	"crypto/rand"
	"slices"
	"strconv"
	"time"

	"github.com/kvrelay/kvrelay/convert"
)

// maxTokens bounds the snapshots being read of one rank; a further asker gets 503.
const maxTokens = 8

// snapshot is a picture being read: a walk over the numbers that blocks have,
// then the log of what happened since the walk began. It holds no blocks; each
// part is read whenever it is asked for.
type snapshot struct {
	token   string
	used    time.Time
	splits  uint64 // Outbox.splits at the beginning: other ids since
	since   uint64 // newest id at the beginning; the log begins behind it
	top     uint64 // newest number at the beginning; the walk ends with it
	walk    []numbers
	walked  bool
	width   uint64   // numbers in the last part of the walk
	maxRead uint64   // newest id at any read of the walk
	log     []uint64 // first id of each part of the log
}

// numbers is a range of block numbers, both included.
type numbers struct{ from, to uint64 }

// find is the snapshot of a token; nil when it is not known.
func (r *recovery) find(token string) *snapshot {
	r.expire()
	for _, t := range r.tokens {
		if t.token == token {
			return t
		}
	}
	return nil
}

// expire forgets the snapshots that nobody asked for, and those whose log is not complete any more.
func (r *recovery) expire() {
	now := r.now()
	r.tokens = slices.DeleteFunc(r.tokens, func(t *snapshot) bool {
		return now.Sub(t.used) > r.o.p.timing.token || !r.o.logs(t)
	})
}

func (r *recovery) forget(t *snapshot) {
	r.tokens = slices.DeleteFunc(r.tokens, func(x *snapshot) bool { return x == t })
}

// logs says whether everything since t began is at hand under its old ids.
func (o *Outbox) logs(t *snapshot) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.splits == t.splits && o.log.lo <= t.since+1
}

// young says whether t's log is under half of what the ring keeps, so that a
// new asker will have read it before the ring loses it.
func (o *Outbox) young(t *snapshot) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.splits != t.splits || o.log.lo > t.since+1 {
		return false // since it was looked at
	}
	last := o.log.next - 1
	if last-t.since >= uint64(o.p.o.RecentEvents)/2 {
		return false
	}
	return last == t.since || o.log.size(t.since+1, last) < o.p.o.RecentBytes/2
}

// snapshot answers with part 0: of a young snapshot, or of a new one.
func (r *recovery) snapshot(limit int) (reply, error) {
	r.expire()
	for _, t := range r.tokens {
		if r.o.young(t) {
			return r.part(t, 0, limit)
		}
	}
	if len(r.tokens) >= maxTokens {
		return reply{}, errTokens
	}
	t := &snapshot{token: rand.Text()}
	r.o.mu.Lock()
	t.splits = r.o.splits
	r.o.mu.Unlock()
	t.top, t.since = r.o.source.Newest()
	t.maxRead = t.since
	t.log = []uint64{t.since + 1}
	r.tokens = append(r.tokens, t)
	return r.part(t, 0, limit)
}

// part answers with part k of t.
func (r *recovery) part(t *snapshot, k, limit int) (reply, error) {
	if !r.o.logs(t) {
		r.forget(t)
		return reply{}, errToken
	}
	t.used = r.now()
	a := reply{kind: "snapshot", more: true, number: map[string]string{
		headerSnapshot: t.token, headerPart: strconv.Itoa(k),
	}}
	switch {
	case k < len(t.walk):
		r.read(t, t.walk[k])
	case k == len(t.walk) && !t.walked:
		r.extend(t, limit)
	case !t.walked:
		return reply{}, errPart
	default:
		return r.logPart(t, k-len(t.walk), limit, a)
	}
	body, n, fits := r.encode(k == 0, limit)
	if !fits {
		// Blocks have got more multimodal information, or max_payload has shrunk.
		r.forget(t)
		return reply{}, errToken
	}
	a.body = r.array(body, n)
	return a, nil
}

// read has r.out hold what is present of a range.
func (r *recovery) read(t *snapshot, n numbers) (next uint64) {
	r.out.Reset()
	if n.from > n.to {
		return n.to + 1
	}
	next, last := r.o.source.Walk(n.from, n.to, &r.out)
	t.maxRead = max(t.maxRead, last)
	return next
}

// extend reads the next part of the walk: a range of numbers whose blocks fit
// into limit bytes however they will be chained when it is read again.
func (r *recovery) extend(t *snapshot, limit int) {
	from := uint64(1)
	first := len(t.walk) == 0
	if first {
		limit -= r.single // for the `cleared`
	} else {
		from = t.walk[len(t.walk)-1].to + 1
	}
	n := numbers{from, t.top}
	if t.width > 0 {
		n.to = min(n.to, from+2*t.width-1) // first guess, so that little is read in vain
	}
	good, bad := from-1, t.top+1 // the blocks up to good fit, those up to bad do not
	var have numbers             // what r.out holds
	for from <= t.top {
		next := r.read(t, n)
		n.to = min(n.to, next-1)
		if have = n; r.bound() > limit {
			bad = n.to
		} else if good = n.to; len(r.out.Events) > 0 || good == t.top {
			break
		} else if bad > t.top { // a stretch without blocks
			n.to = t.top
			continue
		}
		if bad-good <= 1 {
			break
		}
		n.to = good + (bad-good)/2
	}
	if n.to = good; good < from && from <= t.top && !first {
		n.to = from // one block alone: it is left out where it was not published either
	}
	if n != have {
		r.read(t, n)
	}
	t.width = max(1, n.to+1-n.from)
	t.walk = append(t.walk, n)
	t.walked = n.to >= t.top
}

// bound is what r.out takes at most when none of its blocks hangs on the one before.
func (r *recovery) bound() int {
	n := 0
	for i := range r.out.Events {
		for j := range r.out.Events[i].Blocks {
			n += r.size(&r.out.Events[i].Blocks[j])
		}
	}
	return n
}

// size is what a block takes at most as an event of its own.
func (r *recovery) size(b *convert.Block) int {
	if b.MM == nil {
		return r.single
	}
	e := convert.RouterEvent{Kind: convert.Stored, Blocks: []convert.Block{*b}}
	return r.single + r.o.p.sizeBound(&e)
}

// encode makes the events of r.out, behind a `cleared` when first. What is too
// large to have been published is left out, as it was then.
func (r *recovery) encode(first bool, limit int) (body []byte, n int, fits bool) {
	o, p := r.o, r.o.p
	body = r.body[:0]
	add := func(e *convert.RouterEvent) {
		at := len(body)
		if n > 0 && p.isJSON() {
			body = append(body, ',')
		}
		start := len(body)
		body = p.encode(body, e, o.workerID, o.rank, 0)
		if len(body)-start > int(p.maxEvent.Load()) && len(e.Blocks) == 1 {
			body = body[:at]
			return
		}
		n++
	}
	if first {
		add(&convert.RouterEvent{Kind: convert.Cleared, NoDomain: true})
	}
	for i := range r.out.Events {
		r.each(&r.out.Events[i], add)
	}
	r.body = body
	return body, n, len(body) <= limit
}

// each gives e to add, in pieces where a block of it is as large as an event may be.
func (r *recovery) each(e *convert.RouterEvent, add func(*convert.RouterEvent)) {
	total := 0
	for i := range e.Blocks {
		total += r.size(&e.Blocks[i])
	}
	if int64(total) <= r.o.p.maxEvent.Load() {
		add(e)
		return
	}
	for i := range e.Blocks {
		part := convert.Part(e, i, i+1)
		add(&part)
	}
}

// logPart answers with part j of the log. All but the last have fixed ids; the
// last one is made anew at each request.
func (r *recovery) logPart(t *snapshot, j, limit int, a reply) (reply, error) {
	if j >= len(t.log) {
		return reply{}, errPart
	}
	_, newest, _ := r.o.kept()
	from, to := t.log[j], newest
	closed := j+1 < len(t.log)
	if closed {
		to = t.log[j+1] - 1
	}
	var body []byte
	last, n := from-1, 0
	if from <= to {
		body, last, n = r.o.copyEvents(r.body[:0], from, to, limit)
		r.body = body
	}
	switch {
	case !r.o.logs(t), closed && last != to, n == 0 && from <= to:
		// The ring has lost it meanwhile, or max_payload has shrunk: a new
		// snapshot's log begins behind what is too long now.
		r.forget(t)
		return reply{}, errToken
	case closed:
	case last < newest:
		t.log = append(t.log, last+1)
	case newest < t.maxRead:
		return reply{}, errBehind
	default:
		a.more = false
		a.number[headerDone] = strconv.FormatUint(newest, 10)
	}
	a.body = r.array(body, n)
	return a, nil
}
