package zmtp

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
)

// maxPath is the longest path of a Unix socket that every system takes.
const maxPath = 103

// splitEndpoint takes tcp://host:port or ipc://path apart, for net.Dial or net.Listen.
func splitEndpoint(endpoint string, listen bool) (network, addr string, err error) {
	scheme, rest, ok := strings.Cut(endpoint, "://")
	bad := func(why string) (string, string, error) {
		return "", "", fmt.Errorf("zmtp %q: %w: %s", endpoint, ErrEndpoint, why)
	}
	if !ok {
		return bad("want tcp://host:port or ipc://path")
	}
	switch scheme {
	case "tcp":
		host, port, err := net.SplitHostPort(rest)
		if err != nil {
			return bad("want tcp://host:port, an IPv6 address in brackets")
		}
		if listen && host == "*" {
			host = ""
		} else if host == "*" || host == "" {
			return bad("no host to connect to")
		}
		if listen && port == "*" {
			port = "0"
		}
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 && !listen {
			return bad("port is no number from 1 to 65535")
		}
		return "tcp", net.JoinHostPort(host, port), nil
	case "ipc":
		switch {
		case rest == "" || rest == "@" || rest == "*":
			return bad("no path")
		case len(rest) > maxPath:
			return bad("path of a Unix socket longer than " + strconv.Itoa(maxPath) + " bytes")
		case strings.IndexByte(rest, 0) >= 0:
			return bad("zero byte in the path")
		case rest[0] == '@' && runtime.GOOS != "linux":
			return bad("abstract Unix sockets exist on Linux only")
		}
		return "unix", rest, nil
	case "inproc":
		return bad("inproc stays within the engine's process, use tcp or ipc")
	}
	return bad("transport is neither tcp nor ipc")
}

func dial(ctx context.Context, endpoint string, o Options) (net.Conn, error) {
	network, addr, err := splitEndpoint(endpoint, false)
	if err != nil {
		return nil, err
	}
	d := net.Dialer{Timeout: o.DialTimeout}
	nc, err := d.DialContext(ctx, network, addr)
	if err != nil {
		if network == "unix" && errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("zmtp %s: no such socket (do both sides share the volume?): %w", endpoint, err)
		}
		return nil, fmt.Errorf("zmtp %s: %w", endpoint, err)
	}
	return nc, nil
}

// Listen opens an endpoint for connections that Accept then makes ready:
// tcp://host:port, where host * is every address and port * or 0 any free one, or
// ipc://path. A socket file that nobody listens on any more is replaced.
func Listen(ctx context.Context, endpoint string) (net.Listener, error) {
	network, addr, err := splitEndpoint(endpoint, true)
	if err != nil {
		return nil, err
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, network, addr)
	if err != nil && network == "unix" && addr[0] != '@' && errors.Is(err, syscall.EADDRINUSE) && deserted(ctx, addr) {
		if err := os.Remove(addr); err != nil {
			return nil, fmt.Errorf("zmtp %s: left-over socket: %w", endpoint, err)
		}
		l, err = lc.Listen(ctx, network, addr)
	}
	if err != nil {
		return nil, fmt.Errorf("zmtp %s: %w", endpoint, err)
	}
	return l, nil
}

// deserted says whether path is a socket that nobody listens on.
func deserted(ctx context.Context, path string) bool {
	if fi, err := os.Lstat(path); err != nil || fi.Mode()&fs.ModeSocket == 0 {
		return false
	}
	var d net.Dialer
	nc, err := d.DialContext(ctx, "unix", path)
	if err == nil {
		nc.Close()
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}
