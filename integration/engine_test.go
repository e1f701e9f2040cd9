//go:build integration

package integration

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/kvrelay/kvrelay/internal/capture"
)

// engineConfig is what py/peer.py is started with; see there.
type engineConfig struct {
	Pub         string `json:"pub"`
	Router      string `json:"router"` // "": no replay endpoint
	Shape       string `json:"shape"`
	Topic       string `json:"topic"`
	BufferSteps int    `json:"buffer_steps"`
	RouterHWM   int    `json:"router_hwm"`
	Socket      string `json:"socket"`
	HeartbeatMS int    `json:"heartbeat_ms,omitempty"`
}

// configFor is the publisher of the engine that a capture came from: its reply
// shape and its ROUTER's high-water mark.
func configFor(m *capture.Meta) engineConfig {
	c := engineConfig{Pub: "tcp://127.0.0.1:*", Router: "tcp://127.0.0.1:*", Shape: "3", Topic: m.Topic, BufferSteps: 10000, RouterHWM: 1000, Socket: "PUB"}
	var major, minor, patch int
	_, _ = fmt.Sscanf(m.Version, "%d.%d.%d", &major, &minor, &patch) // what is missing is 0
	switch {
	case m.Engine == "vllm" && minor >= 26, m.Engine == "sglang" && (minor > 5 || minor == 5 && patch >= 22):
		c.Shape = "4"
	}
	if m.Engine == "vllm" && minor >= 33 {
		c.RouterHWM = 2 * (c.BufferSteps + 1)
	}
	return c
}

// engine is a publisher of real libzmq in a process of its own.
type engine struct {
	t           testing.TB
	cmd         *exec.Cmd
	in          *json.Encoder
	answers     chan engineAnswer // closed when the process has ended
	Pub, Router string            // bound endpoints
}

type engineAnswer struct {
	Pub, Router string
	Error       string
	Messages    int
	There       bool
	Requests    []uint64
	Replays     int
	Published   int
}

func startEngine(t testing.TB, c engineConfig) *engine {
	t.Helper()
	python := filepath.Join("..", ".venv", "bin", "python")
	if _, err := os.Stat(python); err != nil {
		t.Fatalf("real libzmq is missing, run `make venv`: %v", err)
	}
	arg, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	e := &engine{t: t, cmd: exec.Command(python, filepath.Join("py", "peer.py"), string(arg)), answers: make(chan engineAnswer, 1)}
	e.cmd.Stderr = os.Stderr
	stdin, err := e.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	e.in = json.NewEncoder(stdin)
	stdout, err := e.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := e.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(e.answers)
		for sc := bufio.NewScanner(stdout); sc.Scan(); {
			var a engineAnswer
			if err := json.Unmarshal(sc.Bytes(), &a); err != nil {
				a.Error = err.Error()
			}
			e.answers <- a
		}
	}()
	t.Cleanup(e.kill)
	hello := e.answer()
	e.Pub, e.Router = hello.Pub, hello.Router
	return e
}

// kill ends the process at once, as a crash does.
func (e *engine) kill() {
	if e.cmd.ProcessState != nil {
		return
	}
	_ = e.cmd.Process.Kill() // it may have ended by itself
	for range e.answers {
	}
	_ = e.cmd.Wait() // "killed"
}

// stop freezes the process, kernel sockets and all; cont lets it go on.
func (e *engine) stop() { e.signal(syscall.SIGSTOP) }
func (e *engine) cont() { e.signal(syscall.SIGCONT) }

func (e *engine) signal(s syscall.Signal) {
	e.t.Helper()
	if err := e.cmd.Process.Signal(s); err != nil {
		e.t.Fatal(err)
	}
}

func (e *engine) answer() engineAnswer {
	e.t.Helper()
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	select {
	case a, ok := <-e.answers:
		if !ok {
			e.t.Fatal("the engine's process ended")
		}
		if a.Error != "" {
			e.t.Fatalf("the engine: %s", a.Error)
		}
		return a
	case <-timeout.C:
		e.t.Fatal("the engine does not answer")
	}
	return engineAnswer{}
}

// do carries out a command of py/peer.py.
func (e *engine) do(op string, args map[string]any) engineAnswer {
	e.t.Helper()
	all := map[string]any{"op": op}
	for k, v := range args {
		all[k] = v
	}
	if err := e.in.Encode(all); err != nil {
		e.t.Fatalf("telling the engine to %s: %v", op, err)
	}
	return e.answer()
}

func (e *engine) load(path string) int { return e.do("load", map[string]any{"path": path}).Messages }

// publish sends messages [from, to) of the loaded capture; those in withheld
// go to the replay buffer only.
func (e *engine) publish(from, to int, withheld []int) {
	e.t.Helper()
	e.do("publish", map[string]any{"from": from, "to": to, "withhold": withheld})
}

// send publishes one batch of the test's own.
func (e *engine) send(seq uint64, payload []byte) {
	e.t.Helper()
	e.do("send", map[string]any{"seq": seq, "payload": payload})
}

func (e *engine) subscriber() {
	e.t.Helper()
	if !e.do("subscriber", map[string]any{"ms": patience.Milliseconds()}).There {
		e.t.Fatal("nobody subscribed")
	}
}
