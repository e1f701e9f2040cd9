package zmtp

import (
	"errors"
	"io"
)

const (
	// baseBuffer is what a connection reads into as long as its messages are
	// smaller: some hundred batches at one read.
	baseBuffer = 64 << 10
	// keepBuffer is the largest buffer kept for the next message. A larger one is
	// given back before the next read, a smaller one after shrinkAfter reads that
	// did not need it.
	keepBuffer  = 1 << 20
	shrinkAfter = 32

	// maxCommand bounds a command's body, and what commands may take between the
	// frames of one message (libzmq puts a PING there). A peer that goes beyond
	// is refused.
	maxCommand        = 4 << 10
	maxCommandsWithin = 64 << 10
)

// manyFrames is from how many frames on a message's buffer grows by doubling.
const manyFrames = 8

type limits struct {
	frame, message uint64 // bytes
	frames         int
}

// frameReader cuts messages out of a byte stream. A message lies in buf in one
// piece, so that its frames can be handed out as they lie. buf grows only as bytes
// arrive: at most to twice what is there, whatever a header announces.
type frameReader struct {
	lim     limits
	read    func([]byte) (int, error)
	command func(body []byte) error // body is valid during the call
	arrives func(n int, whole bool) // n bytes of a message are there; 0: next begins. nil: nobody asks

	buf   []byte
	r, w  int // buf[r:w] is unread; r is where the present message begins
	idle  int // reads in a row that baseBuffer was enough for
	spans []span
	out   [][]byte
}

// span is a frame of the present message, counted from r: buf may move while
// the rest is read.
type span struct{ from, to int }

// next returns the frames of the next message, valid until the next call.
func (f *frameReader) next() ([][]byte, error) {
	f.spans = f.spans[:0]
	if f.arrives != nil {
		f.arrives(0, false)
	}
	var off, body, commands int // the next header's place, counted from r; bytes of frames; bytes of commands
	for {
		h, err := f.header(off)
		if err != nil {
			return nil, err
		}
		if err := f.check(h, body, len(f.spans), commands); err != nil {
			return nil, err
		}
		from, to := off+h.len, off+h.len+int(h.size)
		for f.w-f.r < to {
			if err := f.fill(to); err != nil {
				return nil, err
			}
			if h.flags&flagCommand == 0 && f.arrives != nil {
				f.arrives(f.w-f.r, false)
			}
		}
		off = to
		if h.flags&flagCommand != 0 {
			if err := f.command(f.buf[f.r+from : f.r+to]); err != nil {
				return nil, err
			}
			if len(f.spans) == 0 {
				f.r, off = f.r+to, 0
			} else {
				commands += to - from + h.len
			}
			continue
		}
		body += to - from
		f.spans = append(f.spans, span{from, to})
		if h.flags&flagMore == 0 {
			break
		}
	}
	f.out = f.out[:0]
	for _, s := range f.spans {
		f.out = append(f.out, f.buf[f.r+s.from:f.r+s.to:f.r+s.to])
	}
	f.r += off
	if f.arrives != nil {
		f.arrives(off, true)
	}
	if off > baseBuffer {
		f.idle = 0
	}
	return f.out, nil
}

// check holds a header against the limits before a byte is spent on its body.
func (f *frameReader) check(h header, body, frames, commands int) error {
	if h.flags&flagCommand != 0 {
		switch {
		case h.size > maxCommand:
			return &FrameError{Reason: CommandTooLarge, Got: h.size, Limit: maxCommand}
		case commands > maxCommandsWithin:
			return &FrameError{Reason: CommandTooLarge, Got: uint64(commands), Limit: maxCommandsWithin}
		}
		return nil
	}
	switch {
	case h.size > f.lim.frame:
		return &FrameError{Reason: FrameTooLarge, Got: h.size, Limit: f.lim.frame}
	case uint64(body)+h.size > f.lim.message:
		return &FrameError{Reason: MessageTooLarge, Got: uint64(body) + h.size, Limit: f.lim.message}
	case frames >= f.lim.frames:
		return &FrameError{Reason: TooManyFrames, Got: uint64(frames) + 1, Limit: uint64(f.lim.frames)}
	}
	return nil
}

// header waits for the header at off.
func (f *frameReader) header(off int) (header, error) {
	for {
		h, ok, err := parseHeader(f.buf[f.r+off : f.w])
		if ok || err != nil {
			return h, err
		}
		if err := f.fill(off + maxHeader); err != nil {
			return h, err
		}
	}
}

// fill reads once. In the end buf has to hold n bytes from r on.
func (f *frameReader) fill(n int) error {
	have := f.w - f.r
	f.idle++
	switch {
	case len(f.buf) > baseBuffer && n <= baseBuffer && (len(f.buf) > keepBuffer || f.idle > shrinkAfter):
		f.move(baseBuffer)
	case have == 0:
		f.r, f.w = 0, 0
	case f.r > 0 && f.r+n > len(f.buf):
		copy(f.buf, f.buf[f.r:f.w])
		f.r, f.w = 0, have
	}
	if f.w == len(f.buf) { // full of this message, or not there yet
		// No further than asked for, but by a quarter at least: many small steps would
		// copy a large message many times. A message of many frames, which no engine
		// sends, doubles: small steps would also leave several times its size behind.
		step := len(f.buf) / 4
		if len(f.spans) >= manyFrames {
			step = len(f.buf)
		}
		f.move(max(baseBuffer, min(2*len(f.buf), max(n, len(f.buf)+step))))
	}
	m, err := f.read(f.buf[f.w:])
	f.w += m
	if m > 0 {
		return nil // an error comes again
	}
	if err == nil {
		return io.ErrNoProgress
	}
	if f.w > f.r && errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// move puts what is unread at the front of a new buffer.
func (f *frameReader) move(size int) {
	b := make([]byte, size)
	f.w = copy(b, f.buf[f.r:f.w])
	f.r, f.buf = 0, b
}

// buffered says whether next would return without a read: a whole message is
// there, or something that next refuses.
func (f *frameReader) buffered() bool {
	body, frames := 0, 0
	for off := f.r; ; {
		h, ok, err := parseHeader(f.buf[off:f.w])
		if err != nil {
			return true
		}
		if !ok {
			return false
		}
		if f.check(h, body, frames, 0) != nil {
			return true
		}
		if h.size > uint64(f.w-off-h.len) {
			return false
		}
		off += h.len + int(h.size)
		if h.flags&flagCommand != 0 {
			continue
		}
		if h.flags&flagMore == 0 {
			return true
		}
		body, frames = body+int(h.size), frames+1
	}
}
