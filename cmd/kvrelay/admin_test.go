package main

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// shownRelay is `kvrelay run`, waiting for an engine that is not there.
type shownRelay struct {
	t     *testing.T
	lines chan map[string]any
	stop  context.CancelFunc
	ended chan int
}

func startShown(t *testing.T, args ...string) *shownRelay {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	logR, logW := io.Pipe()
	r := &shownRelay{t: t, lines: make(chan map[string]any, 64), stop: stop, ended: make(chan int, 1)}
	go func() {
		defer logW.Close()
		r.ended <- runRun(ctx, append([]string{"--endpoints=tcp://127.0.0.1:1", "--sink=stdout", "--log-format=json"}, args...), nil, io.Discard, logW)
	}()
	go func() {
		defer close(r.lines)
		for dec := json.NewDecoder(logR); ; {
			var line map[string]any
			if dec.Decode(&line) != nil {
				return
			}
			r.lines <- line
		}
	}()
	return r
}

// says waits for a log line with this text.
func (r *shownRelay) says(text string) map[string]any {
	r.t.Helper()
	for line := range r.lines {
		if msg, _ := line["msg"].(string); strings.Contains(msg, text) {
			return line
		}
	}
	r.t.Fatalf("it ended with %d and never said %q", <-r.ended, text)
	return nil
}

// end stops it, or waits for its own end, and returns the exit code.
func (r *shownRelay) end() int {
	r.t.Helper()
	r.stop()
	for range r.lines {
	}
	return <-r.ended
}

func fetch(t *testing.T, url string) (code int, body string) {
	t.Helper()
	defer http.DefaultClient.CloseIdleConnections()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

func TestRunIsShown(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	dir, err := os.MkdirTemp("", "notify")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(dir, "s"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	t.Setenv("NOTIFY_SOCKET", filepath.Join(dir, "s"))
	heard := func(want string) {
		t.Helper()
		for b := make([]byte, 4096); ; {
			if err := socket.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
				t.Fatal(err)
			}
			n, err := socket.Read(b)
			if err != nil {
				t.Fatalf("the service manager did not hear %s: %v", want, err)
			}
			if strings.HasPrefix(string(b[:n]), "STATUS=not started") {
				t.Errorf("a false alarm: %s", b[:n])
			}
			if string(b[:n]) == want {
				return
			}
		}
	}

	r := startShown(t, "--admin-addr=127.0.0.1:0", "--sink=nats", "--nats-url=nats://u:hunter2@127.0.0.1:1", "--worker-id=12")
	url, _ := r.says("status page")["url"].(string)
	heard("READY=1")
	heard("STATUS=0 of 1 rank live, NATS not connected")
	for path, want := range map[string]struct {
		code int
		text string
	}{
		"/healthz": {200, "ok"}, "/readyz": {503, "rank 0: not connected to the engine"},
		"/metrics": {200, `kvrelay_rank_state{rank="0",state="waiting"} 1`}, "/status": {200, `"worker_id":"12"`}, "/": {200, "<title>kvrelay</title>"},
	} {
		code, body := fetch(t, url+path)
		if code != want.code || !strings.Contains(body, want.text) {
			t.Errorf("%s: %d %.300s, want %d and %q", path, code, body, want.code, want.text)
		}
		if strings.Contains(body, "hunter2") {
			t.Errorf("%s shows a secret", path)
		}
	}
	if code := r.end(); code != exitUnconfirmed { // its first cleared reached nobody
		t.Errorf("code %d", code)
	}
	heard("STOPPING=1")
}

// Two relays on one host: the second says that the address is taken. One that
// was asked for is an error; the default gives way.
func TestTakenAdminAddress(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	ln, err := net.Listen("tcp", "127.0.0.1:9558")
	if err == nil {
		defer ln.Close() // else another kvrelay has it, which is as good
	}
	r := startShown(t, "--admin-addr=127.0.0.1:9558")
	if line := r.says("ended"); !strings.Contains(line["err"].(string), "KVRELAY_ADMIN_ADDR=127.0.0.1:9558 is taken") {
		t.Errorf("said %v", line)
	}
	if code := r.end(); code != exitFailed {
		t.Errorf("code %d", code)
	}
	r = startShown(t)
	line := r.says("is taken")
	if code, _ := fetch(t, line["url"].(string)+"/healthz"); code != 200 {
		t.Errorf("beside it: %d", code)
	}
	if code := r.end(); code != exitOK {
		t.Errorf("code %d", code)
	}
}
