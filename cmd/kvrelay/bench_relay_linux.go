package main

import "syscall"

// boundToUs ends the relay with this process, however that ends: by SIGKILL it
// would be left running, looking for engine and NATS for ever. A terminal's
// interrupt, which goes to a whole group of processes, is for bench alone: a relay
// that ends in the middle looks like loss.
func boundToUs() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
