// Command kvrelay relays the KV-cache events of an LLM engine to KV-aware
// routers. `kvrelay help` lists what it can do.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go obey(signals, stop, os.Exit) // lives as long as the process
	os.Exit(dispatch(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// obey takes the first signal as the wish for an orderly end, and the second
// as the wish for one at once, whatever NATS has confirmed.
func obey(signals <-chan os.Signal, stop func(), exit func(code int)) {
	<-signals
	stop()
	<-signals
	exit(exitUnconfirmed)
}
