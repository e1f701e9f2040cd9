package mockengine

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/go-zeromq/zmq4/security/null"
)

// Why not the library's own PUB and ROUTER: measured with v0.17.0, its PUB
// answers no PING, its reader hangs for good after ten of them, it leaves two
// goroutines behind when closed, and a frozen subscriber stops the others; its
// ROUTER blocks where libzmq's drops. So as on the relay's side: its handshake,
// our frames.

const (
	handshakeTime = 10 * time.Second // a client that is slower is closed
	maxInFrame    = 1 << 20          // subscriptions and requests are small; a client that sends more is closed
	maxInFrames   = 16               // likewise
	maxTopics     = 1024             // subscriptions of one client; more are ignored
	maxPongs      = 16               // PONGs waiting for a client that does not read; more are not sent
	writeChunk    = 64 << 10         // messages are gathered into writes of about this size
)

// message is one ZMQ message; its frames are shared and never changed.
type message [][]byte

// peer is one connected client of a socket.
type peer struct {
	conn   net.Conn
	socket *socket

	// guarded by socket.mu
	wake    sync.Cond
	queue   []message // waiting to be written, oldest first, at most socket.hwm
	pongs   [][]byte  // contexts of PINGs to answer
	busy    bool      // the writer holds messages that left the queue
	gone    bool
	topics  map[string]int // PUB: prefix → subscriptions
	dropped uint64         // messages that found the queue full
}

// handshake makes conn a ZMTP connection of the given socket type.
func handshake(conn net.Conn, typ zmq4.SocketType) (err error) {
	// The library slices without looking at a hostile peer's metadata.
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("handshake: %v", r)
		}
	}()
	if err := conn.SetDeadline(time.Now().Add(handshakeTime)); err != nil {
		return err
	}
	if _, err := zmq4.Open(limitedConn{conn, &io.LimitedReader{R: conn, N: 64 << 10}}, null.Security(), typ, nil, true, nil); err != nil {
		return err
	}
	return conn.SetDeadline(time.Time{})
}

// limitedConn bounds what a handshake may read: a greeting and one command of
// any size a real client sends.
type limitedConn struct {
	net.Conn
	r *io.LimitedReader
}

func (c limitedConn) Read(p []byte) (int, error) {
	if int64(len(p)) > c.r.N {
		return 0, errors.New("handshake too long")
	}
	return c.r.Read(p)
}

// read takes in messages and commands until the connection ends.
func (p *peer) read() error {
	br := bufio.NewReaderSize(p.conn, 4096)
	var frames [][]byte
	for {
		flags, body, err := readFrame(br)
		if err != nil {
			return err
		}
		if flags&0x04 != 0 {
			p.command(body)
			continue
		}
		if frames = append(frames, body); len(frames) > maxInFrames {
			return errors.New("too many frames")
		}
		if flags&0x01 == 0 {
			p.socket.received(p, frames)
			frames = nil
		}
	}
}

func readFrame(br *bufio.Reader) (flags byte, body []byte, err error) {
	if flags, err = br.ReadByte(); err != nil {
		return 0, nil, err
	}
	var size uint64
	if flags&longFrame != 0 {
		var b [8]byte
		if _, err = io.ReadFull(br, b[:]); err != nil {
			return 0, nil, err
		}
		size = binary.BigEndian.Uint64(b[:])
	} else {
		b, err := br.ReadByte()
		if err != nil {
			return 0, nil, err
		}
		size = uint64(b)
	}
	if flags&^0x07 != 0 || size > maxInFrame {
		return 0, nil, errors.New("frame refused")
	}
	body = make([]byte, size)
	_, err = io.ReadFull(br, body)
	return flags, body, err
}

// command handles PING and, from ZMTP 3.1 peers, SUBSCRIBE and CANCEL. Others
// are skipped.
func (p *peer) command(body []byte) {
	if len(body) == 0 || len(body) < 1+int(body[0]) {
		return
	}
	name, rest := string(body[1:1+body[0]]), body[1+body[0]:]
	s := p.socket
	s.mu.Lock()
	defer s.mu.Unlock()
	switch name {
	case zmq4.CmdPing:
		if len(rest) >= 2 && len(p.pongs) < maxPongs {
			p.pongs = append(p.pongs, rest[2:]) // after the time to live
			p.wake.Signal()
		}
	case zmq4.CmdSubscribe:
		p.subscribe(string(rest), 1)
	case zmq4.CmdCancel:
		p.subscribe(string(rest), -1)
	}
}

// subscribe counts a subscription up or down; socket.mu is held.
func (p *peer) subscribe(prefix string, by int) {
	if _, known := p.topics[prefix]; !known && len(p.topics) >= maxTopics {
		return
	}
	if p.topics[prefix] += by; p.topics[prefix] <= 0 {
		delete(p.topics, prefix)
	}
	p.socket.changed()
}

// wants reports whether a message of that topic is for p; socket.mu is held.
func (p *peer) wants(topic string) bool {
	for prefix := range p.topics {
		if strings.HasPrefix(topic, prefix) {
			return true
		}
	}
	return false
}

// put queues a message, or drops it when the queue is full; socket.mu is held.
func (p *peer) put(m message) bool {
	if p.gone {
		return false
	}
	if len(p.queue) >= p.socket.hwm {
		p.dropped++
		return false
	}
	p.queue = append(p.queue, m)
	p.wake.Signal()
	return true
}

// write sends what is queued until the connection ends.
func (p *peer) write() {
	s := p.socket
	var buf bytes.Buffer
	for {
		s.mu.Lock()
		if p.busy {
			p.busy = false
			s.changed()
		}
		for !p.gone && len(p.queue) == 0 && len(p.pongs) == 0 {
			p.wake.Wait()
		}
		if p.gone {
			s.mu.Unlock()
			return
		}
		buf.Reset()
		for _, context := range p.pongs {
			writeFrame(&buf, 0x04, append([]byte("\x04PONG"), context...))
		}
		p.pongs = nil
		n := 0
		for n < len(p.queue) && buf.Len() < writeChunk {
			for i, f := range p.queue[n] {
				writeFrame(&buf, byte(boolInt(i < len(p.queue[n])-1)), f)
			}
			p.queue[n] = nil
			n++
		}
		if p.queue = p.queue[n:]; len(p.queue) == 0 {
			p.queue = nil
		}
		p.busy = true
		s.mu.Unlock()
		if _, err := p.conn.Write(buf.Bytes()); err != nil {
			s.leave(p)
			return
		}
		if buf.Cap() > 16*writeChunk { // after one giant message
			buf = bytes.Buffer{}
		}
	}
}

func writeFrame(buf *bytes.Buffer, flags byte, body []byte) {
	if len(body) > 255 {
		var head [9]byte
		head[0] = flags | longFrame
		binary.BigEndian.PutUint64(head[1:], uint64(len(body)))
		buf.Write(head[:])
	} else {
		buf.Write([]byte{flags, byte(len(body))})
	}
	buf.Write(body)
}
