package zmtp

import (
	"errors"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// freeze makes a socket deaf and dumb below TCP: nothing that arrives is seen,
// nothing is acknowledged. To the other side the connection is half open, as if the
// host were gone.
func freeze(t *testing.T, nc net.Conn) {
	t.Helper()
	rc, err := nc.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Error(err)
		return
	}
	drop := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K}
	if cerr := rc.Control(func(fd uintptr) {
		err = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &drop})
	}); cerr != nil || err != nil {
		t.Error(cerr, err)
	}
}

// Half-open TCP is found within PeerTimeout: by missing PONGs where the peer has
// answered before, by TCP where it never has – with PINGs or with keepalive alone.
func TestHalfOpen(t *testing.T) {
	for name, c := range map[string]struct {
		answers   bool
		heartbeat time.Duration
	}{
		"answers":       {true, 100 * time.Millisecond},
		"never answers": {false, 100 * time.Millisecond},
		"no PINGs":      {false, -1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			frozen := make(chan struct{})
			endpoint := serve(t, func(p *peer) {
				p.greetAs(0, "PUB")
				if c.answers {
					pong(p, p.until(isCommand("PING")))
				}
				p.put(message("last words"))
				freeze(p.t, p.Conn)
				close(frozen)
				<-p.t.Context().Done()
			})
			o := Options{Type: SUB, Heartbeat: c.heartbeat, PeerTimeout: 2 * time.Second}
			conn := mustDial(t, endpoint, o)
			if _, err := conn.Recv(); err != nil {
				t.Fatal(err)
			}
			<-frozen
			start := time.Now()
			err := recvErr(t, conn)
			if !errors.Is(err, ErrPeerDead) {
				t.Errorf("%v", err)
			}
			// Keepalive counts in whole seconds.
			if took := time.Since(start); took < time.Second || took > o.PeerTimeout+1500*time.Millisecond {
				t.Errorf("found after %v", took)
			}
		})
	}
}
