package check

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"github.com/kvrelay/kvrelay/membership/etcd"
)

// TestLogin: every wrong login is told of by the setting, and the right one
// goes on after its token has run out and after a restart.
func TestLogin(t *testing.T) {
	t.Parallel()
	srv := newServer(t, func(c *embed.Config) { c.AuthTokenTTL, c.BcryptCost = 1, 4 })
	root := srv.client()
	do := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	ctx := t.Context()
	as := func(user, password string) func(*etcd.Options) {
		return func(o *etcd.Options) { o.User, o.Password, o.Lease = user, password, short }
	}
	// A login that is not wanted does no harm.
	s, _ := store(t, srv.url(), as("kvrelay", secret))
	put(t, s, key, "v")
	do(nil, s.Delete(ctx, key))

	do(root.UserAdd(ctx, "root", secret))
	do(root.UserGrantRole(ctx, "root", "root"))
	for _, user := range []string{"kvrelay", "reader"} {
		do(root.UserAdd(ctx, user, secret))
		do(root.RoleAdd(ctx, user))
		do(root.UserGrantRole(ctx, user, user))
	}
	do(root.RoleGrantPermission(ctx, "kvrelay", "v1/", clientv3.GetPrefixRangeEnd("v1/"), clientv3.PermissionType(clientv3.PermReadWrite)))
	do(root.RoleGrantPermission(ctx, "reader", "v1/", clientv3.GetPrefixRangeEnd("v1/"), clientv3.PermissionType(clientv3.PermRead)))
	do(root.AuthEnable(ctx))

	for _, x := range []struct {
		user, password string
		texts          []string
	}{
		{"kvrelay", secret + "x", []string{"refuses the login", "KVRELAY_ETCD_USER", srv.addr}},
		{"nobody", secret, []string{"refuses the login", "KVRELAY_ETCD_USER", srv.addr}},
		{"", "", []string{"wants a login", "KVRELAY_ETCD_PASSWORD", srv.addr}},
		{"reader", secret, []string{"readwrite v1/ --prefix=true", "KVRELAY_ETCD_USER", srv.addr}},
	} {
		s, _ := store(t, srv.url(), as(x.user, x.password))
		holds(t, "put as "+x.user, s.Put(ctx, key, []byte("v")), x.texts...)
		if x.user != "reader" {
			_, err := s.List(ctx, "v1/")
			holds(t, "list as "+x.user, err, x.texts...)
		}
	}

	s, log := store(t, srv.url(), as("kvrelay", secret))
	running(t, s)
	put(t, s, key, "v")
	look, err := clientv3.New(clientv3.Config{Endpoints: []string{srv.addr}, Username: "root", Password: secret, DialTimeout: patience, Logger: zap.NewNop()})
	do(nil, err)
	defer look.Close()
	first, _ := get(t, look, key)
	there := func() bool { e, ok := get(t, look, key); return ok && e.create == first.create }
	during(t, 3*short, "the record is there", there)
	if log.count("cannot be kept alive") > 0 {
		t.Errorf("it could not be kept alive")
	}
	srv.stop()
	srv.start()
	during(t, 3*short, "the record is there after a restart", there)
	put(t, s, key, "w")
	if err := s.Delete(ctx, key); err != nil {
		t.Error(err)
	}
	eventually(t, "the record is gone", func() bool { _, ok := get(t, look, key); return !ok })
}

// authority makes certificates.
type authority struct {
	t    testing.TB
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	ca   string // file
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	a := &authority{t: t, dir: t.TempDir()}
	tmpl := &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign, Subject: pkix.Name{CommonName: "tests"}}
	a.cert, a.key, a.ca, _ = a.issue("ca", tmpl)
	return a
}

func (a *authority) issue(name string, tmpl *x509.Certificate) (cert *x509.Certificate, key *ecdsa.PrivateKey, certFile, keyFile string) {
	a.t.Helper()
	do := func(err error) {
		a.t.Helper()
		if err != nil {
			a.t.Fatal(err)
		}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	do(err)
	tmpl.SerialNumber = big.NewInt(time.Now().UnixNano())
	tmpl.NotBefore, tmpl.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = tmpl, key
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, parent, &key.PublicKey, signer)
	do(err)
	cert, err = x509.ParseCertificate(der)
	do(err)
	text, err := x509.MarshalPKCS8PrivateKey(key)
	do(err)
	certFile, keyFile = filepath.Join(a.dir, name+".pem"), filepath.Join(a.dir, name+".key")
	do(os.WriteFile(certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	do(os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: text}), 0o600))
	return cert, key, certFile, keyFile
}

