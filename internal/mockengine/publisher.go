package mockengine

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"

	"github.com/go-zeromq/zmq4"
)

// PublisherOptions configures a Publisher. A zero field takes the default of
// the Options field of the same name.
type PublisherOptions struct {
	Rank        int // data-parallel rank, for Observe and the faults' seed
	Topic       string
	Replay      ReplayShape
	BufferSteps int
	HWM         int
	ReplayHWM   int
	EventAddr   string // host:port of PUB; port 0: a free one
	ReplayAddr  string // likewise of the ROUTER; unused with NoReplay
	Faults      []Fault
	Seed        uint64
	Observe     func(Published)
}

// Publisher is the ZMQ side of one engine rank, as vLLM's event publisher: it
// numbers batches from 0, sends them on PUB, remembers the last BufferSteps,
// and serves replays on a ROUTER between batches. Safe for concurrent use.
type Publisher struct {
	o      PublisherOptions
	events *Gate
	replay *Gate // nil: NoReplay
	pub    *socket
	router *socket // nil: NoReplay

	mu          sync.Mutex // also makes replays and batches take turns
	inj         *Injector
	topic       []byte
	next        uint64
	incarnation int
	history     []buffered // oldest first, at most BufferSteps
	skip        int        // batches still to withhold, of DropNext
	silent      bool
}

type buffered struct {
	seq     uint64
	payload []byte
}

// NewPublisher makes a publisher. It does no I/O.
func NewPublisher(o PublisherOptions) *Publisher {
	def(&o.Replay, Reply4)
	def(&o.BufferSteps, defaultBufferSteps)
	def(&o.HWM, defaultHWM)
	if o.ReplayHWM == 0 {
		o.ReplayHWM = replayHWM(o.Replay, o.BufferSteps)
	}
	p := &Publisher{o: o, events: NewGate(o.EventAddr), inj: NewInjector(o.Faults, o.Seed, o.Rank), topic: []byte(o.Topic)}
	p.pub = newSocket(zmq4.Pub, p.events, o.HWM, nil)
	if o.Replay != NoReplay {
		p.replay = NewGate(o.ReplayAddr)
		p.router = newSocket(zmq4.Router, p.replay, o.ReplayHWM, p.serve)
	}
	return p
}

// Listen binds both sockets, or none: then the error says which one failed.
func (p *Publisher) Listen() error {
	if err := p.events.Listen(); err != nil {
		return fmt.Errorf("event socket: %w", err)
	}
	if p.replay == nil {
		return nil
	}
	if err := p.replay.Listen(); err != nil {
		p.events.Refuse()
		return fmt.Errorf("replay socket: %w", err)
	}
	return nil
}

// Run serves until ctx ends, then closes every connection and waits for them.
// Listen comes first.
func (p *Publisher) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	var routerErr error
	if p.router != nil {
		wg.Go(func() {
			defer cancel()
			routerErr = p.router.run(ctx)
		})
	}
	err := p.pub.run(ctx)
	cancel()
	wg.Wait()
	return errors.Join(err, routerErr)
}

// EventPort and ReplayPort are the bound ports; ReplayPort is 0 with NoReplay.
func (p *Publisher) EventPort() int { return portOf(p.events) }

// ReplayPort: see EventPort.
func (p *Publisher) ReplayPort() int {
	if p.replay == nil {
		return 0
	}
	return portOf(p.replay)
}

func portOf(g *Gate) int {
	_, port, err := net.SplitHostPort(g.Addr())
	if err != nil {
		return 0
	}
	n, err := net.LookupPort("tcp", port)
	if err != nil {
		return 0
	}
	return n
}

// Publish gives payload the next number and sends it as the faults allow. The
// payload must not be changed afterwards.
func (p *Publisher) Publish(payload []byte) (seq uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fate := p.inj.Batch()
	if fate.Burn {
		p.burn()
	}
	if fate.Garbage {
		p.send(p.inj.Garbage(), false, true)
	}
	if p.skip > 0 {
		p.skip--
		fate.Withhold = true
	}
	return p.send(payload, fate.Withhold, false)
}

func (p *Publisher) send(payload []byte, withhold, garbage bool) uint64 {
	seq := p.next
	p.next++
	p.emit(message{p.topic, seqFrame(seq), payload}, seq, withhold, garbage)
	return seq
}

