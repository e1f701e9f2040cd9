package membership

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"testing"
	"time"
)

// asker is a router: it asks over one pooled connection and is called home.
type asker struct {
	t    testing.TB
	c    net.Conn
	home net.Listener
	n    int
}

func newAsker(t testing.TB, target string) *asker {
	t.Helper()
	c, err := net.Dial("tcp", target)
	if err != nil {
		t.Fatal(err)
	}
	home, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	a := &asker{t: t, c: c, home: home}
	t.Cleanup(func() { c.Close(); home.Close() })
	return a
}

// query is the JSON of a request.
type query struct {
	Worker uint64  `json:"worker_id"`
	Rank   uint32  `json:"dp_rank"`
	Start  *uint64 `json:"start_event_id"`
	End    *uint64 `json:"end_event_id"`
	Failed bool    `json:"supports_tree_dump_failed"`
}

// frame makes a request as Dynamo 1.6.1 does.
func frame(path, address, subject string, q query) []byte {
	info := mustJSON(map[string]string{"address": address, "subject": subject, "context": "ctx", "stream_type": "response"})
	control := mustJSON(map[string]any{
		"id": "ctx", "request_type": "single_in", "response_type": "many_out",
		"connection_info": map[string]string{"transport": "tcp_server", "info": string(info)},
	})
	body := appendParts(nil, string(control), string(mustJSON(q)))
	headers := `{"traceparent":"00-0-0-00"}`
	var b []byte
	b = append(binary.BigEndian.AppendUint16(b, uint16(len(path))), path...)
	b = append(binary.BigEndian.AppendUint16(b, uint16(len(headers))), headers...)
	return append(binary.BigEndian.AppendUint32(b, uint32(len(body))), body...)
}

// send writes a request and reads its acknowledgement; false: there is none.
func (a *asker) send(path string, q query) bool {
	a.t.Helper()
	a.n++
	a.write(frame(path, a.home.Addr().String(), fmt.Sprintf("s%d", a.n), q))
	return a.acked()
}

func (a *asker) write(b []byte) {
	a.t.Helper()
	if _, err := a.c.Write(b); err != nil {
		a.t.Fatal(err)
	}
}

func (a *asker) acked() bool {
	a.t.Helper()
	var ack [4]byte
	_ = a.c.SetReadDeadline(time.Now().Add(patience))
	if _, err := io.ReadFull(a.c, ack[:]); err != nil {
		var timeout net.Error
		if bytes.Equal(ack[:], nil) || asTimeout(err, &timeout) {
			a.t.Fatalf("neither acknowledged nor closed: %v", err)
		}
		return false
	}
	if ack != [4]byte{} {
		a.t.Fatalf("acknowledged with %x", ack)
	}
	return true
}

func asTimeout(err error, as *net.Error) bool {
	e, ok := err.(net.Error)
	*as = e
	return ok && e.Timeout()
}

// answer takes a call home and reads it to its end. refused is what the prologue says.
func (a *asker) answer() (r *response, subject, refused string) {
	a.t.Helper()
	_ = a.home.(*net.TCPListener).SetDeadline(time.Now().Add(patience))
	c, err := a.home.Accept()
	if err != nil {
		a.t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	next := func() (header, data []byte, err error) {
		var head [partHead]byte
		if _, err := io.ReadFull(c, head[:]); err != nil {
			return nil, nil, err
		}
		h, d := binary.BigEndian.Uint64(head[:]), binary.BigEndian.Uint64(head[8:])
		if h > 1<<30 || d > 1<<30 || binary.BigEndian.Uint64(head[16:]) != 0 {
			a.t.Fatalf("message head %x", head)
		}
		b := make([]byte, h+d)
		_, err = io.ReadFull(c, b)
		return b[:h], b[h:], err
	}
	must := func() (header, data []byte) {
		a.t.Helper()
		header, data, err := next()
		if err != nil {
			a.t.Fatal(err)
		}
		return header, data
	}
	header, data := must()
	var hello struct {
		Subject string
		Type    string `json:"stream_type"`
	}
	if json.Unmarshal(header, &hello) != nil || hello.Type != "response" || len(data) != 0 {
		a.t.Fatalf("handshake %s %s", header, data)
	}
	header, data = must()
	var prologue struct{ Error *string }
	if json.Unmarshal(header, &prologue) != nil || len(data) != 0 {
		a.t.Fatalf("prologue %s %s", header, data)
	}
	if prologue.Error != nil {
		return nil, hello.Subject, *prologue.Error
	}
	header, data = must()
	r = &response{}
	if err := json.Unmarshal(data, r); err != nil || len(header) != 0 || r.Final == nil || *r.Final {
		a.t.Fatalf("data %s %.200s: %v", header, data, err)
	}
	if header, data = must(); string(data) != `{"complete_final":true}` || len(header) != 0 {
		a.t.Fatalf("end %s %s", header, data)
	}
	if header, data = must(); string(header) != `"sentinel"` || len(data) != 0 {
		a.t.Fatalf("sentinel %s %s", header, data)
	}
	return r, hello.Subject, ""
}

// serving is a server that runs until the test ends.
func serving(t testing.TB) (s *server, target string) {
	t.Helper()
	s = newServer(testLog(t))
	ln, target, err := listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.run(ctx, ln)
	}()
	t.Cleanup(func() { cancel(); <-done })
	return s, target
}
