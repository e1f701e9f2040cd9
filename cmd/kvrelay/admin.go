package main

import (
	"context"
	"log/slog"
	"runtime/debug"
	"strconv"
	"sync"

	"github.com/kvrelay/kvrelay/config"
	"github.com/kvrelay/kvrelay/discovery"
	"github.com/kvrelay/kvrelay/internal/admin"
	"github.com/kvrelay/kvrelay/internal/sdnotify"
	"github.com/kvrelay/kvrelay/relay"
)

// runShown runs a relay and, as long as it runs, shows it: at ADMIN_ADDR and to the
// service manager. A taken ADMIN_ADDR ends it before anything is published;
// the default address gives way to a free port instead.
func runShown(ctx context.Context, ro relay.Options, disco *discovery.Discoverer, cfg *config.Config, log *slog.Logger) error {
	r := relay.New(ro)
	info, _ := debug.ReadBuildInfo()
	shown := admin.New(admin.Options{
		Addr: cfg.AdminAddr, Fallback: cfg.Origin("ADMIN_ADDR") == config.FromDefault,
		Status: r.Status, Discovery: disco.State, Settings: settingsInForce(cfg, ro.WorkerID), Sink: cfg.Sink, Build: info, Log: log,
	})
	if err := shown.Listen(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// What shows the relay outlives it: its end, too, can be looked at.
	sctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	looked := shown.FirstLook()
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := shown.Run(sctx); err != nil {
			cancel(err)
		}
	})
	wg.Go(func() {
		select { // before it the manager would be told that nothing moves
		case <-looked:
			(&sdnotify.Notifier{Health: shown.Health, Status: shown.Line, Log: log}).Run(ctx)
		case <-ctx.Done():
		}
	})
	err := r.Run(ctx)
	stop()
	cancel(nil)
	wg.Wait()
	return err
}

// settingsInForce are the settings, masked, with the worker id that was derived.
func settingsInForce(cfg *config.Config, worker uint64) []config.Value {
	values := cfg.Masked()
	for i := range values {
		if v := &values[i]; v.Name == "WORKER_ID" && v.Text == "" {
			v.Text, v.Origin = strconv.FormatUint(worker, 10), config.Derived
		}
	}
	return values
}
