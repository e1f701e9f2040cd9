package integration

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/kvrelay/kvrelay/consumer"
	"github.com/kvrelay/kvrelay/internal/freeport"
	"github.com/kvrelay/kvrelay/internal/mockengine"
)

// TestKillTheProgram: `kill -9` of the built program under SINK=jetstream. The
// stream holds each event once, in order, without a second cleared, and the
// reference consumer ends with the engine's cache.
func TestKillTheProgram(t *testing.T) {
	engine, err := mockengine.Start(mockengine.Options{BlockSize: 4, Blocks: 200, BufferSteps: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: freeport.Next(t, 1), NoSigs: true, NoLog: true, JetStream: true, StoreDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	defer func() { s.Shutdown(); s.WaitForShutdown() }()
	if !s.ReadyForConnections(20 * time.Second) {
		t.Fatal("nats-server is not ready")
	}
	n := 0
	work := func(k int) {
		t.Helper()
		for range k {
			n++
			tokens := make([]uint32, 12)
			for j := range tokens {
				tokens[j] = uint32(1000*(n%150) + j)
			}
			if _, err := engine.Prompt(tokens, mockengine.PromptOptions{}); err != nil {
				t.Fatal(err)
			}
			engine.Step()
		}
	}
	set := settings{
		"ENDPOINTS": engine.Rank(0).Endpoint(), "REPLAY_ENDPOINTS": engine.Rank(0).ReplayEndpoint(), "BLOCK_SIZE": "4",
		"NATS_URL": s.ClientURL(), "SINK": "jetstream",
	}
	r := rand.New(rand.NewPCG(1, 1))
	for i := range 4 {
		k := startKvrelay(t, set)
		d := 1450 + r.IntN(300) // about when it owns its rank
		if i%2 == 0 {
			k.says("live: the first replay has ended")
			d = r.IntN(60)
		}
		work(10 + r.IntN(30))
		timer := time.NewTimer(time.Duration(d) * time.Millisecond)
		<-timer.C
		k.kill()
		work(r.IntN(5))
	}
	startKvrelay(t, set)
	truth := func(held map[uint64]bool) bool {
		want := engine.Rank(0).Truth()
		for h := range want {
			if !held[h] {
				return false
			}
		}
		return len(want) == len(held)
	}
	var fault error
	if !eventually(patience, func() bool {
		held, err := heldInStream(t.Context(), s.ClientURL())
		fault = err
		return err == nil && truth(held)
	}) {
		t.Errorf("the stream does not end with the engine's cache: %v", fault)
	}
}

// heldInStream folds a stream; its error says where ids are broken or a second cleared stands.
func heldInStream(ctx context.Context, url string) (map[uint64]bool, error) {
	nc, err := nats.Connect(url)
	if err != nil {
		return nil, err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, err
	}
	s, err := js.Stream(ctx, "KVRELAY")
	if err != nil {
		return nil, err
	}
	held := map[uint64]bool{}
	last := uint64(0)
	for seq := uint64(1); seq <= s.CachedInfo().State.LastSeq; seq++ {
		m, err := s.GetMsg(ctx, seq)
		if err != nil {
			return nil, err
		}
		msg, err := consumer.ParseMessage(m.Subject, m.Header, m.Data)
		if err != nil {
			return nil, err
		}
		for _, e := range msg.Events {
			if last++; e.ID != last {
				return nil, fmt.Errorf("message %d: event %d where %d was expected", seq, e.ID, last)
			}
			switch {
			case e.Kind == consumer.Cleared && e.ID > 1:
				return nil, errors.New("a second cleared")
			case e.Kind == consumer.Stored:
				for _, b := range e.Blocks {
					held[b.Hash] = true
				}
			}
			for _, h := range e.Hashes {
				delete(held, h)
			}
		}
	}
	return held, nil
}
