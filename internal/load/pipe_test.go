package load

import (
	"net"
	"testing"
)

// pipe is a pair of connected TCP sockets.
func pipe(t *testing.T) (a, b net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if b, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if a, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	return a, b
}

func BenchmarkAppend(b *testing.B) {
	g, err := NewGenerator(Shape{Blocks: 64, BlockSize: 16, Keep: 6400})
	if err != nil {
		b.Fatal(err)
	}
	var payload []byte
	b.ReportAllocs()
	b.SetBytes(int64(g.Size()))
	for seq := uint64(0); b.Loop(); seq++ {
		payload = g.Append(payload[:0], seq)
	}
}
