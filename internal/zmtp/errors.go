package zmtp

import (
	"errors"
	"strconv"
	"strings"
)

// Every error of a Conn begins with "zmtp <endpoint>:" and wraps one of these,
// a *FrameError, a *PeerError, or the network's own (io.EOF: closed by the peer between
// messages; io.ErrUnexpectedEOF: within one).
var (
	// ErrEndpoint: an endpoint, or the options given with it, cannot be used as
	// written. Trying again is of no use.
	ErrEndpoint = errors.New("bad endpoint")
	// ErrHandshake: a connection was made but did not become ready. No ZMTP 3
	// peer, wrong socket type or mechanism, refused, too slow, closed on accept.
	ErrHandshake = errors.New("handshake failed")
	// ErrPeerDead: the peer was silent for PeerTimeout although it has answered
	// PINGs before, or did not take (TCP: acknowledge) what was written for as long.
	ErrPeerDead = errors.New("peer is dead")
	// ErrPingRefused comes with the error of a connection that the peer closed right
	// after its first PING. Peers that know no PING (zmq.rs) do so; Heartbeat < 0
	// gets along with them.
	ErrPingRefused = errors.New("peer closed after the first PING")
	// ErrClosed: Close was called.
	ErrClosed = errors.New("connection closed")
)

// Reason says why framing was refused. The list is closed: it may be a metric label.
type Reason string

const (
	FrameTooLarge   Reason = "frame_too_large"
	MessageTooLarge Reason = "message_too_large"
	TooManyFrames   Reason = "too_many_frames"
	CommandTooLarge Reason = "command_too_large" // a command, or the commands within one message
	BadFlags        Reason = "bad_flags"         // reserved flag bits, or a command with MORE
	BadCommand      Reason = "bad_command"       // a command without a name, a PING without a TTL
)

// FrameError says that a peer sent what ZMTP or our limits do not allow. The
// connection is dead: nothing after such a frame can be trusted.
type FrameError struct {
	Reason Reason
	Got    uint64 // the size in bytes, the count or the flags that were refused
	Limit  uint64 // the limit it broke; 0 where there is none
}

func (e *FrameError) Error() string {
	s := strings.ReplaceAll(string(e.Reason), "_", " ") + ": " + strconv.FormatUint(e.Got, 10)
	if e.Reason == BadFlags || e.Reason == BadCommand {
		s = "what comes is no ZMTP, " + s
	}
	if e.Limit > 0 {
		s += " (limit " + strconv.FormatUint(e.Limit, 10) + ")"
	}
	return s
}

// PeerError is an ERROR command of the peer, in the handshake or later.
type PeerError struct {
	Reason string // printable ASCII, at most 100 bytes
}

func (e *PeerError) Error() string { return "peer sent ERROR " + strconv.Quote(e.Reason) }

// maxPeerText bounds peer text in errors; the rest is cut off.
const maxPeerText = 100

// sanitise makes peer text fit for a log line.
func sanitise(b []byte) string {
	out := make([]byte, 0, maxPeerText)
	for _, c := range b[:min(len(b), maxPeerText)] {
		if c < ' ' || c > '~' {
			c = '?'
		}
		out = append(out, c)
	}
	return string(out)
}
