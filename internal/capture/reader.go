package capture

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
)

// Reader reads one capture from its beginning. It is not safe for concurrent use.
type Reader struct {
	name   string
	meta   *Meta
	limits Limits
	br     *bufio.Reader
	left   int64 // bytes that Limits.File still allows
	line   int
	buf    []byte
	file   io.Closer // nil: not ours to close
	last   bool      // the line read last has no end
	err    error     // a reading that failed stays failed
}

// Open opens the capture at path and reads its Meta. Gzip is recognised by its
// content, whatever the name. Errors of the content are *Error.
func Open(path string) (*Reader, error) { return OpenLimits(path, Limits{}) }

// OpenLimits is Open with other limits.
func OpenLimits(path string, l Limits) (*Reader, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("opening capture: %w", err)
	}
	r, err := NewReader(f, path, l)
	if err != nil {
		_ = f.Close() // only read; the first error says more
		return nil, err
	}
	r.file = f
	return r, nil
}

// NewReader reads a capture from src, plain or gzip, beginning with its Meta.
// name stands for the file in errors. Close does not close src.
func NewReader(src io.Reader, name string, l Limits) (*Reader, error) {
	r := &Reader{name: name, limits: l.withDefaults()}
	r.left = r.limits.File
	r.br = bufio.NewReaderSize(src, 64<<10)
	if magic, _ := r.br.Peek(2); bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		z, err := gzip.NewReader(r.br)
		if err != nil {
			return nil, &Error{File: name, Line: 1, Err: fmt.Errorf("gzip: %w", err)}
		}
		// Closing z would free nothing, and say once more what reading has said:
		// that the file is torn.
		r.br = bufio.NewReaderSize(z, 64<<10)
	}
	line, err := r.next()
	if errors.Is(err, io.EOF) {
		return nil, &Error{File: name, Line: 1, Err: fmt.Errorf("empty file: %w", ErrFormat)}
	}
	if err != nil {
		return nil, err
	}
	var probe entry
	if json.Unmarshal(line, &probe) == nil && (probe.Frames != nil || probe.Request != nil) {
		return nil, r.fail(fmt.Errorf("a message where the meta line should be: %w", ErrFormat))
	}
	r.meta = new(Meta)
	if err := json.Unmarshal(line, r.meta); err != nil {
		return nil, r.fail(fmt.Errorf("meta: %w", sanitized(err)))
	}
	return r, nil
}

// Meta is the capture's first line.
func (r *Reader) Meta() *Meta { return r.meta }

// Line is the number of the line read last, from 1.
func (r *Reader) Line() int { return r.line }

// Close closes what Open opened. The Reader is of no use afterwards.
func (r *Reader) Close() error {
	if r.file == nil {
		return nil
	}
	err := r.file.Close()
	r.file = nil
	return err
}

// Next is the next message of the live stream. Its frames are the caller's to
// keep. io.EOF: there are no more.
func (r *Reader) Next() (Message, error) {
	for {
		e, err := r.entry()
		if err != nil {
			return Message{}, err
		}
		if e.Frames == nil {
			continue
		}
		return r.message(e)
	}
}

// NextExchange is the next exchange with a replay ROUTER. io.EOF: there are no more.
func (r *Reader) NextExchange() (Exchange, error) {
	for {
		e, err := r.entry()
		if err != nil {
			return Exchange{}, err
		}
		if e.Request == nil {
			continue
		}
		return r.exchange(e)
	}
}

func (r *Reader) message(e entry) (Message, error) {
	frames, err := r.frames(e.Frames)
	return Message{Frames: frames}, err
}

func (r *Reader) exchange(e entry) (Exchange, error) {
	x := Exchange{Case: e.Case, FirstReply: e.FirstReply, LastReply: e.LastReply}
	var err error
	if x.Request, err = r.frames(e.Request); err != nil {
		return Exchange{}, err
	}
	for _, reply := range e.Replies {
		frames, err := r.frames(reply)
		if err != nil {
			return Exchange{}, err
		}
		x.Replies = append(x.Replies, frames)
	}
	return x, nil
}

// entry is a line after the first: a message when Frames is not nil, else an
// exchange when Request is not nil.
type entry struct {
	Frames     []string   `json:"frames,omitempty"`
	Case       string     `json:"case,omitempty"`
	Request    []string   `json:"request,omitempty"`
	Replies    [][]string `json:"replies,omitempty"`
	FirstReply *float64   `json:"first_reply_s,omitempty"`
	LastReply  *float64   `json:"last_reply_s,omitempty"`
}

