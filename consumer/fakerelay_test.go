package consumer

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
)

// fakeRelay is one publisher's life of one rank with its Recover service,
// after recovery.md: a ring of recent events, and snapshots that walk the
// published set by insertion number and then read the log. It has no clock
// and no socket; tests move its messages.
type fakeRelay struct {
	rank      Rank
	publisher uint64
	started   uint64

	next      uint64  // id of the next event
	ring      []Event // the newest events
	ringMax   int
	confirmed uint64 // newest id that NATS is known to have

	state  map[blockKey]Entry
	number map[blockKey]uint64 // insertion number while present
	top    uint64

	tokens   map[string]*fakeToken
	tokenSeq int
	chunk    int // walked entries a part
	logPart  int // logged events a part, and events an answer

	history []Event // everything published, for oracles
}

type fakeToken struct {
	used    time.Time
	since   uint64   // the log begins behind this id
	top     uint64   // highest number walked
	ranges  []uint64 // ends of the walk's parts so far
	walked  bool
	maxRead uint64 // newest id at any walk read
}

func newFakeRelay(rank Rank, publisher, started uint64, ringMax, chunk, logPart int) *fakeRelay {
	return &fakeRelay{
		rank: rank, publisher: publisher, started: started, next: 1, ringMax: ringMax, chunk: chunk, logPart: logPart,
		state: map[blockKey]Entry{}, number: map[blockKey]uint64{}, tokens: map[string]*fakeToken{},
	}
}

// publish gives an event its id and takes it into the published set.
func (f *fakeRelay) publish(e Event) Event {
	e.Rank, e.ID = f.rank, f.next
	f.next++
	f.history = append(f.history, e)
	if f.ring = append(f.ring, e); len(f.ring) > f.ringMax {
		f.ring = f.ring[1:]
	}
	foldInto(f.state, &e)
	if e.Kind == Cleared {
		clear(f.number)
	}
	for _, b := range e.Blocks {
		if k := (blockKey{e.Tier, b.Hash}); f.number[k] == 0 {
			f.top++
			f.number[k] = f.top
		}
	}
	for _, h := range e.Hashes {
		delete(f.number, blockKey{e.Tier, h})
	}
	return e
}

// foldInto is the tests' own fold, which shares nothing with Picture.
func foldInto(s map[blockKey]Entry, e *Event) {
	switch e.Kind {
	case Cleared:
		clear(s)
	case Removed:
		for _, h := range e.Hashes {
			delete(s, blockKey{e.Tier, h})
		}
	case Stored:
		p, has := e.Parent, e.HasParent
		for _, b := range e.Blocks {
			s[blockKey{e.Tier, b.Hash}] = Entry{TokensHash: b.TokensHash, Parent: p, HasParent: has}
			p, has = b.Hash, true
		}
	}
}

type fakeRequest struct {
	Publisher uint64 `json:"publisher_id"`
	From      uint64 `json:"from"`
	Snapshot  string `json:"snapshot"`
	Part      *int   `json:"part"`
}

// serve answers a request's body with a message of the profile.
func (f *fakeRelay) serve(now time.Time, p Profile, body []byte) *nats.Msg {
	h, evs, code := f.answer(now, body)
	m := &nats.Msg{Header: nats.Header{PublisherHeader: {strconv.FormatUint(f.publisher, 10)}}}
	if code != 0 {
		m.Header.Set("Nats-Service-Error-Code", strconv.Itoa(code))
		m.Header.Set("Nats-Service-Error", "test")
		return m
	}
	for k, v := range h {
		m.Header.Set(k, v)
	}
	m.Data = encodeEvents(p, evs)
	return m
}

func (f *fakeRelay) oldest() uint64 { return f.next - uint64(len(f.ring)) }

func (f *fakeRelay) answer(now time.Time, body []byte) (map[string]string, []Event, int) {
	var q fakeRequest
	if json.Unmarshal(body, &q) != nil {
		return nil, nil, 400
	}
	for id, t := range f.tokens {
		if now.Sub(t.used) > 30*time.Second {
			delete(f.tokens, id)
		}
	}
	if q.Snapshot != "" {
		t := f.tokens[q.Snapshot]
		if t == nil {
			return nil, nil, 404
		}
		if q.Part == nil || *q.Part < 0 {
			return nil, nil, 400
		}
		t.used = now
		return f.part(q.Snapshot, t, *q.Part)
	}
	newest := f.confirmed
	if q.Publisher == f.publisher && q.From > 0 {
		switch {
		case q.From > newest && q.From <= f.next:
			return eventsHeader(q.From-1, false), nil, 0
		case q.From >= f.oldest() && q.From <= newest:
			var evs []Event
			for _, e := range f.ring {
				if e.ID >= q.From && e.ID <= newest && len(evs) < f.logPart {
					evs = append(evs, e)
				}
			}
			last := evs[len(evs)-1].ID
			return eventsHeader(last, last < newest), evs, 0
		}
	}
	for id, t := range f.tokens {
		if f.next-1-t.since < uint64(f.ringMax)/2 {
			t.used = now
			return f.part(id, t, 0)
		}
	}
	for id, t := range f.tokens {
		if f.oldest() > t.since+1 {
			delete(f.tokens, id)
		}
	}
	if len(f.tokens) >= 8 {
		return nil, nil, 503
	}
	f.tokenSeq++
	id := fmt.Sprintf("%d.%d", f.publisher, f.tokenSeq)
	f.tokens[id] = &fakeToken{used: now, since: f.next - 1, top: f.top}
	return f.part(id, f.tokens[id], 0)
}

