//go:build integration && dynamo

package integration

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvrelay/kvrelay/internal/mockengine"
	"github.com/kvrelay/kvrelay/internal/msgpack"
)

const dynamoBlock = 4 // tokens

// dynamoPython runs a script of py in the environment of Dynamo, with records in
// root: a folder, or the URL of an etcd.
func dynamoPython(t testing.TB, script, root, nats string, args ...string) *dynamoProcess {
	t.Helper()
	python := filepath.Join("..", ".venv-dynamo", "bin", "python")
	if _, err := os.Stat(python); err != nil {
		t.Fatalf("Dynamo is missing, run `make test-dynamo`: %v", err)
	}
	p := &dynamoProcess{t: t, cmd: exec.Command(python, append([]string{filepath.Join("py", script)}, args...)...)}
	p.cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"), "DYN_LOG=warn", "NATS_SERVER=" + nats, "DYN_EVENT_PLANE=nats",
	}
	if strings.HasPrefix(root, "http://") {
		p.cmd.Env = append(p.cmd.Env, "DYN_DISCOVERY_BACKEND=etcd", "ETCD_ENDPOINTS="+root)
	} else {
		p.cmd.Env = append(p.cmd.Env, "DYN_DISCOVERY_BACKEND=file", "DYN_FILE_KV="+root)
	}
	var errs strings.Builder
	p.cmd.Stderr = &errs
	stdin, err := p.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p.in, p.lines = stdin, make(chan string)
	go func() {
		defer close(p.lines)
		for sc := bufio.NewScanner(stdout); sc.Scan(); {
			p.lines <- sc.Text()
		}
	}()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("%s said:\n%s", script, errs.String())
		}
	})
	return p
}

// dynamoProcess is a script that runs.
type dynamoProcess struct {
	t     testing.TB
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines chan string
}

func (p *dynamoProcess) kill() {
	if p.cmd.ProcessState != nil {
		return
	}
	_ = p.cmd.Process.Kill() // it may have ended
	for range p.lines {
	}
	_ = p.cmd.Wait() // killed
}

func (p *dynamoProcess) line() string {
	p.t.Helper()
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	select {
	case l, ok := <-p.lines:
		if !ok {
			p.t.Fatal("the Dynamo process has ended")
		}
		return l
	case <-timeout.C:
		p.t.Fatal("the Dynamo process does not answer")
	}
	return ""
}

// dynamoRouter is a stock KvRouter.
type dynamoRouter struct{ *dynamoProcess }

func (w *dynamoWorld) router(nats string) dynamoRouter {
	w.t.Helper()
	r := dynamoRouter{dynamoPython(w.t, "dynamo_router.py", w.root, nats, w.path, fmt.Sprint(dynamoBlock), w.plane)}
	r.line()
	return r
}

// prompt is what a router is asked for.
type prompt struct {
	Tokens []uint32 `json:"tokens"`
	Lora   *string  `json:"lora"`
	Salt   *string  `json:"salt"`
}

// overlap is how many blocks of a prompt the router sees at a worker's rank;
// −1 when it does not know the rank.
func (r dynamoRouter) overlap(p prompt, worker uint64, rank uint32) int {
	r.t.Helper()
	if err := json.NewEncoder(r.in).Encode(p); err != nil {
		r.t.Fatal(err)
	}
	var a struct {
		Overlap [][3]uint64
		Error   string
	}
	if text := r.line(); json.Unmarshal([]byte(text), &a) != nil || a.Error != "" {
		r.t.Fatalf("the router says %s", text)
	}
	for _, o := range a.Overlap {
		if o[0] == worker && o[1] == uint64(rank) {
			return int(o[2])
		}
	}
	return -1
}

// sees waits until the router reports so many blocks.
func (r dynamoRouter) sees(what string, p prompt, worker uint64, rank uint32, blocks int) {
	r.t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	got := 0
	for end := time.Now().Add(patience); time.Now().Before(end); <-tick.C {
		if got = r.overlap(p, worker, rank); got == blocks {
			return
		}
	}
	r.t.Fatalf("%s: the router sees %d blocks at rank %d, want %d", what, got, rank, blocks)
}

// dynamoWorld is an engine of two ranks, and NATS, for a kvrelay and routers.
type dynamoWorld struct {
	t     *testing.T
	root  string // of the records: a folder, or the URL of an etcd
	plane string // DYN_REQUEST_PLANE
	path  string // of the endpoint
	nats  string
	ranks []*mockengine.Publisher
	set   settings
}

