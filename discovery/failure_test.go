package discovery

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/kvrelay/kvrelay/internal/enginepb/openenginepb"
	"github.com/kvrelay/kvrelay/internal/enginepb/vllmpb"
)

// raw is a TCP server that says text to whoever connects and closes.
func raw(t *testing.T, text string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.SetReadDeadline(time.Now().Add(time.Second))
			_, _ = c.Read(make([]byte, 4096)) // the question, whatever it is
			_, _ = io.WriteString(c, text)
			c.Close()
		}
	}()
	t.Cleanup(func() { l.Close(); <-ended })
	return l.Addr().String()
}

// nobody is an address where nothing listens: a port below those that servers
// in tests are given.
const nobody = "127.0.0.1:1"

const sameByHand = "; settings that do the same: ENGINE=static, ENDPOINTS=tcp://HOST:PORT and REPLAY_ENDPOINTS=tcp://HOST:PORT, as in the engine's KV events config"

// One address that knows only some of the questions: what it has not answered at
// all it may know.
func TestSilenceOfOneQuestion(t *testing.T) {
	vllm := prober{target: target{url: "http://e:1"}, asks: "/kv_event_sources (vLLM 0.31 or later)"}
	sglang := prober{target: target{url: "http://e:1"}, asks: "/server_info with kv_events (SGLang 0.5.13 or later)"}
	unknown, mute, denial := reply{fail: failf(unsupported, "404")}, reply{fail: failf(unreachable, "no answer within 5s")}, reply{fail: failf(denied, "it wants a token")}
	for _, c := range []struct {
		name     string
		a, b     reply
		want     string
		level    slog.Level
		sameAsIn []reply // the classes that make it the same state of waiting; nil: of no interest
	}{
		{"the first", mute, unknown, "http://e:1: no answer within 5s for /kv_event_sources (vLLM 0.31 or later)", slog.LevelInfo, []reply{unknown, mute}},
		{"the second", unknown, mute, "http://e:1: no answer within 5s for /server_info with kv_events (SGLang 0.5.13 or later)", slog.LevelInfo, nil},
		{"both", mute, mute, "http://e:1: no answer within 5s", slog.LevelInfo, nil},
		{"none", unknown, unknown, "http://e:1 answers, but does not know /kv_event_sources (vLLM 0.31 or later), or /server_info with kv_events (SGLang 0.5.13 or later)" + sameByHand, slog.LevelWarn, nil},
		{"beside something more telling", mute, denial, "http://e:1: it wants a token", slog.LevelWarn, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			probers := []prober{vllm, sglang}
			w := silence(probers, []reply{c.a, c.b})
			if w.text != c.want || w.level != c.level {
				t.Errorf("got  %v %s\nwant %v %s", w.level, w.text, c.level, c.want)
			}
			if c.sameAsIn != nil && silence(probers, c.sameAsIn).classes != w.classes {
				t.Error("another state of waiting, though only the unanswered question changed")
			}
		})
	}
}

