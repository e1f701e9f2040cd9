package relay_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/vmihailenco/msgpack/v5"

	"github.com/kvrelay/kvrelay/discovery"
	"github.com/kvrelay/kvrelay/internal/freeport"
	"github.com/kvrelay/kvrelay/relay"
)

// pub is a bare PUB whose frames a test makes itself.
type pub struct {
	t *testing.T
	s zmq4.Socket
}

func newPub(t *testing.T) *pub {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	p := &pub{t: t, s: zmq4.NewPub(ctx)}
	t.Cleanup(func() { p.s.Close(); cancel() })
	return p
}

func (p *pub) bind() string {
	p.t.Helper()
	if err := p.s.Listen("tcp://127.0.0.1:0"); err != nil {
		p.t.Fatal(err)
	}
	return "tcp://" + p.s.Addr().String()
}

// until sends frames until ok: a PUB drops what comes before the subscription.
func (b *bench) until(what string, send func(), ok func() bool) {
	b.t.Helper()
	b.await(what, func() bool {
		send()
		return ok()
	})
}

func (p *pub) send(frames ...[]byte) {
	if err := p.s.Send(zmq4.NewMsgFrom(frames...)); err != nil {
		p.t.Errorf("PUB: %v", err)
	}
}

func seq(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

// stored is a batch that stores one block of four tokens.
func stored(hash uint64) []byte {
	b, err := msgpack.Marshal([]any{float64(time.Now().UnixMicro()) / 1e6, []any{
		[]any{"BlockStored", []uint64{hash}, nil, []int{1, 2, 3, int(hash)}, 4},
	}})
	if err != nil {
		panic(err)
	}
	return b
}

func source(endpoint string, change func(*discovery.Source)) []discovery.Source {
	src := discovery.Source{Engine: endpoint, Kind: "static", Endpoint: endpoint, Ranks: 1}
	if change != nil {
		change(&src)
	}
	return []discovery.Source{src}
}

// Engines that send no sequence number are relayed as well as can be.
func TestBatchesWithoutSeq(t *testing.T) {
	for name, topic := range map[string][]byte{"topic payload": []byte("kv@pod@model"), "payload": nil} {
		t.Run(name, func(t *testing.T) {
			b := start(t, setup{later: true})
			p := newPub(t)
			b.update(source(p.bind(), nil))
			n := uint64(0)
			b.until("blocks", func() {
				n++
				if topic == nil {
					p.send(stored(n))
				} else {
					p.send(topic, stored(n))
				}
			}, func() bool { return len(b.held(0)) >= 5 })
			if !b.logged("without sequence numbers") {
				t.Error("the log does not say that gaps cannot be seen")
			}
			if s := b.source(0); s.Cursor.Losses != 0 || s.Connects != 1 {
				t.Errorf("cursor: %+v", s.Cursor)
			}
		})
	}
}

// An engine that sends no sequence number has no replay: that its endpoint refuses is
// no trouble any more once that is known.
func TestBatchesWithoutSeqOrReplay(t *testing.T) {
	b := start(t, setup{later: true})
	p := newPub(t)
	b.update(source(p.bind(), func(s *discovery.Source) { s.Replay = "tcp://" + freeport.Addr(t) }))
	b.await("the refusal", func() bool { return b.source(0).ReplayFailing })
	n := uint64(0)
	b.until("blocks", func() { n++; p.send(stored(n)) }, func() bool { return len(b.held(0)) >= 5 })
	if s := b.source(0); s.State != relay.StateLive || s.Reason != "" || s.ReplayFailing {
		t.Errorf("status: %s, %q, failing %v", s.State, s.Reason, s.ReplayFailing)
	}
}

// One message without a number among others that have one is nothing that an
// engine sends: it is left out, and numbers go on to be looked at.
func TestStrayBatchWithoutSeq(t *testing.T) {
	b := start(t, setup{later: true})
	p := newPub(t)
	b.update(source(p.bind(), nil))
	n := uint64(0)
	numbered := func() {
		p.send(nil, seq(n), stored(n+1))
		n++
	}
	b.until("blocks", numbered, func() bool { return len(b.held(0)) >= 3 })
	p.send(stored(1 << 20))
	had := len(b.held(0))
	b.until("further blocks", numbered, func() bool { return b.source(0).RefusedFrames == 1 && len(b.held(0)) > had })
	if b.held(0)[1<<20] || b.logged("without sequence numbers") {
		t.Error("a stray message was taken for an engine that sends no numbers")
	}
	if s := b.source(0); s.Connects != 1 || s.Cursor.Restarts != 0 || s.Cursor.Losses != 0 {
		t.Errorf("cursor: %+v", s.Cursor)
	}
}

func TestTopics(t *testing.T) {
	for _, exact := range []bool{false, true} {
		t.Run(fmt.Sprintf("exact=%v", exact), func(t *testing.T) {
			b := start(t, setup{later: true})
			p := newPub(t)
			b.update(source(p.bind(), func(s *discovery.Source) { s.Topic, s.TopicExact = "kv@a", exact }))
			n := uint64(0)
			b.until("blocks", func() {
				p.send([]byte("kv@b"), seq(n), stored(300+n))
				if exact {
					p.send([]byte("kv@ab"), seq(n), stored(200+n))
				}
				p.send([]byte([]string{"kv@a", "kv@ab"}[n%2*uint64(boolInt(!exact))]), seq(n), stored(100+n))
				n++
			}, func() bool { return len(b.held(0)) >= 4 })
			for h := range b.held(0) {
				if h >= 300 || exact && h >= 200 {
					t.Errorf("block %d came from another topic", h)
				}
			}
			if s := b.source(0); exact && s.Filtered == 0 {
				t.Error("nothing was filtered")
			}
		})
	}
}

// TOPIC_EXACT with the beginning of the engine's topic lets nothing pass, and nothing
// is replayed: one line says so, safe to print, and how to set it right.
func TestTopicExactAlone(t *testing.T) {
	b := start(t, setup{later: true, relay: func(o *relay.Options) { o.SilentAfter = 30 * time.Millisecond }})
	p := newPub(t)
	b.update(source(p.bind(), func(s *discovery.Source) { s.Topic, s.TopicExact = "kv", true }))
	theirs := []byte("kv@10.0.0.7@m\x1b[2J\n" + strings.Repeat("x", 1000))
	n := uint64(0)
	b.until("the warning", func() { p.send(theirs, seq(n), stored(n)); n++ }, func() bool { return b.source(0).WrongTopic })
	for range 20 {
		p.send(theirs, seq(n), stored(n))
		n++
	}
	b.until("ours", func() { p.send([]byte("kv"), seq(n), stored(n)); n++ }, func() bool { return !b.source(0).WrongTopic })
	b.mu.Lock()
	log := b.logs.String()
	b.mu.Unlock()
	var lines []string
	for line := range strings.Lines(log) {
		if strings.Contains(line, "have another topic than TOPIC and TOPIC_EXACT ask for") {
			lines = append(lines, line)
		}
	}
	if len(lines) != 1 {
		t.Fatalf("told %d times: %q", len(lines), lines)
	}
	for _, want := range []string{`kv@10.0.0.7@m\x1b[2J\nxxx`, "topic=kv ", "topic_exact=true", `set="TOPIC to their_topic, or TOPIC_EXACT=false"`} {
		if !strings.Contains(lines[0], want) {
			t.Errorf("no %s in %q", want, lines[0])
		}
	}
	if len(lines[0]) > 800 {
		t.Errorf("a line of %d bytes", len(lines[0]))
	}
}

// With a TOPIC that the engine does not use, replays bring everything late; a person is told.
func TestReplayAlone(t *testing.T) {
	b := start(t, setup{later: true})
	live, _ := b.network()
	b.update(b.sources(func(s *discovery.Source) { s.Topic, s.Endpoint = "not the engine's", "tcp://"+live.Addr() }))
	n := 0
	b.until("the line", func() {
		n++
		b.prompt(0, n, 8)
	}, func() bool { return b.logged("batches come by replay alone") })
	if s := b.source(0); !s.LastMessage.IsZero() || s.Cursor.Applied == 0 || !s.WrongTopic {
		t.Errorf("status: %+v", s)
	}
	// It is as wrong on another connection, and not told again.
	live.Cut(false)
	b.until("the status", func() {
		n++
		b.prompt(0, n, 8)
	}, func() bool { s := b.source(0); return s.Connects > 1 && s.WrongTopic })
	if n := b.count("batches come by replay alone"); n != 1 {
		t.Errorf("told %d times", n)
	}
}

// Messages that no engine sends cost nothing but themselves.
func TestForeignMessages(t *testing.T) {
	b := start(t, setup{later: true})
	p := newPub(t)
	b.update(source(p.bind(), nil))
	n := uint64(0)
	b.until("blocks", func() {
		p.send(nil, seq(n), stored(n))
		p.send(nil, []byte{1, 2, 3}, stored(900))
		p.send(nil, seq(n), stored(901), nil)
		p.send(nil, seq(1<<64-1), stored(902))
		n++
	}, func() bool { return len(b.held(0)) >= 5 })
	for h := range b.held(0) {
		if h >= 900 {
			t.Errorf("block %d came from a message that is no batch", h)
		}
	}
	s := b.source(0)
	if s.RefusedFrames == 0 || s.Cursor.Losses != 0 || s.Connects != 1 {
		t.Errorf("status: %+v", s)
	}
}

// An engine that sends nothing is no fault, but a person is told once.
func TestSilenceIsTold(t *testing.T) {
	b := start(t, setup{relay: func(o *relay.Options) { o.SilentAfter = 50 * time.Millisecond }})
	b.await("the line", func() bool { return b.logged("no message has come yet") })
	if !b.logged("it answers") {
		t.Error("the line does not say that the replay endpoint answers")
	}
	b.prompt(0, 0, 1)
	b.same()
}

// An engine whose PUB connects out is one stream; a second one is refused.
func TestListen(t *testing.T) {
	addr := freeport.Addr(t)
	b := start(t, setup{later: true})
	b.update(source("listen:tcp://"+addr, nil))
	p := newPub(t)
	if err := p.s.Dial("tcp://" + addr); err != nil {
		t.Fatal(err)
	}
	n := uint64(0)
	b.until("blocks", func() { p.send(nil, seq(n), stored(n)); n++ }, func() bool { return len(b.held(0)) >= 3 })
	second, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	if err := second.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if n, err := second.Read(make([]byte, 64)); err == nil {
		t.Fatalf("a second publisher was answered with %d bytes", n)
	}
	if !b.logged("a second publisher connected") {
		t.Error("the refusal is not in the log")
	}
	p.s.Close()
	other := newPub(t)
	b.await("the end of the first", func() bool { return b.source(0).LiveSince.IsZero() })
	if err := other.s.Dial("tcp://" + addr); err != nil {
		t.Fatal(err)
	}
	n = 0
	b.until("blocks of the other engine", func() { other.send(nil, seq(n), stored(5000+n)); n++ }, func() bool {
		for h := range b.held(0) {
			if h < 5000 {
				return false
			}
		}
		return len(b.held(0)) >= 3
	})
}

// A stranger at a `listen:` endpoint is told apart from an endpoint that cannot be
// opened, and keeps no publisher out.
func TestListenStranger(t *testing.T) {
	addr := freeport.Addr(t)
	b := start(t, setup{later: true})
	b.update(source("listen:tcp://"+addr, nil))
	var stranger net.Conn
	b.await("somebody who listens", func() (ok bool) {
		var err error
		stranger, err = net.Dial("tcp", addr)
		return err == nil
	})
	defer stranger.Close()
	if _, err := io.WriteString(stranger, "GET / HTTP/1.1\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	b.await("the line", func() bool { return b.logged("no publisher: still waiting") })
	if b.logged("cannot listen") {
		t.Error("the log says that the endpoint cannot be opened")
	}
	p := newPub(t)
	if err := p.s.Dial("tcp://" + addr); err != nil {
		t.Fatal(err)
	}
	n := uint64(0)
	b.until("blocks", func() { p.send(nil, seq(n), stored(n)); n++ }, func() bool { return len(b.held(0)) >= 3 })
}

// Strangers that connect to a `listen:` endpoint and say nothing do not keep the
// engine out until they are given up.
func TestListenSilentStrangers(t *testing.T) {
	addr := freeport.Addr(t)
	b := start(t, setup{later: true, relay: func(o *relay.Options) { o.ZMTP.HandshakeTimeout = time.Hour }})
	b.update(source("listen:tcp://"+addr, nil))
	for range 20 {
		var stranger net.Conn
		b.await("somebody who listens", func() (ok bool) {
			var err error
			stranger, err = net.Dial("tcp", addr)
			return err == nil
		})
		defer stranger.Close()
	}
	p := newPub(t)
	if err := p.s.Dial("tcp://" + addr); err != nil {
		t.Fatal(err)
	}
	n := uint64(0)
	b.until("blocks", func() { p.send(nil, seq(n), stored(n)); n++ }, func() bool { return len(b.held(0)) >= 3 })
	if !b.logged("the oldest is dropped") || b.logged("a second publisher") {
		t.Error("the log does not say that strangers were dropped, or calls one a publisher")
	}
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}
