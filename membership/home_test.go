package membership

import (
	"net"
	"testing"
)

func TestMayCall(t *testing.T) {
	for address, want := range map[string]struct{ far, local bool }{
		"10.1.2.3:4":                  {true, true},
		"192.168.7.7:40000":           {true, true},
		"100.64.0.9:1":                {true, true},
		"203.0.113.5:9000":            {true, true},
		"[fd00::7]:5":                 {true, true},
		"[2001:db8::1]:5":             {true, true},
		"127.0.0.1:8000":              {false, true},
		"127.9.9.9:8000":              {false, true},
		"[::1]:8000":                  {false, true},
		"[::ffff:127.0.0.1]:8000":     {false, true},
		"169.254.169.254:80":          {},
		"[::ffff:169.254.169.254]:80": {},
		"[fe80::1%lo]:80":             {},
		"0.0.0.0:80":                  {},
		"[::]:80":                     {},
		"224.0.0.1:80":                {},
		"[ff02::1]:80":                {},
		"255.255.255.255:80":          {},
		"10.1.2.3:0":                  {},
		"nowhere":                     {},
		"":                            {},
	} {
		if err := mayCall(address, false); (err == nil) != want.far {
			t.Errorf("%q, asked from afar: %v", address, err)
		}
		if err := mayCall(address, true); (err == nil) != want.local {
			t.Errorf("%q, asked from here: %v", address, err)
		}
	}
}

// A name, too, is judged by the address that it leads to.
func TestCallHomeByName(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	for _, local := range []bool{false, true} {
		c, err := callHome(local).DialContext(t.Context(), "tcp4", net.JoinHostPort("localhost", port))
		if (err == nil) != local {
			t.Errorf("asked from here: %v; localhost: %v", local, err)
		}
		if err == nil {
			c.Close()
		}
	}
}
