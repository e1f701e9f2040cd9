//go:build integration

package integration

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/kvrelay/kvrelay/internal/freeport"
	"github.com/kvrelay/kvrelay/internal/mockengine"
)

// silentServer is the address of something that takes connections and says nothing.
func silentServer(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				_, _ = io.Copy(io.Discard, c) // until the other side goes
				c.Close()
			})
		}
	})
	t.Cleanup(func() { ln.Close(); wg.Wait() })
	return ln.Addr().String()
}

// With etcd down or hanging from the start the relay runs and says why nothing
// is published; it ends in time when it is told to, also while NATS is gone.
func TestEtcdAway(t *testing.T) {
	for name, addr := range map[string]string{"down": freeport.Addr(t), "mute": silentServer(t)} {
		for _, gone := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, NATS gone: %v", name, gone), func(t *testing.T) {
				nats := natsServer(t, -1)
				p := mockengine.NewPublisher(mockengine.PublisherOptions{
					Replay: mockengine.Reply4, BufferSteps: 100, HWM: 100, ReplayHWM: 100, EventAddr: "127.0.0.1:0", ReplayAddr: "127.0.0.1:0",
				})
				if err := p.Listen(); err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithCancel(context.Background())
				done := make(chan error, 1)
				go func() { done <- p.Run(ctx) }()
				defer func() { cancel(); <-done }()
				k := startKvrelay(t, settings{
					"NATS_URL": nats.ClientURL(), "ENDPOINTS": fmt.Sprintf("tcp://127.0.0.1:%d", p.EventPort()),
					"REPLAY_ENDPOINTS": fmt.Sprintf("tcp://127.0.0.1:%d", p.ReplayPort()), "BLOCK_SIZE": "16",
					"MEMBERSHIP": "etcd", "ETCD_ENDPOINTS": "http://" + addr, "REGISTER_WORKER": "true", "RECOVERY_ADDR": "127.0.0.1:0",
				})
				p.Publish(testBatch(1, storeOf(100)))
				k.says("Dynamo routers cannot be told of this engine yet", addr, "KVRELAY_ETCD_ENDPOINTS")
				if gone {
					stopNATS(nats)
					k.says("NATS")
				}
				k.want = 4 // what waits for etcd was never confirmed
				began := time.Now()
				code := k.stop()
				if d := time.Since(began); code != k.want || d > 5*time.Second {
					t.Errorf("exit code %d after %s", code, d)
				}
			})
		}
	}
}
