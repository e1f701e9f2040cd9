package quicknet

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// pair is two ends of a connection, the first one wrapped.
func pair(t *testing.T, network string) (quick, far net.Conn) {
	t.Helper()
	addr := "127.0.0.1:0"
	if network == "unix" {
		addr = filepath.Join(t.TempDir(), "s")
	}
	l, err := net.Listen(network, addr)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	near, err := net.Dial(network, l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if far, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	quick = Wrap(near)
	t.Cleanup(func() { quick.Close(); far.Close() })
	if _, wrapped := quick.(*conn); wrapped != supported {
		t.Fatalf("wrapped: %v, supported: %v", wrapped, supported)
	}
	return quick, far
}

// What goes through comes out, in any sizes, both ways, on both kinds of socket.
func TestThrough(t *testing.T) {
	for _, network := range []string{"tcp", "unix"} {
		t.Run(network, func(t *testing.T) {
			quick, far := pair(t, network)
			for _, way := range [][2]net.Conn{{quick, far}, {far, quick}} {
				rnd := rand.New(rand.NewPCG(1, 2))
				sent := make([]byte, 4<<20)
				for i := range sent {
					sent[i] = byte(rnd.Uint32())
				}
				wrote := make(chan error, 1)
				go func() {
					for rest := sent; len(rest) > 0; {
						n := min(len(rest), 1+rnd.IntN(2*quickWrite))
						if m, err := way[0].Write(rest[:n]); err != nil || m != n {
							wrote <- errors.Join(err, io.ErrShortWrite)
							return
						}
						rest = rest[n:]
					}
					wrote <- nil
				}()
				got := make([]byte, len(sent))
				if _, err := io.ReadFull(way[1], got); err != nil {
					t.Fatal(err)
				}
				if err := <-wrote; err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(got, sent) {
					t.Fatal("other bytes came out")
				}
			}
			if n, err := quick.Read(nil); n != 0 || err != nil {
				t.Errorf("an empty read: %d, %v", n, err)
			}
			if n, err := quick.Write(nil); n != 0 || err != nil {
				t.Errorf("an empty write: %d, %v", n, err)
			}
		})
	}
}

// Ends, deadlines and failures are what package net makes of them.
func TestErrors(t *testing.T) {
	want := func(t *testing.T, what string, err, is error) {
		t.Helper()
		if !errors.Is(err, is) {
			t.Errorf("%s: %v, want %v", what, err, is)
		}
	}
	b := make([]byte, 10)
	for first := range ordinaryEvery { // whichever read is the ordinary one
		quick, far := pair(t, "tcp")
		for range first {
			if _, err := far.Write([]byte{1}); err != nil {
				t.Fatal(err)
			}
			if _, err := quick.Read(b); err != nil {
				t.Fatal(err)
			}
		}
		if err := quick.SetReadDeadline(time.Now().Add(time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		_, err := quick.Read(b)
		want(t, "deadline", err, os.ErrDeadlineExceeded)
		_ = quick.SetReadDeadline(time.Time{})
		far.Close()
		if _, err = quick.Read(b); err != io.EOF {
			t.Errorf("end: %v", err)
		}

		quick, far = pair(t, "tcp")
		_ = far.(*net.TCPConn).SetLinger(0)
		far.Close() // with a reset
		_, err = quick.Read(b)
		want(t, "reset", err, syscall.ECONNRESET)
		var op *net.OpError
		if !errors.As(err, &op) || op.Op != "read" {
			t.Errorf("reset: %#v", err)
		}
		_, err = quick.Write(b)
		want(t, "write after reset", err, syscall.EPIPE)

		quick, _ = pair(t, "tcp")
		ended := make(chan error, 1)
		go func() { _, err := quick.Read(b); ended <- err }()
		quick.Close()
		want(t, "closed while reading", <-ended, net.ErrClosed)
		_, err = quick.Write(b)
		want(t, "write after Close", err, net.ErrClosed)
	}

	quick, _ := pair(t, "tcp")
	if err := quick.SetWriteDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	for { // nobody reads
		n, err := quick.Write(make([]byte, quickWrite))
		if err != nil {
			want(t, "write deadline", err, os.ErrDeadlineExceeded)
			if n >= quickWrite {
				t.Errorf("%d bytes and an error", n)
			}
			break
		}
	}
}

// What is no plain socket is left alone.
func TestOthers(t *testing.T) {
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	if Wrap(a) != a {
		t.Error("a pipe was wrapped")
	}
	quick, _ := pair(t, "tcp")
	type more struct{ net.Conn }
	if c := (more{quick}); Wrap(c) != c {
		t.Error("a conn with methods of its own was wrapped")
	}
	if Wrap(quick) != quick {
		t.Error("wrapped twice")
	}
}
