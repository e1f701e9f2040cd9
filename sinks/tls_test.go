package sinks

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/kvrelay/kvrelay/internal/freeport"
)

// authority signs certificates.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  string // file of its certificate
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t}
	der, key := a.sign(&x509.Certificate{
		Subject: pkix.Name{CommonName: "authority"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	})
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	a.cert, a.key = cert, key
	a.pem = write(t, "ca.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	return a
}

// sign signs c, by itself where there is no authority yet.
func (a *authority) sign(c *x509.Certificate) (der []byte, key *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	c.SerialNumber = big.NewInt(time.Now().UnixNano())
	if c.NotAfter.IsZero() {
		c.NotAfter = time.Now().Add(time.Hour)
	}
	c.NotBefore = c.NotAfter.Add(-2 * time.Hour)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = c, key
	}
	if der, err = x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer); err != nil {
		a.t.Fatal(err)
	}
	return der, key
}

// server is a server's configuration with a certificate for host that ends at end.
func (a *authority) server(host string, end time.Time) *tls.Config {
	c := &x509.Certificate{NotAfter: end, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	if ip := net.ParseIP(host); ip != nil {
		c.IPAddresses = []net.IP{ip}
	} else {
		c.DNSNames = []string{host}
	}
	der, key := a.sign(c)
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
}

// client is files of a client's certificate that ends at end.
func (a *authority) client(end time.Time) (cert, key string) {
	der, k := a.sign(&x509.Certificate{NotAfter: end, Subject: pkix.Name{CommonName: "relay"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	raw, err := x509.MarshalECPrivateKey(k)
	if err != nil {
		a.t.Fatal(err)
	}
	return write(a.t, "c.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))),
		write(a.t, "k.pem", string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: raw})))
}

func mutual(c *tls.Config, ca *authority) *tls.Config {
	c.ClientAuth = tls.RequireAndVerifyClientCert
	c.ClientCAs = x509.NewCertPool()
	c.ClientCAs.AddCert(ca.cert)
	return c
}

// tlsServer runs a server with c on its own port, or on a WebSocket port; nil: no TLS.
func tlsServer(t *testing.T, c *tls.Config, ws bool) (at string) {
	t.Helper()
	const ip = "127.0.0.1"
	port := 0
	s := startServer(t, func(o *server.Options) {
		if ws {
			port = freeport.Next(t, 1)
			o.Websocket = server.WebsocketOpts{Host: ip, Port: port, TLSConfig: c, NoTLS: c == nil}
			return
		}
		o.TLSConfig = c
		o.TLSTimeout = 2
	})
	if ws {
		return net.JoinHostPort(ip, strconv.Itoa(port))
	}
	return s.Addr().String()
}

// TestTLSTroubleIsExplained: each way in which the two sides may not agree on TLS
// and WebSocket is told by what is to be changed, in words that stay the same.
func TestTLSTroubleIsExplained(t *testing.T) {
	ca, other := newAuthority(t), newAuthority(t)
	const ip = "127.0.0.1"
	past := time.Now().Add(-time.Minute)
	at := map[string]string{
		"plain":      tlsServer(t, nil, false),
		"tls":        tlsServer(t, ca.server(ip, time.Time{}), false),
		"mutual":     tlsServer(t, mutual(ca.server(ip, time.Time{}), ca), false),
		"mutual 1.2": tlsServer(t, oldTLS(mutual(ca.server(ip, time.Time{}), ca)), false),
		"expired":    tlsServer(t, ca.server(ip, past), false),
		"other name": tlsServer(t, ca.server("other.example", time.Time{}), false),
		"ws":         tlsServer(t, nil, true),
		"wss":        tlsServer(t, ca.server(ip, time.Time{}), true),
		"wss mutual": tlsServer(t, mutual(ca.server(ip, time.Time{}), ca), true),
	}
	cert, key := ca.client(time.Time{})
	pastCert, pastKey := ca.client(past)
	strangeCert, strangeKey := other.client(time.Time{})
	none, known := Auth{}, Auth{TLSCA: ca.pem}
	full := Auth{TLSCA: ca.pem, TLSCert: cert, TLSKey: key}
	ended := Auth{TLSCA: ca.pem, TLSCert: pastCert, TLSKey: pastKey}
	strange := Auth{TLSCA: ca.pem, TLSCert: strangeCert, TLSKey: strangeKey}
	const noTLS, set, take = "has no TLS, but ", "set KVRELAY_NATS_TLS_CERT and KVRELAY_NATS_TLS_KEY", "KVRELAY_NATS_TLS_CERT " // and its path
	for _, tc := range []struct {
		server, scheme string
		auth           Auth
		want           string // "": it works
	}{
		{"plain", "nats", none, ""},
		{"plain", "tls", none, noTLS + "tls:// in KVRELAY_NATS_URL asks for it"},
		{"plain", "nats", known, noTLS + "KVRELAY_NATS_TLS_CA asks for it"},
		{"plain", "tls", full, noTLS + "tls:// in KVRELAY_NATS_URL and KVRELAY_NATS_TLS_CA and KVRELAY_NATS_TLS_CERT ask for it"},
		{"plain", "ws", none, "has no WebSocket at this port: write nats://"},
		{"plain", "wss", none, "has no WebSocket at this port: write nats://"},
		{"tls", "nats", none, "an authority that this host does not know: set KVRELAY_NATS_TLS_CA"},
		{"tls", "tls", Auth{TLSCA: other.pem}, "not in KVRELAY_NATS_TLS_CA " + other.pem},
		{"tls", "nats", known, ""},
		{"tls", "tls", full, ""},
		{"tls", "ws", none, "has no WebSocket at this port"},
		{"tls", "wss", known, "has no WebSocket at this port"},
		{"mutual", "tls", known, set},
		{"mutual", "nats", known, set},
		{"mutual", "tls", full, ""},
		{"mutual", "tls", ended, take + pastCert},
		{"mutual", "tls", strange, take + strangeCert},
		{"mutual 1.2", "tls", known, set},
		{"mutual 1.2", "tls", ended, take + pastCert},
		{"mutual 1.2", "tls", strange, take + strangeCert},
		{"expired", "tls", known, "to " + past.UTC().Format(time.RFC3339) + " only: renew it there"},
		{"other name", "tls", known, "write a name in KVRELAY_NATS_URL that the certificate has"},
		{"ws", "ws", none, ""},
		{"ws", "wss", none, noTLS + "wss:// in KVRELAY_NATS_URL asks for it"},
		{"ws", "ws", known, noTLS + "KVRELAY_NATS_TLS_CA asks for it"},
		{"ws", "nats", none, "a WebSocket port needs ws:// or wss://"},
		{"ws", "tls", none, "a WebSocket port needs ws:// or wss://"},
		{"wss", "ws", none, "is no WebSocket of NATS: check KVRELAY_NATS_URL; a server with TLS needs wss://"},
		{"wss", "wss", none, "an authority that this host does not know: set KVRELAY_NATS_TLS_CA"},
		{"wss", "wss", known, ""},
		{"wss", "nats", none, "a WebSocket port needs ws:// or wss://"},
		{"wss mutual", "wss", known, set},
		{"wss mutual", "wss", ended, take + pastCert},
		{"wss mutual", "wss", full, ""},
	} {
		var asks []string
		for name, v := range map[string]string{"ca": tc.auth.TLSCA, "cert": tc.auth.TLSCert} {
			if v != "" {
				asks = append(asks, name)
			}
		}
		slices.Sort(asks)
		t.Run(strings.Join(append([]string{tc.server, tc.scheme}, asks...), " "), func(t *testing.T) {
			t.Parallel() // what waits for the other side takes three times a second
			var log logLines
			p := newTest(t, Options{Servers: []string{tc.scheme + "://" + at[tc.server]}, Auth: tc.auth, Logger: slog.New(slog.NewTextHandler(&log, nil))})
			p.timing = quick
			stop := run(t, p)
			if tc.want == "" {
				eventually(t, "a connection: "+p.State().LastError, func() bool { return p.State().Connected })
				return
			}
			eventually(t, "three tries", func() bool { return p.State().Failures >= 3 })
			if err := stop(); err != nil {
				t.Error(err)
			}
			text := p.State().LastError
			if !strings.Contains(text, tc.want) {
				t.Errorf("%q does not say %q", text, tc.want)
			}
			// Settings that are not set are named only where they are to be set.
			if n := strings.Count(strings.Replace(text, tc.want, "", 1), "NATS_TLS_"); n != 0 && tc.auth == none {
				t.Errorf("%q names settings that have no part in it", text)
			}
			// A refused certificate is heard of in one of two ways: the alert, or a write that comes too late for it.
			if lines := log.lines(); len(lines) != 1 && (len(lines) != 2 || tc.want != set && !strings.HasPrefix(tc.want, take)) {
				t.Errorf("told %d times: %q", len(lines), lines)
			}
		})
	}
}

// TestTLSFiles that are of no use are told as such, not as trouble with the server.
func TestTLSFiles(t *testing.T) {
	ca, other := newAuthority(t), newAuthority(t)
	cert, key := ca.client(time.Time{})
	_, otherKey := other.client(time.Time{})
	junk := write(t, "junk.pem", "hunter2")
	for want, a := range map[string]Auth{
		"KVRELAY_NATS_TLS_CA: " + junk + " holds no certificate":                         {TLSCA: junk},
		"KVRELAY_NATS_TLS_CERT " + junk + " and KVRELAY_NATS_TLS_KEY " + key + " are of": {TLSCert: junk, TLSKey: key},
		"KVRELAY_NATS_TLS_CERT " + cert + " and KVRELAY_NATS_TLS_KEY " + otherKey:        {TLSCert: cert, TLSKey: otherKey},
	} {
		if _, err := a.Options(); err == nil || !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// oldTLS has c speak TLS 1.2, where a client hears of a refused certificate within the handshake.
func oldTLS(c *tls.Config) *tls.Config {
	c.MaxVersion = tls.VersionTLS12
	return c
}