func (p *Publisher) emit(m message, seq uint64, withhold, garbage bool) {
	if !withhold {
		p.pub.publish(m)
	}
	// After the sending, as vLLM does: a replay may lack what live has.
	payload := m[len(m)-1]
	if p.history = append(p.history, buffered{seq, payload}); len(p.history) > p.o.BufferSteps {
		p.history[0].payload = nil
		p.history = p.history[1:]
	}
	p.observe(Published{Seq: seq, Payload: payload, Withheld: withhold, Garbage: garbage})
}

func (p *Publisher) burn() {
	p.observe(Published{Seq: p.next})
	p.next++
}

func (p *Publisher) observe(b Published) {
	if p.o.Observe != nil {
		b.Rank, b.Incarnation = p.o.Rank, p.incarnation
		p.o.Observe(b)
	}
}

// Play sends one recorded message of three frames as it is, with its own topic
// and number; withhold: only to the replay buffer. False: it has other frames
// and was sent without being remembered (a stream that has no numbers).
func (p *Publisher) Play(frames [][]byte, withhold bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(frames) != 3 || len(frames[1]) != 8 {
		if !withhold && len(frames) > 0 {
			p.pub.publish(frames)
		}
		return false
	}
	p.topic = frames[0]
	seq := binary.BigEndian.Uint64(frames[1])
	p.emit(frames, seq, withhold, false)
	p.next = seq + 1
	return true
}

// serve answers one replay request; it has p's lock, so no batch is published
// meanwhile. Requests of another shape get silence, as from the engines.
func (p *Publisher) serve(client *peer, frames [][]byte) {
	prefix, start, ok := parseRequest(p.o.Replay, frames)
	if !ok {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	fate := p.inj.Replay()
	if fate.Silent || p.silent {
		return
	}
	sent := 0
	for _, b := range p.history {
		if b.seq < start {
			continue
		}
		sent++
		if fate.Whole >= 0 && sent > fate.Whole {
			if !fate.Holes {
				return
			}
			if p.inj.Hole() {
				continue
			}
		}
		p.router.reply(client, replyFrames(p.o.Replay, prefix, p.topic, b.seq, b.payload))
	}
	if end := endFrames(p.o.Replay, prefix); end != nil {
		p.router.reply(client, end)
	}
}

// parseRequest reads a request as the ROUTER sees it, without the routing
// frame: "" and the start. The start is a big-endian number of any length, as
// Python's int.from_bytes takes it: an empty one is 0, one beyond 64 bits is
// after every batch. ATOM takes any prefix and echoes it.
func parseRequest(shape ReplayShape, frames [][]byte) (prefix [][]byte, start uint64, ok bool) {
	if len(frames) == 0 {
		return nil, 0, false
	}
	prefix, last := frames[:len(frames)-1], frames[len(frames)-1]
	switch shape {
	case ReplyATOM, ReplyATOMNoEnd:
		if len(prefix) > 1 {
			return nil, 0, false
		}
	default:
		if len(prefix) != 1 || len(prefix[0]) != 0 {
			return nil, 0, false
		}
	}
	for _, b := range last {
		if start>>56 != 0 {
			return prefix, endSeq, true
		}
		start = start<<8 | uint64(b)
	}
	return prefix, start, true
}

// endSeq marks the end of a replay and never names a batch.
const endSeq = ^uint64(0)

func seqFrame(seq uint64) []byte { return binary.BigEndian.AppendUint64(nil, seq) }

var empty = []byte{}

func replyFrames(shape ReplayShape, prefix [][]byte, topic []byte, seq uint64, payload []byte) message {
	switch shape {
	case Reply3:
		return message{empty, seqFrame(seq), payload}
	case ReplyATOM, ReplyATOMNoEnd:
		return append(append(message{}, prefix...), seqFrame(seq), payload)
	}
	return message{empty, topic, seqFrame(seq), payload}
}

func endFrames(shape ReplayShape, prefix [][]byte) message {
	switch shape {
	case Reply3:
		return message{empty, seqFrame(endSeq), empty}
	case ReplyATOM:
		return append(append(message{}, prefix...), seqFrame(endSeq))
	case ReplyATOMNoEnd:
		return nil
	}
	return message{empty, empty, seqFrame(endSeq), empty}
}
