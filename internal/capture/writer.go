package capture

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// Writer writes one capture. It is not safe for concurrent use.
type Writer struct {
	limits Limits
	bw     *bufio.Writer
	z      *gzip.Writer
	f      *os.File
	buf    []byte
	err    error // after a failed write the file ends there
}

// Create makes a new file at path and writes meta; a name that ends in .gz is
// compressed. A file that exists is not overwritten: the error wraps fs.ErrExist.
func Create(path string, meta *Meta) (*Writer, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return nil, fmt.Errorf("creating capture: %w", err)
	}
	var dst io.Writer = f
	var z *gzip.Writer
	if strings.HasSuffix(path, ".gz") {
		z = gzip.NewWriter(f)
		dst = z
	}
	w, err := NewWriter(dst, meta)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	w.z, w.f = z, f
	return w, nil
}

// NewWriter writes a capture to dst, beginning with meta.
func NewWriter(dst io.Writer, meta *Meta) (*Writer, error) {
	w := &Writer{limits: Limits{}.withDefaults(), bw: bufio.NewWriterSize(dst, 64<<10)}
	b, err := json.Marshal(meta)
	if err != nil {
		return nil, fmt.Errorf("writing capture meta: %w", err)
	}
	return w, w.line(b)
}

// Write appends one message. One too long for a Reader with default Limits is
// refused with ErrTooLarge and nothing of it is written.
func (w *Writer) Write(m Message) error {
	w.buf = append(w.buf[:0], `{"frames":`...)
	w.hexList(m.Frames)
	w.buf = append(w.buf, '}')
	if len(m.Frames) > w.limits.Frames {
		return fmt.Errorf("message of %d frames: %w", len(m.Frames), ErrTooLarge)
	}
	return w.line(w.buf)
}

// WriteExchange appends one exchange, bounded like Write.
func (w *Writer) WriteExchange(x Exchange) error {
	name, err := json.Marshal(x.Case)
	if err != nil {
		return fmt.Errorf("writing exchange: %w", err)
	}
	w.buf = append(w.buf[:0], `{"case":`...)
	w.buf = append(w.buf, name...)
	w.buf = append(w.buf, `,"request":`...)
	w.hexList(x.Request)
	w.buf = append(w.buf, `,"replies":[`...)
	for i, reply := range x.Replies {
		if i > 0 {
			w.buf = append(w.buf, ',')
		}
		w.hexList(reply)
	}
	w.buf = append(w.buf, ']')
	for _, t := range []struct {
		name string
		at   *float64
	}{{"first_reply_s", x.FirstReply}, {"last_reply_s", x.LastReply}} {
		b, err := json.Marshal(t.at)
		if err != nil {
			return fmt.Errorf("writing exchange: %w", err)
		}
		w.buf = append(append(append(append(w.buf, `,"`...), t.name...), `":`...), b...)
	}
	w.buf = append(w.buf, '}')
	return w.line(w.buf)
}

func (w *Writer) hexList(frames [][]byte) {
	w.buf = append(w.buf, '[')
	for i, f := range frames {
		if i > 0 {
			w.buf = append(w.buf, ',')
		}
		w.buf = append(w.buf, '"')
		w.buf = hex.AppendEncode(w.buf, f)
		w.buf = append(w.buf, '"')
	}
	w.buf = append(w.buf, ']')
}

func (w *Writer) line(b []byte) error {
	if w.err != nil {
		return w.err
	}
	if len(b)+1 > w.limits.Line {
		return fmt.Errorf("line of %d bytes: %w", len(b)+1, ErrTooLarge)
	}
	if _, err := w.bw.Write(b); err != nil {
		w.err = fmt.Errorf("writing capture: %w", err)
		return w.err
	}
	if err := w.bw.WriteByte('\n'); err != nil {
		w.err = fmt.Errorf("writing capture: %w", err)
	}
	return w.err
}

// Flush hands everything written so far to the file, so that it can be read
// while the recording goes on.
func (w *Writer) Flush() error {
	if w.err != nil {
		return w.err
	}
	err := w.bw.Flush()
	if err == nil && w.z != nil {
		err = w.z.Flush()
	}
	if err != nil {
		w.err = fmt.Errorf("writing capture: %w", err)
	}
	return w.err
}

// Close flushes and closes the file that Create made. It reports the first
// error of the whole writing: nil means that the capture is complete. After a
// failed write the file ends with its last whole line; a compressed one cannot
// be cut there, and reading it ends with ErrTorn.
func (w *Writer) Close() error {
	err := w.Flush()
	if w.z != nil {
		err = cmp.Or(err, w.z.Close()) // after a failed write it repeats that error
	}
	if w.f != nil {
		if err != nil && w.z == nil {
			_ = cutBack(w.f) // what stays is read all the same
		}
		err = cmp.Or(err, w.f.Close())
	}
	w.z, w.f = nil, nil
	if w.err == nil {
		w.err = errors.New("writing capture: closed")
	}
	return err
}

// cutBack ends a file behind its last whole line. One without any stays.
func cutBack(f *os.File) error {
	end, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	buf := make([]byte, 64<<10)
	for end > 0 {
		part := buf[:min(end, int64(len(buf)))]
		end -= int64(len(part))
		if _, err := f.ReadAt(part, end); err != nil {
			return err
		}
		if i := bytes.LastIndexByte(part, '\n'); i >= 0 {
			return f.Truncate(end + int64(i) + 1)
		}
	}
	return nil
}
