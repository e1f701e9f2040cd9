// Package admin shows how a relay is doing: /metrics for Prometheus, /healthz
// and /readyz for whoever starts and stops it, /status for programs and a page
// for people. It changes nothing.
//
// A Server looks at the relay once a second. Health is what that look finds, so
// it also serves the watchdog of a service manager, with or without HTTP.
package admin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	"github.com/kvrelay/kvrelay/config"
	"github.com/kvrelay/kvrelay/discovery"
	"github.com/kvrelay/kvrelay/relay"
)

// Options say what a Server shows, and where.
type Options struct {
	// Addr is ADMIN_ADDR: host:port, or config.Off for a Server that only looks.
	Addr string
	// Fallback has a free port taken where that of Addr is taken, and said in
	// the log. It is for the default address: two relays on one host must both run.
	Fallback bool

	Status    func() relay.Status
	Discovery func() discovery.State // nil: nothing is discovered
	Settings  []config.Value         // masked
	Sink      string                 // config.SinkNATS …
	Build     *debug.BuildInfo       // nil: unknown
	Log       *slog.Logger
}

// Server shows a relay. Use New, Listen, Run.
type Server struct {
	o Options
	monitor
	ln           net.Listener
	html, policy string // of the page
}

// New makes a Server. It does no I/O.
func New(o Options) *Server {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Discovery == nil {
		o.Discovery = func() discovery.State { return discovery.State{} }
	}
	s := &Server{o: o}
	s.monitor = newMonitor(&s.o)
	s.html, s.policy = makePage()
	return s
}

// Listen opens the port, so that a taken one is an error before anything is
// published. Run closes it. With Addr off it does nothing.
func (s *Server) Listen(ctx context.Context) error {
	if s.o.Addr == config.Off {
		return nil
	}
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", s.o.Addr)
	if errors.Is(err, syscall.EADDRINUSE) {
		if !s.o.Fallback {
			return fmt.Errorf("KVRELAY_ADMIN_ADDR=%s is taken: stop who has it, or set another address (port 0: a free one; off: none)", s.o.Addr)
		}
		host, _, herr := net.SplitHostPort(s.o.Addr)
		if herr == nil {
			ln, err = lc.Listen(ctx, "tcp", net.JoinHostPort(host, "0"))
		}
		if err == nil {
			s.o.Log.Warn("the default KVRELAY_ADMIN_ADDR is taken, probably by another kvrelay on this host: metrics and status are on a free port; set KVRELAY_ADMIN_ADDR for each",
				"wanted", s.o.Addr, "url", "http://"+ln.Addr().String())
		}
	}
	if err != nil {
		return fmt.Errorf("KVRELAY_ADMIN_ADDR=%s: %w", s.o.Addr, err)
	}
	s.ln = ln
	s.o.Log.Info("status page, metrics and health", "url", "http://"+ln.Addr().String())
	return nil
}

// Addr is the address listened on, "" without one.
func (s *Server) Addr() string {
	if s.ln == nil {
		return ""
	}
	return s.ln.Addr().String()
}

// Run looks at the relay, and serves what Listen opened, until ctx ends. It
// returns nil then, or why the port could not be served any longer.
func (s *Server) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { s.watch(ctx) })
	if s.ln == nil {
		<-ctx.Done()
		return nil
	}
	srv := s.httpServer()
	served := make(chan error, 1)
	go func() { served <- srv.Serve(limited(s.ln)) }()
	select {
	case <-ctx.Done():
		sctx, stop := context.WithTimeout(context.WithoutCancel(ctx), closeAfter)
		if srv.Shutdown(sctx) != nil {
			srv.Close() // a client that reads slowly does not hold up the end
		}
		stop()
		<-served
		return nil
	case err := <-served:
		cancel()
		return fmt.Errorf("serving KVRELAY_ADMIN_ADDR: %w", err)
	}
}

// closeAfter is how long answers under way may take at the end.
const closeAfter = 500 * time.Millisecond
