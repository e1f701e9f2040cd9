package integration

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/kvrelay/kvrelay/internal/freeport"
	"github.com/kvrelay/kvrelay/internal/msgpack"
)

// An engine that makes up ranks gets the 16 that one source may have, each with
// a ring of RECENT_BYTES that it fills; further ones are counted. The program then
// takes what docs/capacity.md's formula says of 16 ranks, and no more.
func TestHostileInventedRanks(t *testing.T) {
	t.Parallel()
	const (
		mib    = 1 << 20
		named  = 40 // ranks
		taken  = 16
		rounds = 40
		blocks = 1000
	)
	live, replay := newFront(t, "127.0.0.1:9"), newFront(t, "127.0.0.1:9")
	live.turn(func(v *villain) { v.shake("PUB"); v.listen() })
	replay.turn(history(inventedRanks(named, rounds, blocks)))
	admin := freeport.Addr(t)
	formula := 32*mib + 8*mib + 8*mib + taken*2*mib + taken*blocks*60
	limit := formula + formula/4
	k := startKvrelay(t, settings{
		"NATS_URL": natsServer(t, -1).ClientURL(), "ENDPOINTS": live.endpoint(), "REPLAY_ENDPOINTS": replay.endpoint(), "BLOCK_SIZE": "4",
		"HOLD_BYTES": "8MiB", "OUT_BYTES": "8MiB", "RECENT_BYTES": "2MiB", "RECENT_EVENTS": "1000000", "ADMIN_ADDR": admin,
		"GOMEMLIMIT": fmt.Sprint(limit * 9 / 10),
	})
	metrics := func() string {
		client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
		resp, err := client.Get("http://" + admin + "/metrics")
		if err != nil {
			return ""
		}
		defer resp.Body.Close()
		text, _ := io.ReadAll(resp.Body) // as much as there is
		return string(text)
	}
	refused := fmt.Sprintf("kvrelay_batches_of_refused_ranks_total{rank=\"0\"} %d\n", (named-taken)*rounds*2)
	if !eventually(patience, func() bool { return strings.Contains(metrics(), refused) }) {
		t.Fatalf("never %s in /metrics:\n%s", refused, metrics())
	}
	if !eventually(patience, func() bool { return strings.Contains(metrics(), "\nkvrelay_unconfirmed_events 0\n") }) {
		t.Fatal("events stay unconfirmed")
	}
	rss := k.rss()
	t.Logf("%d ranks with full rings: %d MiB; the formula says %d, with a quarter %d", taken, rss/mib, formula/mib, limit/mib)
	if rss > limit && !raceEnabled {
		t.Errorf("%d MiB are more than the formula and a quarter, %d MiB", rss/mib, limit/mib)
	}
}

// inventedRanks are batches of so many ranks: each stores blocks and removes
// them again, round after round.
func inventedRanks(ranks, rounds, blocks int) (payloads [][]byte) {
	for round := range rounds {
		for r := range ranks {
			hashes := series(blocks, func(i int) any { return 1<<40 + round*blocks + i })
			tokens := make([]byte, 0, 5*4*blocks)
			for i := range 4 * blocks {
				tokens = msgpack.AppendUint(tokens, uint64(70_000+4*blocks*round+i))
			}
			all := append(msgpack.AppendArrayHeader(nil, 4*blocks), tokens...)
			payloads = append(payloads,
				pack(nil, list{1.79e9, list{event("BlockStored", hashes, nil, packed(all), 4)}, r}),
				pack(nil, list{1.79e9, list{event("BlockRemoved", hashes)}, r}))
		}
	}
	return payloads
}
