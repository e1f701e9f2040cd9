package sinks

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
)

// logLines collects what is logged.
type logLines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logLines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *logLines) lines() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Split(strings.TrimSpace(l.b.String()), "\n")
}

func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestTroubleIsExplained: each kind of trouble gives one line that names the
// setting, holds no secret, is not repeated, and ends when its cause does.
func TestTroubleIsExplained(t *testing.T) {
	locked := startServer(t, func(o *server.Options) { o.Username, o.Password = "u", "right" })
	userKey, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	seed, err := userKey.Seed()
	if err != nil {
		t.Fatal(err)
	}
	otherKey, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	otherPub, err := otherKey.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	nkeyed := startServer(t, func(o *server.Options) { o.Nkeys = []*server.NkeyUser{{Nkey: otherPub}} })
	tiny := startServer(t, func(o *server.Options) { o.MaxPayload = minMaxPayload - 1 })
	tlsOnly := startServer(t, func(o *server.Options) { o.TLSConfig = selfSigned(t, nil) })
	dead, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	free := "nats://" + dead.Addr().String()
	_ = dead.Close()
	mute, err := net.Listen("tcp", "127.0.0.1:0") // accepts and says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer mute.Close()
	for _, tc := range []struct {
		name string
		url  string
		auth Auth
		want []string
	}{
		{"unreachable", free, Auth{}, []string{"cannot be reached", "connection refused", "KVRELAY_NATS_URL"}},
		{"no such host", "nats://no-such-host.invalid:4222", Auth{}, []string{"cannot be reached", "KVRELAY_NATS_URL"}},
		{"mute", "nats://" + mute.Addr().String(), Auth{}, []string{"does not answer", "KVRELAY_NATS_URL", "timeout"}},
		{"no credentials", locked.ClientURL(), Auth{}, []string{"refuses a client without credentials", "KVRELAY_NATS_CREDS_FILE"}},
		{"wrong password", locked.ClientURL(), Auth{User: "u", Password: "hunter2"}, []string{"refuses the user or password", "KVRELAY_NATS_USER and KVRELAY_NATS_PASSWORD"}},
		{"password in the url", strings.Replace(locked.ClientURL(), "://", "://u:hunter2@", 1), Auth{}, []string{"refuses the user or password in NATS_URL", "Authorization Violation", "check KVRELAY_NATS_URL"}},
		{"token in the url", strings.Replace(locked.ClientURL(), "://", "://hunter2@", 1), Auth{}, []string{"refuses the token in NATS_URL", "check KVRELAY_NATS_URL"}},
		{"wrong token", locked.ClientURL(), Auth{Token: "hunter2"}, []string{"refuses the token", "KVRELAY_NATS_TOKEN"}},
		{"no creds file", locked.ClientURL(), Auth{CredsFile: "/nowhere/x.creds"}, []string{"KVRELAY_NATS_CREDS_FILE", "/nowhere/x.creds", "no such file"}},
		{"bad creds file", locked.ClientURL(), Auth{CredsFile: write(t, "x.creds", "hunter2")}, []string{"KVRELAY_NATS_CREDS_FILE", "x.creds"}},
		{"bad nkey file", locked.ClientURL(), Auth{NKeyFile: write(t, "x.nk", "hunter2")}, []string{"KVRELAY_NATS_NKEY_FILE", "x.nk", "no nkey seed"}},
		{"nkey where there are none", locked.ClientURL(), Auth{NKeyFile: write(t, "x.nk", string(seed))}, []string{"knows no nkeys", "KVRELAY_NATS_NKEY_FILE"}},
		{"unknown nkey", nkeyed.ClientURL(), Auth{NKeyFile: write(t, "x.nk", string(seed))}, []string{"refuses the nkey", "KVRELAY_NATS_NKEY_FILE"}},
		{"no ca file", locked.ClientURL(), Auth{TLSCA: "/nowhere/ca.pem"}, []string{"KVRELAY_NATS_TLS_CA", "no such file"}},
		{"tls with another name", tlsOnly.ClientURL(), Auth{}, []string{"a certificate for another name", "KVRELAY_NATS_URL"}},
		{"tls where there is none", locked.ClientURL(), Auth{User: "u", Password: "right", TLSCA: write(t, "ca.pem", string(certPEM(selfSigned(t, nil))))}, []string{"KVRELAY_NATS_TLS_CA"}},
		{"tiny max_payload", tiny.ClientURL(), Auth{}, []string{"max_payload", "768"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var log logLines
			p := newTest(t, Options{Servers: []string{tc.url}, Auth: tc.auth, Logger: slog.New(slog.NewTextHandler(&log, nil))})
			p.timing = quick
			p.timing.dial = 50 * time.Millisecond
			tries := 0
			dial := p.o.Dial
			var mu sync.Mutex
			p.o.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
				mu.Lock()
				tries++
				mu.Unlock()
				return dial(ctx, network, address)
			}
			stop := run(t, p)
			eventually(t, "an error", func() bool { return p.State().LastError != "" })
			if !strings.Contains(tc.name, "file") {
				eventually(t, "more tries", func() bool { mu.Lock(); defer mu.Unlock(); return tries > 3 })
			}
			text := p.State().LastError
			for _, w := range tc.want {
				if !strings.Contains(text, w) {
					t.Errorf("%q does not say %q", text, w)
				}
			}
			if err := stop(); err != nil {
				t.Error(err)
			}
			lines := log.lines()
			if len(lines) != 1 || !strings.Contains(lines[0], tc.want[0]) {
				t.Errorf("logged %q", lines)
			}
			if strings.Contains(text+lines[0], "hunter2") {
				t.Errorf("a secret in %q", text)
			}
			if strings.Contains(text, "\n") {
				t.Errorf("several lines: %q", text)
			}
		})
	}
}

