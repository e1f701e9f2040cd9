//go:build integration

package integration

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/kvrelay/kvrelay/consumer"
	"github.com/kvrelay/kvrelay/internal/freeport"
	"github.com/kvrelay/kvrelay/internal/mockengine"
)

// soakRelay is the built program with settings of its own, and a consumer that
// follows it from its first event on.
type soakRelay struct {
	s       *soak
	name    string
	ranks   uint32 // that its engine has
	set     settings
	nats    *mockengine.Proxy // the way to it
	limit   int64             // of its resident set, bytes
	k       *kvrelay          // nil while it is down
	starts  int
	logged  int // lines of those that have ended
	stopped bool
	losses  int // declared by those that have ended

	picture  *consumer.Picture
	consumer *consumer.Consumer

	mu     sync.Mutex
	last   map[consumer.Rank]uint64
	broken []string

	base   sample // at rest, before any trouble
	before sample // of the round before
	peak   int    // largest resident set of all of its processes, bytes
}

// sample is what a relay's /metrics says of itself.
type sample struct {
	goroutines, fds, rss, series, cpu float64
	pid                               int
	when                              time.Time
}

func (s *soak) newRelay(name string, worker uint64, set settings, jetstream string, ranks uint32, formula int64) *soakRelay {
	x := &soakRelay{s: s, name: name, ranks: ranks, set: set, picture: consumer.NewPicture(), last: map[consumer.Rank]uint64{}}
	x.limit = formula + formula/4
	x.nats = startProxy(s.t, s.server.addr())
	set["NATS_URL"] = "nats://" + x.nats.Addr()
	set["ADMIN_ADDR"] = freeport.Addr(s.t)
	set["WORKER_ID"] = fmt.Sprint(worker)
	set["GOMEMLIMIT"] = fmt.Sprint(x.limit * 9 / 10)
	nc, err := nats.Connect("nats://"+s.server.addr(), nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond), nats.Timeout(patience),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {})) // silent about outages
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(nc.Close)
	x.consumer, err = consumer.New(consumer.Options{Conn: nc, JetStream: jetstream, Worker: worker, OnEvent: x.take, Forget: 24 * time.Hour})
	if err != nil {
		s.t.Fatal(err)
	}
	background(s.t, func(ctx context.Context) error { return x.consumer.Run(ctx) })
	return x
}

// take folds an event, and holds the consumer to its order: each id follows
// the one before, except that a `cleared` needs nothing before it.
func (x *soakRelay) take(e *consumer.Event) {
	x.picture.Apply(e)
	x.mu.Lock()
	defer x.mu.Unlock()
	last := x.last[e.Rank]
	x.last[e.Rank] = e.ID
	if e.ID == 0 || last == 0 || e.ID == last+1 || e.Kind == consumer.Cleared && (e.ID > last || e.ID == 1) {
		return
	}
	x.broken = append(x.broken, fmt.Sprintf("rank %v: event %d (%v) after %d", e.Rank, e.ID, e.Kind, last))
}

func (x *soakRelay) start() {
	k := startKvrelay(x.s.t, x.set)
	x.k = k
	x.s.t.Cleanup(func() { _ = k.cmd.Process.Signal(syscall.SIGCONT) }) // it may be stopped, and have to end
	x.starts++
}

// gone is to be called where a process has ended.
func (x *soakRelay) gone() {
	x.logged += len(x.k.log())
	x.losses += x.lossesNow()
	x.peak = max(x.peak, x.k.rss())
	x.k = nil
}

func (x *soakRelay) lossesNow() int {
	if x.k == nil {
		return 0
	}
	n := 0
	for _, l := range x.k.log() {
		if strings.Contains(l, "history") && strings.Contains(l, "lost") || strings.Contains(l, "history before the engine") {
			n++
		}
	}
	return n
}

func (x *soakRelay) kill() {
	x.peak = max(x.peak, x.k.rss())
	x.k.kill()
	x.gone()
}