// Everything that an address may do instead of answering, with the exact words.
func TestSilence(t *testing.T) {
	says := func(code codes.Code, text string) string {
		return serveVLLM(t, &vllmEngine{sources: func(context.Context) (*vllmpb.GetKvEventSourcesResponse, error) { return nil, status.Error(code, text) }})
	}
	empty := "grpc://" + serve(t, func(*grpc.Server) {})
	tooOldFor := "grpc://" + serve(t, func(s *grpc.Server) {
		openenginepb.RegisterOpenEngineServer(s, &openEngine{info: &openenginepb.EngineInfo{MinimumClientRevision: 4}})
	})
	huge := "grpc://" + serve(t, func(s *grpc.Server) {
		vllmpb.RegisterControlServer(s, &vllmEngine{sources: vllmSources(&vllmpb.KvEventSource{Topic: strings.Repeat("x", maxSourceList)})})
	})
	tlsServer := httptest.NewUnstartedServer(http.NotFoundHandler())
	tlsServer.Config.ErrorLog = log.New(io.Discard, "", 0)
	tlsServer.StartTLS()
	t.Cleanup(tlsServer.Close)
	tlsAddr := strings.TrimPrefix(tlsServer.URL, "https://")
	httpAddr := web(t, nil)
	for _, c := range []struct {
		name  string
		o     Options
		class class
		want  string // URL stands for the address
	}{
		{"nobody, gRPC", Options{URL: "grpc://" + nobody}, unreachable, "URL: connection refused"},
		{"nobody, HTTP", Options{URL: "http://" + nobody}, unreachable, "URL: connection refused"},
		{"closes", Options{URL: "http://" + raw(t, "")}, unreachable, "URL: it closed the connection"},

		{"UNAVAILABLE", Options{URL: says(codes.Unavailable, "loading\nmodel")}, notReady, "URL: not ready yet (loading model)"},
		{"503", Options{URL: "http://" + web(t, map[string]string{"/kv_event_sources": "503"})}, notReady, "URL: not ready yet (503 for /kv_event_sources)"},
		{"429", Options{Kind: KindSGLang, URL: "http://" + web(t, map[string]string{"/server_info": "429"})}, notReady, "URL: not ready yet (429 for /server_info)"},

		{"UNIMPLEMENTED", Options{URL: empty}, unsupported, "URL answers, but does not know vllm.Control/GetKvEventSources (vLLM 0.27 or later), or openengine.v1.OpenEngine/GetKvEventSources (engines that speak OpenEngine), or sglang.runtime.v1.SglangService/GetServerInfo with kv_events (SGLang 0.5.13 or later)" + sameByHand},
		{"UNIMPLEMENTED, vllm", Options{URL: empty, Kind: KindVLLM}, unsupported, "URL answers, but does not know vllm.Control/GetKvEventSources (vLLM 0.27 or later)" + sameByHand},
		{"UNIMPLEMENTED, sglang", Options{URL: empty, Kind: KindSGLang}, unsupported, "URL answers, but does not know sglang.runtime.v1.SglangService/GetServerInfo with kv_events (SGLang 0.5.13 or later)" + sameByHand},
		{"UNIMPLEMENTED, openengine", Options{URL: empty, Kind: KindOpenEngine}, unsupported, "URL answers, but does not know openengine.v1.OpenEngine/GetKvEventSources (engines that speak OpenEngine)" + sameByHand},
		{"404", Options{URL: "http://" + httpAddr}, unsupported, "URL answers, but does not know /kv_event_sources (vLLM 0.31 or later), or /server_info with kv_events (SGLang 0.5.13 or later)" + sameByHand},
		{"405", Options{Kind: KindVLLM, URL: "http://" + web(t, map[string]string{"/kv_event_sources": "405"})}, unsupported, "URL answers, but does not know /kv_event_sources (vLLM 0.31 or later)" + sameByHand},
		{"an SGLang too old", Options{URL: "http://" + web(t, map[string]string{"/server_info": `{"version":"0.5.2"}`})}, unsupported, "URL answers, but does not know /kv_event_sources (vLLM 0.31 or later), or /server_info with kv_events (SGLang 0.5.13 or later)" + sameByHand},

		{"401", Options{URL: "http://" + web(t, map[string]string{"/kv_event_sources": "401"})}, denied, "URL: it wants a token (401 Unauthorized): set DISCOVERY_TOKEN or DISCOVERY_TOKEN_FILE"},
		{"403 with a token", Options{Token: "s3cret", URL: "http://" + web(t, map[string]string{"/kv_event_sources": "403"})}, denied, "URL: it does not accept DISCOVERY_TOKEN (403 Forbidden)"},
		{"UNAUTHENTICATED", Options{URL: says(codes.Unauthenticated, "x")}, denied, "URL: it wants a token (Unauthenticated): set DISCOVERY_TOKEN or DISCOVERY_TOKEN_FILE"},
		{"PERMISSION_DENIED with a token", Options{Token: "s3cret", URL: says(codes.PermissionDenied, "x")}, denied, "URL: it does not accept DISCOVERY_TOKEN (PermissionDenied)"},

		{"INTERNAL", Options{URL: says(codes.Internal, "oops\t"+strings.Repeat("x", 300))}, broken, "URL: Internal: oops " + strings.Repeat("x", 195) + "…"},
		{"too long, gRPC", Options{Kind: KindVLLM, URL: huge}, broken, "URL: ResourceExhausted: grpc: received message larger than max (1048584 vs. 1048576)"},
		{"500", Options{URL: "http://" + web(t, map[string]string{"/kv_event_sources": "500"})}, broken, "URL: 500 for /kv_event_sources"},
		{"a redirect", Options{Kind: KindVLLM, URL: "http://" + web(t, map[string]string{"/kv_event_sources": "301"})}, broken, "URL: 301 for /kv_event_sources"},
		{"no JSON", Options{Kind: KindVLLM, URL: "http://" + web(t, map[string]string{"/kv_event_sources": "<html>"})}, broken, "URL: its answer to /kv_event_sources is no JSON"},
		{"nothing at all", Options{Kind: KindVLLM, URL: "http://" + web(t, map[string]string{"/kv_event_sources": ""})}, broken, "URL: its answer to /kv_event_sources is no JSON"},
		{"a string", Options{Kind: KindVLLM, URL: "http://" + web(t, map[string]string{"/kv_event_sources": `"x-y"`})}, broken, "URL: its answer to /kv_event_sources is neither an object nor a list"},
		{"two objects", Options{Kind: KindVLLM, URL: "http://" + web(t, map[string]string{"/kv_event_sources": `{}{}`})}, broken, "URL: its answer to /kv_event_sources is no JSON"},
		{"no JSON, sglang", Options{Kind: KindSGLang, URL: "http://" + web(t, map[string]string{"/server_info": "{..}"})}, broken, "URL: its answer to /server_info is no JSON"},
		{"no object, sglang", Options{Kind: KindSGLang, URL: "http://" + web(t, map[string]string{"/get_server_info": "[1, 2]"})}, broken, "URL: its answer to /get_server_info: it is an array, want an object"},
		{"no number, sglang", Options{Kind: KindSGLang, URL: "http://" + web(t, map[string]string{"/server_info": `{"kv_events":null,"dp_size":-7}`})}, broken, "URL: its answer to /server_info: dp_size is a number, want a whole number from 0 to 4294967295"},
		{"too long", Options{Kind: KindVLLM, URL: "http://" + web(t, map[string]string{"/kv_event_sources": strings.Repeat(" ", maxAnswer+1)})}, broken, "URL: its answer to /kv_event_sources is longer than 8388608 bytes"},
		{"gRPC at an HTTP port", Options{URL: "grpc://" + httpAddr}, broken, "URL: it does not speak gRPC: is its port one for HTTP or TLS?"},
		{"HTTP at a gRPC port", Options{URL: "http://" + strings.TrimPrefix(empty, "grpc://")}, broken, "URL: it does not speak HTTP/1.1: is its port one for gRPC or TLS?"},
		{"TLS at a plain port", Options{URL: "https://" + httpAddr}, broken, "URL: it does not speak TLS: want grpc:// or http://"},
		{"TLS at a plain port, gRPC", Options{URL: "grpcs://" + httpAddr}, broken, "URL: it does not speak TLS: want grpc:// or http://"},
		{"not trusted", Options{URL: "https://" + tlsAddr}, broken, "URL: its certificate is not trusted: "},
		{"not trusted, gRPC", Options{URL: "grpcs://" + tlsAddr}, broken, "URL: TLS fails: "},
		{"wants newer clients", Options{URL: tooOldFor}, tooOld, "URL: the engine wants clients of OpenEngine revision 4 or later, and kvrelay has revision 1: use a newer kvrelay"},
	} {
		t.Run(c.name, func(t *testing.T) {
			probers, replies, _ := askOnce(t, c.o)
			if best(replies) >= 0 {
				t.Fatal("there was an answer")
			}
			w := silence(probers, replies)
			got := strings.ReplaceAll(w.text, c.o.URL, "URL")
			if exact := !strings.HasSuffix(c.want, ": "); exact && got != c.want || !strings.HasPrefix(got, c.want) {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
			top := unreachable
			for _, r := range replies {
				top = max(top, r.fail.class)
			}
			if top != c.class {
				t.Errorf("class %d, want %d", top, c.class)
			}
			if strings.Contains(got, "s3cret") {
				t.Error("the token is in the message")
			}
		})
	}
}

// A server that takes the call and never answers costs one deadline, not the round.
func TestDeadline(t *testing.T) {
	hang := func(ctx context.Context) (*vllmpb.GetKvEventSourcesResponse, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	url := serveVLLM(t, &vllmEngine{sources: hang})
	_, replies, _ := askOnce(t, Options{URL: url, Kind: KindVLLM})
	if f := replies[0].fail; f == nil || f.class != unreachable || f.text != "no answer within 5s" {
		t.Errorf("%v", f)
	}
	// Beside one that answers it is not waited for.
	mixed := "grpc://" + serve(t, func(s *grpc.Server) {
		vllmpb.RegisterControlServer(s, &vllmEngine{sources: hang})
		openenginepb.RegisterOpenEngineServer(s, &openEngine{sources: []*openenginepb.KvEventSource{{Transport: "zmq"}}})
	})
	began := time.Now()
	a, _ := answerOf(t, Options{URL: mixed})
	if took := time.Since(began); a.kind != KindOpenEngine || took >= callTimeout {
		t.Errorf("%s after %v", a.kind, took)
	}
}

// A question beside the sources that fails for the moment makes the answer
// partial; one that fails for good only costs what it would have told.
func TestPartialAnswers(t *testing.T) {
	info := func(code codes.Code) func(context.Context) (*vllmpb.ServerInfo, error) {
		return func(context.Context) (*vllmpb.ServerInfo, error) { return nil, status.Error(code, "why") }
	}
	a, _ := answerOf(t, Options{URL: serveVLLM(t, &vllmEngine{sources: vllmSources(), info: info(codes.Unavailable)})})
	if a.partial != "vllm.Control/GetServerInfo: not ready yet (why)" || len(a.warnings) > 0 {
		t.Errorf("partial %q, warnings %q", a.partial, a.warnings)
	}
	a, _ = answerOf(t, Options{URL: serveVLLM(t, &vllmEngine{sources: vllmSources(), info: info(codes.Internal)})})
	if a.partial != "" || len(a.warnings) != 1 || a.warnings[0] != "vllm.Control/GetServerInfo fails, so block size and ranks stay unknown: Internal: why" {
		t.Errorf("partial %q, warnings %q", a.partial, a.warnings)
	}
}

// The token goes with every call, over TLS, and to nobody else.
func TestToken(t *testing.T) {
	var seen atomic.Int64
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") == "Bearer s3cret" {
			seen.Add(1)
		}
		_, _ = io.WriteString(w, `{"0":{"endpoint":"tcp://*:1"}}`)
	}))
	server.StartTLS()
	t.Cleanup(server.Close)
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	trust := &tls.Config{RootCAs: roots}

	_, o := answerOf(t, Options{Kind: KindVLLM, URL: server.URL, Token: "s3cret", TLS: trust})
	same(t, lines(o), []string{"0 tcp://127.0.0.1:1 - - 0/1"})
	if seen.Load() != 1 {
		t.Error("no token over HTTP")
	}

	seen.Store(0)
	check := func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any, error) {
		md, _ := metadata.FromIncomingContext(ctx)
		if got := md.Get("authorization"); len(got) != 1 || got[0] != "Bearer s3cret" {
			return nil, status.Error(codes.Unauthenticated, "")
		}
		seen.Add(1)
		return h(ctx, req)
	}
	creds := credentials.NewTLS(&tls.Config{Certificates: server.TLS.Certificates, NextProtos: []string{"h2"}})
	url := "grpcs://" + serve(t, func(s *grpc.Server) {
		vllmpb.RegisterControlServer(s, &vllmEngine{sources: vllmSources(), info: func(context.Context) (*vllmpb.ServerInfo, error) { return &vllmpb.ServerInfo{}, nil }})
	}, grpc.Creds(creds), grpc.UnaryInterceptor(check))
	if a, _ := answerOf(t, Options{Kind: KindVLLM, URL: url, Token: "s3cret", TLS: trust}); a.kind != KindVLLM || seen.Load() != 2 {
		t.Errorf("%d calls with the token", seen.Load())
	}
}

