package integration

import (
	"bufio"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// kvrelay is the built program, running.
type kvrelay struct {
	t       testing.TB
	cmd     *exec.Cmd
	changed signal
	ended   chan struct{}
	want    int // exit code expected at the end of the test; −1: killed

	mu    sync.Mutex
	lines []string // of its log
}

// settings are KVRELAY_ variables without the prefix, and GOMEMLIMIT.
type settings map[string]string

// startKvrelay runs `kvrelay run` with these settings and no others. When the
// test ends it is told to stop, and must have stopped well.
func startKvrelay(t testing.TB, s settings) *kvrelay {
	t.Helper()
	k := &kvrelay{t: t, cmd: exec.Command(kvrelayBinary), ended: make(chan struct{})}
	all := settings{"WORKER_ID": "42", "ADMIN_ADDR": "off", "LOG_FORMAT": "json", "HEARTBEAT": "500ms", "REPLAY_IDLE": "300ms", "PEER_TIMEOUT": "5s"}
	maps.Copy(all, s)
	k.cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"), "GORACE=halt_on_error=1 atexit_sleep_ms=0"}
	for name, value := range all {
		if name != "GOMEMLIMIT" { // Go's own
			name = "KVRELAY_" + name
		}
		k.cmd.Env = append(k.cmd.Env, name+"="+value)
	}
	stderr, err := k.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	k.cmd.Stdout = os.Stderr
	if err := k.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(k.ended)
		for sc := bufio.NewScanner(stderr); sc.Scan(); {
			k.mu.Lock()
			k.lines = append(k.lines, sc.Text())
			k.mu.Unlock()
			k.changed.fire()
		}
		_ = k.cmd.Wait() // the state tells how
		k.changed.fire()
	}()
	t.Cleanup(func() {
		if code := k.stop(); code != k.want && !t.Failed() {
			t.Errorf("kvrelay ended with %d, want %d", code, k.want)
		}
		if t.Failed() {
			t.Logf("kvrelay's log:\n%s", strings.Join(k.log(), "\n"))
		}
	})
	return k
}

func (k *kvrelay) log() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.lines)
}

// matching are the log lines that hold all of these texts.
func (k *kvrelay) matching(texts ...string) []string {
	var out []string
	for _, l := range k.log() {
		if !slices.ContainsFunc(texts, func(x string) bool { return !strings.Contains(l, x) }) {
			out = append(out, l)
		}
	}
	return out
}

// says waits for a log line with all of these texts.
func (k *kvrelay) says(texts ...string) string {
	k.t.Helper()
	waitFor(k.t, &k.changed, "kvrelay says "+strings.Join(texts, " … "), func() bool { return len(k.matching(texts...)) > 0 })
	return k.matching(texts...)[0]
}

// exit waits for the program to end and returns its exit code.
func (k *kvrelay) exit() int {
	k.t.Helper()
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	select {
	case <-k.ended:
	case <-timeout.C:
		_ = k.cmd.Process.Kill()
		<-k.ended
		k.t.Errorf("kvrelay did not end; its log:\n%s", strings.Join(k.log(), "\n"))
	}
	return k.cmd.ProcessState.ExitCode()
}

// stop asks the program to end, unless it has, and returns its exit code.
func (k *kvrelay) stop() int {
	k.t.Helper()
	_ = k.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	return k.exit()
}

// kill ends the program as a crash does.
func (k *kvrelay) kill() {
	k.want = -1
	_ = k.cmd.Process.Kill()
	<-k.ended
}

// rss is the largest resident set the program has had, in bytes; 0 where the
// system does not tell.
func (k *kvrelay) rss() int { return int(peakOf(k.cmd.Process.Pid)) }

// peakOf is the largest resident set that a process has had, in bytes; 0 where
// it has ended or the system does not tell.
func peakOf(pid int) int64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	var kb int64
	if _, after, ok := strings.Cut(string(b), "VmHWM:"); ok {
		_, _ = fmt.Sscan(after, &kb) // 0 where it is no number
	}
	return kb << 10
}