// lives says why the program has ended where nobody told it to: "" if it has not.
func (x *soakRelay) lives() string {
	if x.k == nil {
		return ""
	}
	select {
	case <-x.k.ended:
		x.k.want = x.k.cmd.ProcessState.ExitCode() // reported here, once
		return fmt.Sprintf("%s ended by itself: %v; its last words:\n%s", x.name, x.k.cmd.ProcessState, strings.Join(lastOf20(x.k.log()), "\n"))
	default:
		return ""
	}
}

func lastOf20(lines []string) []string { return lines[max(0, len(lines)-20):] }

// sample reads /metrics.
func (x *soakRelay) sample() (m sample, err error) {
	client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get("http://" + x.set["ADMIN_ADDR"] + "/metrics")
	if err != nil {
		return m, err
	}
	defer resp.Body.Close()
	for sc := bufio.NewScanner(resp.Body); sc.Scan(); {
		name, value, ok := strings.Cut(sc.Text(), " ")
		if !ok || strings.HasPrefix(name, "#") {
			continue
		}
		m.series++
		into := map[string]*float64{
			"go_goroutines": &m.goroutines, "process_open_fds": &m.fds,
			"process_resident_memory_bytes": &m.rss, "process_cpu_seconds_total": &m.cpu,
		}[name]
		if into == nil {
			continue
		}
		if *into, err = strconv.ParseFloat(value, 64); err != nil {
			return m, fmt.Errorf("/metrics: %s: %w", name, err)
		}
	}
	m.pid, m.when = x.k.cmd.Process.Pid, time.Now()
	if m.goroutines == 0 || m.fds == 0 || m.rss == 0 {
		return m, fmt.Errorf("/metrics of %s lacks its own figures: %+v", x.name, m)
	}
	return m, nil
}

// open lists the descriptors of the program, and what its goroutines do.
func (x *soakRelay) open() string {
	var out []string
	pid := x.k.cmd.Process.Pid
	dir := fmt.Sprintf("/proc/%d/fd/", pid)
	sockets, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/tcp", pid))
	entries, err2 := os.ReadDir(dir)
	if err := errors.Join(err, err2); err != nil {
		return err.Error()
	}
	for _, e := range entries {
		link, err := os.Readlink(dir + e.Name())
		if err != nil {
			continue // closed meanwhile
		}
		if inode, ok := strings.CutPrefix(link, "socket:["); ok {
			for l := range strings.Lines(string(sockets)) {
				if f := strings.Fields(l); len(f) > 9 && f[9] == strings.TrimSuffix(inode, "]") {
					link += fmt.Sprintf(" %s to %s, state %s", f[1], f[2], f[3])
				}
			}
		}
		out = append(out, e.Name()+" "+link)
	}
	client := http.Client{Timeout: 10 * time.Second}
	if resp, err := client.Get("http://" + x.set["ADMIN_ADDR"] + "/debug/pprof/goroutine?debug=1"); err == nil {
		text, _ := io.ReadAll(resp.Body) // as much as there is
		_ = resp.Body.Close()
		out = append(out, string(text))
	}
	return strings.Join(out, "\n")
}

// soakServer is a nats-server in a process of its own.
type soakServer struct {
	t    *testing.T
	set  natsSettings
	cmd  *exec.Cmd
	kill func()
}

func startNATSProcess(t *testing.T) *soakServer {
	t.Helper()
	n := &soakServer{t: t, set: natsSettings{Port: freeport.Next(t, 1), Dir: t.TempDir()}}
	n.start()
	t.Cleanup(func() { n.kill() })
	return n
}

func (n *soakServer) addr() string { return fmt.Sprintf("127.0.0.1:%d", n.set.Port) }

func (n *soakServer) start() {
	n.t.Helper()
	text, err := json.Marshal(n.set)
	if err != nil {
		n.t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(slices.Clone(os.Environ()), natsProcess+"="+string(text))
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	n.cmd = cmd
	n.kill = sync.OnceFunc(func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()         // "killed"
	})
	if !eventually(patience, func() bool {
		nc, err := net.Dial("tcp", n.addr())
		if err == nil {
			_ = nc.Close()
		}
		return err == nil
	}) {
		n.t.Fatal("the nats-server does not start")
	}
}

func (n *soakServer) signal(t *testing.T, sig syscall.Signal) {
	t.Helper()
	if err := n.cmd.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
}
