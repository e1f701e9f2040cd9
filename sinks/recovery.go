package sinks

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/kvrelay/kvrelay/convert"
	"github.com/kvrelay/kvrelay/internal/msgpack"
)

// Headers of recovery answers.
const (
	headerKind     = "Kvrelay-Kind"     // events or snapshot
	headerLast     = "Kvrelay-Last"     // id of the last event here
	headerMore     = "Kvrelay-More"     // true or false
	headerSnapshot = "Kvrelay-Snapshot" // token
	headerPart     = "Kvrelay-Part"
	headerDone     = "Kvrelay-Done" // id that the snapshot is exact as of
)

const (
	// maxRequest is the longest request that is read; a longer one is a bad request.
	maxRequest = 1024
	// answerHeaders is at least the length of an answer's headers, which
	// max_payload counts: 204 bytes with the largest numbers.
	answerHeaders = 240
	// answerArray is the length of the longest array header of an answer.
	answerArray = 5
	// chunkBlocks is how many blocks are read under one lock.
	chunkBlocks = 1024
)

// refusal is an error answer, with the code of micro services.
type refusal struct {
	code int
	text string
}

func (r *refusal) Error() string { return fmt.Sprintf("%d: %s", r.code, r.text) }

var (
	errRebuilding = &refusal{503, "the picture is being rebuilt: ask again"}
	errBehind     = &refusal{503, "NATS has not yet confirmed what the snapshot has read: ask again"}
	errTokens     = &refusal{503, "too many snapshots are being read: ask again"}
	errToken      = &refusal{404, "this snapshot is not known, or no longer: ask without it"}
	errPart       = &refusal{400, "the snapshot has no such part yet: ask for the parts in order"}
)

// recovery answers what consumers of one rank missed. Only the endpoint's
// handler uses it, one request at a time.
type recovery struct {
	o      *Outbox
	tokens []*snapshot
	out    convert.Output
	body   []byte
	single int // bytes of the longest event of one block without multimodal objects
	now    func() time.Time
}

func newRecovery(o *Outbox) *recovery {
	p := o.p
	r := &recovery{o: o, now: time.Now}
	r.single = len(p.encode(nil, &convert.RouterEvent{
		Kind: convert.Stored, Tier: convert.HostPinned, HasParent: true, Parent: 1<<64 - 1,
		Blocks: []convert.Block{{Hash: 1<<64 - 1, TokensHash: 1<<64 - 1}},
	}, o.workerID, o.rank, 0)) + 1 // and what stands between two
	return r
}

// question is a request's body. No field is needed: without any it asks for a snapshot.
type question struct {
	Publisher uint64 `json:"publisher_id"`
	From      uint64 `json:"from"`
	Snapshot  string `json:"snapshot"`
	Part      *int   `json:"part"`
}

// reply is an answer without its publisher.
type reply struct {
	kind   string
	more   bool
	number map[string]string // further headers
	body   []byte
}

// respond answers req in one message of at most maxPayload bytes, never with silence.
func (r *recovery) respond(req micro.Request, maxPayload int64) {
	h := micro.Headers{publisherHeader: {strconv.FormatUint(r.o.PublisherID(), 10)}}
	limit := int(maxPayload) - answerHeaders - answerArray
	a, err := r.ask(req.Data(), limit)
	if err == nil {
		h[headerKind] = []string{a.kind}
		h[headerMore] = []string{strconv.FormatBool(a.more)}
		for k, v := range a.number {
			h[k] = []string{v}
		}
		err = req.Respond(a.body, micro.WithHeaders(h))
		if err == nil || !errors.Is(err, nats.ErrMaxPayload) {
			return // the connection is down: the consumer asks again
		}
		err = &refusal{503, "the answer exceeds max_payload, which has shrunk: ask again"}
		h = micro.Headers{publisherHeader: h[publisherHeader]}
	}
	no := err.(*refusal)
	_ = req.Error(strconv.Itoa(no.code), no.text, nil, micro.WithHeaders(h)) // as above
}