func eventsHeader(last uint64, more bool) map[string]string {
	return map[string]string{headerKind: "events", headerLast: strconv.FormatUint(last, 10), headerMore: strconv.FormatBool(more)}
}

// between are the present keys numbered in (lo, hi], in order.
func (f *fakeRelay) between(lo, hi uint64) []blockKey {
	var ks []blockKey
	for k, n := range f.number {
		if n > lo && n <= hi {
			ks = append(ks, k)
		}
	}
	slices.SortFunc(ks, func(a, b blockKey) int { return cmp.Compare(f.number[a], f.number[b]) })
	return ks
}

func (f *fakeRelay) part(id string, t *fakeToken, k int) (map[string]string, []Event, int) {
	h := map[string]string{headerKind: "snapshot", headerSnapshot: id, headerPart: strconv.Itoa(k), headerMore: "true"}
	if f.oldest() > t.since+1 {
		delete(f.tokens, id)
		return nil, nil, 404
	}
	if k > len(t.ranges) && !t.walked {
		return nil, nil, 400
	}
	end := func(k int) uint64 {
		if k < 0 {
			return 0
		}
		return t.ranges[k]
	}
	if k == len(t.ranges) && !t.walked {
		t.maxRead = max(t.maxRead, f.next-1)
		ks := f.between(end(k-1), t.top)
		if len(ks) > f.chunk {
			ks = ks[:f.chunk]
		}
		if len(ks) > 0 {
			t.ranges = append(t.ranges, f.number[ks[len(ks)-1]])
		} else {
			t.walked = true
			if k == 0 {
				t.ranges = append(t.ranges, 0)
			}
		}
	}
	if k < len(t.ranges) {
		t.maxRead = max(t.maxRead, f.next-1)
		var evs []Event
		if k == 0 {
			evs = append(evs, Event{Rank: f.rank, Kind: Cleared})
		}
		for _, key := range f.between(end(k-1), t.ranges[k]) {
			e := f.state[key]
			evs = append(evs, Event{
				Rank: f.rank, Tier: key.tier, Kind: Stored, Parent: e.Parent, HasParent: e.HasParent,
				Blocks: []Block{{Hash: key.hash, TokensHash: e.TokensHash}},
			})
		}
		return h, evs, 0
	}
	if f.confirmed < t.maxRead {
		return nil, nil, 503
	}
	from := t.since + 1 + uint64(k-len(t.ranges))*uint64(f.logPart)
	to := min(from+uint64(f.logPart)-1, f.confirmed)
	var evs []Event
	for _, e := range f.ring {
		if e.ID >= from && e.ID <= to {
			evs = append(evs, e)
		}
	}
	if from+uint64(f.logPart)-1 >= f.confirmed {
		h[headerMore], h[headerDone] = "false", strconv.FormatUint(f.confirmed, 10)
	}
	return h, evs, 0
}

func (f *fakeRelay) heartbeat(state string) Heartbeat {
	return Heartbeat{Publisher: f.publisher, Started: f.started, LastEventID: f.confirmed, State: state, Blocks: uint64(len(f.state))}
}

// randomEvent is what an engine might do next: mostly stores of chained
// blocks, then removes, now and then a clear.
func randomEvent(r *rand.Rand, hashes uint64) Event {
	tier := Tier(r.IntN(2) * r.IntN(NumTiers))
	switch n := r.IntN(40); {
	case n == 0:
		return Event{Kind: Cleared}
	case n < 16:
		e := Event{Kind: Removed, Tier: tier}
		for range 1 + r.IntN(3) {
			e.Hashes = append(e.Hashes, 1+r.Uint64N(hashes))
		}
		return e
	}
	h := 1 + r.Uint64N(hashes)
	e := Event{Kind: Stored, Tier: tier, HasParent: h%5 != 0, Parent: 1 + h/2}
	if !e.HasParent {
		e.Parent = 0
	}
	for range 1 + r.IntN(3) {
		e.Blocks = append(e.Blocks, Block{Hash: h, TokensHash: h*1000 + r.Uint64N(2)})
		h = 1 + (h*7+3)%hashes
	}
	return e
}
