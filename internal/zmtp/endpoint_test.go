package zmtp

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
)

func TestSplitEndpoint(t *testing.T) {
	for _, c := range []struct {
		endpoint     string
		dial, listen string // network and address; "": refused
	}{
		{"tcp://10.0.0.7:5557", "tcp 10.0.0.7:5557", "tcp 10.0.0.7:5557"},
		{"tcp://engine-0.engines.ns.svc.cluster.local:5557", "tcp engine-0.engines.ns.svc.cluster.local:5557", "tcp engine-0.engines.ns.svc.cluster.local:5557"},
		{"tcp://[::1]:5557", "tcp [::1]:5557", "tcp [::1]:5557"},
		{"tcp://[fe80::1%eth0]:5557", "tcp [fe80::1%eth0]:5557", "tcp [fe80::1%eth0]:5557"},
		{"tcp://*:5557", "", "tcp :5557"},
		{"tcp://*:*", "", "tcp :0"},
		{"tcp://127.0.0.1:0", "", "tcp 127.0.0.1:0"},
		{"tcp://:5557", "", ""},
		{"tcp://host", "", ""},
		{"tcp://host:", "", ""},
		{"tcp://host:http", "", ""},
		{"tcp://host:65536", "", ""},
		{"tcp://host:-1", "", ""},
		{"tcp://::1:5557", "", ""},
		{"tcp://", "", ""},
		{"ipc:///run/kv/pub", "unix /run/kv/pub", "unix /run/kv/pub"},
		{"ipc://relative", "unix relative", "unix relative"},
		{"ipc://", "", ""},
		{"ipc://*", "", ""},
		{"ipc://@", "", ""},
		{"ipc:///a\x00b", "", ""},
		{"ipc:///" + strings.Repeat("x", 200), "", ""},
		{"inproc://kv", "", ""},
		{"udp://host:1", "", ""},
		{"host:5557", "", ""},
		{"", "", ""},
	} {
		for listen, want := range map[bool]string{false: c.dial, true: c.listen} {
			network, addr, err := splitEndpoint(c.endpoint, listen)
			if want == "" {
				if !errors.Is(err, ErrEndpoint) {
					t.Errorf("%q, listen %v: %s %s, %v", c.endpoint, listen, network, addr, err)
				}
			} else if err != nil || network+" "+addr != want {
				t.Errorf("%q, listen %v: %s %s, %v", c.endpoint, listen, network, addr, err)
			}
		}
	}
	if _, err := Dial(t.Context(), "inproc://kv", sub()); !errors.Is(err, ErrEndpoint) || !strings.Contains(err.Error(), "inproc://kv") {
		t.Error(err)
	}
	if _, err := Listen(t.Context(), "inproc://kv"); !errors.Is(err, ErrEndpoint) {
		t.Error(err)
	}
}

func TestTransports(t *testing.T) {
	hello := func(p *peer) { p.greet("PUB"); p.put(message("hello")); p.drain() }
	addrs := map[string]string{"tcp6": "[::1]:0", "unix": filepath.Join(t.TempDir(), "pub")}
	if runtime.GOOS == "linux" {
		addrs["abstract"] = "@kvrelay-zmtp-test-" + filepath.Base(t.TempDir())
	}
	for network, addr := range addrs {
		if network == "tcp6" {
			l, err := net.Listen("tcp", addr)
			if err != nil {
				t.Logf("no IPv6 here: %v", err)
				continue
			}
			l.Close()
		}
		if network == "abstract" {
			network = "unix"
		}
		endpoint := serveOn(t, strings.TrimSuffix(network, "6"), addr, hello)
		c := mustDial(t, endpoint, sub())
		if m, err := c.Recv(); err != nil || string(m[0]) != "hello" {
			t.Errorf("%s: %q, %v", endpoint, m, err)
		}
	}
	// A name, looked up.
	endpoint := serve(t, hello)
	_, port, _ := net.SplitHostPort(strings.TrimPrefix(endpoint, "tcp://"))
	c := mustDial(t, "tcp://localhost:"+port, sub())
	if m, err := c.Recv(); err != nil || string(m[0]) != "hello" {
		t.Errorf("%q, %v", m, err)
	}
}

func TestIPCFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pub")
	if _, err := Dial(t.Context(), "ipc://"+path, sub()); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "volume") {
		t.Errorf("missing file: %v", err)
	}
	// A socket that a killed process left behind is replaced.
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	l.Close()
	if _, err := Dial(t.Context(), "ipc://"+path, sub()); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("nobody listens: %v", err)
	}
	l, err = Listen(t.Context(), "ipc://"+path)
	if err != nil {
		t.Fatal(err)
	}
	// One in use is not, and neither is a file that is no socket.
	if _, err := Listen(t.Context(), "ipc://"+path); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("in use: %v", err)
	}
	l.Close()
	if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(t.Context(), "ipc://"+path); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("a file: %v", err)
	}
	if b, _ := os.ReadFile(path); string(b) != "precious" {
		t.Error("the file is gone")
	}
}
