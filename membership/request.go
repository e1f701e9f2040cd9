package membership

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Limits of a request, looked at before anything is allocated. One that
// exceeds them ends its connection.
const (
	maxPath    = 1024     // Dynamo's own
	maxHeaders = 16 << 10 // tracing headers; they are skipped
	maxBody    = 64 << 10 // Dynamo's are under 1 KiB
	partHead   = 24       // of a two-part message: two lengths and a checksum
	maxAddress = 300      // where the answer goes: a host's name has up to 253 bytes
	maxID      = 64       // of a request's id in logs; Dynamo's is a UUID, and a longer one is cut
)

// errRequest is why a connection is closed: what came is no request.
var errRequest = errors.New("no Dynamo request")

// request is what a router asks.
type request struct {
	Path     string
	ID       string // of the request, for logs
	WorkerID uint64
	Rank     uint32
	Start    *uint64 // first event id wanted; nil: all that is published
	End      *uint64 // last one that the router knows to exist
	DumpFail bool    // the router knows TreeDumpFailed
	Home     home
	local    bool // it came from this host, or over NATS: its answer may go to loopback
}

// home is where the answer goes.
type home struct {
	Address string `json:"address"`
	Subject string `json:"subject"`
	Context string `json:"context"`
}

// readRequest reads the next request of a connection:
//
//	u16 n, path · u16 n, headers (JSON) · u32 n, body
//
// all big-endian. Its error is io.EOF before the first byte, errRequest when
// the connection cannot be understood any more, or the connection's own.
func readRequest(r *bufio.Reader) (path string, body []byte, err error) {
	n, err := readLen(r, 2, maxPath, "path")
	if err != nil {
		return "", nil, err
	}
	if n == 0 {
		return "", nil, fmt.Errorf("%w: its path is empty", errRequest)
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(r, b); err != nil {
		return "", nil, midway(err)
	}
	path = string(b)
	if n, err = readLen(r, 2, maxHeaders, "headers"); err == nil {
		_, err = r.Discard(n)
	}
	if err != nil {
		return "", nil, midway(err)
	}
	if n, err = readLen(r, 4, maxBody, "body"); err != nil {
		return "", nil, midway(err)
	}
	body = make([]byte, n)
	if _, err := io.ReadFull(r, body); err != nil {
		return "", nil, midway(err)
	}
	return path, body, nil
}

// readLen reads a length of width bytes, at most limit.
func readLen(r *bufio.Reader, width, limit int, what string) (int, error) {
	var b [4]byte
	if _, err := io.ReadFull(r, b[4-width:]); err != nil {
		return 0, err
	}
	n := binary.BigEndian.Uint32(b[:])
	if n > uint32(limit) {
		return 0, fmt.Errorf("%w: its %s has %d bytes, %d are allowed", errRequest, what, n, limit)
	}
	return int(n), nil
}

// midway is the error of a connection that ends within a request.
func midway(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// parseBody reads a request's body: a two-part message of control and query,
// both JSON. Its error is an errRequest, without anything of the text.
func parseBody(path string, body []byte) (request, error) {
	control, query, err := twoParts(body)
	if err != nil {
		return request{}, err
	}
	var c struct {
		ID   string `json:"id"`
		Conn struct {
			Info string `json:"info"` // JSON in itself
		} `json:"connection_info"`
	}
	var q struct {
		WorkerID uint64  `json:"worker_id"`
		Rank     uint32  `json:"dp_rank"`
		Start    *uint64 `json:"start_event_id"`
		End      *uint64 `json:"end_event_id"`
		DumpFail bool    `json:"supports_tree_dump_failed"`
	}
	r := request{Path: path}
	switch {
	case json.Unmarshal(control, &c) != nil || json.Unmarshal([]byte(c.Conn.Info), &r.Home) != nil:
		return request{}, fmt.Errorf("%w: its control part is not what Dynamo 1.6 sends", errRequest)
	case r.Home.Address == "" || r.Home.Subject == "":
		return request{}, fmt.Errorf("%w: it does not say where the answer goes", errRequest)
	case len(r.Home.Address) > maxAddress:
		return request{}, fmt.Errorf("%w: the address for the answer has %d bytes, %d are allowed", errRequest, len(r.Home.Address), maxAddress)
	case json.Unmarshal(query, &q) != nil:
		return request{}, fmt.Errorf("%w: its query is not what Dynamo 1.6 sends in JSON", errRequest)
	}
	r.ID, r.WorkerID, r.Rank, r.Start, r.End, r.DumpFail = c.ID[:min(len(c.ID), maxID)], q.WorkerID, q.Rank, q.Start, q.End, q.DumpFail
	return r, nil
}

// twoParts splits u64 h, u64 d, u64 checksum, h bytes, d bytes. The checksum is
// 0 in what routers are built as, and not looked at.
func twoParts(b []byte) (header, data []byte, err error) {
	if len(b) < partHead {
		return nil, nil, fmt.Errorf("%w: its body is too short", errRequest)
	}
	h, d := binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[8:])
	b = b[partHead:]
	if h > uint64(len(b)) || d != uint64(len(b))-h {
		return nil, nil, fmt.Errorf("%w: the lengths in its body are wrong", errRequest)
	}
	return b[:h], b[h:], nil
}

// appendParts appends a two-part message.
func appendParts(dst []byte, header, data string) []byte {
	dst = appendPartHead(dst, len(header), len(data))
	return append(append(dst, header...), data...)
}

func appendPartHead(dst []byte, header, data int) []byte {
	dst = binary.BigEndian.AppendUint64(dst, uint64(header))
	dst = binary.BigEndian.AppendUint64(dst, uint64(data))
	return binary.BigEndian.AppendUint64(dst, 0)
}