func (r *Reader) entry() (entry, error) {
	line, err := r.next()
	if err != nil {
		return entry{}, err
	}
	var e entry
	if err := json.Unmarshal(line, &e); err != nil {
		if r.last && isBeginning(line) {
			return entry{}, r.fail(ErrTorn)
		}
		return entry{}, r.fail(sanitized(err))
	}
	if e.Frames == nil && e.Request == nil {
		return entry{}, r.fail(fmt.Errorf("neither frames nor a request: %w", ErrFormat))
	}
	if e.Frames != nil && e.Request != nil {
		return entry{}, r.fail(fmt.Errorf("both frames and a request: %w", ErrFormat))
	}
	return e, nil
}

func (r *Reader) frames(texts []string) ([][]byte, error) {
	if len(texts) > r.limits.Frames {
		return nil, r.fail(fmt.Errorf("%d frames in a message, at most %d: %w", len(texts), r.limits.Frames, ErrTooLarge))
	}
	out := make([][]byte, len(texts))
	for i, t := range texts {
		b, err := hex.DecodeString(t)
		if err != nil {
			return nil, r.fail(fmt.Errorf("frame %d is no hex: %w", i, ErrFormat))
		}
		out[i] = b
	}
	return out, nil
}

// next is the next line that is not blank, without its end; valid until the
// next call. The buffer grows with the bytes that really arrive.
func (r *Reader) next() ([]byte, error) {
	if r.err != nil {
		return nil, r.err
	}
	for {
		r.buf = r.buf[:0]
		r.line++
		for {
			part, err := r.br.ReadSlice('\n')
			if r.left -= int64(len(part)); r.left < 0 {
				return nil, r.fail(fmt.Errorf("more than %d bytes: %w", r.limits.File, ErrTooLarge))
			}
			if len(r.buf)+len(part) > r.limits.Line {
				return nil, r.fail(fmt.Errorf("line longer than %d bytes: %w", r.limits.Line, ErrTooLarge))
			}
			r.buf = append(r.buf, part...)
			if errors.Is(err, bufio.ErrBufferFull) {
				continue
			}
			cut := errors.Is(err, io.ErrUnexpectedEOF) // gzip's: there is no more, and there was
			if err != nil && !errors.Is(err, io.EOF) && !cut {
				return nil, r.fail(err)
			}
			if cut && len(r.buf) == 0 {
				return nil, r.fail(ErrTorn)
			}
			if err != nil && len(r.buf) == 0 {
				r.line--
				r.err = io.EOF
				return nil, io.EOF
			}
			r.last = err != nil
			break
		}
		if line := bytes.TrimSpace(r.buf); len(line) > 0 {
			return line, nil
		}
	}
}

func (r *Reader) fail(err error) error {
	r.err = &Error{File: r.name, Line: r.line, Err: err}
	return r.err
}

// isBeginning says whether line is valid JSON as far as it goes.
func isBeginning(line []byte) bool {
	var v json.RawMessage
	return errors.Is(json.NewDecoder(bytes.NewReader(line)).Decode(&v), io.ErrUnexpectedEOF)
}

// sanitized is a JSON error without values of the line in it: encoding/json
// quotes numbers that do not fit, and those may be token ids.
func sanitized(err error) error {
	var typ *json.UnmarshalTypeError
	var syn *json.SyntaxError
	switch {
	case errors.As(err, &typ):
		return fmt.Errorf("field %q has a wrong type: %w", typ.Field, ErrFormat)
	case errors.As(err, &syn):
		return fmt.Errorf("JSON broken at byte %d: %w", syn.Offset, ErrFormat)
	}
	return fmt.Errorf("JSON: %w", ErrFormat)
}

// Capture is a whole file in memory.
type Capture struct {
	Meta      *Meta
	Messages  []Message
	Exchanges []Exchange
}

// Load reads a whole capture. It is meant for tests and short recordings: all
// of it is held in memory, up to Limits.File.
func Load(path string) (*Capture, error) {
	r, err := Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = r.Close() }() // only read
	return r.rest()
}

func (r *Reader) rest() (*Capture, error) {
	c := &Capture{Meta: r.meta}
	for {
		e, err := r.entry()
		if errors.Is(err, io.EOF) {
			return c, nil
		}
		if err != nil {
			return nil, err
		}
		if e.Frames != nil {
			m, err := r.message(e)
			if err != nil {
				return nil, err
			}
			c.Messages = append(c.Messages, m)
			continue
		}
		x, err := r.exchange(e)
		if err != nil {
			return nil, err
		}
		c.Exchanges = append(c.Exchanges, x)
	}
}
