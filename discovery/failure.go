package discovery

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
)

// class is what kind of failure an unanswered question is. The order is how
// telling it is: of several failures at one address the highest is said.
type class int

const (
	unreachable class = iota // nobody is there
	unsupported              // somebody is, who does not know the question
	notReady                 // an engine that is not yet up
	denied                   // the token, or its absence
	broken                   // an answer that makes no sense
	tooOld                   // kvrelay is, for this engine
)

// failure is why an engine did not answer.
type failure struct {
	class class
	text  string
}

func (f *failure) Error() string { return f.text }

func failf(c class, format string, args ...any) *failure {
	return &failure{c, fmt.Sprintf(format, args...)}
}

// later says whether the same question may be answered in a moment.
func (f *failure) later() bool { return f.class == unreachable || f.class == notReady }

// ofConnection tells of a connection that failed.
func ofConnection(err error) *failure {
	var (
		dns     *net.DNSError
		errno   syscall.Errno
		record  tls.RecordHeaderError
		cert    *tls.CertificateVerificationError
		unknown x509.UnknownAuthorityError
		timeout net.Error
	)
	switch {
	case errors.As(err, &cert), errors.As(err, &unknown):
		return failf(broken, "its certificate is not trusted: %s", clean(err.Error()))
	case errors.As(err, &record), strings.Contains(err.Error(), "HTTP response to HTTPS client"):
		return failf(broken, "it does not speak TLS: want grpc:// or http://")
	case errors.As(err, &dns) && dns.IsNotFound:
		return failf(unreachable, "no such host")
	case errors.As(err, &dns):
		return failf(unreachable, "its name cannot be looked up: %s", clean(dns.Err))
	case errors.As(err, &errno):
		return failf(unreachable, "%s", errno.Error())
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return failf(unreachable, "no answer within %s", callTimeout)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return failf(unreachable, "it closed the connection")
	case strings.Contains(err.Error(), "malformed HTTP"), strings.Contains(err.Error(), "readLoopPeekFailLocked"): // it spoke before it was asked
		return failf(broken, "it does not speak HTTP/1.1: is its port one for gRPC or TLS?")
	}
	return failf(unreachable, "%s", clean(err.Error()))
}