// TestCredentials that are right are used, also when they come late.
func TestCredentials(t *testing.T) {
	key, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	pub, err := key.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	seed, err := key.Seed()
	if err != nil {
		t.Fatal(err)
	}
	cert := selfSigned(t, net.IPv4(127, 0, 0, 1))
	late := filepath.Join(t.TempDir(), "late.nk")
	for _, tc := range []struct {
		name  string
		setup func(*server.Options)
		auth  Auth
		file  string // written after the first failure
		text  []byte
	}{
		{"user", func(o *server.Options) { o.Username, o.Password = "u", "p" }, Auth{User: "u", Password: "p"}, "", nil},
		{"token", func(o *server.Options) { o.Authorization = "t" }, Auth{Token: "t"}, "", nil},
		{"nkey", func(o *server.Options) { o.Nkeys = []*server.NkeyUser{{Nkey: pub}} }, Auth{NKeyFile: write(t, "k", string(seed))}, "", nil},
		{"late nkey", func(o *server.Options) { o.Nkeys = []*server.NkeyUser{{Nkey: pub}} }, Auth{NKeyFile: late}, late, seed},
		{"tls", func(o *server.Options) { o.TLSConfig = cert }, Auth{TLSCA: write(t, "ca", string(certPEM(cert)))}, "", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := startServer(t, tc.setup)
			p := newTest(t, Options{Servers: []string{s.ClientURL()}, Auth: tc.auth})
			p.timing = quick
			o := open(t, p, 1, 0, nil)
			o.Append(Place{}, newWorkload(1).events(50))
			run(t, p)
			if tc.file != "" {
				eventually(t, "an error", func() bool { return p.State().LastError != "" })
				if err := os.WriteFile(tc.file, tc.text, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			drained(t, p)
			if n := o.Confirmed(); n != 50 {
				t.Errorf("confirmed %d", n)
			}
		})
	}
}

// TestPermissions: what the server refuses to take from us is not confirmed by
// the PONG behind it; it stays until it is allowed.
func TestPermissions(t *testing.T) {
	user := func(allow ...string) []*server.User {
		return permitted(server.Permissions{Publish: &server.SubjectPermission{Allow: allow}})
	}
	s, reload := reloadable(t, func(o *server.Options) { o.Users = user("other") })
	var log logLines
	p := newTest(t, Options{Servers: []string{s.ClientURL()}, Auth: Auth{User: "u", Password: "p"}, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	p.timing = quick
	o := open(t, p, 1, 0, nil)
	c := follow(t, connect(t, s.ClientURL(), nats.UserInfo("reader", "p")), o.Subject(), Dynamo)
	run(t, p)
	want := fold{}
	evs := newWorkload(1).events(50)
	for i := range evs {
		want.apply(&evs[i])
	}
	o.Append(Place{}, evs)
	eventually(t, "the refusal", func() bool { return strings.Contains(p.State().LastError, "does not let the user or password publish") })
	eventually(t, "more tries", func() bool { return p.State().Envelopes > 5 })
	if o.Confirmed() != 0 || p.State().UnconfirmedEvents != 50 {
		t.Fatalf("confirmed %d that the server refused", o.Confirmed())
	}
	if n := strings.Count(strings.Join(log.lines(), "\n"), "does not let"); n != 1 {
		t.Errorf("said %d times", n)
	}
	reload(func(o *server.Options) { o.Users = user("namespace.>") })
	drained(t, p)
	arrived(t, c, o, want)
}

func TestOptionsAreChecked(t *testing.T) {
	_, err := New(Options{Kind: JetStream, Profile: 9, Servers: []string{"nats://u:hunter2@h:1", "http://u:hunter2@h"},
		Auth: Auth{TLSCert: "x"}, RecentEvents: -1, Subject: "a.{b}"})
	if err == nil {
		t.Fatal("accepted")
	}
	for _, want := range []string{"PROFILE", "entry 2", "NATS_TLS_CERT and NATS_TLS_KEY", "RECENT_EVENTS", "{b} is unknown"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not say %q", err, want)
		}
	}
	if strings.Contains(err.Error(), "hunter2") {
		t.Errorf("a secret in %q", err)
	}
	for _, k := range []string{"nats", "jetstream", "stdout"} {
		if v, err := ParseKind(k); err != nil || v.String() != k {
			t.Errorf("ParseKind(%q) = %v, %v", k, v, err)
		}
	}
	for _, k := range []string{"dynamo", "dynamo-single", "json"} {
		if v, err := ParseProfile(k); err != nil || v.String() != k {
			t.Errorf("ParseProfile(%q) = %v, %v", k, v, err)
		}
	}
	if _, err := ParseProfile("jsn"); err == nil || !strings.Contains(err.Error(), "dynamo-single") {
		t.Errorf("%v", err)
	}
}

func TestRedact(t *testing.T) {
	for in, want := range map[string]string{
		"nats://u:p@h:1":    "nats://h:1",
		"nats://token@h:1":  "nats://h:1",
		"u:p@h:1":           "h:1",
		"nats://u:p@x@h:1":  "nats://h:1",
		"nats://[::1]:4222": "nats://[::1]:4222",
		"h":                 "h",
		"u:a://b@h":         "h",
	} {
		if got := redact(in); strings.Contains(got, "p@") || strings.Contains(got, "token") || !strings.HasSuffix(got, want[strings.LastIndex(want, "/")+1:]) {
			t.Errorf("redact(%q) = %q", in, got)
		}
	}
}

// selfSigned is a server's TLS configuration with a certificate of its own for ip.
func selfSigned(t *testing.T, ip net.IP) *tls.Config {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		DNSNames: []string{"other"}, IsCA: true, BasicConstraintsValid: true}
	if ip != nil {
		tmpl.IPAddresses = []net.IP{ip}
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
}

func certPEM(c *tls.Config) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Certificates[0].Certificate[0]})
}
