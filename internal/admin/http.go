package admin

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"strings"
	"time"

	"golang.org/x/net/netutil"
)

// Bounds of the HTTP side. maxConns: further connections wait in the
// listener's backlog. maxHeader: a larger request is refused with 431.
// Deadlines end the connection; answerWithin leaves room for a CPU profile of 30 s.
const (
	maxConns     = 128
	maxHeader    = 16 << 10
	headerWithin = 5 * time.Second
	answerWithin = 60 * time.Second
	idleFor      = 60 * time.Second
)

func limited(ln net.Listener) net.Listener { return netutil.LimitListener(ln, maxConns) }

func (s *Server) httpServer() *http.Server {
	return &http.Server{
		Handler:           s.handler(),
		ReadHeaderTimeout: headerWithin,
		ReadTimeout:       headerWithin,
		WriteTimeout:      answerWithin,
		IdleTimeout:       idleFor,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          slog.NewLogLogger(s.o.Log.Handler(), slog.LevelDebug), // clients' mistakes
	}
}

// handler answers GET and HEAD; the mux refuses everything else.
func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", s.metricsHandler())
	mux.HandleFunc("GET /healthz", s.healthz)
	mux.HandleFunc("GET /readyz", s.readyz)
	mux.HandleFunc("GET /status", s.status)
	mux.HandleFunc("GET /{$}", s.page)
	if !onLoopback(s.ln) {
		return guard(mux)
	}
	// Profiles tell much and cost CPU: for those who are on this host. Not cmdline
	// among them: a secret may have been given as a flag.
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	return guard(localOnly(mux))
}

// guard sets what every answer has: it is never kept, framed or sniffed.
func guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Cache-Control", "no-store")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Referrer-Policy", "no-referrer")
		next.ServeHTTP(w, r)
	})
}

// localOnly refuses names other than localhost: a web site that lets its own
// name point to 127.0.0.1 could read everything here through a browser.
func localOnly(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := r.Host
		if h, _, err := net.SplitHostPort(host); err == nil {
			host = h
		}
		host = strings.Trim(host, "[]")
		if host != "" && net.ParseIP(host) == nil && !strings.EqualFold(host, "localhost") {
			http.Error(w, "this address answers to localhost and to IP addresses only", http.StatusMisdirectedRequest)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func onLoopback(ln net.Listener) bool {
	if ln == nil {
		return false
	}
	a, ok := ln.Addr().(*net.TCPAddr)
	return ok && a.IP.IsLoopback()
}

// healthz: 200 while this process can make progress, whatever engine and NATS do.
func (s *Server) healthz(w http.ResponseWriter, _ *http.Request) {
	if err := s.Health(); err != nil {
		answer(w, http.StatusServiceUnavailable, err.Error())
		return
	}
	answer(w, http.StatusOK, "ok")
}

// readyz: 200 when every known rank has ended its first replay and NATS is connected.
func (s *Server) readyz(w http.ResponseWriter, r *http.Request) {
	snap := s.fresh(r.Context())
	if reasons := s.unready(&snap); len(reasons) > 0 {
		answer(w, http.StatusServiceUnavailable, "not ready\n"+strings.Join(reasons, "\n"))
		return
	}
	answer(w, http.StatusOK, "ready")
}

func answer(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(code)
	if _, err := io.WriteString(w, text+"\n"); err != nil {
		return // the client is gone
	}
}

// plural is "1 rank", "2 ranks".
func plural(n uint64, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %ss", n, one)
}
