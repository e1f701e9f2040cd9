package integration

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/gzip" // so that a compressed answer is understood, which is worse
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/kvrelay/kvrelay/discovery"
	"github.com/kvrelay/kvrelay/internal/mockengine"
)

// TestHostileGRPC is TestHostileDiscovery where the engine is asked over gRPC.
func TestHostileGRPC(t *testing.T) {
	inFour(t, grpcRows(), callHostile)
}

func callHostile(t *testing.T, rows []grpcRow) {
	var d *discovery.Discoverer
	var way *front
	w := newHostileWorld(t, hostileOptions{watch: func(w *hostileWorld) func(context.Context, func([]discovery.Source)) error {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		background(t, func(ctx context.Context) error { return w.engine.ServeGRPC(ctx, l, mockengine.DiscoverVLLM) })
		way = newFront(t, l.Addr().String())
		d, err = discovery.New(discovery.Options{
			Kind: "vllm", URL: "grpc" + way.endpoint()[len("tcp"):], Token: plantedSecret, Interval: 300 * time.Millisecond, Log: w.log(),
		})
		if err != nil {
			t.Fatal(err)
		}
		return d.Watch
	}})
	honest := way.engine
	w.await(hostileHeal, "two sources", func() bool { return len(w.relay.Status().Sources) == 2 })
	w.settled("at the start")
	m := w.watch()
	lied := false
	for _, row := range rows {
		var asked atomic.Int64
		way.retarget(grpcLiar(t, row, &asked))
		if row.raw != nil {
			way.turn(func(v *villain) { asked.Add(1); row.raw(v) })
		}
		w.await(20*time.Second, "question: "+row.name, func() bool { return asked.Load() > 0 })
		if !row.lies {
			w.prompt(0)
			w.prompt(1)
			w.await(5*time.Second, "life under "+row.name, func() bool { return w.right(0) && w.right(1) })
		}
		way.retarget(honest)
		way.turn(nil)
		w.await(2*hostileHeal, "the engine's sources after "+row.name, func() bool {
			s := w.relay.Status().Sources
			return len(s) == 2 && s[0].Ready && s[1].Ready
		})
		w.settled("after " + row.name)
		if lied = lied || row.lies; !lied {
			w.undisturbed()
		}
		if t.Failed() {
			t.Fatalf("after the row %q", row.name)
		}
	}
	m.end(t)
	w.discreet()
	if s := fmt.Sprintf("%+v", d.State()); strings.Contains(s, plantedSecret) {
		t.Error("the token is in the state of discovery")
	}
}

// grpcRow answers every call; raw: what is not even HTTP/2 does.
type grpcRow struct {
	name   string
	answer func(s grpc.ServerStream) error
	raw    func(*villain)
	lies   bool // it is an answer: other sources than the engine's
}

