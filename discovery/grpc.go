package discovery

import (
	"context"
	"crypto/tls"
	"net"
	"strings"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// link is a gRPC connection for one round of questions. A kept one would dial
// in its own time, up to two minutes after the engine is back.
type link struct {
	*grpc.ClientConn
	t       target
	o       *Options
	dialErr atomic.Pointer[error] // of the last dial that failed
}

// connect prepares a connection; the first question dials it. An answer of
// more than limit bytes is refused.
func connect(t target, o *Options, limit int) (*link, error) {
	l := &link{t: t, o: o}
	creds := insecure.NewCredentials()
	if t.tls {
		c := o.TLS.Clone()
		if c == nil {
			c = &tls.Config{MinVersion: tls.VersionTLS12}
		}
		creds = credentials.NewTLS(c)
	}
	dial := func(ctx context.Context, addr string) (net.Conn, error) {
		var d net.Dialer
		conn, err := d.DialContext(ctx, "tcp", addr)
		if err != nil {
			l.dialErr.Store(&err)
		}
		return conn, err
	}
	conn, err := grpc.NewClient("passthrough:///"+t.addr,
		grpc.WithTransportCredentials(creds), grpc.WithContextDialer(dial), grpc.WithNoProxy(),
		grpc.WithUserAgent(userAgent), grpc.WithDisableServiceConfig(), grpc.WithDisableRetry(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(limit)),
		grpc.WithMaxHeaderListSize(64<<10))
	if err != nil {
		return nil, failf(broken, "%s", clean(err.Error()))
	}
	l.ClientConn = conn
	return l, nil
}

// ask makes one call with a deadline of its own.
func ask[Req, Resp any](ctx context.Context, l *link, call func(context.Context, Req, ...grpc.CallOption) (Resp, error), req Req) (Resp, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if l.o.Token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+l.o.Token)
	}
	resp, err := call(ctx, req)
	if err != nil {
		return resp, l.failure(err)
	}
	return resp, nil
}

// failure is what a call's error means.
func (l *link) failure(err error) *failure {
	s := status.Convert(err)
	said := clean(l.o.hide(s.Message()))
	switch s.Code() {
	case codes.Unimplemented:
		return failf(unsupported, "%s", said)
	case codes.Unauthenticated, codes.PermissionDenied:
		return ofDenial(l.o, s.Code().String())
	case codes.DeadlineExceeded, codes.Canceled:
		if dial := l.dialErr.Load(); dial != nil {
			return ofConnection(*dial)
		}
		return failf(unreachable, "no answer within %s", callTimeout)
	case codes.Unavailable:
		if _, tlsSays, ok := strings.Cut(s.Message(), "authentication handshake failed: "); ok {
			if strings.Contains(tlsSays, "first record does not look like a TLS handshake") {
				return failf(broken, "it does not speak TLS: want grpc:// or http://")
			}
			return failf(broken, "TLS fails: %s", clean(strings.TrimSuffix(tlsSays, `"`)))
		}
		if strings.Contains(s.Message(), "error reading server preface") {
			return failf(broken, "it does not speak gRPC: is its port one for HTTP or TLS?")
		}
		if dial := l.dialErr.Load(); dial != nil {
			return ofConnection(*dial)
		}
		return failf(notReady, "not ready yet (%s)", said)
	}
	return failf(broken, "%s: %s", s.Code(), said)
}
