//go:build integration

package integration

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync/atomic"

	"github.com/kvrelay/kvrelay/consumer"
	"github.com/kvrelay/kvrelay/internal/freeport"
)

// soakMock is `kvrelay mock` with two ranks and random faults of its own, which
// is killed and started again at the same addresses; and the way to its
// discovery, on which somebody may lie.
type soakMock struct {
	s    *soak
	args []string
	m    *mock // nil: killed
	asks *httptest.Server
	lie  atomic.Pointer[http.HandlerFunc]
}

const soakMockFaults = "drop=0.2,silent=0.2,burn=0.03,garbage=0.02,truncate=300"

func (s *soak) newMock() *soakMock {
	e := &soakMock{s: s}
	ports := freeport.Next(s.t, 5)
	e.args = []string{
		fmt.Sprintf("--http=127.0.0.1:%d", ports), "--grpc=127.0.0.1:0", "--data-parallel-size=2", "--blocks=60",
		fmt.Sprintf("--event-port=%d", ports+1), fmt.Sprintf("--replay-port=%d", ports+3),
		"--fault=" + soakMockFaults, fmt.Sprintf("--seed=%d", s.seed),
	}
	way := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: fmt.Sprintf("127.0.0.1:%d", ports)})
	way.ErrorHandler = func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) }
	e.asks = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if lie := e.lie.Load(); lie != nil {
			(*lie)(w, r)
			return
		}
		way.ServeHTTP(w, r)
	}))
	s.t.Cleanup(e.asks.Close)
	e.start()
	return e
}

func (e *soakMock) start() { e.m = startMock(e.s.t, e.args...) }

func (e *soakMock) kill() {
	e.m.kill()
	e.m = nil
}

// publish has it compute n prompts.
func (e *soakMock) publish(r *rand.Rand, n int) {
	if e.m == nil {
		return
	}
	for range n {
		e.m.complete(promptOf(r.IntN(40), (1+r.IntN(5))*mockBlock))
	}
}

// differs compares the consumer's picture with what it holds.
func (e *soakMock) differs() string {
	for rank, want := range e.m.truth() {
		got := hashes(e.s.jet.picture, consumer.Rank{Worker: 43, DP: rank}, consumer.Device)
		if !maps.Equal(want, got) {
			return held{consumer.Device: want}.diff(held{consumer.Device: got}, nil)
		}
	}
	return ""
}

// sweep empties its cache: where history was declared lost, what a router
// lacks is not to be told from what it must have.
func (e *soakMock) sweep() { e.m.request("POST", "/reset_prefix_cache", "", nil) }

// lies is one of the answers of TestHostileDiscovery.
func (e *soakMock) lies(r *rand.Rand) (name string) {
	rows := answerRows()
	row := rows[r.IntN(len(rows))]
	e.lie.Store(&row.answer)
	return row.name
}
