//go:build integration

package integration

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"testing"
)

// A program that only waits gives back what its start has touched of its own file.
func TestAtRest(t *testing.T) {
	t.Parallel()
	k := startKvrelay(t, settings{"NATS_URL": natsServer(t, -1).ClientURL(), "ENDPOINTS": "tcp://127.0.0.1:1", "BLOCK_SIZE": "16"})
	k.says("connected to NATS")
	first := fileKiB(t, k.cmd.Process.Pid)
	now := first
	if !eventually(patience, func() bool { now = fileKiB(t, k.cmd.Process.Pid); return now < 2*first/3 }) {
		t.Errorf("%d KiB of the program's file in memory, %d at first", now, first)
	}
}

// fileKiB is how much of files a process has in memory.
func fileKiB(t *testing.T, pid int) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`RssFile:\s+(\d+) kB`).FindSubmatch(status)
	if m == nil {
		t.Fatal("no RssFile")
	}
	kib, err := strconv.Atoi(string(m[1]))
	if err != nil {
		t.Fatal(err)
	}
	return kib
}
