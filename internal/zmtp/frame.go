package zmtp

import "encoding/binary"

// A frame is flags, size (one byte, or eight big-endian with flagLong), body
// (RFC 23, "framing").
const (
	flagMore    = 1
	flagLong    = 2
	flagCommand = 4

	maxHeader = 9
)

type header struct {
	flags byte
	len   int // of the header itself
	size  uint64
}

// parseHeader reads the header at the start of b; ok is false while b is too
// short for it. Bad flags are refused from the first byte on.
func parseHeader(b []byte) (h header, ok bool, err error) {
	if len(b) == 0 {
		return h, false, nil
	}
	h.flags = b[0]
	if h.flags&^(flagMore|flagLong|flagCommand) != 0 || h.flags&(flagMore|flagCommand) == flagMore|flagCommand {
		return h, false, &FrameError{Reason: BadFlags, Got: uint64(h.flags)}
	}
	if h.flags&flagLong == 0 {
		if len(b) < 2 {
			return h, false, nil
		}
		h.len, h.size = 2, uint64(b[1])
		return h, true, nil
	}
	if len(b) < maxHeader {
		return h, false, nil
	}
	h.len, h.size = maxHeader, binary.BigEndian.Uint64(b[1:])
	return h, true, nil
}

// appendFrame appends one frame to b.
func appendFrame(b []byte, flags byte, parts ...[]byte) []byte {
	n := 0
	for _, p := range parts {
		n += len(p)
	}
	if n > 255 {
		b = append(b, flags|flagLong)
		b = binary.BigEndian.AppendUint64(b, uint64(n))
	} else {
		b = append(b, flags, byte(n))
	}
	for _, p := range parts {
		b = append(b, p...)
	}
	return b
}

// appendCommand appends a command frame: its name, with a length byte, then data.
func appendCommand(b []byte, name string, data ...[]byte) []byte {
	head := append([]byte{byte(len(name))}, name...)
	return appendFrame(b, flagCommand, append([][]byte{head}, data...)...)
}

// splitCommand takes a command's body apart; ok is false when it has no name
// or ends within it.
func splitCommand(body []byte) (name, data []byte, ok bool) {
	if len(body) < 2 || body[0] == 0 || int(body[0]) > len(body)-1 {
		return nil, nil, false
	}
	n := 1 + int(body[0])
	return body[1:n], body[n:], true
}

// errorReason reads the reason of an ERROR command: text behind a length byte.
// A reason that lies about its length is quoted as far as it goes.
func errorReason(data []byte) string {
	if len(data) == 0 {
		return ""
	}
	return sanitise(data[1:][:min(int(data[0]), len(data)-1)])
}
