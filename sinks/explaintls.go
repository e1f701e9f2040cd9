package sinks

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
)

// checkTLSFiles looks into the files, so that what is wrong there is not told as
// trouble with the server.
func (a *Auth) checkTLSFiles() error {
	if a.TLSCA != "" {
		b, err := os.ReadFile(a.TLSCA)
		if err != nil {
			return fmt.Errorf("KVRELAY_NATS_TLS_CA: %w", err)
		}
		if !x509.NewCertPool().AppendCertsFromPEM(b) {
			return fmt.Errorf("KVRELAY_NATS_TLS_CA: %s holds no certificate in PEM", a.TLSCA)
		}
	}
	if a.TLSCert != "" {
		if _, err := tls.LoadX509KeyPair(a.TLSCert, a.TLSKey); err != nil {
			return fmt.Errorf("KVRELAY_NATS_TLS_CERT %s and KVRELAY_NATS_TLS_KEY %s are of no use (%w)", a.TLSCert, a.TLSKey, err)
		}
	}
	return nil
}

// explainTLS says what to change where the two sides do not agree on TLS,
// certificates or WebSocket; nil where err is of something else.
func (a *Auth) explainTLS(servers []string, err error) error {
	where, asks := redactAll(servers), a.asksTLS(servers)
	ws := slices.ContainsFunc(servers, func(s string) bool { return strings.HasPrefix(strings.ToLower(s), "ws") })
	var (
		noTLS   tls.RecordHeaderError
		unknown x509.UnknownAuthorityError
		name    x509.HostnameError
		invalid x509.CertificateInvalidError
	)
	switch text := err.Error(); {
	case ws && strings.Contains(text, "malformed HTTP"), ws && errors.As(err, &noTLS) && string(noTLS.RecordHeader[:]) == "INFO ":
		return fmt.Errorf("NATS at %s has no WebSocket at this port: write nats:// or tls:// in KVRELAY_NATS_URL, or its WebSocket port", where)
	case errors.Is(err, nats.ErrSecureConnWanted), errors.As(err, &noTLS) && asks != "":
		return fmt.Errorf("NATS at %s has no TLS, but %s: take that out, or switch TLS on at the server", where, asks)
	case strings.Contains(text, "invalid websocket connection"):
		return fmt.Errorf("what is at %s is no WebSocket of NATS: check KVRELAY_NATS_URL; a server with TLS needs wss:// there, one without ws://", where)
	case errors.As(err, &unknown) && a.TLSCA == "":
		return fmt.Errorf("NATS at %s has a certificate of an authority that this host does not know: set KVRELAY_NATS_TLS_CA to the authority's certificate", where)
	case errors.As(err, &unknown):
		return fmt.Errorf("NATS at %s has a certificate of an authority that is not in KVRELAY_NATS_TLS_CA %s: put the authority's certificate there", where, a.TLSCA)
	case errors.As(err, &name):
		return fmt.Errorf("NATS at %s has a certificate for another name (%w): write a name in KVRELAY_NATS_URL that the certificate has, or add this one to the certificate", where, name)
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		c := invalid.Cert // without the present time, which differs each time
		return fmt.Errorf("NATS at %s has a certificate that is good from %s to %s only: renew it there, or set this host's clock right",
			where, c.NotBefore.UTC().Format(time.RFC3339), c.NotAfter.UTC().Format(time.RFC3339))
	case errors.As(err, &invalid):
		return fmt.Errorf("NATS at %s has a certificate that is not to be trusted (%w): have it made anew", where, invalid)
	case aboutOurs(text):
		return a.certificate(where, text[strings.LastIndex(text, "tls: "):])
	case hungUp(err) && (errors.Is(err, nats.ErrTLS) || ws && asks != ""):
		return a.certificate(where, "it closed the connection behind the TLS handshake, as servers do then")
	case a.TLSCert == "" && strings.Contains(text, "remote error: tls: handshake failure"):
		return fmt.Errorf("TLS with NATS at %s failed (%w): if it wants a client's certificate, set KVRELAY_NATS_TLS_CERT and KVRELAY_NATS_TLS_KEY; else the two sides have no version or cipher in common", where, steady(err))
	case strings.Contains(text, "tls"):
		return fmt.Errorf("TLS with NATS at %s failed (%w): check KVRELAY_NATS_URL, and what lies between", where, steady(err))
	}
	return nil
}

// certificate is about our own: the server wants one, or another.
func (a *Auth) certificate(where, why string) error {
	if a.TLSCert == "" {
		return fmt.Errorf("NATS at %s wants a client's certificate (%s): set KVRELAY_NATS_TLS_CERT and KVRELAY_NATS_TLS_KEY", where, why)
	}
	return fmt.Errorf("NATS at %s does not take our certificate (%s): put one in KVRELAY_NATS_TLS_CERT %s that is of an authority known there, for clients, and has not ended", where, why, a.TLSCert)
}

// aboutOurs says whether the other side's alert is about a client's certificate.
func aboutOurs(text string) bool {
	return strings.Contains(text, "remote error: tls: ") && slices.ContainsFunc([]string{
		"certificate required", "bad certificate", "unsupported certificate", "revoked certificate", "expired certificate",
		"unknown certificate", // and: … authority
	}, func(alert string) bool { return strings.Contains(text, alert) })
}

// hungUp says whether the other side closed the connection.
func hungUp(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET)
}

// asksTLS names the settings that make TLS a must; "": none. One tls:// or
// wss:// in NATS_URL does so for all servers.
func (a *Auth) asksTLS(servers []string) string {
	var by []string
	for _, scheme := range []string{"tls://", "wss://"} {
		if slices.ContainsFunc(servers, func(s string) bool { return strings.HasPrefix(strings.ToLower(s), scheme) }) {
			by = append(by, scheme+" in KVRELAY_NATS_URL")
		}
	}
	if a.TLSCA != "" {
		by = append(by, "KVRELAY_NATS_TLS_CA")
	}
	if a.TLSCert != "" {
		by = append(by, "KVRELAY_NATS_TLS_CERT")
	}
	switch len(by) {
	case 0:
		return ""
	case 1:
		return by[0] + " asks for it"
	}
	return strings.Join(by, " and ") + " ask for it"
}
