package fuzzlimit

import (
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
)

var sink []byte

// fails tells whether a parser that costs so much is found out.
func fails(t *testing.T, size int, parse func()) bool {
	t.Helper()
	r := &recorder{TB: t}
	done := make(chan struct{})
	go func() { // Fatalf ends its goroutine
		defer close(done)
		Run(r, size, parse)
	}()
	<-done
	return r.failed
}

func TestLimits(t *testing.T) {
	spin := func(d time.Duration) func() {
		return func() {
			for began := clock(); clock()-began < d; {
			}
		}
	}
	calls := 0
	for name, c := range map[string]struct {
		size  int
		parse func()
		fails bool
	}{
		"nothing":           {0, func() {}, false},
		"quick":             {10, spin(time.Millisecond), false},
		"slow":              {10, spin(MaxTime + 10*time.Millisecond), true},
		"slow once":         {10, func() { calls++; spin(map[bool]time.Duration{true: 2 * MaxTime}[calls == 1])() }, false},
		"sleeps":            {10, func() { time.Sleep(2 * MaxTime) }, false}, // another's time, not the parser's
		"small":             {10, func() { sink = make([]byte, Free/2) }, false},
		"large for little":  {10, func() { sink = make([]byte, 2*Free) }, true},
		"large for as much": {1 << 20, func() { sink = make([]byte, 8<<20) }, false},
		"16 times and more": {1 << 20, func() { sink = make([]byte, 18<<20) }, true},
	} {
		if got := fails(t, c.size, c.parse); got != c.fails {
			t.Errorf("%s: fails %v, want %v", name, got, c.fails)
		}
	}
}

func TestReport(t *testing.T) {
	dir := t.TempDir()
	t.Setenv(Report, dir)
	if !fails(t, 1, func() { sink = make([]byte, 3*Free) }) {
		t.Error("too much memory passes")
	}
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 1 {
		t.Fatalf("%v, %v", files, err)
	}
	text, err := os.ReadFile(dir + "/" + files[0].Name())
	if err != nil || len(strings.Fields(string(text))) != 2 {
		t.Errorf("%q, %v", text, err)
	}
}

// recorder takes a failure for itself.
type recorder struct {
	testing.TB
	failed bool
}

func (r *recorder) Fatalf(string, ...any) {
	r.failed = true
	runtime.Goexit()
}
