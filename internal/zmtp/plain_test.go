package zmtp

import (
	"errors"
	"strings"
	"testing"
)

// PLAIN on the wire (RFC 24), and that no password gets into an error.
func TestPlain(t *testing.T) {
	hello := make(chan string, 2)
	endpoint := serve(t, func(p *peer) {
		p.put(greetingBytes(3, 1, "PLAIN"))
		p.br.Discard(greetingLen)
		_, b, _ := p.frame()
		hello <- string(b)
		if strings.Contains(string(b), "wrong") {
			p.put(appendCommand(nil, "ERROR", []byte("\x07go away")))
			return
		}
		p.put(appendCommand(nil, "WELCOME"))
		p.until(isCommand("INITIATE"))
		p.put(ready("Socket-Type", "PUB"))
		p.put(message("in"))
		p.drain()
	})
	o := sub()
	o.User, o.Password = "kv", "secret"
	c := mustDial(t, endpoint, o)
	if m, err := c.Recv(); err != nil || string(m[0]) != "in" {
		t.Errorf("%q, %v", m, err)
	}
	if h := <-hello; h != "\x05HELLO\x02kv\x06secret" {
		t.Errorf("HELLO %q", h)
	}
	o.Password = "wrong"
	_, err := Dial(t.Context(), endpoint, o)
	var pe *PeerError
	if !errors.As(err, &pe) || pe.Reason != "go away" || strings.Contains(err.Error(), "wrong") {
		t.Errorf("%v", err)
	}
}