func newDynamoWorld(t *testing.T, ranks int) *dynamoWorld {
	t.Helper()
	w := &dynamoWorld{t: t, root: t.TempDir(), plane: "tcp", path: "dynamo.backend.generate", nats: natsServer(t, -1).ClientURL()}
	var live, replay []string
	for rank := range ranks {
		p := mockengine.NewPublisher(mockengine.PublisherOptions{
			Rank: rank, Replay: mockengine.Reply4, BufferSteps: 1000, HWM: 1000, ReplayHWM: 1000, EventAddr: "127.0.0.1:0", ReplayAddr: "127.0.0.1:0",
		})
		if err := p.Listen(); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- p.Run(ctx) }()
		t.Cleanup(func() { cancel(); <-done })
		w.ranks = append(w.ranks, p)
		live = append(live, fmt.Sprintf("tcp://127.0.0.1:%d", p.EventPort()))
		replay = append(replay, fmt.Sprintf("tcp://127.0.0.1:%d", p.ReplayPort()))
	}
	w.set = settings{
		"NATS_URL": w.nats, "ENDPOINTS": strings.Join(live, ","), "REPLAY_ENDPOINTS": strings.Join(replay, ","), "BLOCK_SIZE": fmt.Sprint(dynamoBlock),
		"MEMBERSHIP": "file", "MEMBERSHIP_PATH": w.root, "REGISTER_WORKER": "true", "RECOVERY_ADDR": "127.0.0.1:0",
	}
	return w
}

// batch is one engine batch, as vLLM's map encoding has it.
func batch(rank uint32, events ...[]byte) []byte {
	b := msgpack.AppendArrayHeader(nil, 3)
	b = msgpack.AppendFloat(b, float64(time.Now().UnixMilli())/1000)
	b = msgpack.AppendArrayHeader(b, len(events))
	for _, e := range events {
		b = append(b, e...)
	}
	return msgpack.AppendUint(b, uint64(rank))
}

// hashesOf are a prompt's block hashes at the engine; of their own for each adapter and salt.
func hashesOf(p prompt) []uint64 {
	hashes := mockengine.BlockHashes(p.Tokens, dynamoBlock)
	for i := range hashes {
		if p.Lora != nil {
			hashes[i] ^= 1 << 60
		}
		if p.Salt != nil {
			hashes[i] ^= 1 << 61
		}
	}
	return hashes
}

func (w *dynamoWorld) store(rank int, p prompt) {
	b := msgpack.AppendMapHeader(nil, 7)
	b = msgpack.AppendStr(msgpack.AppendStr(b, "type"), "BlockStored")
	b = msgpack.AppendStr(b, "block_hashes")
	hashes := hashesOf(p)
	b = msgpack.AppendArrayHeader(b, len(hashes))
	for _, h := range hashes {
		b = msgpack.AppendUint(b, h)
	}
	b = msgpack.AppendNil(msgpack.AppendStr(b, "parent_block_hash"))
	b = msgpack.AppendArrayHeader(msgpack.AppendStr(b, "token_ids"), len(p.Tokens))
	for _, tok := range p.Tokens {
		b = msgpack.AppendUint(b, uint64(tok))
	}
	b = msgpack.AppendUint(msgpack.AppendStr(b, "block_size"), dynamoBlock)
	text := func(key string, s *string) {
		if b = msgpack.AppendStr(b, key); s == nil {
			b = msgpack.AppendNil(b)
		} else {
			b = msgpack.AppendStr(b, *s)
		}
	}
	text("lora_name", p.Lora)
	text("cache_salt", p.Salt)
	w.ranks[rank].Publish(batch(uint32(rank), b))
}

func (w *dynamoWorld) evict(rank int, p prompt) {
	b := msgpack.AppendMapHeader(nil, 2)
	b = msgpack.AppendStr(msgpack.AppendStr(b, "type"), "BlockRemoved")
	hashes := hashesOf(p)
	b = msgpack.AppendArrayHeader(msgpack.AppendStr(b, "block_hashes"), len(hashes))
	for _, h := range hashes {
		b = msgpack.AppendUint(b, h)
	}
	w.ranks[rank].Publish(batch(uint32(rank), b))
}

func (w *dynamoWorld) clear(rank int) {
	b := msgpack.AppendMapHeader(nil, 1)
	b = msgpack.AppendStr(msgpack.AppendStr(b, "type"), "AllBlocksCleared")
	w.ranks[rank].Publish(batch(uint32(rank), b))
}

// cable is a TCP connection's way to NATS that can be cut.
type cable struct {
	ln     net.Listener
	target string
	wg     sync.WaitGroup

	mu    sync.Mutex
	cut   bool
	conns []net.Conn
}

func newCable(t testing.TB, url string) *cable {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cable{ln: ln, target: strings.TrimPrefix(url, "nats://")}
	c.wg.Go(c.accept)
	t.Cleanup(func() { ln.Close(); c.set(true); c.wg.Wait() })
	return c
}

func (c *cable) url() string { return "nats://" + c.ln.Addr().String() }

func (c *cable) accept() {
	for {
		in, err := c.ln.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", c.target)
		c.mu.Lock()
		if err != nil || c.cut {
			in.Close()
			if err == nil {
				out.Close()
			}
			c.mu.Unlock()
			continue
		}
		c.conns = append(c.conns, in, out)
		c.mu.Unlock()
		pipe := func(a, b net.Conn) {
			_, _ = io.Copy(a, b) // ends with either
			a.Close()
			b.Close()
		}
		c.wg.Go(func() { pipe(in, out) })
		c.wg.Go(func() { pipe(out, in) })
	}
}

// set cuts the connections and refuses further ones, or lets them in again.
func (c *cable) set(cut bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cut = cut
	for _, x := range c.conns {
		x.Close()
	}
	c.conns = nil
}
