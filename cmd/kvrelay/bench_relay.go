package main

import (
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// benchRelay is the relay that is measured: this program once more.
type benchRelay struct {
	cmd   *exec.Cmd
	ended chan struct{} // closed when it has
}

func startBenchRelay(args, env []string, stderr io.Writer) (*benchRelay, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	r := &benchRelay{cmd: exec.Command(self, args...), ended: make(chan struct{})}
	r.cmd.Env = append(os.Environ(), env...)
	r.cmd.Stdout, r.cmd.Stderr = stderr, stderr
	if err := r.cmd.Start(); err != nil {
		return nil, err
	}
	go func() { // ends with the process, which end waits for
		defer close(r.ended)
		_ = r.cmd.Wait() // how it ended is no part of the measurement
	}()
	return r, nil
}

func (r *benchRelay) pid() int { return r.cmd.Process.Pid }

// end ends the relay, in order if that does not take long.
func (r *benchRelay) end() {
	_ = r.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	late := time.AfterFunc(10*time.Second, func() { _ = r.cmd.Process.Kill() })
	defer late.Stop()
	<-r.ended
}
