package zmtp

import (
	"bytes"
	"context"
	"io"
	"log"
	"net"
	"testing"

	"github.com/go-zeromq/zmq4"
)

// A message as an engine's small batch: topic, seq, 200 bytes.
var benchFrames = []string{"", "12345678", string(make([]byte, 200))}

// flood listens as PUB and writes messages as fast as TCP takes them.
func flood(b *testing.B) (endpoint string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { l.Close() })
	block := bytes.Repeat(message(benchFrames...), 300)
	go func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer nc.Close()
				go io.Copy(io.Discard, nc)
				nc.Write(append(greetingBytes(3, 0, "NULL"), ready("Socket-Type", "PUB")...))
				for {
					if _, err := nc.Write(block); err != nil {
						return
					}
				}
			}()
		}
	}()
	return "tcp://" + l.Addr().String()
}

// BenchmarkRecv is messages from a tight loopback writer.
func BenchmarkRecv(b *testing.B) {
	c, err := Dial(context.Background(), flood(b), Options{Type: SUB})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	b.SetBytes(200)
	b.ReportAllocs()
	for b.Loop() {
		if m, err := c.Recv(); err != nil || len(m) != 3 {
			b.Fatal(err)
		}
	}
}

// BenchmarkRecvLibrary is the same with go-zeromq's SUB, for comparison.
func BenchmarkRecvLibrary(b *testing.B) {
	s := zmq4.NewSub(context.Background(), zmq4.WithLogger(log.New(io.Discard, "", 0)))
	defer s.Close()
	if err := s.Dial(flood(b)); err != nil {
		b.Fatal(err)
	}
	if err := s.SetOption(zmq4.OptionSubscribe, ""); err != nil {
		b.Fatal(err)
	}
	b.SetBytes(200)
	b.ReportAllocs()
	for b.Loop() {
		if m, err := s.Recv(); err != nil || len(m.Frames) != 3 {
			b.Fatal(err)
		}
	}
}

// BenchmarkReader is the cutting alone, without a socket.
func BenchmarkReader(b *testing.B) {
	block := bytes.Repeat(message(benchFrames...), 300)
	at := 0
	f := &frameReader{
		lim: testLimits,
		read: func(p []byte) (int, error) {
			n := copy(p, block[at:])
			at = (at + n) % len(block)
			return n, nil
		},
		command: func([]byte) error { return nil },
	}
	b.SetBytes(200)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := f.next(); err != nil {
			b.Fatal(err)
		}
	}
}
