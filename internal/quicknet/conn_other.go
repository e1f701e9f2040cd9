//go:build !linux || race

package quicknet

import (
	"net"
	"syscall"
)

const supported = false

// conn is never used here.
type conn struct {
	net.Conn
	raw syscall.RawConn
}
