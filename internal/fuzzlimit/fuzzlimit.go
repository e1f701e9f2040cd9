// Package fuzzlimit holds parsers, under fuzzing, to what an input may cost: time
// and memory that grow with its length and no faster. Only tests import it.
package fuzzlimit

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/metrics"
	"sync"
	"testing"
	"time"
)

// What one input may cost.
const (
	// MaxTime is of the processor, not of the clock, so that a busy machine does not count.
	MaxTime = 50 * time.Millisecond
	// MaxFactor is bytes allocated for each byte of the input, beyond Free.
	MaxFactor = 16
	// Free is what any input may take: tables and buffers of a fixed size, and what
	// the runtime counts late, a span of each size of object at a time.
	Free = 3 << 19
)

// tries is how often an input that cost too much is measured again: a collection of
// garbage in between, or another goroutine, is not the parser's.
const tries = 4

// Run has parse read an input of size bytes, and fails the test where it takes more
// than MaxTime or MaxFactor allow. parse is called again when it seems to; it must
// do the same each time.
func Run(t testing.TB, size int, parse func()) {
	t.Helper()
	most := uint64(size)*MaxFactor + Free
	took, bytes := measure(parse)
	for range tries - 1 {
		if took <= MaxTime && bytes <= most {
			break
		}
		tookAgain, bytesAgain := measure(parse)
		took, bytes = min(took, tookAgain), min(bytes, bytesAgain)
	}
	report(took, bytes, size)
	if took > MaxTime {
		t.Fatalf("%d bytes took %v of the processor", size, took)
	}
	if bytes > most {
		t.Fatalf("%d bytes of memory for %d of input", bytes, size)
	}
}

func measure(parse func()) (took time.Duration, allocated uint64) {
	runtime.LockOSThread() // the clock is the thread's
	defer runtime.UnlockOSThread()
	bytes, began := heap(), clock()
	parse()
	return clock() - began, heap() - bytes
}

// heap is how many bytes have ever been allocated.
func heap() uint64 {
	s := [1]metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(s[:])
	return s[0].Value.Uint64()
}

// Report is the variable that names a folder for what `make fuzz` shows: each
// process that fuzzes writes there the most that an input has cost.
const Report = "FUZZ_REPORT"

var worst struct {
	sync.Mutex
	took   time.Duration
	factor float64 // of inputs that took more than Free
}

func report(took time.Duration, bytes uint64, size int) {
	dir := os.Getenv(Report)
	if dir == "" {
		return
	}
	worst.Lock()
	defer worst.Unlock()
	factor := 0.0
	if bytes > Free {
		factor = float64(bytes-Free) / float64(max(1, size))
	}
	if took <= worst.took && factor <= worst.factor {
		return
	}
	worst.took, worst.factor = max(took, worst.took), max(factor, worst.factor)
	text := fmt.Sprintf("%d %g\n", worst.took.Nanoseconds(), worst.factor)
	_ = os.WriteFile(filepath.Join(dir, fmt.Sprint(os.Getpid())), []byte(text), 0o600) // a figure for a table, no more
}