// TestTLS: each thing that can be wrong is told of by its setting.
func TestTLS(t *testing.T) {
	t.Parallel()
	ca, stranger := newAuthority(t), newAuthority(t)
	usage := []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	_, _, serverCert, serverKey := ca.issue("server", &x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: usage})
	_, _, cert, certKey := ca.issue("client", &x509.Certificate{Subject: pkix.Name{CommonName: "kvrelay"}, ExtKeyUsage: usage})
	_, _, alien, alienKey := stranger.issue("client", &x509.Certificate{ExtKeyUsage: usage})
	srv := newServer(t, func(c *embed.Config) {
		c.ClientTLSInfo = transport.TLSInfo{CertFile: serverCert, KeyFile: serverKey, TrustedCAFile: ca.ca, ClientCertAuth: true}
	})
	plain := newServer(t)
	none := filepath.Join(t.TempDir(), "none.pem")
	for what, x := range map[string]struct {
		url           string
		ca, cert, key string
		wrong         []string // nil: nothing
	}{
		"right":               {url: srv.url(), ca: ca.ca, cert: cert, key: certKey},
		"right, no scheme":    {url: srv.addr, ca: ca.ca, cert: cert, key: certKey},
		"other authority":     {url: srv.url(), ca: stranger.ca, cert: cert, key: certKey, wrong: []string{"not trusted", "KVRELAY_ETCD_TLS_CA", srv.addr}},
		"system's authority":  {url: srv.url(), cert: cert, key: certKey, wrong: []string{"not trusted", "KVRELAY_ETCD_TLS_CA", srv.addr}},
		"other host":          {url: strings.Replace(srv.url(), "127.0.0.1", "localhost", 1), ca: ca.ca, cert: cert, key: certKey, wrong: []string{"not trusted", "KVRELAY_ETCD_ENDPOINTS"}},
		"no certificate":      {url: srv.url(), ca: ca.ca, wrong: []string{"KVRELAY_ETCD_TLS_CERT", srv.addr}},
		"other's certificate": {url: srv.url(), ca: ca.ca, cert: alien, key: alienKey, wrong: []string{"KVRELAY_ETCD_TLS_CERT", srv.addr}},
		"no TLS":              {url: "http://" + srv.addr, wrong: []string{"https://", "KVRELAY_ETCD_ENDPOINTS", srv.addr}},
		"server without":      {url: "https://" + plain.addr, ca: ca.ca, wrong: []string{"http://", "KVRELAY_ETCD_ENDPOINTS", plain.addr}},
		"no authority":        {url: srv.url(), ca: none, wrong: []string{"KVRELAY_ETCD_TLS_CA", none}},
		"empty authority":     {url: srv.url(), ca: certKey, wrong: []string{"KVRELAY_ETCD_TLS_CA", "no certificate"}},
		"no key":              {url: srv.url(), ca: ca.ca, cert: cert, key: none, wrong: []string{"KVRELAY_ETCD_TLS_KEY", none}},
		"another's key":       {url: srv.url(), ca: ca.ca, cert: cert, key: alienKey, wrong: []string{"KVRELAY_ETCD_TLS_KEY"}},
	} {
		t.Run(what, func(t *testing.T) {
			s, _ := store(t, x.url, func(o *etcd.Options) { o.TLSCA, o.TLSCert, o.TLSKey = x.ca, x.cert, x.key })
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			err := s.Put(ctx, key, []byte("v"))
			if x.wrong != nil {
				holds(t, what, err, x.wrong...)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if list, err := s.List(ctx, "v1/"); err != nil || len(list) != 1 {
				t.Errorf("list %+v, %v", list, err)
			}
			if err := s.Delete(ctx, key); err != nil {
				t.Error(err)
			}
		})
	}
}
