package freeport

import (
	"net"
	"testing"
)

// Each port is another one, can be listened on, and is not one of the system's.
func TestNext(t *testing.T) {
	seen := map[int]bool{}
	for n := 1; n < 50; n++ {
		first := Next(t, n)
		for port := first; port < first+n; port++ {
			if seen[port] || port < lowest || port >= lowest+number {
				t.Fatalf("port %d, of %d from %d; seen before: %t", port, n, first, seen[port])
			}
			seen[port] = true
		}
	}
	l, err := net.Listen("tcp", Addr(t))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if port := l.Addr().(*net.TCPAddr).Port; closed(port) {
		t.Errorf("port %d counts as free while it is listened on", port)
	}
}
