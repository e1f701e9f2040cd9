// Package sdnotify tells a service manager that the process is up, that it
// makes progress, and that it stops: systemd's notify protocol, sd_notify(3).
package sdnotify

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
)

// statusEvery is how often STATUS is looked at, and told where it has changed; with
// a watchdog that asks for more, that often.
const statusEvery = 2 * time.Second

// Notifier speaks for one process. All fields but Health may be left out.
type Notifier struct {
	Health func() error  // nil while the process makes progress: it feeds the watchdog
	Status func() string // one line for `systemctl status`
	Log    *slog.Logger
}

// Run says READY=1, then WATCHDOG=1 as often as the manager asks for it while
// Health is nil, and STOPPING=1 when ctx ends. It ends with ctx. Without
// NOTIFY_SOCKET it only waits. The manager kills and starts anew what does not
// feed its watchdog, so a ping is never sent for a stuck process.
func (n *Notifier) Run(ctx context.Context) {
	log := n.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	there, err := daemon.SdNotify(false, daemon.SdNotifyReady)
	if err != nil {
		log.Warn("the service manager cannot be told that kvrelay is up: with Type=notify it will end it", "error", err)
	}
	if !there {
		<-ctx.Done()
		return
	}
	interval, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		log.Warn("the service manager's watchdog is not fed: its setting cannot be read", "error", err)
	}
	every := statusEvery
	if interval > 0 {
		every = min(every, interval/3)
	}
	tick := time.NewTicker(max(every, time.Millisecond))
	defer tick.Stop()
	t := talk{n: n, log: log}
	t.beat(interval > 0)
	for {
		select {
		case <-ctx.Done():
			t.say(daemon.SdNotifyStopping)
			return
		case <-tick.C:
			t.beat(interval > 0)
		}
	}
}

// talk is what Run remembers.
type talk struct {
	n      *Notifier
	log    *slog.Logger
	status string // told last
}

// beat feeds the watchdog, unless the process is stuck, and tells a new status.
func (t *talk) beat(watchdog bool) {
	err := t.n.Health()
	if watchdog && err == nil {
		t.say(daemon.SdNotifyWatchdog)
	}
	var status string
	switch {
	case err != nil:
		status = err.Error()
		t.log.Error("kvrelay makes no progress: where the service manager has a watchdog, it is not fed", "error", err)
	case t.n.Status != nil:
		status = t.n.Status()
	}
	if status != t.status {
		t.status = status
		t.say("STATUS=" + status)
	}
}

func (t *talk) say(state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		t.log.Warn("the service manager cannot be told", "what", fmt.Sprintf("%.20s", state), "error", err)
	}
}
