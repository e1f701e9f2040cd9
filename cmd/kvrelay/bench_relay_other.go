//go:build !linux

package main

import "syscall"

// boundToUs is for Linux; elsewhere a bench that is killed leaves its relay.
func boundToUs() *syscall.SysProcAttr { return nil }
