// Package natsd runs a NATS server inside the process, for those who have none
// yet and for tests. It listens on loopback, keeps no files and opens nothing
// but its client port.
package natsd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

const (
	// MaxPayload is the largest message of an embedded server: nats-server's default.
	MaxPayload = 1 << 20
	// readyTimeout bounds the start, which takes 2 to 3 ms.
	readyTimeout = 5 * time.Second
)

// Options of an embedded server; the zero value is 127.0.0.1:4222.
type Options struct {
	Host string // "": 127.0.0.1
	Port int    // 0: 4222, or a free port when that is taken; −1: a free port
	Log  *slog.Logger
}

// Server is a running server. Use Start.
type Server struct {
	s *server.Server
	// Moved says that the wanted port was taken and URL has another.
	Moved bool
}

// Start starts a server and returns when clients can connect.
func Start(ctx context.Context, o Options) (*Server, error) {
	if o.Host == "" {
		o.Host = "127.0.0.1"
	}
	want := o.Port
	if want == 0 {
		want = 4222
	}
	if want < 0 {
		return start(o, server.RANDOM_PORT)
	}
	// nats-server ends the process over a taken port, so it is probed first.
	taken, err := probe(ctx, o.Host, want)
	if err != nil {
		return nil, err
	}
	if !taken {
		s, err := start(o, want)
		if err == nil || !errors.Is(err, syscall.EADDRINUSE) {
			return s, err
		}
		// Another process took it in between: as if it had been taken.
	}
	if o.Port != 0 {
		return nil, fmt.Errorf("port %d on %s is taken: choose another, or set KVRELAY_NATS_URL to the server that has it", want, o.Host)
	}
	s, err := start(o, server.RANDOM_PORT)
	if err == nil {
		s.Moved = true
	}
	return s, err
}

func start(o Options, port int) (*Server, error) {
	s, err := server.NewServer(&server.Options{
		ServerName:          "kvrelay-embedded",
		Host:                o.Host,
		Port:                port,
		NoSigs:              true,
		NoSystemAccount:     true,
		NoFastProducerStall: true, // one slow subscriber must not slow the publisher
		MaxPayload:          MaxPayload,
	})
	if err != nil {
		return nil, fmt.Errorf("starting the embedded NATS server: %w", err)
	}
	fatal := make(chan string, 1)
	log := o.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	s.SetLoggerV2(&logger{log, fatal}, false, false, false)
	s.Start() // returns when it listens, or has called Fatalf
	select {
	case text := <-fatal:
		err = fmt.Errorf("starting the embedded NATS server: %s", text)
		if strings.Contains(text, syscall.EADDRINUSE.Error()) {
			err = fmt.Errorf("%w: %w", err, syscall.EADDRINUSE)
		}
	default:
		if s.ReadyForConnections(readyTimeout) {
			return &Server{s: s}, nil
		}
		err = fmt.Errorf("the embedded NATS server was not ready within %v", readyTimeout)
	}
	s.Shutdown()
	s.WaitForShutdown()
	return nil, err
}

func probe(ctx context.Context, host string, port int) (taken bool, err error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	if errors.Is(err, syscall.EADDRINUSE) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("the embedded NATS server cannot listen: %w", err)
	}
	return false, l.Close()
}

// URL is where clients connect.
func (s *Server) URL() string { return s.s.ClientURL() }

// Interest is how many subscriptions match a subject now.
func (s *Server) Interest(subject string) int { return s.s.GlobalAccount().Interest(subject) }

// Close ends the server and waits for it.
func (s *Server) Close() {
	s.s.Shutdown()
	s.s.WaitForShutdown()
}

// logger is the server's log at warning and above; its notices are about
// itself. Fatalf must not end the process.
type logger struct {
	log   *slog.Logger
	fatal chan string
}

func (l *logger) Noticef(string, ...any) {}
func (l *logger) Debugf(string, ...any)  {}
func (l *logger) Tracef(string, ...any)  {}

func (l *logger) Warnf(format string, v ...any) { l.say(slog.LevelWarn, format, v) }

func (l *logger) Errorf(format string, v ...any) { l.say(slog.LevelError, format, v) }

func (l *logger) Fatalf(format string, v ...any) {
	select {
	case l.fatal <- strings.TrimSpace(fmt.Sprintf(format, v...)):
	default: // the first one is the cause
	}
}

func (l *logger) say(level slog.Level, format string, v []any) {
	l.log.Log(context.Background(), level, "embedded NATS server: "+fmt.Sprintf(format, v...))
}
