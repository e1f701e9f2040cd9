package main

import (
	"io"
	"os"
	"os/exec"
	"runtime"
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
	r.cmd.SysProcAttr = boundToUs()
	started := make(chan error, 1)
	go func() { // ends with the process, which end waits for
		defer close(r.ended)
		// For the kernel the parent is the thread that starts the process: it has to live as long.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := r.cmd.Start()
		if started <- err; err == nil {
			_ = r.cmd.Wait() // how it ended is no part of the measurement
		}
	}()
	return r, <-started
}

func (r *benchRelay) pid() int { return r.cmd.Process.Pid }

// end ends the relay, in order if that does not take long.
func (r *benchRelay) end() {
	_ = r.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	late := time.AfterFunc(10*time.Second, func() { _ = r.cmd.Process.Kill() })
	defer late.Stop()
	<-r.ended
}
