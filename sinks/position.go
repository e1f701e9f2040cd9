package sinks

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Headers of JetStream messages, beside Kvrelay-Publisher and those that
// nats-server reads. All are of the message's last event.
const (
	headerPosition    = "Kvrelay-Position"    // empty, unknown, or six numbers: epoch seq sum event block base, sum in hex
	headerFingerprint = "Kvrelay-Fingerprint" // of settings, discovered values and conversion rules, hex
	headerSequence    = "Kvrelay-Sequence"    // of the envelope
)

// position is a Place as a header.
func (a Place) position() string {
	switch a.Kind {
	case PlaceEmpty:
		return "empty"
	case PlaceAt:
		return fmt.Sprintf("%d %d %x %d %d %d", a.Pos.Epoch, a.Pos.Seq, a.Pos.Sum, a.Event, a.Block, a.Base)
	}
	return "unknown"
}

// parsePosition reads a header; what it cannot read is unknown.
func parsePosition(s string) Place {
	if s == "empty" {
		return Place{Kind: PlaceEmpty}
	}
	f := strings.Split(s, " ")
	if len(f) != 6 {
		return Place{Kind: PlaceUnknown}
	}
	var v [6]uint64
	for i := range f {
		base := 10
		if i == 2 {
			base = 16
		}
		var err error
		if v[i], err = strconv.ParseUint(f[i], base, 64); err != nil {
			return Place{Kind: PlaceUnknown}
		}
	}
	if v[3] > math.MaxUint32 || v[4] > math.MaxUint32 || v[5] > v[1] {
		return Place{Kind: PlaceUnknown}
	}
	a := Place{Event: int(v[3]), Block: int(v[4]), Base: v[5]}
	a.Pos.Epoch, a.Pos.Seq, a.Pos.Sum = v[0], v[1], v[2]
	return a
}

// messageID names an envelope: one id for all copies of it.
type messageID struct {
	worker    uint64
	rank      uint32
	publisher uint64
	life      uint64
	last      uint64 // event id
}

func (m messageID) String() string {
	return fmt.Sprintf("%d.%d.%d.%d.%d", m.worker, m.rank, m.publisher, m.life, m.last)
}

func parseMessageID(s string) (m messageID, ok bool) {
	f := strings.Split(s, ".")
	if len(f) != 5 {
		return m, false
	}
	var v [5]uint64
	for i := range f {
		var err error
		if v[i], err = strconv.ParseUint(f[i], 10, 64); err != nil {
			return m, false
		}
	}
	if v[1] > math.MaxUint32 || v[2] == 0 || v[2] >= 1<<53 || v[4] == 0 {
		return m, false
	}
	return messageID{v[0], uint32(v[1]), v[2], v[3], v[4]}, true
}

// lastMessage is what a rank's subject ends with; seq 0: it is empty.
type lastMessage struct {
	seq      uint64
	text     string // Nats-Msg-Id
	id       messageID
	ours     bool // id is that of a relay, for this worker and rank
	place    Place
	sequence uint64
}

func (o *Outbox) parseLast(m *jetstream.RawStreamMsg) lastMessage {
	l := lastMessage{seq: m.Sequence, text: m.Header.Get(nats.MsgIdHdr), place: parsePosition(m.Header.Get(headerPosition))}
	l.id, l.ours = parseMessageID(l.text)
	l.ours = l.ours && l.id.worker == o.workerID && l.id.rank == o.rank
	var err error
	if l.place.Fingerprint, err = strconv.ParseUint(m.Header.Get(headerFingerprint), 16, 64); err != nil {
		l.place = Place{Kind: PlaceUnknown}
	}
	if l.sequence, err = strconv.ParseUint(m.Header.Get(headerSequence), 10, 64); err != nil {
		l.place = Place{Kind: PlaceUnknown}
	}
	return l
}

// frozen is an envelope in flight: sent again unchanged until its fate is known.
type frozen struct {
	msg  nats.Msg
	id   string
	last uint64
	size int // with headers
	sent bool
}

// freeze makes the next envelope. ok is false when nothing waits.
func (o *Outbox) freeze(stream string) (f *frozen, ok bool) {
	data, ok, _, _ := o.take(nil)
	if !ok {
		return nil, false
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	last := o.frozen[0].last
	f = &frozen{last: last, id: messageID{o.workerID, o.rank, o.id, o.p.life, last}.String()}
	f.msg = nats.Msg{Subject: o.subject, Data: data, Header: streamHeader(stream, o.id, f.id, o.place(last), o.firstSeq)}
	f.size = f.msg.Size() - len(f.msg.Subject)
	return f, true
}

func streamHeader(stream string, publisher uint64, id string, at Place, seq uint64) nats.Header {
	return nats.Header{
		publisherHeader:             {strconv.FormatUint(publisher, 10)},
		headerPosition:              {at.position()},
		headerFingerprint:           {strconv.FormatUint(at.Fingerprint, 16)},
		headerSequence:              {strconv.FormatUint(seq, 10)},
		nats.MsgIdHdr:               {id},
		nats.ExpectedStreamHdr:      {stream},
		nats.ExpectedLastSubjSeqHdr: {"0"},
	}
}

// streamHeaders is the most that the headers of a JetStream message take.
func (p *Publisher) streamHeaders() int {
	const m = math.MaxUint64
	at := Place{Event: math.MaxUint32, Block: math.MaxUint32, Base: m, Fingerprint: m}
	at.Pos.Epoch, at.Pos.Seq, at.Pos.Sum = m, m, m
	h := streamHeader(strings.Repeat("s", maxStreamName), m, messageID{m, math.MaxUint32, m, m, m}.String(), at, m)
	h.Set(nats.ExpectedLastSubjSeqHdr, strconv.FormatUint(m, 10))
	n := len("NATS/1.0\r\n\r\n")
	for k, v := range h {
		n += len(k) + len(": ") + len(v[0]) + len("\r\n")
	}
	return n
}
