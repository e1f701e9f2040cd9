package zmtp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/go-zeromq/zmq4"
	"github.com/go-zeromq/zmq4/security/null"
	"github.com/go-zeromq/zmq4/security/plain"
)

const (
	greetingLen = 64
	// maxHandshake bounds what a peer may send before its READY is complete,
	// greeting included; 4 to 100 bytes of READY are usual. Beyond it the peer is refused.
	maxHandshake = greetingLen + 16<<10
)

// handshake runs the library's handshake over nc, whose deadline is set. The
// library trusts its peer: it allocates what a header announces and panics on a READY
// that is cut short, so it sees the peer through a guard and within a recover.
//
// pongs: the peer speaks ZMTP 3.1 or later, so it answers PINGs.
func handshake(nc net.Conn, o Options) (pongs bool, err error) {
	// A mechanism of its own for each connection: PLAIN forgets its password
	// after the first.
	sec := null.Security()
	if o.User != "" || o.Password != "" {
		sec = plain.Security(o.User, o.Password)
	}
	g := &guard{Conn: nc, mechanism: string(sec.Type()), typ: o.Type, next: greetingLen}
	defer func() {
		if p := recover(); p != nil {
			err = errors.New("the peer's handshake cannot be read")
		}
		if g.err != nil { // says more than what the library makes of it
			err = g.err
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			came := "the peer says nothing"
			if n := len(g.seen); n > 0 {
				came = fmt.Sprintf("%d bytes came", n)
			}
			err = fmt.Errorf("not complete after %v, %s: %w", o.HandshakeTimeout, came, os.ErrDeadlineExceeded)
		}
	}()
	_, err = zmq4.Open(g, sec, zmq4.SocketType(o.Type), nil, false, nil)
	return len(g.seen) > 11 && (g.seen[10] > 3 || g.seen[11] > 0), err
}

// guard is a connection during its handshake. It looks at what comes in before
// the library does and refuses what that could not bear. It reads not a byte ahead.
type guard struct {
	net.Conn
	mechanism string
	typ       SocketType

	seen []byte // all that was read, at most maxHandshake
	next int    // where in seen the next frame begins
	err  error  // what ended the handshake
}

func (g *guard) Read(p []byte) (int, error) {
	if g.err != nil {
		return 0, g.err
	}
	if len(g.seen) == maxHandshake {
		g.err = &FrameError{Reason: CommandTooLarge, Got: maxHandshake + 1, Limit: maxHandshake}
		return 0, g.err
	}
	n, err := g.Conn.Read(p[:min(len(p), maxHandshake-len(g.seen))])
	g.seen = append(g.seen, p[:n]...)
	if bad := g.look(); bad != nil {
		g.err = bad
		return 0, bad
	}
	if err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		g.err = err
		switch gone := err == io.ErrUnexpectedEOF || errors.Is(err, syscall.ECONNRESET); {
		case gone && len(g.seen) == 0:
			g.err = fmt.Errorf("peer closed and said nothing: it is no ZMTP socket, a proxy whose target is away, or wants another security mechanism than %s: %w", g.mechanism, err)
		case gone && len(g.seen) < greetingLen:
			// libzmq leaves like this when it has seen ours.
			g.err = fmt.Errorf("peer closed within its greeting; perhaps it wants another security mechanism than %s: %w", g.mechanism, err)
		}
	}
	return n, err
}

// Write leaves a broken pipe to the next Read: a peer that hung up on us may have
// said why.
func (g *guard) Write(p []byte) (int, error) {
	n, err := g.Conn.Write(p)
	if errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) {
		return len(p), nil
	}
	if err != nil && g.err == nil {
		g.err = err
	}
	return n, err
}

// look judges what has been read so far.
func (g *guard) look() error {
	s := g.seen
	if len(s) > 1 && (s[0] == 0x15 || s[0] == 0x16) && s[1] == 3 { // an alert or a handshake record
		return errors.New("peer speaks TLS, not ZMTP")
	}
	if len(s) > 0 && s[0] != 0xFF {
		return fmt.Errorf("peer does not speak ZMTP: it begins with %q", sanitise(s[:min(len(s), 16)]))
	}
	if len(s) > 9 && s[9] != 0x7F {
		return errors.New("peer does not speak ZMTP: bad signature")
	}
	if len(s) > 10 && s[10] < 3 {
		return fmt.Errorf("peer speaks ZMTP revision %d, want 3 or later", s[10])
	}
	if len(s) < greetingLen {
		return nil
	}
	if m := bytes.TrimRight(s[12:32], "\x00"); string(m) != g.mechanism {
		return fmt.Errorf("peer wants security mechanism %q, this side has %s", sanitise(m), g.mechanism)
	}
	for {
		h, ok, err := parseHeader(s[g.next:])
		if err != nil || !ok {
			return err
		}
		if h.flags&flagCommand == 0 {
			return &FrameError{Reason: BadFlags, Got: uint64(h.flags)}
		}
		if room := uint64(maxHandshake - g.next - h.len); h.size > room {
			return &FrameError{Reason: CommandTooLarge, Got: h.size, Limit: room}
		}
		end := g.next + h.len + int(h.size)
		if len(s) < end {
			return nil
		}
		if err := g.lookAt(s[g.next+h.len : end]); err != nil {
			return err
		}
		g.next = end
	}
}

// lookAt judges a whole command.
func (g *guard) lookAt(body []byte) error {
	// libzmq up to 4.3.5 as PLAIN server writes "\x5ERROR", which C++ reads as "^RROR".
	if reason, ok := bytes.CutPrefix(body, []byte("^RROR")); ok {
		return &PeerError{Reason: errorReason(reason)}
	}
	name, data, ok := splitCommand(body)
	if !ok {
		return &FrameError{Reason: BadCommand, Got: uint64(len(body))}
	}
	switch string(name) {
	case "ERROR":
		return &PeerError{Reason: errorReason(data)}
	case "READY":
		typ, ok := property(data, "Socket-Type")
		if !ok {
			return errors.New("the peer's READY cannot be read")
		}
		if typ == nil {
			return errors.New("the peer's READY names no socket type")
		}
		if want := g.typ.peers(); !slices.Contains(want, string(typ)) {
			hint := ""
			if other := map[SocketType]SocketType{SUB: DEALER, DEALER: SUB}[g.typ]; slices.Contains(other.peers(), string(typ)) {
				hint = ": are an engine's two endpoints, of events and of replay, swapped?"
			}
			return fmt.Errorf("peer is a %q socket, %s wants %s%s", sanitise(typ), g.typ, strings.Join(want, " or "), hint)
		}
	}
	return nil
}

// property finds a property in the metadata of a READY: name behind a length
// byte, value behind four. ok is false unless the metadata is sound to its end;
// value is nil when it has no such property.
func property(data []byte, name string) (value []byte, ok bool) {
	for len(data) > 0 {
		n := 1 + int(data[0])
		if len(data) < n+4 {
			return nil, false
		}
		key, rest := data[1:n], data[n+4:]
		size := binary.BigEndian.Uint32(data[n:])
		if n == 1 || uint64(size) > uint64(len(rest)) {
			return nil, false
		}
		if string(key) == name {
			value = rest[:size:size]
		}
		data = rest[size:]
	}
	return value, true
}