// ask makes the answer to a request's body. Its error is a *refusal.
func (r *recovery) ask(body []byte, limit int) (reply, error) {
	q := new(question)
	switch {
	case len(body) > maxRequest:
		return reply{}, &refusal{400, fmt.Sprintf("the request is longer than %d bytes", maxRequest)}
	case len(body) > 0 && (json.Unmarshal(body, &q) != nil || q == nil): // nil: the body is null
		return reply{}, &refusal{400, `the request is no JSON object {"publisher_id":P,"from":id} or {"snapshot":token,"part":k}`}
	case q.Snapshot != "" && (q.Part == nil || *q.Part < 0):
		return reply{}, &refusal{400, "part is missing or negative"}
	case q.Snapshot == "" && q.Part != nil:
		return reply{}, &refusal{400, "part is given without snapshot"}
	}
	if r.o.rebuilding() {
		return reply{}, errRebuilding
	}
	if q.Snapshot != "" {
		t := r.find(q.Snapshot)
		if t == nil {
			return reply{}, errToken
		}
		return r.part(t, *q.Part, limit)
	}
	if q.From > 0 && q.Publisher == r.o.PublisherID() {
		lo, newest, last := r.o.kept()
		switch {
		case q.From > newest && q.From <= last+1:
			// Also what a consumer has from a stream before we know that it is stored.
			return r.events(q.From, q.From-1, newest, r.body[:0], 0), nil
		case q.From >= lo && q.From <= newest:
			body, to, n := r.o.copyEvents(r.body[:0], q.From, newest, limit)
			if r.body = body; n > 0 {
				return r.events(q.From, to, newest, body, n), nil
			}
			// The ring lost it meanwhile, or it is longer than max_payload, which has shrunk since.
		}
	}
	return r.snapshot(limit)
}

// events is the answer with n events up to the id to.
func (r *recovery) events(from, to, newest uint64, body []byte, n int) reply {
	return reply{
		kind: "events", more: n > 0 && to < newest, body: r.array(body, n),
		number: map[string]string{headerLast: strconv.FormatUint(to, 10)},
	}
}

// array makes an array of n encoded events. JSON ones are separated already.
func (r *recovery) array(events []byte, n int) []byte {
	if r.o.p.isJSON() {
		out := make([]byte, 0, len(events)+2)
		return append(append(append(out, '['), events...), ']')
	}
	out := make([]byte, 0, len(events)+answerArray)
	return append(msgpack.AppendArrayHeader(out, n), events...)
}

func (o *Outbox) rebuilding() bool {
	o.mu.Lock()
	deaf := o.deaf
	o.mu.Unlock()
	return deaf || o.source.RankState().Rebuilding
}

// kept is the oldest id at hand, the newest one that answers may tell
// (JetStream: that is stored), and the newest.
func (o *Outbox) kept() (lo, newest, last uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.log.lo, o.tellable(), o.log.next - 1
}

// tellable is the newest id that answers may tell. o.mu is held.
func (o *Outbox) tellable() uint64 {
	if o.p.o.Kind == JetStream {
		return o.confirmed
	}
	return o.log.next - 1
}

// copyEvents appends the encoded events from … newest to dst, as many as fit
// into limit bytes, and returns the last one's id and their number. It takes
// the lock anew every chunkBlocks blocks. n = 0: the first one alone does not
// fit, or is no longer at hand.
func (o *Outbox) copyEvents(dst []byte, from, newest uint64, limit int) (body []byte, last uint64, n int) {
	last = from - 1
	sep := 0
	if o.p.isJSON() {
		sep = 1
	}
	for full := false; !full && last < newest; {
		o.mu.Lock()
		if last+1 < o.log.lo {
			o.mu.Unlock()
			break // what is copied is a whole answer
		}
		for blocks := 0; last < newest && blocks < chunkBlocks; {
			si, i := o.log.find(last + 1)
			s := o.log.segs[si]
			ev := s.bytes(i)
			if len(dst)+sep+len(ev) > limit {
				full = true
				break
			}
			if n > 0 && sep > 0 {
				dst = append(dst, ',')
			}
			dst = append(dst, ev...)
			blocks += 1 + int(s.events[i].blocks)
			last++
			n++
		}
		o.mu.Unlock()
	}
	return dst, last, n
}
