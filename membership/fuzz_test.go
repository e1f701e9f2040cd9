package membership

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"testing"

	"github.com/kvrelay/kvrelay/internal/fuzzlimit"
)

// FuzzRequest: whatever comes, nothing is read beyond a request's own length,
// limits hold, and what is understood stands in the bytes.
func FuzzRequest(f *testing.F) {
	f.Add(frame(testPath, "127.0.0.1:1", "s", query{Worker: 1, Rank: 2, Start: at(3)}))
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Add(append(frame("p", "a", "s", query{}), frame("q", "b", "t", query{})...))
	f.Fuzz(func(t *testing.T, b []byte) {
		fuzzlimit.Run(t, len(b), func() {
			for r := bufio.NewReader(bytes.NewReader(b)); ; {
				path, body, err := readRequest(r)
				if err != nil {
					return
				}
				_, _ = parseBody(path, body)
			}
		})
		r := bufio.NewReader(bytes.NewReader(b))
		at := 0
		for {
			path, body, err := readRequest(r)
			if err != nil {
				if err == io.EOF && at != len(b) {
					t.Fatalf("a clean end at byte %d of %d", at, len(b))
				}
				if err != io.EOF && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, errRequest) {
					t.Fatalf("error %v", err)
				}
				return
			}
			if len(path) == 0 || len(path) > maxPath || len(body) > maxBody {
				t.Fatalf("a path of %d bytes, a body of %d", len(path), len(body))
			}
			n := 2 + len(path)
			if string(b[at+2:at+n]) != path {
				t.Fatal("another path")
			}
			n += 2 + int(binary.BigEndian.Uint16(b[at+n:]))
			n += 4 + len(body)
			if !bytes.Equal(b[at+n-len(body):at+n], body) {
				t.Fatal("another body")
			}
			at += n
			q, err := parseBody(path, body)
			if err != nil {
				if !errors.Is(err, errRequest) {
					t.Fatalf("error %v", err)
				}
				continue
			}
			if q.Path != path || q.Home.Address == "" || q.Home.Subject == "" {
				t.Fatalf("understood %+v", q)
			}
		}
	})
}

// FuzzFileName: every key has a name of its own, that leads back to it and
// stays in its folder.
func FuzzFileName(f *testing.F) {
	f.Add("namespace/a/../..")
	f.Add("%2F%")
	f.Fuzz(func(t *testing.T, s string) {
		fuzzlimit.Run(t, len(s), func() { unescape(escape(s)) })
		name := escape(s)
		for i := range len(name) {
			if c := name[i]; c != '%' && (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') {
				t.Fatalf("%q has the name %q", s, name)
			}
		}
		if got := unescape(name); got != s {
			t.Fatalf("%q came back as %q", s, got)
		}
	})
}
