package integration

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvrelay/kvrelay/discovery"
	"github.com/kvrelay/kvrelay/internal/mockengine"
)

// TestHostileDiscovery gives hostile answers where the engine is asked for its
// sources. Whatever is no answer changes nothing; whatever is one, but a lie,
// lasts until the engine answers again.
func TestHostileDiscovery(t *testing.T) {
	inFour(t, answerRows(), askHostile)
}

func askHostile(t *testing.T, rows []answerRow) {
	var hostile atomic.Pointer[http.HandlerFunc]
	var asked atomic.Int64
	var d *discovery.Discoverer
	var server *httptest.Server
	w := newHostileWorld(t, hostileOptions{watch: func(w *hostileWorld) func(context.Context, func([]discovery.Source)) error {
		engine := w.engine.Handler(mockengine.DiscoverVLLM)
		server = httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			if h := hostile.Load(); h != nil {
				asked.Add(1)
				(*h)(rw, r)
				return
			}
			engine.ServeHTTP(rw, r)
		}))
		var err error
		d, err = discovery.New(discovery.Options{Kind: "vllm", URL: server.URL, Token: plantedSecret, Interval: 300 * time.Millisecond, Log: w.log()})
		if err != nil {
			t.Fatal(err)
		}
		return d.Watch
	}})
	t.Cleanup(server.Close)
	w.await(hostileHeal, "two sources", func() bool { return len(w.relay.Status().Sources) == 2 })
	w.settled("at the start")
	m := w.watch()
	lied := false
	for _, row := range rows {
		before := asked.Load()
		hostile.Store(&row.answer)
		w.await(20*time.Second, "question: "+row.name, func() bool { return asked.Load() > before })
		if !row.lies {
			w.prompt(0)
			w.prompt(1)
			w.await(5*time.Second, "life under "+row.name, func() bool { return w.right(0) && w.right(1) })
		}
		hostile.Store(nil)
		w.await(hostileHeal, "the engine's sources after "+row.name, func() bool {
			s := w.relay.Status().Sources
			return len(s) == 2 && s[0].Ready && s[1].Ready
		})
		w.settled("after " + row.name)
		if lied = lied || row.lies; !lied {
			w.undisturbed()
		}
		if t.Failed() {
			t.Fatalf("after the row %q", row.name)
		}
	}
	m.end(t)
	w.discreet()
	if s := fmt.Sprintf("%+v", d.State()); strings.Contains(s, plantedSecret) {
		t.Error("the token is in the state of discovery")
	}
}

type answerRow struct {
	name   string
	answer http.HandlerFunc
	lies   bool // it is an answer: other sources than the engine's
}

