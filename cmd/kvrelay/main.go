// Command kvrelay relays the KV-cache events of an LLM engine to KV-aware
// routers. `kvrelay help` lists what it can do.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	ctx, stop := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	if !signal.Ignored(syscall.SIGHUP) { // nohup ignores it, and means that
		signal.Notify(signals, syscall.SIGHUP) // the terminal is gone
	}
	go obey(signals, stop, func(code int) { // lives as long as the process
		fmt.Fprintln(os.Stderr, "kvrelay: a second signal: ended at once, whatever NATS has not confirmed")
		os.Exit(code)
	})
	os.Exit(dispatch(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// oneWish is how long more signals count as the same wish: timeout(1), shells
// and terminals tell a process and then its group, so one wish comes twice.
const oneWish = 200 * time.Millisecond

// obey takes the first signal as the wish for an orderly end, and the next one
// as the wish for one at once, whatever NATS has confirmed.
func obey(signals <-chan os.Signal, stop func(), exit func(code int)) {
	<-signals
	stop()
	for first := time.Now(); time.Since(first) < oneWish; {
		<-signals
	}
	exit(exitUnconfirmed)
}
