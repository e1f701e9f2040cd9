// Command fuzzall runs every fuzz target of the tree, one after another, and
// prints what each came to: `make fuzz`.
//
//	go run ./internal/fuzzall -fuzztime 10s -fuzz 'Decode|Reader'
//
// A target's corpus is its seeds, testdata/fuzz, and what Go's cache kept of
// earlier runs. It exits with code 1 when a target failed; Go has then written the
// input to testdata/fuzz, where it stays a test until it is taken away.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/kvrelay/kvrelay/internal/fuzzlimit"
)

func main() {
	length := flag.Duration("fuzztime", 10*time.Second, "how long each target is fuzzed")
	pattern := flag.String("fuzz", ".", "targets, as regexp of folder and name: ./decode FuzzDecode")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	code, err := fuzzAll(ctx, os.Stdout, ".", *length, *pattern)
	if err != nil {
		fmt.Fprintln(os.Stderr, "fuzzall:", err)
	}
	stop()
	os.Exit(code)
}

// fuzzAll fuzzes what matches pattern below root and returns the exit code.
func fuzzAll(ctx context.Context, out io.Writer, root string, length time.Duration, pattern string) (code int, err error) {
	want, err := regexp.Compile(pattern)
	if err != nil || length <= 0 {
		return 2, fmt.Errorf("-fuzz %q, -fuzztime %v: want a regexp and a time above 0 (%w)", pattern, length, err)
	}
	all, err := find(root)
	if err != nil {
		return 1, err
	}
	fmt.Fprintf(out, "%-46s %10s %9s %6s %9s %9s\n", "target", "inputs", "a second", "new", "slowest", "memory")
	n, failed := 0, 0
	for _, x := range all {
		if !want.MatchString(x.String()) || ctx.Err() != nil {
			continue
		}
		n++
		r, text, err := run(ctx, root, x, length)
		if err != nil {
			failed++
			fmt.Fprintf(out, "%-46s FAILED: %v\n%s\n", x, err, text)
			continue
		}
		fmt.Fprintf(out, "%-46s %10d %9.0f %6d %9s %9s\n", x, r.inputs, float64(r.inputs)/length.Seconds(), r.fresh, r.slowest(), r.memory())
	}
	fmt.Fprintf(out, "%d targets, %d failed; slowest: processor time of one input (at most %v); memory: bytes for each of the input beyond %d KiB (at most %d)\n",
		n, failed, fuzzlimit.MaxTime, fuzzlimit.Free>>10, fuzzlimit.MaxFactor)
	switch {
	case ctx.Err() != nil:
		return 1, context.Cause(ctx)
	case n == 0:
		return 2, fmt.Errorf("no target matches %q", pattern)
	case failed > 0:
		return 1, nil
	}
	return 0, nil
}

// target is one fuzz function.
type target struct {
	dir  string // of its package, below the root: ./decode
	name string
}

func (x target) String() string { return x.dir + " " + x.name }

var declared = regexp.MustCompile(`(?m)^func (Fuzz\w+)\(\w+ \*testing\.F\)`)

// find lists the fuzz targets of the module at root. Nested modules are left out.
func find(root string) (all []target, err error) {
	err = filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != root:
			_, nested := os.Stat(filepath.Join(path, "go.mod"))
			if nested == nil || strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" {
				return filepath.SkipDir
			}
		case strings.HasSuffix(path, "_test.go"):
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			dir, err := filepath.Rel(root, filepath.Dir(path))
			if err != nil {
				return err
			}
			for _, m := range declared.FindAllSubmatch(text, -1) {
				all = append(all, target{"./" + filepath.ToSlash(dir), string(m[1])})
			}
		}
		return nil
	})
	return all, err
}

// result is what fuzzing one target came to.
type result struct {
	inputs, fresh int
	took          time.Duration
	factor        float64
	measured      bool
}

func (r result) slowest() string {
	if !r.measured {
		return "–"
	}
	return r.took.Round(10 * time.Microsecond).String()
}

func (r result) memory() string {
	if !r.measured {
		return "–"
	}
	return fmt.Sprintf("%.1f", r.factor)
}

// grace is what compiling and starting a target may take beyond its time.
const grace = 10 * time.Minute

func run(ctx context.Context, root string, x target, length time.Duration) (r result, text []byte, err error) {
	dir, err := os.MkdirTemp("", "kvrelay-fuzz")
	if err != nil {
		return r, nil, err
	}
	defer os.RemoveAll(dir)
	ctx, cancel := context.WithTimeout(ctx, length+grace)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", "test", "-vet=off", "-run", "^$", "-fuzz", "^"+x.name+"$", "-fuzztime", length.String(),
		"-fuzzminimizetime", "2s", "-parallel", strconv.Itoa(runtime.GOMAXPROCS(0)), x.dir)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), fuzzlimit.Report+"="+dir)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	if text, err = cmd.CombinedOutput(); err != nil {
		return r, text, err
	}
	if !r.read(text) {
		return r, text, errors.New("go test says nothing of inputs")
	}
	return r, text, r.measurements(dir)
}

var (
	progress = regexp.MustCompile(`execs: (\d+) \(\d+/sec\)(?:, new interesting: (\d+))?`)
	corpus   = regexp.MustCompile(`gathering baseline coverage: (\d+)/\d+ completed`)
)

// read takes the last figures of go test's progress. On a machine that is too busy
// the time may end in the corpus, which then is all that was run.
func (r *result) read(text []byte) bool {
	all := progress.FindAllSubmatch(text, -1)
	if len(all) == 0 {
		if all = corpus.FindAllSubmatch(text, -1); len(all) > 0 {
			r.inputs, _ = strconv.Atoi(string(all[len(all)-1][1])) // digits, as matched
		}
		return r.inputs > 0
	}
	last := all[len(all)-1]
	r.inputs, _ = strconv.Atoi(string(last[1])) // digits, as matched
	r.fresh, _ = strconv.Atoi(string(last[2]))  // none: 0
	return r.inputs > 0
}

// measurements takes the worst of what the processes that fuzzed have left in dir.
func (r *result) measurements(dir string) error {
	files, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, f := range files {
		text, err := os.ReadFile(filepath.Join(dir, f.Name()))
		if err != nil {
			return err
		}
		var took int64
		var factor float64
		if _, err := fmt.Sscan(string(text), &took, &factor); err != nil {
			continue // a process that was ended while it wrote
		}
		r.measured = true
		r.took, r.factor = max(r.took, time.Duration(took)), max(r.factor, factor)
	}
	return nil
}
