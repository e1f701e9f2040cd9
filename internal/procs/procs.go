// Package procs fits Go's runtime to what a relay is: mostly idle, and with a
// heap of large pieces without pointers.
//
// A relay's batch wakes a reader, the reader a publisher, that one a writer. On
// one processor they follow each other at once. With more of them Go wakes a
// thread at each step, which looks for work, naps, and mostly comes too late: it
// costs a fifth of what a batch costs at a thousand a second on two cores, more on a host
// with a hundred, and gains nothing as long as one processor is mostly idle.
package procs

import (
	"context"
	"os"
	"runtime"
	"runtime/debug"
	"time"
)

// gcPercent is GOGC. Held batches, unconfirmed and recent events and ledgers hold no
// pointers, so a collection of 200 MB takes 2 to 4 ms of CPU; with Go's own 100 a flood
// took twice the memory that the settings add up to, with 25 a quarter more.
const gcPercent = 25

const (
	// busy is the share of one processor above which the process gets all of
	// them; calm the share below which, for calmFor, it goes back to one.
	busy    = 0.5
	calm    = 0.25
	calmFor = 5 * time.Second
	// A process that does something is looked at each quickly, another one each slowly.
	// A burst waits so long for more processors; the sockets hold it meanwhile.
	quickly = 100 * time.Millisecond
	slowly  = time.Second
	atRest  = 0.02 // of a processor
)

// Run sets GOMAXPROCS to 1 or to what Go would choose, by how busy the process
// is, and GOGC to 25, until ctx ends; then they are Go's again. What is set in the
// environment under one of these names stays.
func Run(ctx context.Context) {
	if os.Getenv("GOGC") == "" {
		defer debug.SetGCPercent(debug.SetGCPercent(gcPercent))
	}
	if os.Getenv("GOMAXPROCS") == "" && runtime.GOMAXPROCS(0) > 1 {
		govern(ctx, processCPU)
	}
	<-ctx.Done()
}

// govern adapts GOMAXPROCS until ctx ends.
func govern(ctx context.Context, processCPU func() (time.Duration, bool)) {
	used, ok := processCPU()
	if !ok {
		return
	}
	defer runtime.SetDefaultGOMAXPROCS()
	at := time.Now()
	w := width{wide: true}
	timer := time.NewTimer(quickly)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		u, _ := processCPU()
		now := time.Now()
		was := w.wide
		next := w.step(now.Sub(at), u-used)
		at, used = now, u
		switch {
		case w.wide && !was:
			runtime.SetDefaultGOMAXPROCS() // it follows the container's limit
		case was && !w.wide:
			runtime.GOMAXPROCS(1)
		}
		timer.Reset(next)
	}
}

// width decides how many processors there are.
type width struct {
	wide   bool // all of them
	calmly time.Duration
}

// step takes how much CPU was used in a stretch of time, and says when to look again.
func (w *width) step(stretch, cpu time.Duration) (next time.Duration) {
	share := float64(cpu) / float64(max(stretch, 1))
	switch {
	case share >= busy:
		w.wide, w.calmly = true, 0
	case share >= calm:
		w.calmly = 0
	case w.wide:
		if w.calmly += stretch; w.calmly >= calmFor {
			w.wide = false
		}
	}
	if share < atRest && !w.wide {
		return slowly
	}
	return quickly
}
