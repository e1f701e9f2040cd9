package sinks

import (
	"math"

	"github.com/kvrelay/kvrelay/internal/msgpack"
)

// topic is the topic of every EventEnvelope.
const topic = "kv-events"

// publisherHeader names the publisher in messages that have no envelope around them.
const publisherHeader = "Kvrelay-Publisher"

// appendEnvelope appends Dynamo's EventEnvelope up to its payload, whose n
// bytes the caller appends next: a msgpack map {publisher_id, sequence,
// published_at, topic, payload}, byte-equal to what Dynamo 1.6.1 writes.
func appendEnvelope(dst []byte, publisherID, sequence uint64, at int64, n int) []byte {
	dst = msgpack.AppendMapHeader(dst, 5)
	dst = msgpack.AppendUint(msgpack.AppendStr(dst, "publisher_id"), publisherID)
	dst = msgpack.AppendUint(msgpack.AppendStr(dst, "sequence"), sequence)
	dst = msgpack.AppendUint(msgpack.AppendStr(dst, "published_at"), uint64(max(at, 0)))
	dst = msgpack.AppendStr(msgpack.AppendStr(dst, "topic"), topic)
	return msgpack.AppendBinHeader(msgpack.AppendStr(dst, "payload"), n)
}

// arrayLen is the length of a msgpack array header of n ≤ maxBatchEvents elements.
func arrayLen(n int) int {
	if n < 16 {
		return 1
	}
	return 3
}

// overhead is the most that a message of this profile adds to its events,
// headers included: max_payload counts them. A JSON array's commas are counted per event.
// Where there is a recovery service, each event must also fit into an answer of it.
func (p *Publisher) overhead() int {
	if p.o.Kind == Stdout {
		return 0
	}
	n := len("[]")
	if p.o.Profile != JSON {
		var b [160]byte
		n = len(appendEnvelope(b[:0], 1<<53-1, math.MaxUint64, math.MaxInt64, math.MaxInt32)) + 3
	}
	switch {
	case p.o.Kind == JetStream:
		n += p.streamHeaders()
	case p.o.Profile == JSON:
		n += len("NATS/1.0\r\n" + publisherHeader + ": 9007199254740991\r\n\r\n")
	}
	return max(n, answerHeaders+answerArray)
}

// eventLimit is how long one encoded event may be under maxPayload; at least 1,
// so that a server with an absurd limit drops everything instead of looping.
func (p *Publisher) eventLimit(maxPayload int64) int64 {
	return max(1, maxPayload-int64(p.overhead()))
}

// take builds the next message into buf[:0] and advances o.sent. ok is false
// when nothing waits; again says that it was sent before, over another link,
// and more that another one waits behind it.
//
// What went out before and is unconfirmed goes out with the same boundaries,
// sequence and time, so a consumer that knows envelopes by their sequence sees
// repeats, never other contents. Only one that no longer fits is cut: then the
// n-th sequence ends no later than it did, which such a consumer survives too.
func (o *Outbox) take(buf []byte) (msg []byte, ok, again, more bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.sent == o.log.next-1 {
		return buf[:0], false, false, false
	}
	last := o.log.next - 1
	again = o.resend < len(o.frozen)
	at := int64(0)
	if again {
		last, at = o.frozen[o.resend].last, o.frozen[o.resend].at
	} else {
		at = o.p.o.Now().UnixMilli()
	}
	g := o.gather(o.sent+1, last)
	switch {
	case !again:
		o.frozen = append(o.frozen, envelope{g.last, at})
	case g.last < last:
		o.frozen = append(o.frozen, envelope{})
		copy(o.frozen[o.resend+1:], o.frozen[o.resend:])
		o.frozen[o.resend] = envelope{g.last, at}
	}
	seq := o.firstSeq + uint64(o.resend)
	o.resend++
	o.sent = g.last
	return o.pack(buf[:0], g, seq, at), true, again, o.sent < o.log.next-1
}

// group is a run of events that go into one message.
type group struct {
	first, last uint64
	bytes       int // encoded events, without what stands between them
}

// gather takes events from first on, as many as one message holds, but none behind last.
func (o *Outbox) gather(first, last uint64) group {
	maxEvents := maxBatchEvents
	if o.p.o.Profile == DynamoSingle && o.p.o.Kind != Stdout {
		maxEvents = 1
	}
	room := int(o.p.maxEvent.Load())
	g := group{first: first, last: first - 1}
	blocks, n := 0, 0
	si, i := o.log.find(first)
	for ; g.last < last && n < maxEvents; i++ {
		s := o.log.segs[si]
		if i == len(s.events) {
			si, i = si+1, -1
			continue
		}
		m := &s.events[i]
		size := int(m.end - s.start(i))
		// The comma or newline between JSON events counts too. The first event
		// always fits: addWhole and splitAgain see to it.
		if n > 0 && (g.bytes+n+size > room || blocks+int(m.blocks) > maxBatchBlocks) {
			break
		}
		g.bytes += size
		blocks += int(m.blocks)
		n++
		g.last++
	}
	return g
}

// pack appends the message of g.
func (o *Outbox) pack(dst []byte, g group, seq uint64, at int64) []byte {
	n := int(g.last - g.first + 1)
	var sep byte
	end := ""
	switch {
	case o.p.o.Kind == Stdout:
		sep, end = '\n', "\n"
	case o.p.o.Profile == JSON:
		dst = append(dst, '[')
		sep, end = ',', "]"
	case o.p.o.Profile == DynamoSingle:
		dst = appendEnvelope(dst, o.id, seq, at, g.bytes)
	default:
		dst = appendEnvelope(dst, o.id, seq, at, arrayLen(n)+g.bytes)
		dst = msgpack.AppendArrayHeader(dst, n)
	}
	si, i := o.log.find(g.first)
	for k := 0; k < n; k++ {
		s := o.log.segs[si]
		for i == len(s.events) {
			si, i = si+1, 0
			s = o.log.segs[si]
		}
		if k > 0 && sep != 0 {
			dst = append(dst, sep)
		}
		dst = append(dst, s.bytes(i)...)
		i++
	}
	return append(dst, end...)
}
