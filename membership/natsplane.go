package membership

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// Requests over NATS that wait to be read, of one rank. What is more is dropped
// by the client library: it is not acknowledged, so the router asks again.
const (
	waitingRequests = 2 * maxAnswers
	waitingBytes    = waitingRequests * maxBody
)

// natsPlane is Dynamo's NATS request plane, as far as recovery needs it: a
// request is a message on the subject that the record names, its body the same
// two parts as over TCP, and an empty reply acknowledges it. The answer takes
// the same way home over TCP, so no message here has a payload that NATS could refuse.
type natsPlane struct {
	s *server
	natsEars

	mu      sync.Mutex
	ctx     context.Context // of the answers
	ended   bool            // nothing more is begun
	answers sync.WaitGroup
	ignored int       // messages that were no request
	told    time.Time // when the log told of them last
}

func newNATSPlane(ctx context.Context, s *server) *natsPlane {
	p := &natsPlane{s: s, ctx: ctx}
	p.natsEars = natsEars{heard: p.take, turn: make(chan struct{}, 1), deaf: make(chan struct{}, 1), ears: map[string]*ear{}}
	return p
}

// end has nothing more be begun, and waits for the answers.
func (p *natsPlane) end() {
	p.mu.Lock()
	p.ended = true
	p.mu.Unlock()
	p.answers.Wait()
}

func (p *natsPlane) trouble(err error) {
	p.s.log.Warn("recovery requests of Dynamo routers over NATS have trouble: are their subjects allowed, and answers to them?", "error", err)
}

// take acknowledges a request and has it answered. It is called for one message
// of a subject after the other, and must not wait.
func (p *natsPlane) take(m *nats.Msg) {
	req, err := parseMessage(m)
	if err != nil {
		p.ignore(m.Subject, err)
		return
	}
	if !p.s.begin() {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended || m.Respond(nil) != nil { // the link is down: the router asks again
		p.s.done()
		return
	}
	req.local = true
	p.answers.Go(func() {
		defer p.s.done()
		p.s.answer(p.ctx, &req)
	})
}

// parseMessage reads a request that came over NATS. Its error is an errRequest,
// without anything of the text.
func parseMessage(m *nats.Msg) (request, error) {
	switch {
	case m.Reply == "":
		return request{}, fmt.Errorf("%w: it wants no acknowledgement", errRequest)
	case len(m.Data) > maxBody:
		return request{}, fmt.Errorf("%w: its body has %d bytes, %d are allowed", errRequest, len(m.Data), maxBody)
	}
	return parseBody(m.Subject, m.Data)
}

// ignore counts a message that is no request, and tells of the first, and of
// further ones once a minute.
func (p *natsPlane) ignore(subject string, err error) {
	p.mu.Lock()
	p.ignored++
	n, tell := p.ignored, time.Since(p.told) > repeatLog
	if tell {
		p.told = time.Now()
	}
	p.mu.Unlock()
	if tell {
		p.s.log.Warn("a message on a recovery subject is ignored: it is not what a Dynamo router sends", "subject", subject, "ignored_so_far", n, "error", err)
	}
}

// segment makes one segment of a subject of any name, as Dynamo does: every byte
// but ASCII letters, digits, _ and - becomes %XX.
func segment(name string) string {
	return strings.NewReplacer("%5F", "_", "%2D", "-").Replace(escape(name))
}