func grpcRows() []grpcRow {
	says := func(parts ...[]byte) func(grpc.ServerStream) error {
		return func(s grpc.ServerStream) error {
			for _, p := range parts {
				if err := s.SendMsg(p); err != nil {
					return err
				}
			}
			return nil
		}
	}
	fails := func(c codes.Code, text string) func(grpc.ServerStream) error {
		return func(grpc.ServerStream) error { return status.Error(c, text) }
	}
	field := func(number, wire int, b []byte) []byte {
		return append(binary.AppendUvarint(nil, uint64(number<<3|wire)), b...)
	}
	text := func(number int, b []byte) []byte {
		return field(number, 2, append(binary.AppendUvarint(nil, uint64(len(b))), b...))
	}
	source := text(1, text(1, []byte("tcp://127.0.0.1:9")))
	return []grpcRow{
		{name: "16 MB", answer: func(s grpc.ServerStream) error { return s.SendMsg(text(1, make([]byte, 16<<20))) }},
		{name: "messages without end", answer: func(s grpc.ServerStream) error {
			for s.Context().Err() == nil {
				if err := s.SendMsg(source); err != nil {
					return err
				}
			}
			return nil
		}},
		{name: "never an answer", answer: func(s grpc.ServerStream) error { <-s.Context().Done(); return nil }},
		{name: "headers, and then nothing", answer: func(s grpc.ServerStream) error {
			if err := s.SendHeader(metadata.Pairs("x", "y")); err != nil {
				return err
			}
			<-s.Context().Done()
			return nil
		}},
		{name: "compressed, 32 MB", answer: func(s grpc.ServerStream) error {
			if err := grpc.SetSendCompressor(s.Context(), "gzip"); err != nil {
				return err
			}
			return s.SendMsg(text(1, make([]byte, 32<<20)))
		}},
		{name: "headers of a megabyte", answer: func(s grpc.ServerStream) error {
			return s.SendHeader(metadata.Pairs("x", strings.Repeat("h", 1<<20)))
		}},
		{name: "no protobuf", answer: says([]byte(plantedText))},
		{name: "lengths that lie", answer: says(field(1, 2, []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f}))},
		{name: "other wire types", answer: says(field(1, 0, []byte{7}), field(1, 5, []byte{1, 2, 3, 4}))},
		{name: "groups within groups", answer: says(bytes.Repeat([]byte{0x0b}, 500_000))},
		{name: "sources within sources", answer: says(func() (b []byte) {
			for range 5000 {
				b = text(1, b)
			}
			return b
		}())},
		{name: "the token as an error", answer: func(s grpc.ServerStream) error {
			md, _ := metadata.FromIncomingContext(s.Context())
			return status.Error(codes.Internal, fmt.Sprint(md["authorization"]))
		}},
		{name: "the token as a version", lies: true, answer: func(s grpc.ServerStream) error {
			md, _ := metadata.FromIncomingContext(s.Context())
			return s.SendMsg(text(1, text(1, []byte("tcp://"+fmt.Sprint(md["authorization"])))))
		}},
		{name: "an error of 60 KB", answer: fails(codes.Internal, strings.Repeat("\x1b[31m", 12_000))},
		{name: "a code that is none", answer: fails(codes.Code(9999), "?")},
		{name: "hangs up", raw: func(*villain) {}},
		{name: "HTTP/1", raw: func(v *villain) { v.say([]byte("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")); v.listen() }},
		{name: "frames that are none", raw: func(v *villain) { v.endless(bytes.Repeat([]byte{0xff}, 1<<16), 1000) }},
		{name: "settings without end", raw: func(v *villain) { v.endless(bytes.Repeat([]byte{0, 0, 0, 4, 0, 0, 0, 0, 0}, 1000), 3000) }},
		{name: "says nothing", raw: func(v *villain) { v.listen() }},
		{name: "20 000 sources", answer: says(bytes.Repeat(source, 20_000)), lies: true},
		{name: "an empty answer", answer: says(nil), lies: true},
	}
}

// grpcLiar serves a row's answer to every method, and returns its address.
func grpcLiar(t *testing.T, row grpcRow, asked *atomic.Int64) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(grpc.ForceServerCodecV2(rawCodec{}), grpc.MaxSendMsgSize(1<<30), grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
		asked.Add(1)
		var question []byte
		if err := stream.RecvMsg(&question); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		return row.answer(stream)
	}))
	background(t, func(ctx context.Context) error {
		defer context.AfterFunc(ctx, s.Stop)()
		return s.Serve(l)
	})
	return l.Addr().String()
}

// rawCodec has messages as they lie on the wire.
type rawCodec struct{}

var _ encoding.CodecV2 = rawCodec{}

func (rawCodec) Name() string { return "raw" }

func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	b, _ := v.([]byte)
	return mem.BufferSlice{mem.SliceBuffer(b)}, nil
}

func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	b, ok := v.(*[]byte)
	if !ok {
		return fmt.Errorf("cannot read into a %T", v)
	}
	*b = data.Materialize()
	return nil
}
