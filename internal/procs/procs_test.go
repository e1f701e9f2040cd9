package procs

import (
	"context"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// One look at a busy stretch widens; only calmFor of calm in a row narrows.
func TestStep(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		name  string
		wide  bool
		share []float64 // of stretches of 100 ms, repeated below
		times int
		want  bool
		next  time.Duration
	}{
		{"at rest, on one", false, []float64{0}, 100, false, slowly},
		{"some work on one", false, []float64{0.4}, 100, false, quickly},
		{"one busy stretch", false, []float64{0.5}, 1, true, quickly},
		{"more than one processor", false, []float64{1.9}, 1, true, quickly},
		{"calm, not long enough", true, []float64{0.1}, 49, true, quickly},
		{"calm for long enough", true, []float64{0.1}, 50, false, quickly},
		{"at rest for long enough", true, []float64{0}, 50, false, slowly},
		{"in between", true, []float64{0.3}, 1000, true, quickly},
		{"calm is counted in a row", true, []float64{0, 0, 0, 0.3}, 1000, true, quickly},
		{"and anew after a busy stretch", true, []float64{0, 0, 0, 0.7}, 1000, true, quickly},
	} {
		w := width{wide: c.wide}
		var next time.Duration
		for range c.times {
			for _, share := range c.share {
				next = w.step(100*ms, time.Duration(share*float64(100*ms)))
			}
		}
		if w.wide != c.want || next != c.next {
			t.Errorf("%s: wide %v, again in %v", c.name, w.wide, next)
		}
	}
	w := width{}
	if w.step(0, 0); w.wide {
		t.Error("no time at all made it wide")
	}
}

// A process at rest comes to one processor, one that works has all of them, and
// so has whoever comes after the end.
func TestGovern(t *testing.T) {
	if used, ok := processCPU(); ok && used == 0 {
		t.Error("this process has used nothing?")
	}
	const all = 3 // what Go would choose, as far as this test goes, is anything but 1
	before := runtime.GOMAXPROCS(all)
	defer runtime.GOMAXPROCS(before)
	var busyNow atomic.Bool
	began, used := time.Now(), time.Duration(0)
	last := began
	usage := func() (time.Duration, bool) {
		now := time.Now()
		if busyNow.Load() {
			used += now.Sub(last)
		}
		last = now
		return used, true
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan struct{})
	go func() { govern(ctx, usage); close(ended) }()
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	until := func(what string, ok func(n int) bool) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); !ok(runtime.GOMAXPROCS(0)); <-poll.C {
			if time.Now().After(deadline) {
				t.Fatalf("%s: %d processors", what, runtime.GOMAXPROCS(0))
			}
		}
	}
	one := func(n int) bool { return n == 1 }
	until("at rest", one)
	if took := time.Since(began); took < calmFor {
		t.Errorf("narrow after %v", took)
	}
	runtime.SetDefaultGOMAXPROCS()
	machine := runtime.GOMAXPROCS(1)
	many := func(n int) bool { return n == machine }
	busyNow.Store(true)
	until("busy", many)
	busyNow.Store(false)
	until("at rest again", one)
	stop()
	<-ended
	until("ended", many)
}

// What the user has set stays, and what is set here ends with ctx.
func TestEnvironment(t *testing.T) {
	before := debug.SetGCPercent(77)
	defer debug.SetGCPercent(before)
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(3))
	gc := func() int {
		n := debug.SetGCPercent(77)
		debug.SetGCPercent(n)
		return n
	}
	for env, want := range map[string]int{"100": 77, "": gcPercent} {
		t.Setenv("GOMAXPROCS", "3")
		t.Setenv("GOGC", env)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { Run(ctx); close(ended) }()
		poll := time.NewTicker(time.Millisecond)
		for deadline := time.Now().Add(time.Minute); gc() != want; <-poll.C {
			if time.Now().After(deadline) {
				t.Fatalf("GOGC=%q: %d, want %d", env, gc(), want)
			}
		}
		stop()
		<-ended
		if n := gc(); n != 77 {
			t.Errorf("GOGC=%q: %d at the end", env, n)
		}
		if n := runtime.GOMAXPROCS(0); n != 3 {
			t.Errorf("%d processors", n)
		}
	}
}
