//go:build !linux

package zmtp

import (
	"net"
	"time"
)

// setUserTimeout does nothing where TCP_USER_TIMEOUT does not exist: there keepalive and the
// system's own retransmission limit find a half-open connection, later.
func setUserTimeout(*net.TCPConn, time.Duration) error { return nil }
