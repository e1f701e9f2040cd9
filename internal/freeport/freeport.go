// Package freeport finds ports of 127.0.0.1 for the servers of tests that come later
// than their clients, or again.
//
// A port that the system chose (":0") and that was closed may be anybody's next: the
// system gives it to the next one who asks, and to outgoing connections, even to one
// that is made to that very port, which is then connected with itself.
package freeport

import (
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
)

// Those that systems give to connections begin at 32768 (Linux) or above.
const (
	lowest = 11000
	number = 20000
)

var (
	mu    sync.Mutex
	given = map[int]bool{} // in this process
)

// Next returns the first of n neighbouring ports that nobody listens on and that were
// not returned before. It fails the test where it finds none.
func Next(t testing.TB, n int) int {
	t.Helper()
	mu.Lock()
	defer mu.Unlock()
	for range 1000 {
		first := lowest + rand.IntN(number-n)
		free := 0
		for free < n && !given[first+free] && closed(first+free) {
			free++
		}
		if free == n {
			for i := range n {
				given[first+i] = true
			}
			return first
		}
	}
	t.Fatalf("no %d free ports from %d to %d", n, lowest, lowest+number)
	return 0
}

// Addr is the address of one such port.
func Addr(t testing.TB) string {
	t.Helper()
	return fmt.Sprintf("127.0.0.1:%d", Next(t, 1))
}

func closed(port int) bool {
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return false
	}
	return l.Close() == nil
}
