package discovery

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
)

const (
	maxSocketPath = 103  // the longest path of a Unix socket that every system takes; longer ones are refused
	maxEndpoint   = 512  // bytes of an endpoint; longer ones are refused
	maxTopic      = 1024 // bytes of a topic; a source with a longer one is refused
)

// endpoint is where a ZMQ socket is, as an engine writes it.
type endpoint struct {
	path string // ipc; "": tcp
	host string // IPv6 without brackets; may be a wildcard
	port int
}

// parseEndpoint reads tcp://host:port or ipc://path as libzmq does: the port is
// what follows the last colon, so that tcp://:::5557 is a wildcard host.
func parseEndpoint(text string) (endpoint, error) {
	if text == "" {
		return endpoint{}, errors.New("it has no endpoint")
	}
	if len(text) > maxEndpoint {
		return endpoint{}, fmt.Errorf("its endpoint is longer than %d bytes", maxEndpoint)
	}
	scheme, rest, ok := strings.Cut(text, "://")
	switch {
	case !ok:
		return endpoint{}, fmt.Errorf("endpoint %s: want tcp://host:port or ipc://path", show(text))
	case scheme == "inproc":
		return endpoint{}, errors.New("inproc:// is inside the engine's own process: give the engine a tcp:// or ipc:// endpoint")
	case scheme == "ipc":
		if rest == "" || rest == "@" || rest == "*" || len(rest) > maxSocketPath || strings.ContainsRune(rest, 0) {
			return endpoint{}, fmt.Errorf("endpoint %s: want ipc:// and a path of 1 to %d bytes", show(text), maxSocketPath)
		}
		return endpoint{path: rest}, nil
	case scheme != "tcp":
		return endpoint{}, fmt.Errorf("endpoint %s: want tcp://host:port or ipc://path", show(text))
	}
	colon := strings.LastIndexByte(rest, ':')
	if colon < 0 {
		return endpoint{}, fmt.Errorf("endpoint %s: it has no port", show(text))
	}
	host, portText := rest[:colon], rest[colon+1:]
	if portText == "*" || portText == "0" {
		return endpoint{}, fmt.Errorf("endpoint %s: the engine does not say which port it was given", show(text))
	}
	port, err := strconv.ParseUint(portText, 10, 16)
	if err != nil || port == 0 {
		return endpoint{}, fmt.Errorf("endpoint %s: want a port from 1 to 65535", show(text))
	}
	if inner, ok := strings.CutPrefix(host, "["); ok {
		if host, ok = strings.CutSuffix(inner, "]"); !ok {
			return endpoint{}, fmt.Errorf("endpoint %s: want an IPv6 address in the brackets", show(text))
		}
		if _, err := netip.ParseAddr(host); err != nil {
			return endpoint{}, fmt.Errorf("endpoint %s: want an IPv6 address in the brackets", show(text))
		}
	}
	if _, err := netip.ParseAddr(host); err != nil && host != "*" && !isName(host) {
		return endpoint{}, fmt.Errorf("endpoint %s: want a host before the port", show(text))
	}
	return endpoint{host: host, port: int(port)}, nil
}

// isName says whether host can be the name of one; "" can: a wildcard.
func isName(host string) bool {
	return !strings.ContainsFunc(host, func(r rune) bool {
		return r <= ' ' || r > '~' || strings.ContainsRune(`*/\@?#"'<>,;:%[]{}|^`+"`", r)
	})
}

func (e endpoint) String() string {
	if e.path != "" {
		return "ipc://" + e.path
	}
	return "tcp://" + net.JoinHostPort(e.host, strconv.Itoa(e.port))
}

// plus is e for a rank, where e is the first of a range of ports.
func (e endpoint) plus(rank uint32) (endpoint, error) {
	if e.path != "" {
		return endpoint{}, errors.New("a path does not count up: want one endpoint for each rank")
	}
	if uint64(e.port)+uint64(rank) > 65535 {
		return endpoint{}, fmt.Errorf("port %d + rank %d is beyond 65535", e.port, rank)
	}
	e.port += int(rank)
	return e, nil
}

// place is e in a form that two spellings of one socket share.
func (e endpoint) place() endpoint {
	e.host = strings.ToLower(e.host)
	if e.host == "localhost" {
		e.host = "127.0.0.1"
	}
	if ip, err := netip.ParseAddr(e.host); err == nil {
		e.host = ip.Unmap().String()
	}
	return e
}

// missing says whether e is a socket file that is not here. It may come yet.
func (e endpoint) missing() bool {
	if e.path == "" || strings.HasPrefix(e.path, "@") {
		return false
	}
	_, err := os.Stat(e.path)
	return errors.Is(err, os.ErrNotExist)
}

// missingSockets warns of socket files that are not here.
func missingSockets(sources []Source) (warnings []string) {
	for _, s := range sources {
		for _, text := range []string{s.Endpoint, s.Replay} {
			e, err := parseEndpoint(text)
			if err == nil && e.missing() {
				warnings = append(warnings, fmt.Sprintf("%s: there is no %s here; the engine's socket must be on a volume that kvrelay shares, at the same path", s.Name(), e))
			}
		}
	}
	return warnings
}

// show is text of an engine's in a message: quoted where it could mislead, and
// cut where it is long.
func show(text string) string {
	const most = 120 // bytes
	cut := ""
	if len(text) > most {
		text, cut = strings.ToValidUTF8(text[:most], ""), "…"
	}
	quoted := strconv.Quote(text)
	if quoted == `"`+text+`"` && text != "" && !strings.ContainsRune(text, ' ') {
		return text + cut
	}
	return quoted + cut
}