func answerRows() []answerRow {
	body := func(parts ...string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			for _, p := range parts {
				if _, err := w.Write([]byte(p)); err != nil {
					return
				}
			}
		}
	}
	endless := func(begin, again string, n int) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			_, _ = w.Write([]byte(begin)) // the relay may have gone
			b := []byte(strings.Repeat(again, 1000))
			for i := 0; i < n && r.Context().Err() == nil; i++ {
				if _, err := w.Write(b); err != nil {
					return
				}
			}
		}
	}
	many := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, `,"%d":{"publisher":"zmq","endpoint":"tcp://127.1.%d.%d:9"}`, i, i>>8&255, i&255)
		}
		return "{" + b.String()[1:] + "}"
	}
	rows := []answerRow{
		{name: "100 MB of spaces", answer: endless("{", "          ", 10_000)},
		{name: "100 MB of sources", answer: endless(`{"sources":[{}`, `,{"rank":1}`, 10_000)},
		{name: "8 MB of brackets", answer: body(strings.Repeat("[", 8<<20))},
		{name: "4 MB of objects", answer: body(strings.Repeat(`{"sources":`, 300_000))},
		{name: "a string without end", answer: endless(`{"sources":"`, "xxxxxxxxxx", 10_000)},
		{name: "no JSON", answer: body(plantedText)},
		{name: "redirect elsewhere", answer: func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("X-Again") == "" {
				http.Redirect(w, r, "http://127.0.0.1:9/steal", http.StatusFound)
			}
		}},
		{name: "redirect in a circle", answer: func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, r.URL.Path, http.StatusFound) }},
		{name: "headers without end", answer: func(w http.ResponseWriter, r *http.Request) {
			for i := range 2000 {
				w.Header().Add(fmt.Sprint("X-", i), strings.Repeat("h", 500))
			}
		}},
		{name: "500 with the token", answer: func(w http.ResponseWriter, r *http.Request) { http.Error(w, r.Header.Get("Authorization"), 500) }},
		{name: "the token as an error", answer: func(w http.ResponseWriter, r *http.Request) {
			_, _ = w.Write([]byte(`{"sources":` + r.Header.Get("Authorization")))
		}},
		{name: "a body that drips", answer: func(w http.ResponseWriter, r *http.Request) {
			tick := time.NewTicker(20 * time.Millisecond)
			defer tick.Stop()
			for r.Context().Err() == nil {
				_, _ = w.Write([]byte(" ")) // until the relay has gone
				_ = http.NewResponseController(w).Flush()
				<-tick.C
			}
		}},
		{name: "hangs up", answer: func(w http.ResponseWriter, _ *http.Request) {
			if nc, _, err := http.NewResponseController(w).Hijack(); err == nil {
				_ = nc.Close()
			}
		}},
		{name: "gzip bomb", answer: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			defer z.Close()
			for range 200 {
				if _, err := z.Write(make([]byte, 1<<20)); err != nil {
					return
				}
			}
		}},
		{name: "10 000 sources", answer: body(many(10_000)), lies: true},
		{name: "70 000 sources", answer: body(many(70_000)), lies: true},
	}
	return rows
}

// TestHostileFiles gives hostile files to the commands that read captures.
func TestHostileFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := func(name string, b []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	meta := `{"engine":"vllm","version":"0.33.0","dp_rank":0,"topic":""}` + "\n"
	// A gzip of several members, each of a mebibyte.
	bomb := func(begin, again string, mib int) []byte {
		member := func(text string) []byte {
			var b bytes.Buffer
			z := gzip.NewWriter(&b)
			_, _ = z.Write([]byte(text)) // a bytes.Buffer takes everything
			_ = z.Close()
			return b.Bytes()
		}
		return append(member(begin), bytes.Repeat(member(strings.Repeat(again, 1<<20)), mib)...)
	}
	for _, row := range []struct {
		name string
		data []byte
	}{
		{"a line without end", bomb(meta+`{"frames":["`, "0", 300)},
		{"a first line without end", bomb(`{"engine":"`, "x", 300)},
		{"blank lines without end", bomb(meta, "\n", 1)},
		{"brackets without end", bomb(meta, "[", 300)},
		{"a gzip in half", bomb(meta, "\n", 1)[:80]},
		{"a million frames", []byte(meta + `{"frames":["` + strings.Repeat(`00","`, 1<<20) + `00"]}`)},
		{"numbers instead of frames", fmt.Appendf(nil, "%s{\"frames\":[%d]}\n", meta, uint64(plantedToken))},
		{"no hex", []byte(meta + `{"frames":["","` + plantedText + `"]}` + "\n")},
		{"binary", bytes.Repeat([]byte{0, 0xff, 0x1f, 0x8b}, 1<<16)},
		{"empty", nil},
	} {
		path := file("capture", row.data)
		for command, args := range map[string][]string{
			"decode": {"decode", path},
			"check":  {"check", path},
			"play":   {"play", "--wait=false", "--rate=0", "--for=2s", path},
			"loop":   {"play", "--wait=false", "--rate=0", "--loop", "--for=1s", path},
		} {
			t.Run(command+" "+row.name, func(t *testing.T) {
				out, usage := runHostileCommand(t, nil, args...)
				if usage > commandMemory() {
					t.Errorf("took %d MiB", usage>>20)
				}
				leaksNothing(t, out)
			})
		}
	}
}

