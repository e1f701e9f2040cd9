package etcd

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// FileError is a TLS file that cannot be used.
type FileError struct {
	Setting string // that names the file
	Err     error
}

func (e *FileError) Error() string { return e.Setting + ": " + e.Err.Error() }
func (e *FileError) Unwrap() error { return e.Err }

// secure says whether servers are asked with TLS.
func (o *Options) secure() bool {
	return o.TLSCA != "" || o.TLSCert != "" ||
		slices.ContainsFunc(o.Endpoints, func(e string) bool { return strings.HasPrefix(e, "https://") })
}

// tls reads the TLS files; nil where there is to be no TLS.
func (o *Options) tls() (*tls.Config, error) {
	if !o.secure() {
		return nil, nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if o.TLSCA != "" {
		pem, err := os.ReadFile(o.TLSCA)
		if err != nil {
			return nil, &FileError{"KVRELAY_ETCD_TLS_CA", err}
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, &FileError{"KVRELAY_ETCD_TLS_CA", fmt.Errorf("%s holds no certificate", o.TLSCA)}
		}
	}
	if o.TLSCert != "" {
		load := func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(o.TLSCert, o.TLSKey)
			if err != nil {
				return nil, &FileError{"KVRELAY_ETCD_TLS_CERT, KVRELAY_ETCD_TLS_KEY", err}
			}
			return &pair, nil
		}
		if _, err := load(nil); err != nil {
			return nil, err
		}
		c.GetClientCertificate = load
	}
	return c, nil
}

// explain says what failed in the words of the settings.
func (s *Store) explain(err error) error {
	var file *FileError
	if err == nil || errors.As(err, &file) || errors.Is(err, context.Canceled) {
		return err
	}
	where := "etcd at " + strings.Join(s.o.Endpoints, ",")
	err = rpctypes.Error(err)
	text := reason(err)
	switch {
	case errors.Is(err, context.DeadlineExceeded), status.Code(err) == codes.DeadlineExceeded:
		return fmt.Errorf("%s does not answer (%w): check KVRELAY_ETCD_ENDPOINTS, the network, and whether most of its servers run", where, err)
	case errors.Is(err, rpctypes.ErrAuthFailed):
		return fmt.Errorf("%s refuses the login (%w): check KVRELAY_ETCD_USER and KVRELAY_ETCD_PASSWORD", where, err)
	case errors.Is(err, rpctypes.ErrUserEmpty):
		return fmt.Errorf("%s wants a login (%w): set KVRELAY_ETCD_USER and KVRELAY_ETCD_PASSWORD, or the certificate of a user", where, err)
	case errors.Is(err, rpctypes.ErrPermissionDenied):
		return fmt.Errorf("%s allows too little (%w): its user (KVRELAY_ETCD_USER) needs a role with `readwrite v1/ --prefix=true`", where, err)
	case errors.Is(err, rpctypes.ErrNoSpace):
		return fmt.Errorf("%s is full (%w): compact and defragment it, then `etcdctl alarm disarm`", where, err)
	case status.Code(err) != codes.Unavailable:
		return fmt.Errorf("%s: %w", where, err)
	case strings.Contains(text, "x509:"):
		return fmt.Errorf("%s shows a certificate that is not trusted (%s): check KVRELAY_ETCD_TLS_CA, and the host in KVRELAY_ETCD_ENDPOINTS", where, text)
	case strings.Contains(text, "handshake failed: EOF"), strings.Contains(text, "first record does not look like a TLS handshake"):
		return fmt.Errorf("%s does not speak TLS (%s): want http:// in KVRELAY_ETCD_ENDPOINTS, and no KVRELAY_ETCD_TLS_*", where, text)
	case strings.Contains(text, "tls:"), strings.Contains(text, "handshake failed"):
		return fmt.Errorf("TLS with %s failed (%s): check KVRELAY_ETCD_TLS_CERT, KVRELAY_ETCD_TLS_KEY and KVRELAY_ETCD_TLS_CA", where, text)
	case strings.Contains(text, "server preface"):
		return fmt.Errorf("%s does not answer as etcd does (%s): check KVRELAY_ETCD_ENDPOINTS and the network; a server with TLS wants https://", where, text)
	case s.o.secure():
		// A server that refuses a certificate may close before it says so.
		return fmt.Errorf("%s cannot be reached (%s): check KVRELAY_ETCD_ENDPOINTS, or start it; or it refuses the certificate: check KVRELAY_ETCD_TLS_CERT", where, text)
	}
	return fmt.Errorf("%s cannot be reached (%s): check KVRELAY_ETCD_ENDPOINTS, or start it", where, text)
}

// reason is the inmost text of gRPC's error.
func reason(err error) string {
	text := err.Error()
	if st, ok := status.FromError(err); ok {
		text = st.Message()
	}
	for _, wrap := range []string{"last connection error: ", "connection error: desc = ", "transport: Error while dialing: ", "transport: "} {
		if _, after, ok := strings.Cut(text, wrap); ok {
			text = after
		}
	}
	return strings.Trim(text, `"`)
}
