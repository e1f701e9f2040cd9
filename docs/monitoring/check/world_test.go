package check

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	patience = 60 * time.Second
	ranks    = 2
)

// world is a kvrelay that relays two ranks of a mock engine into its own NATS
// server, and what it says of itself: two scrapes with traffic between them.
type world struct {
	dir           string
	first, second []byte
}

var scraped = sync.OnceValues(func() (*world, error) {
	dir, err := os.MkdirTemp("", "kvrelay-monitoring")
	if err != nil {
		return nil, err
	}
	w := &world{dir: dir}
	return w, w.fill()
})

func TestMain(m *testing.M) {
	code := m.Run()
	if w, _ := scraped(); w != nil {
		_ = os.RemoveAll(w.dir) // what stays is in the system's folder for such things
	}
	os.Exit(code)
}

func scrapes(t *testing.T) *world {
	t.Helper()
	w, err := scraped()
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// fill builds kvrelay, runs it beside an engine, and scrapes it twice.
func (w *world) fill() error {
	binary := filepath.Join(w.dir, "kvrelay")
	build := exec.Command("go", "build", "-trimpath", "-o", binary, "./cmd/kvrelay")
	build.Dir = "../../.."
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	build.Stdout, build.Stderr = os.Stderr, os.Stderr
	if err := build.Run(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var found sync.WaitGroup // the processes' output has been read to its end
	defer found.Wait()
	defer cancel()
	run := func(mark *regexp.Regexp, times int, args ...string) ([][]string, error) {
		cmd := exec.CommandContext(ctx, binary, args...)
		cmd.Env = slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, "KVRELAY_") })
		cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
		cmd.WaitDelay = 10 * time.Second
		pipe, err := cmd.StdoutPipe()
		if err != nil {
			return nil, err
		}
		cmd.Stderr = cmd.Stdout
		if err := cmd.Start(); err != nil {
			return nil, err
		}
		seen := make(chan [][]string, 1)
		found.Go(func() {
			var matches [][]string
			var all bytes.Buffer
			for lines := bufio.NewScanner(pipe); lines.Scan(); {
				if matches == nil || len(matches) < times {
					all.WriteString(lines.Text() + "\n")
					if m := mark.FindStringSubmatch(lines.Text()); m != nil {
						if matches = append(matches, m); len(matches) == times {
							seen <- matches
						}
					}
				}
			}
			if len(matches) < times {
				os.Stderr.Write(all.Bytes())
				seen <- nil
			}
			_ = cmd.Wait() // it was told to end
		})
		matches := <-seen
		if matches == nil {
			return nil, &noMark{args[0], mark.String()}
		}
		return matches, nil
	}

	events, err := run(regexp.MustCompile(`rank \d+ events (\S+) replay (\S+)`), ranks,
		"mock", "--data-parallel-size", "2", "--rate", "200", "--http", "127.0.0.1:0")
	if err != nil {
		return err
	}
	var live, replay []string
	for _, m := range events {
		live, replay = append(live, m[1]), append(replay, m[2])
	}
	admin, err := run(regexp.MustCompile(`status page.*"url":"(http://[^"]+)"`), 1, "run",
		"--endpoints", strings.Join(live, ","), "--replay-endpoints", strings.Join(replay, ","), "--ranks", "2",
		"--admin-addr", "127.0.0.1:0", "--worker-id", "7", "--log-format", "json")
	if err != nil {
		return err
	}
	url := admin[0][1] + "/metrics"
	if w.first, err = scrapeWhen(ctx, url, []byte{}); err != nil {
		return err
	}
	w.second, err = scrapeWhen(ctx, url, w.first)
	return err
}

type noMark struct{ command, mark string }

func (e *noMark) Error() string {
	return "kvrelay " + e.command + " ended without a line like " + e.mark
}

var applied = regexp.MustCompile(`(?m)^kvrelay_batches_total\{outcome="applied",rank="(\d)"\} (\S+)$`)

// scrapeWhen scrapes until every rank is live and has applied more than in an earlier one.
func scrapeWhen(ctx context.Context, url string, earlier []byte) ([]byte, error) {
	before := applied.FindAllSubmatch(earlier, -1)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return nil, err
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return nil, err
		}
		text, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil {
			return nil, err
		}
		now := applied.FindAllSubmatch(text, -1)
		more := len(now) == ranks
		for i := range now {
			more = more && !bytes.Equal(now[i][2], []byte("0")) && (len(before) == 0 || !bytes.Equal(now[i][2], before[i][2]))
			more = more && bytes.Contains(text, []byte(`kvrelay_rank_state{rank="`+string(now[i][1])+`",state="live"} 1`))
		}
		if more {
			return text, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-tick.C:
		}
	}
}
