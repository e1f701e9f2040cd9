//go:build linux && !race

package quicknet

import (
	"io"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"unsafe"
)

const supported = true

// conn is a socket with other Read and Write. Like any net.Conn it may be used
// by several goroutines.
type conn struct {
	net.Conn
	raw    syscall.RawConn
	atOnce atomic.Uint32 // reads since one had to wait
}

// Read is net.Conn's.
func (c *conn) Read(p []byte) (n int, err error) {
	if len(p) == 0 || c.atOnce.Add(1)%ordinaryEvery == 0 {
		return c.Conn.Read(p)
	}
	var errno syscall.Errno
	err = c.raw.Read(func(fd uintptr) (done bool) {
		n, errno = call(syscall.SYS_READ, fd, p)
		if errno == syscall.EAGAIN {
			c.atOnce.Store(0)
			return false
		}
		return true
	})
	switch {
	case err != nil:
		return 0, err
	case errno != 0:
		return 0, c.opError("read", errno)
	case n == 0:
		return 0, io.EOF
	}
	return n, nil
}

// Write is net.Conn's.
func (c *conn) Write(p []byte) (n int, err error) {
	if len(p) == 0 || len(p) > quickWrite {
		return c.Conn.Write(p)
	}
	var errno syscall.Errno
	err = c.raw.Write(func(fd uintptr) (done bool) {
		for n < len(p) {
			var m int
			m, errno = call(syscall.SYS_WRITE, fd, p[n:])
			if errno != 0 {
				return errno != syscall.EAGAIN
			}
			n += m
		}
		return true
	})
	switch {
	case err != nil:
		return n, err
	case errno != 0:
		return n, c.opError("write", errno)
	}
	return n, nil
}

// call reads into p or writes it, which is not empty.
func call(what, fd uintptr, p []byte) (n int, errno syscall.Errno) {
	for {
		r, _, errno := syscall.RawSyscall(what, fd, uintptr(unsafe.Pointer(&p[0])), uintptr(len(p)))
		switch errno {
		case 0:
			return int(r), 0
		case syscall.EINTR:
		default:
			return 0, errno
		}
	}
}

// opError words an error as package net does.
func (c *conn) opError(op string, errno syscall.Errno) error {
	return &net.OpError{Op: op, Net: c.LocalAddr().Network(), Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: os.NewSyscallError(op, errno)}
}
