package consumer

import (
	"errors"
	"strconv"

	"github.com/nats-io/nats.go"
)

// MaxMessage is the largest message that is parsed, in bytes: the largest
// max_payload a nats-server allows. A larger one is an error.
const MaxMessage = 64 << 20

// PublisherHeader names the publisher of JSON and JetStream messages and of
// every recovery answer.
const PublisherHeader = "Kvrelay-Publisher"

// maxPublisher: publisher ids are numbers that every JSON reader holds exactly.
const maxPublisher = 1<<53 - 1

// ParseError says why a message could not be read. Reason comes from a fixed
// list and never quotes the message.
type ParseError struct {
	Subject string
	Reason  string
	Off     int // offset in the message, or in the payload of its envelope
}

func (e *ParseError) Error() string {
	s := "router event message"
	if e.Subject != "" {
		s += " on " + strconv.Quote(e.Subject)
	}
	return s + ": " + e.Reason + " at offset " + strconv.Itoa(e.Off)
}

// errReason is a ParseError in the making.
type errReason struct {
	reason string
	off    int
}

func (e *errReason) Error() string { return e.reason }

// ParseMessage decodes one NATS message of any profile: a msgpack
// EventEnvelope (the payload of which tells dynamo from dynamo-single), or a
// JSON array. header may be nil; subject serves error texts only.
//
// Every event of a message is of one rank. A message that mixes them, has an
// id twice or out of order, lacks a required field or has one of a wrong type
// is refused whole, with a *ParseError; unknown fields are skipped. Memory
// taken is at most a small multiple of the data, which is not kept.
func ParseMessage(subject string, header nats.Header, data []byte) (*Message, error) {
	m, err := parseMessage(header, data)
	if err != nil {
		return nil, asParseError(subject, err)
	}
	return m, nil
}

// ParseEvents decodes the body of a recovery answer: an array of router
// events, msgpack or JSON, in which id 0 may occur any number of times.
func ParseEvents(subject string, data []byte) ([]Event, error) {
	evs, err := parseEvents(data)
	if err == nil {
		err = sameRank(evs)
	}
	if err != nil {
		return nil, asParseError(subject, err)
	}
	return evs, nil
}

func asParseError(subject string, err error) error {
	var r *errReason
	if errors.As(err, &r) {
		return &ParseError{Subject: subject, Reason: r.reason, Off: r.off}
	}
	return &ParseError{Subject: subject, Reason: err.Error()}
}

func parseMessage(header nats.Header, data []byte) (*Message, error) {
	if len(data) > MaxMessage {
		return nil, &errReason{"larger than 64 MiB", 0}
	}
	var m Message
	named, err := publisherOf(header)
	if err != nil {
		return nil, err
	}
	if isJSON(data) {
		if m.Events, err = parseJSON(data); err != nil {
			return nil, err
		}
		m.Publisher = named
	} else {
		if err = parseEnvelope(data, &m); err != nil {
			return nil, err
		}
		if named != 0 && named != m.Publisher {
			return nil, &errReason{"header and envelope name different publishers", 0}
		}
	}
	return &m, checkOrder(m.Events)
}

func parseEvents(data []byte) ([]Event, error) {
	switch {
	case len(data) > MaxMessage:
		return nil, &errReason{"larger than 64 MiB", 0}
	case isJSON(data):
		return parseJSON(data)
	}
	return parseArray(data)
}

// isJSON tells text from msgpack, whose envelope begins with a map and whose
// array never with one of these bytes.
func isJSON(data []byte) bool {
	if len(data) == 0 {
		return false
	}
	switch data[0] {
	case '[', ' ', '\t', '\r', '\n':
		return true
	}
	return false
}

// publisherOf reads the publisher header; 0 when there is none.
func publisherOf(h nats.Header) (uint64, error) {
	vs := h[PublisherHeader]
	if len(vs) == 0 {
		return 0, nil
	}
	p, err := strconv.ParseUint(vs[0], 10, 64)
	if err != nil || p == 0 || p > maxPublisher {
		return 0, &errReason{"header " + PublisherHeader + " is no publisher id", 0}
	}
	return p, nil
}

func sameRank(evs []Event) error {
	for i := range evs {
		if evs[i].Rank != evs[0].Rank {
			return &errReason{"events of several ranks in one message", 0}
		}
	}
	return nil
}

// checkOrder holds published messages to what a publisher sends: one rank, and
// ids from 1 that grow. A hole between them is for the reader to notice.
func checkOrder(evs []Event) error {
	for i := range evs {
		if evs[i].ID == 0 {
			return &errReason{"event without an id", 0}
		}
		if i > 0 && evs[i].ID <= evs[i-1].ID {
			return &errReason{"event ids out of order", 0}
		}
	}
	return sameRank(evs)
}
