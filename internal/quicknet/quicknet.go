// Package quicknet reads and writes sockets without announcing each call to
// Go's scheduler.
//
// A process that relays a batch a millisecond is idle between two of them, and an
// announced system call out of idleness wakes the scheduler's monitor thread,
// which naps 20 µs, finds nothing, and goes back to sleep: three thread switches,
// a quarter of what such a batch costs. Go's sockets never block, so a call
// need not be announced as long as it is short. What is given up is the monitor's
// care for a goroutine that never waits; so only short calls are made like that, and
// of reads in a row that find something at once each fifth is announced.
package quicknet

import (
	"net"
	"syscall"
)

const (
	// ordinaryEvery: of reads in a row that did not have to wait, each one of that number is
	// an ordinary one. A busy connection keeps the monitor awake with it.
	ordinaryEvery = 5
	// quickWrite is the longest write, in bytes, made without announcement; a
	// longer one is an ordinary one.
	quickWrite = 16 << 10
)

// Wrap makes nc quick where that can be done: a TCP or Unix socket on Linux, in a
// program without the race detector, which learns from announced calls what
// happens before what. Else it returns nc.
func Wrap(nc net.Conn) net.Conn {
	sc, ok := nc.(syscall.Conn)
	if !ok || !supported {
		return nc
	}
	switch nc.(type) {
	case *net.TCPConn, *net.UnixConn:
	default:
		return nc // its Read may do more than read
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return nc // closed: its Read says so
	}
	return &conn{Conn: nc, raw: raw}
}
