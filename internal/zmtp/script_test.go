package zmtp

import (
	"bytes"
	"net"
)

// script is a connection whose peer says what it says, whatever it hears.
type script struct {
	net.Conn
	in  *bytes.Reader
	out bytes.Buffer
}

func (s *script) Read(p []byte) (int, error)  { return s.in.Read(p) }
func (s *script) Write(p []byte) (int, error) { return s.out.Write(p) }
