// Command report measures everything that docs/performance.md tells and prints it
// as tables: medians of several runs, with the least and the largest.
// `make bench-report` runs it. With -compare it only turns the output of
// `go test -bench`, read from standard input, into the comparison's table.
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
	"runtime"
	"strings"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	runs := flag.Int("runs", 3, "how often each measurement is made")
	seconds := flag.Int("seconds", 6, "how long each load on the relay takes")
	idle := flag.Int("idle", 60, "how long an idle relay is looked at, in seconds")
	compare := flag.Bool("compare", false, "only make the comparison's table from standard input")
	flag.Parse()
	var err error
	switch {
	case *runs < 1 || *seconds < 1 || *idle < 1:
		err = errors.New("-runs, -seconds and -idle must be 1 or more")
	case *compare:
		err = compared(os.Stdin, os.Stdout)
	default:
		err = report(ctx, os.Stdout, *runs, *seconds, *idle)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "report:", err)
		os.Exit(1)
	}
}

// report measures and prints everything.
func report(ctx context.Context, w io.Writer, runs, seconds, idle int) error {
	fmt.Fprintf(w, "%s, %d cores, %s, load average before: %s. Medians of %d runs (least – largest).\n",
		cpuModel(), runtime.NumCPU(), runtime.Version(), loadAverage(), runs)
	dir, err := os.MkdirTemp("", "kvrelay-report")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	binary := filepath.Join(dir, "kvrelay")
	if _, err := output(ctx, "", "go", "build", "-tags", "grpcnotrace", "-o", binary, "./cmd/kvrelay"); err != nil {
		return err
	}
	if err := relayTables(ctx, w, binary, runs, seconds, idle); err != nil {
		return err
	}
	for _, b := range []struct{ title, pkg, bench, time string }{
		{"One batch, all of it", "./convert", "DecodeConvert|Reference", "1s"},
		{"One batch, by stages", "./convert", "Stage", "300ms"},
		{"Ranks: the live path in one process, per batch", "./relay", "Ranks", "100000x"},
		{"Replay of 10,000 batches of 4 KB", "./relay", "Replay", "10x"},
		{"Ledger", "./convert", "LedgerBytes|LedgerWalk|LedgerLookup", "1x"},
		{"Connections", "./internal/zmtp", "Recv|Reader", "300ms"},
		{"To NATS and back", "./sinks", "Publish|Latency", "300ms"},
	} {
		text, err := output(ctx, "", "go", "test", "-run", "^$", "-bench", b.bench, "-benchtime", b.time, "-benchmem", "-count", fmt.Sprint(runs), b.pkg)
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "\n## %s\n\n`go test -run '^$' -bench '%s' -benchtime %s -benchmem -count %d %s`\n\n", b.title, b.bench, b.time, runs, b.pkg)
		benchTable(w, parseBench(text))
	}
	text, err := output(ctx, "bench/compare", "go", "test", "-run", "^$", "-bench", ".", "-benchtime", "300ms", "-count", fmt.Sprint(runs), ".")
	if err != nil {
		return err
	}
	fmt.Fprint(w, "\n## The same bytes through other libraries\n\n")
	return compared(strings.NewReader(text), w)
}

// output runs a command in dir, "" for this one, and returns what it prints.
func output(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	var errs strings.Builder
	cmd.Stderr = &errs
	b, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w\n%s%s", strings.Join(cmd.Args, " "), err, errs.String(), b)
	}
	return string(b), nil
}

func cpuModel() string {
	b, _ := os.ReadFile("/proc/cpuinfo") // absent elsewhere than on Linux
	for line := range strings.Lines(string(b)) {
		if name, model, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(model)
		}
	}
	return runtime.GOARCH
}

func loadAverage() string {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	first, _, _ := strings.Cut(string(b), " ")
	return first
}
