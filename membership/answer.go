package membership

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"

	"github.com/kvrelay/kvrelay/convert"
)

const (
	// callTime bounds dialling a router.
	callTime = 5 * time.Second
	// sendTime bounds each MiB of an answer, and answerTime all of it: a router
	// that does not read it loses the answer.
	sendTime   = 5 * time.Second
	answerTime = time.Minute
	// closeTime is how long the router may take to close behind the last message.
	closeTime = 2 * time.Second
	// dumpTime bounds waiting for other dumps and making one.
	dumpTime = 20 * time.Second
	// maxDumps bounds the dumps being made or sent in the process: each is a
	// copy of a ledger. Further ones wait for dumpTime, and fail then.
	maxDumps = 2
	// dumpTries is how often a dump begins anew that the ring could not follow.
	dumpTries = 3
)

var (
	errRank    = errors.New("this is not the publisher of that worker's rank")
	errPath    = errors.New("nothing is served here under that path; a publisher of kvrelay answers recovery requests alone")
	errOutrun  = errors.New("events were published faster than the ring of RECENT_EVENTS keeps them while the dump was made")
	errTooMany = errors.New("other dumps took too long")
)

// answer calls the router home and answers it. What goes wrong there costs this answer alone.
func (s *server) answer(ctx context.Context, req *request) {
	log := s.log.With("path", req.Path, "request", req.ID)
	c, err := callHome(req.local).DialContext(ctx, "tcp", req.Home.Address)
	if err != nil {
		log.Warn("a router asked for recovery but cannot be reached for the answer", "router", req.Home.Address, "error", err)
		return
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	defer context.AfterFunc(ctx, func() { c.Close() })()

	began := time.Now()
	what, err := s.respond(ctx, c, req)
	if err != nil {
		log.Warn("a router's recovery request was not answered", "router", req.Home.Address, "error", err)
		return
	}
	log.Info("a router has recovered", "router", req.Home.Address, "answer", what, "took", time.Since(began).String())
}

// respond writes the whole answer; what says which.
func (s *server) respond(ctx context.Context, c net.Conn, req *request) (what string, err error) {
	rank := s.find(req.Path)
	switch {
	case rank == nil:
		err = errPath
	case req.WorkerID != rank.src.WorkerID() || req.Rank != rank.src.Rank():
		err = errRank
	}
	hello := mustJSON(struct {
		Subject string `json:"subject"`
		Type    string `json:"stream_type"`
	}{req.Home.Subject, "response"})
	if err != nil { // the prologue says it
		why := mustJSON(struct {
			Error string `json:"error"`
		}{err.Error()})
		return "", errors.Join(err, send(c, [][]byte{appendParts(appendParts(nil, string(hello), ""), string(why), "")}))
	}
	// The router waits for these two a few seconds only: they go before the dump is made.
	if err := send(c, [][]byte{appendParts(appendParts(nil, string(hello), ""), `{"error":null}`, "")}); err != nil {
		return "", err
	}
	body, what, release, err := s.response(ctx, rank, req)
	if err != nil {
		return "", err
	}
	n := 0
	for _, part := range body {
		n += len(part)
	}
	err = send(c, append([][]byte{appendPartHead(nil, 0, n)}, body...))
	release()
	if err != nil {
		return "", err
	}
	// A router may close as soon as it has read the data: it has what it asked for then.
	end := appendParts(nil, "", `{"complete_final":true}`)
	if send(c, [][]byte{appendParts(end, `"sentinel"`, "")}) != nil {
		return what, nil
	}
	// The far side closes; a reset of ours could overtake the answer.
	_ = c.SetReadDeadline(time.Now().Add(closeTime)) // fails only on a closed connection, as reading does
	_, _ = io.Copy(io.Discard, io.LimitReader(c, maxBody))
	return what, nil
}

// response makes the data of an answer: the events that were asked for, or all
// that is published. release is called when it is sent.
func (s *server) response(ctx context.Context, rank *served, req *request) (body [][]byte, what string, release func(), err error) {
	if req.Start != nil {
		if body, n, ok := events(rank.src, *req.Start); ok {
			return body, strconv.Itoa(n) + " events", func() {}, nil
		}
	}
	p, release, err := s.dump(ctx, rank)
	if err == nil {
		body, n := p.encode(rank.src)
		return body, strconv.Itoa(n) + " blocks", release, nil
	}
	if ctx.Err() != nil {
		return nil, "", nil, ctx.Err()
	}
	failed := fmt.Sprintf(`{"Error":%s}`, mustJSON(err.Error()))
	if req.DumpFail { // the router keeps what it has
		_, last := rank.src.Newest()
		failed = fmt.Sprintf(`{"TreeDumpFailed":{"last_event_id":%d,"message":%s}}`, last, mustJSON(err.Error()))
	}
	s.log.Error("no picture of what is published could be made for a router", "error", err)
	return [][]byte{[]byte(`{"data":` + failed + `,"complete_final":false}`)}, "failed", func() {}, nil
}

// events is the answer with the events from an id on; false: they are not at hand.
func events(src Source, from uint64) (body [][]byte, n int, ok bool) {
	b := newParts(`{"data":{"Events":{"events":[`)
	last, ok := src.Since(from, func(id uint64, e *convert.RouterEvent) {
		b.add(src, e, id)
		n++
	})
	if !ok {
		return nil, 0, false
	}
	return b.end(`],"last_event_id":` + strconv.FormatUint(last, 10) + `}},"complete_final":false}`), n, true
}

// dump takes a picture of rank, one at a time of a rank and few in the process.
// release lets the next one begin.
func (s *server) dump(ctx context.Context, rank *served) (p *picture, release func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, dumpTime)
	defer cancel()
	var held []chan struct{}
	release = func() {
		for _, tokens := range held {
			<-tokens
		}
	}
	for _, tokens := range []chan struct{}{rank.dump, s.dumps} {
		select {
		case tokens <- struct{}{}:
			held = append(held, tokens)
		case <-ctx.Done():
			release()
			return nil, nil, errTooMany
		}
	}
	for range dumpTries {
		if p := take(ctx, rank.src); p != nil {
			return p, release, nil
		}
	}
	release()
	return nil, nil, errOutrun
}

// send writes all parts, each within sendTime for every MiB.
func send(c net.Conn, parts [][]byte) error {
	for _, p := range parts {
		for len(p) > 0 {
			n := min(len(p), partSize)
			if err := c.SetWriteDeadline(time.Now().Add(sendTime)); err != nil {
				return err
			}
			if _, err := c.Write(p[:n]); err != nil {
				return err
			}
			p = p[n:]
		}
	}
	return nil
}

// partSize is the size of the pieces that an answer is made in, so that no
// large buffer is copied while it grows.
const partSize = 1 << 20

// parts is an answer being made.
type parts struct {
	list [][]byte
	some bool // an event is there
}

func newParts(begin string) *parts {
	return &parts{list: [][]byte{append(make([]byte, 0, 4096), begin...)}}
}

// add appends an event.
func (b *parts) add(src Source, e *convert.RouterEvent, id uint64) {
	k := len(b.list) - 1
	if len(b.list[k]) >= partSize {
		b.list = append(b.list, make([]byte, 0, partSize+partSize/8))
		k++
	}
	if b.some {
		b.list[k] = append(b.list[k], ',')
	}
	b.some = true
	b.list[k] = convert.AppendEventJSON(b.list[k], e, src.WorkerID(), src.Rank(), id)
}

func (b *parts) end(text string) [][]byte {
	k := len(b.list) - 1
	b.list[k] = append(b.list[k], text...)
	return b.list
}