// TestHostileSettings gives the program settings that no person writes.
func TestHostileSettings(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	big := filepath.Join(dir, "big")
	if err := os.WriteFile(big, bytes.Repeat([]byte(plantedSecret), 1<<20/len(plantedSecret)), 0o600); err != nil {
		t.Fatal(err)
	}
	lines := filepath.Join(dir, "lines")
	if err := os.WriteFile(lines, []byte(plantedSecret+"\n"+plantedSecret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("x", 120_000) // the most that Linux lets an environment variable have
	for name, env := range map[string][]string{
		"a secret of a megabyte":     {"NATS_PASSWORD_FILE=" + big, "NATS_USER=u"},
		"a secret without end":       {"NATS_TOKEN_FILE=/dev/zero"},
		"a secret of two lines":      {"DISCOVERY_TOKEN_FILE=" + lines},
		"a folder for a secret":      {"NATS_TOKEN_FILE=" + dir},
		"a long secret, wrong place": {"NATS_PASSWORD=" + plantedSecret + long},
		"long endpoints":             {"ENDPOINTS=" + long},
		"10 000 endpoints":           {"ENDPOINTS=" + strings.Repeat("tcp://h:1,", 10_000)},
		"endpoints of commas":        {"ENDPOINTS=" + strings.Repeat(",", 120_000)},
		"four billion ranks":         {"ENDPOINTS=tcp://h:1", "RANKS=4294967295"},
		"sizes without end":          {"HOLD_BYTES=99999999999999999999", "OUT_BYTES=-1", "MAX_FRAME_BYTES=1e300"},
		"durations without end":      {"HEARTBEAT=9999999999h", "DEAD_AFTER=-1s"},
		"a long subject":             {"SUBJECT=" + strings.Repeat("{worker_id}", 10_000)},
		"a password in a URL":        {"DISCOVERY_URL=http://user:" + plantedSecret + "@127.0.0.1:99999"},
		"long unknown variable":      {strings.Repeat("X", 60_000) + "=" + plantedSecret},
	} {
		t.Run(name, func(t *testing.T) {
			out, usage := runHostileCommand(t, env, "run", "--admin-addr=off", "--sink=stdout", "--nats-url=nats://127.0.0.1:1", "--log-level=nonsense")
			if usage > commandMemory() {
				t.Errorf("took %d MiB", usage>>20)
			}
			leaksNothing(t, out)
			if len(out) > 64<<10 {
				t.Errorf("%d bytes of output", len(out))
			}
		})
	}
}

// runHostileCommand runs the program, which must end by itself with 1 or 2 or
// do what it is asked, and returns what it said and the most memory it had.
func runHostileCommand(t *testing.T, env []string, args ...string) (out []byte, usage int64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, kvrelayBinary, args...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "GORACE=halt_on_error=1 atexit_sleep_ms=0"}
	for _, e := range env {
		cmd.Env = append(cmd.Env, "KVRELAY_"+e)
	}
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	err := cmd.Start()
	if err == nil {
		measured := make(chan struct{})
		go func() { // what the kernel tells afterwards counts this process, too, which it was before its exec
			defer close(measured)
			for hwm := peakOf(cmd.Process.Pid); hwm > 0; hwm = peakOf(cmd.Process.Pid) {
				usage = max(usage, hwm)
				<-time.After(time.Millisecond)
			}
		}()
		err = cmd.Wait()
		<-measured
	}
	out = said.Bytes()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if code := cmd.ProcessState.ExitCode(); code < 0 || code > 2 || bytes.Contains(out, []byte("panic")) || bytes.Contains(out, []byte("fatal error")) {
		t.Errorf("exit code %d: %s", code, tail(string(out), 2000))
	}
	return out, usage
}

// commandMemory is what a command may take; the race detector multiplies it.
func commandMemory() int64 {
	if raceEnabled {
		return 6 * hostileMemory
	}
	return hostileMemory
}

func leaksNothing(t *testing.T, out []byte) {
	t.Helper()
	for _, n := range []string{plantedSalt, plantedText, plantedSecret, fmt.Sprint(plantedToken)} {
		if bytes.Contains(out, []byte(n)) {
			t.Errorf("%q is in the output: %s", n, tail(string(out), 1500))
		}
	}
}