func TestNewRefuses(t *testing.T) {
	for _, c := range []struct {
		o    Options
		want string
	}{
		{Options{Kind: KindStatic}, "discovery: kind static without sources"},
		{Options{URL: "h:1"}, "discovery: the address has no host: want scheme://host:port"},
		{Options{URL: "//h:1"}, `discovery: scheme "": want grpc, grpcs, http or https`},
		{Options{URL: "ftp://h:1"}, `discovery: scheme "ftp": want grpc, grpcs, http or https`},
		{Options{URL: "http://h"}, "discovery: the address has no port from 1 to 65535: want scheme://host:port"},
		{Options{URL: "http://h:0"}, "discovery: the address has no port from 1 to 65535: want scheme://host:port"},
		{Options{URL: "http://:80"}, "discovery: the address has no host: want scheme://host:port"},
		{Options{URL: "http://u:s3cret@h:80"}, "discovery: the address holds a user: want scheme://host:port, and a token beside it"},
		{Options{URL: "http://h:80/s3cret"}, "discovery: something follows the port of the address: want scheme://host:port"},
		{Options{URL: "http://h:80?s3cret"}, "discovery: something follows the port of the address: want scheme://host:port"},
		{Options{URL: "http://s3cret\x7f:80"}, "discovery: the address cannot be read: want scheme://host:port"},
		{Options{URL: "http://h:80", Kind: KindOpenEngine}, "discovery: no engine of kind openengine is asked at http://h:80: want grpc:// or grpcs:// with ENGINE=openengine"},
		{Options{URL: "http://h:80", Kind: "trtllm"}, "discovery: no engine of kind trtllm is asked at http://h:80: want ENGINE auto, vllm, sglang, openengine or static"},
		{Options{URL: "http://h:80", Token: "s3cret"}, "discovery: the token would cross the network in the clear to http://h:80: want https://h:80, or no DISCOVERY_TOKEN"},
		{Options{URL: "grpc://[fd00::1]:80", Token: "s3cret"}, "discovery: the token would cross the network in the clear to grpc://[fd00::1]:80: want grpcs://[fd00::1]:80, or no DISCOVERY_TOKEN"},
	} {
		_, err := New(c.o)
		if err == nil || err.Error() != c.want {
			t.Errorf("%+v:\ngot  %v\nwant %s", c.o.URL, err, c.want)
		}
	}
	for _, o := range []Options{
		{}, {Token: "t"}, {Kind: KindOpenEngine}, {URL: "http://localhost:1/", Token: "t"}, {URL: "HTTP://[::1]:1", Token: "t"}, {URL: "grpc://127.9.9.9:1", Token: "t"},
		{URL: "grpcs://h:1", Token: "t"}, {URL: "https://h:1", Token: "t", Kind: KindSGLang}, {Static: []Source{{}}},
	} {
		if _, err := New(o); err != nil {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

// Without an address the usual ports are asked, each in the ways it speaks.
func TestUsualAddresses(t *testing.T) {
	for kind, want := range map[string]string{
		KindAuto:       "vllm@grpc://127.0.0.1:50051 openengine@grpc://127.0.0.1:50051 sglang@grpc://127.0.0.1:50051 vllm@http://127.0.0.1:8000 sglang@http://127.0.0.1:8000 vllm@http://127.0.0.1:30000 sglang@http://127.0.0.1:30000",
		KindVLLM:       "vllm@grpc://127.0.0.1:50051 vllm@http://127.0.0.1:8000 vllm@http://127.0.0.1:30000",
		KindSGLang:     "sglang@grpc://127.0.0.1:50051 sglang@http://127.0.0.1:8000 sglang@http://127.0.0.1:30000",
		KindOpenEngine: "openengine@grpc://127.0.0.1:50051",
	} {
		d, err := New(Options{Kind: kind})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, p := range d.probers {
			got = append(got, p.kind+"@"+p.target.url)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %s", kind, got)
		}
	}
}

func TestOfConnection(t *testing.T) {
	for want, err := range map[string]error{
		"no answer within 5s": fmt.Errorf("x: %w", context.DeadlineExceeded),
		"some thing":          errors.New("some\nthing"),
		"no such host":        &net.OpError{Op: "dial", Err: &net.DNSError{Err: "no such host", Name: "h", IsNotFound: true}},
		"its name cannot be looked up: server misbehaving": &net.DNSError{Err: "server misbehaving", Name: "h", UnwrapErr: syscall.ECONNREFUSED},
		"no route to host": &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.EHOSTUNREACH)},
	} {
		if f := ofConnection(err); f.class != unreachable || f.text != want {
			t.Errorf("%v: %+v, want %s", err, f, want)
		}
	}
}

// A gRPC server may greet before the question is sent: net/http then has other words.
func TestGreetedBeforeAsking(t *testing.T) {
	if f := ofConnection(errors.New(`Get "http://h:1/x": readLoopPeekFailLocked: %!w(<nil>)`)); f.class != broken || !strings.HasPrefix(f.text, "it does not speak HTTP/1.1") {
		t.Errorf("class %d: %s", f.class, f.text)
	}
}
