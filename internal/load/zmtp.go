package load

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// The far side is our own relay: what is read is bounded, and everything that
// is not expected ends the connection.
const (
	maxRead   = 4096 // bytes of a frame: subscriptions, requests, PINGs
	handshake = 5 * time.Second
	more      = 1 // frame flags of ZMTP 3 (https://rfc.zeromq.org/spec/23/)
	long      = 2
	command   = 4
)

var errProtocol = errors.New("load: not what a kvrelay sends")

// peer is one connection with its handshake done.
type peer struct {
	conn net.Conn
	in   *bufio.Reader

	mu  sync.Mutex // guards out and buf
	out *bufio.Writer
	buf []byte
}

// accept does the handshake of a PUB or ROUTER with the NULL mechanism.
func accept(conn net.Conn, socket string) (*peer, error) {
	p := &peer{conn: conn, in: bufio.NewReaderSize(conn, 16<<10), out: bufio.NewWriterSize(conn, 256<<10)}
	if err := conn.SetDeadline(time.Now().Add(handshake)); err != nil {
		return nil, err
	}
	greeting := make([]byte, 64)
	greeting[0], greeting[8], greeting[9], greeting[10] = 0xff, 1, 0x7f, 3
	copy(greeting[12:], "NULL")
	ready := append([]byte("\x05READY\x0bSocket-Type"), 0, 0, 0, byte(len(socket)))
	ready = append(ready, socket...)
	hello := append(append(greeting, command, byte(len(ready))), ready...)
	if _, err := conn.Write(hello); err != nil {
		return nil, err
	}
	if _, err := io.ReadFull(p.in, greeting); err != nil {
		return nil, err
	}
	if greeting[0] != 0xff || greeting[9] != 0x7f || greeting[10] < 3 || !bytes.HasPrefix(greeting[12:32], []byte("NULL\x00")) {
		return nil, errProtocol
	}
	flags, body, err := p.frame()
	if err != nil {
		return nil, err
	}
	if flags&command == 0 || !bytes.HasPrefix(body, []byte("\x05READY")) {
		return nil, errProtocol
	}
	return p, conn.SetDeadline(time.Time{})
}

// frame reads one frame; PINGs are answered on the way.
func (p *peer) frame() (flags byte, body []byte, err error) {
	for {
		if flags, err = p.in.ReadByte(); err != nil {
			return 0, nil, err
		}
		var size uint64
		if flags&long != 0 {
			var b [8]byte
			if _, err = io.ReadFull(p.in, b[:]); err != nil {
				return 0, nil, err
			}
			size = binary.BigEndian.Uint64(b[:])
		} else {
			b, err := p.in.ReadByte()
			if err != nil {
				return 0, nil, err
			}
			size = uint64(b)
		}
		if size > maxRead {
			return 0, nil, fmt.Errorf("%w: a frame of %d bytes", errProtocol, size)
		}
		body = make([]byte, size)
		if _, err = io.ReadFull(p.in, body); err != nil {
			return 0, nil, err
		}
		ping, ok := bytes.CutPrefix(body, []byte("\x04PING"))
		if flags&command == 0 || !ok || len(ping) < 2 || len(ping) > 18 {
			return flags, body, nil
		}
		pong := append([]byte("\x04PONG"), ping[2:]...)
		p.mu.Lock()
		_, err = p.out.Write(append([]byte{command, byte(len(pong))}, pong...))
		if err == nil {
			err = p.out.Flush()
		}
		p.mu.Unlock()
		if err != nil {
			return 0, nil, err
		}
	}
}

// batch writes topic, seq and payload, behind a delimiter where it is a reply.
func (p *peer) batch(reply bool, seq uint64, payload []byte, flush bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	b := p.buf[:0]
	if reply {
		b = append(b, more, 0)
	}
	b = append(b, more, 0) // no topic
	b = binary.BigEndian.AppendUint64(append(b, more, 8), seq)
	if len(payload) < 256 {
		b = append(b, 0, byte(len(payload)))
	} else {
		b = binary.BigEndian.AppendUint64(append(b, long), uint64(len(payload)))
	}
	p.buf = b
	if _, err := p.out.Write(b); err != nil {
		return err
	}
	_, err := p.out.Write(payload)
	if err == nil && flush {
		err = p.out.Flush()
	}
	return err
}

func (p *peer) flush() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.Flush()
}
