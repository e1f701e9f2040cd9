package membership

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"slices"
	"strings"
	"syscall"
	"time"
)

// knockTime bounds one attempt to reach who put a record; it is on this host.
const knockTime = time.Second

// gone says that whoever put a record is surely dead: it advertised an address
// of this host, for as long as it listened there, and nobody does any more, or
// we do. So a crashed life's record need not be waited for. What is elsewhere,
// or asked over NATS, proves nothing.
func (r *Registry) gone(ctx context.Context, value []byte) bool {
	target, ok := targetOf(value)
	if !ok || r.target == "" {
		return false
	}
	if target == r.target {
		return true
	}
	if ip := ipOf(target); !local(ip) || ip.IsLoopback() && !ipOf(r.target).IsLoopback() {
		return false // every host has that loopback, and we do not advertise ours
	}
	c, err := (&net.Dialer{Timeout: knockTime}).DialContext(ctx, "tcp", target)
	if err == nil {
		c.Close()
		return false
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}

// ipOf is the address in host:port; nil: there is none.
func ipOf(target string) net.IP {
	host, _, err := net.SplitHostPort(target)
	if err != nil {
		return nil
	}
	return net.ParseIP(host)
}

// local says whether ip is an address of this host; the zero one is none.
func local(ip net.IP) bool {
	if ip == nil {
		return false
	}
	if ip.IsLoopback() { // routers elsewhere could not use it
		return true
	}
	addrs, err := net.InterfaceAddrs()
	return err == nil && slices.ContainsFunc(addrs, func(a net.Addr) bool {
		n, ok := a.(*net.IPNet)
		return ok && n.IP.Equal(ip)
	})
}

// targetOf reads the host:port at which who put a record is asked over TCP: an
// event source's recovery target, or the worker itself.
func targetOf(value []byte) (target string, ok bool) {
	var v struct {
		Transport json.RawMessage `json:"transport"`
		Metadata  struct {
			Recovery struct {
				Transport json.RawMessage `json:"transport"`
			} `json:"recovery_target"`
		} `json:"metadata"`
	}
	if json.Unmarshal(value, &v) != nil {
		return "", false
	}
	for _, raw := range []json.RawMessage{v.Metadata.Recovery.Transport, v.Transport} {
		var t struct {
			TCP string `json:"tcp"`
		}
		if raw != nil && json.Unmarshal(raw, &t) == nil && t.TCP != "" {
			target, _, _ = strings.Cut(t.TCP, "/")
			return target, true
		}
	}
	return "", false
}
