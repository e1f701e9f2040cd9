package zmtp

import (
	"fmt"
	"math"
	"time"
)

// SocketType is our side of a connection.
type SocketType string

const (
	SUB    SocketType = "SUB"    // reads from PUB and XPUB
	DEALER SocketType = "DEALER" // asks ROUTER, REP and DEALER
)

// peers are the socket types that t may talk to (RFC 28 and 29).
func (t SocketType) peers() []string {
	switch t {
	case SUB:
		return []string{"PUB", "XPUB"}
	case DEALER:
		return []string{"ROUTER", "REP", "DEALER"}
	}
	return nil
}

// Options are a connection's fixed surroundings. Zero means the default given
// with each field.
type Options struct {
	// Type is SUB or DEALER; required.
	Type SocketType
	// Subscriptions are topic prefixes, sent as part of the handshake. None, or
	// an empty one, means every message. Only for SUB.
	Subscriptions []string

	// MaxFrame is the largest frame accepted, in bytes. Default 64 MiB; at most 512 MiB.
	MaxFrame int64
	// MaxMessage bounds the frames of one message together, in bytes. Default
	// MaxFrame + 64 KiB; at most 512 MiB.
	MaxMessage int64
	// MaxFrames bounds the number of frames of one message. Default 64.
	MaxFrames int

	// Heartbeat is the time between two PINGs of ours, at most half of PeerTimeout.
	// Default 2 s; negative: no PINGs (for peers that answer them with ErrPingRefused).
	Heartbeat time.Duration
	// PeerTimeout is after how much silence a peer that answers PINGs is dead,
	// and how long a write may take. Default 10 s.
	PeerTimeout time.Duration

	// DialTimeout bounds name lookup and connect. Default 5 s.
	DialTimeout time.Duration
	// HandshakeTimeout bounds everything from the first byte to the last
	// subscription sent, however slowly a peer drips. Default 5 s.
	HandshakeTimeout time.Duration

	// User and Password select the PLAIN mechanism when either is set; else NULL.
	// At most 255 bytes each.
	User, Password string
}

const (
	defaultMaxFrame    = 64 << 20
	messageHeadroom    = 64 << 10 // topic, seq and delimiters beside the largest frame
	defaultMaxFrames   = 64
	defaultHeartbeat   = 2 * time.Second
	defaultPeerTimeout = 10 * time.Second
	defaultDial        = 5 * time.Second
	defaultHandshake   = 5 * time.Second

	// maxSize keeps sums of sizes inside an int on every platform. Larger limits
	// are lowered to it.
	maxSize = math.MaxInt32 / 4
)

// withDefaults fills in the defaults, or says what is wrong with o.
func (o Options) withDefaults() (Options, error) {
	if o.Type.peers() == nil {
		return o, fmt.Errorf("socket type %q: want SUB or DEALER", o.Type)
	}
	if o.Type != SUB && len(o.Subscriptions) > 0 {
		return o, fmt.Errorf("%s takes no subscriptions", o.Type)
	}
	if len(o.User) > 255 || len(o.Password) > 255 {
		return o, fmt.Errorf("user and password may have 255 bytes each")
	}
	if o.Type == SUB && len(o.Subscriptions) == 0 {
		o.Subscriptions = []string{""}
	}
	o.MaxFrame = size(o.MaxFrame, defaultMaxFrame)
	o.MaxMessage = size(o.MaxMessage, o.MaxFrame+messageHeadroom)
	if o.MaxFrames <= 0 {
		o.MaxFrames = defaultMaxFrames
	}
	if o.Heartbeat == 0 {
		o.Heartbeat = defaultHeartbeat
	}
	orDefault(&o.PeerTimeout, defaultPeerTimeout)
	o.Heartbeat = min(o.Heartbeat, o.PeerTimeout/2)
	orDefault(&o.DialTimeout, defaultDial)
	orDefault(&o.HandshakeTimeout, defaultHandshake)
	return o, nil
}

func size(n, def int64) int64 {
	if n <= 0 {
		n = def
	}
	return min(n, maxSize)
}

func orDefault(d *time.Duration, def time.Duration) {
	if *d <= 0 {
		*d = def
	}
}
