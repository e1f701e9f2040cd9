// Package capture reads and writes recorded KV-event streams.
//
// A capture is a text file, plain or gzip, of JSON objects, one a line. The
// first line is the Meta. In a live capture every further line is one message
// as a SUB socket received it,
//
//	{"frames": ["<topic>", "<seq>", "<payload>"]}
//
// with each frame in hex, in order of arrival. In a replay transcript every
// further line is one Exchange with an engine's replay ROUTER: the request's
// frames and every reply. A file may hold both kinds of line; Next passes over
// exchanges and NextExchange over messages.
package capture

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Limits bounds what a Reader accepts and a Writer produces. A zero field
// takes its default.
type Limits struct {
	// Line is the longest line in bytes, default 32 MiB: a message of 16 MiB in
	// hex, ten times the largest that engines send. Reading it takes five times as
	// much. A longer line ends the reading with ErrTooLarge.
	Line int
	// File is the most bytes read from a file, after decompression, default
	// 8 GiB. More than that ends the reading with ErrTooLarge: a gzip bomb is
	// no capture.
	File int64
	// Frames is the most frames in one message, default 64. A message with
	// more is refused with ErrTooLarge.
	Frames int
}

func (l Limits) withDefaults() Limits {
	if l.Line <= 0 {
		l.Line = 32 << 20
	}
	if l.File <= 0 {
		l.File = 8 << 30
	}
	if l.Frames <= 0 {
		l.Frames = 64
	}
	return l
}

var (
	// ErrTooLarge is wrapped when a line, a file or a message exceeds Limits.
	ErrTooLarge = errors.New("too large")
	// ErrFormat is wrapped when a line is not what the format says.
	ErrFormat = errors.New("not a capture line")
	// ErrTorn is wrapped when a capture ends in the middle of a line: its recorder
	// was killed, or its disk was full. Everything before that line has been read.
	ErrTorn = errors.New("the capture ends here, in the middle of a line")
)

// Error says where in a capture something was wrong. It never quotes the
// content of a line: captures hold prompts.
type Error struct {
	File string // the path, or the name given to NewReader
	Line int    // from 1; the line being read when it happened
	Err  error  // wraps ErrTooLarge, ErrFormat, ErrTorn, or an error of reading
}

func (e *Error) Error() string { return fmt.Sprintf("capture %s:%d: %v", e.File, e.Line, e.Err) }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Message is one message of a live stream, or one reply of a ROUTER without
// its routing frame.
type Message struct {
	Frames [][]byte
}

// EndSeq is the sequence number that marks the end of a replay. It never names
// a batch.
const EndSeq = ^uint64(0)

// Topic is the first frame of a message of three, else nil.
func (m Message) Topic() []byte {
	if len(m.Frames) != 3 {
		return nil
	}
	return m.Frames[0]
}

// Seq is the batch number of a message of three frames; false when there is
// none, or the frame has not its 8 bytes.
func (m Message) Seq() (uint64, bool) {
	if len(m.Frames) != 3 || len(m.Frames[1]) != 8 {
		return 0, false
	}
	return binary.BigEndian.Uint64(m.Frames[1]), true
}

// Payload is the last frame; nil when there are no frames.
func (m Message) Payload() []byte {
	if len(m.Frames) == 0 {
		return nil
	}
	return m.Frames[len(m.Frames)-1]
}

// Exchange is one request to a replay ROUTER and everything it answered.
type Exchange struct {
	Case       string
	Request    [][]byte // as the DEALER sent it
	Replies    [][][]byte
	FirstReply *float64 // seconds after the request; nil: no reply came
	LastReply  *float64
}
