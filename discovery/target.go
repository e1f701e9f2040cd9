package discovery

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
)

// usual is where an engine on this host is when nothing is said: the ports
// that vLLM's gRPC, vLLM's HTTP and SGLang's HTTP servers have by default.
var usual = []string{"grpc://127.0.0.1:50051", "http://127.0.0.1:8000", "http://127.0.0.1:30000"}

// target is an address that is asked.
type target struct {
	url  string // as logs name it
	grpc bool   // else HTTP
	tls  bool
	host string // IPv6 without brackets
	addr string // host:port, for dialling
}

// targetsOf reads an address; without one, they are the usual ones.
func targetsOf(text string) ([]target, error) {
	texts := usual
	if text != "" {
		texts = []string{text}
	}
	var targets []target
	for _, text := range texts {
		t, err := parseTarget(text)
		if err != nil {
			return nil, err
		}
		targets = append(targets, t)
	}
	return targets, nil
}

// parseTarget reads scheme://host:port. Its errors do not repeat the address:
// one that is not as it should be may hold a password.
func parseTarget(text string) (target, error) {
	u, err := url.Parse(text)
	if err != nil {
		return target{}, errors.New("the address cannot be read: want scheme://host:port")
	}
	port, err := strconv.ParseUint(u.Port(), 10, 16)
	switch {
	case u.User != nil:
		return target{}, errors.New("the address holds a user: want scheme://host:port, and a token beside it")
	case u.Hostname() == "":
		return target{}, errors.New("the address has no host: want scheme://host:port")
	case err != nil || port == 0:
		return target{}, errors.New("the address has no port from 1 to 65535: want scheme://host:port")
	case u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.Fragment != "":
		return target{}, errors.New("something follows the port of the address: want scheme://host:port")
	}
	t := target{host: u.Hostname(), addr: net.JoinHostPort(u.Hostname(), u.Port())}
	switch u.Scheme {
	case "grpc":
		t.grpc = true
	case "grpcs":
		t.grpc, t.tls = true, true
	case "http":
	case "https":
		t.tls = true
	default:
		return target{}, fmt.Errorf("scheme %q: want grpc, grpcs, http or https", u.Scheme)
	}
	t.url = u.Scheme + "://" + t.addr
	return t, nil
}

// allows says whether a token may go to t: in the clear it would be everybody's.
func (t target) allows(token string) error {
	if token == "" || t.tls || isLoopback(t.host) {
		return nil
	}
	scheme := "https"
	if t.grpc {
		scheme = "grpcs"
	}
	return fmt.Errorf("the token would cross the network in the clear to %s: want %s://%s, or no DISCOVERY_TOKEN", t.url, scheme, t.addr)
}

// isLoopback says whether host means the machine, or the pod, itself.
func isLoopback(host string) bool {
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	if host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}

// isWildcard says whether host is one to bind, not one to dial.
func isWildcard(host string) bool {
	if host == "" || host == "*" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsUnspecified()
}
