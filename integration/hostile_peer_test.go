package integration

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvrelay/kvrelay/internal/msgpack"
)

// front stands at one address of an engine: the engine is behind it, or
// somebody hostile is in its place. The address is the same throughout.
type front struct {
	ln     net.Listener
	engine string       // host:port of the real one
	came   atomic.Int64 // connections to somebody hostile

	mu     sync.Mutex
	attack func(*villain) // nil: the engine
	pace   time.Duration  // unless 0: the wait before each kilobyte from the engine
	conns  map[net.Conn]struct{}
	closed bool
	wg     sync.WaitGroup
}

func newFront(t testing.TB, target string) *front {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &front{ln: ln, engine: target, conns: map[net.Conn]struct{}{}}
	f.wg.Go(f.accept)
	t.Cleanup(func() {
		f.mu.Lock()
		f.closed = true
		f.mu.Unlock()
		_ = f.ln.Close()
		f.turn(nil)
		f.wg.Wait()
	})
	return f
}

func (f *front) endpoint() string { return "tcp://" + f.ln.Addr().String() }

// turn puts somebody else at the address, as a restart of the pod does: the
// open connections end.
func (f *front) turn(attack func(*villain)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.attack = attack
	for c := range f.conns {
		_ = c.Close()
	}
}

// retarget sends later connections to another engine.
func (f *front) retarget(engine string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.engine = engine
}

// slow makes the way from the engine a slow one; 0 ends that.
func (f *front) slow(pace time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pace = pace
}

// paced is a connection to a client that is written to at the front's pace.
type paced struct {
	net.Conn
	f *front
}

func (p paced) Write(b []byte) (n int, err error) {
	for n < len(b) && err == nil {
		p.f.mu.Lock()
		pace := p.f.pace
		p.f.mu.Unlock()
		part := b[n:]
		if pace > 0 {
			part = part[:min(len(part), 1<<10)]
			<-time.After(pace)
		}
		var m int
		m, err = p.Conn.Write(part)
		n += m
	}
	return n, err
}

func (f *front) accept() {
	for {
		nc, err := f.ln.Accept()
		if err != nil {
			return
		}
		if !f.track(nc) {
			continue
		}
		f.wg.Go(func() {
			defer f.drop(nc)
			f.mu.Lock()
			attack := f.attack
			f.mu.Unlock()
			if attack == nil {
				f.relay(nc)
				return
			}
			f.came.Add(1)
			attack(&villain{Conn: nc, br: bufio.NewReader(nc)})
		})
	}
}

func (f *front) track(nc net.Conn) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		_ = nc.Close()
		return false
	}
	f.conns[nc] = struct{}{}
	return true
}

func (f *front) drop(nc net.Conn) {
	_ = nc.Close()
	f.mu.Lock()
	delete(f.conns, nc)
	f.mu.Unlock()
}

// relay is the way to the engine.
func (f *front) relay(nc net.Conn) {
	f.mu.Lock()
	engine := f.engine
	f.mu.Unlock()
	up, err := net.Dial("tcp", engine)
	if err != nil {
		return
	}
	if !f.track(up) {
		return
	}
	defer f.drop(up)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(up, nc) // how it ends is the peers' business
		_ = up.Close()
	}()
	_, _ = io.Copy(paced{nc, f}, up) // likewise
	_ = nc.Close()
	<-done
}

// villain is a connection of the relay's to somebody hostile.
type villain struct {
	net.Conn
	br     *bufio.Reader
	struck func() // says that the relay has met what it was to meet
}

const (
	zmtpMore    = 1
	zmtpLong    = 2
	zmtpCommand = 4
)

// say writes; false: the relay has gone.
func (v *villain) say(parts ...[]byte) bool {
	for _, p := range parts {
		if _, err := v.Write(p); err != nil {
			return false
		}
	}
	return true
}

// endless says p until the relay has gone, or n times.
func (v *villain) endless(p []byte, n int) {
	for range n {
		if !v.say(p) {
			return
		}
	}
}

// drip says b byte by byte, and its last byte again and again.
func (v *villain) drip(b []byte, every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for i := 0; ; i++ {
		if !v.say(b[min(i, len(b)-1):][:1]) {
			return
		}
		<-tick.C
	}
}

// listen reads what the relay says until it goes.
func (v *villain) listen() { _, _ = io.Copy(io.Discard, v.br) }

// shake does the whole handshake as a socket of that type, whose version of
// ZMTP need not answer PINGs.
func (v *villain) shake(socket string) bool {
	if !v.say(zmtpHello("NULL"), zmtpReady(socket)) {
		return false
	}
	if _, err := v.br.Discard(64); err != nil {
		return false
	}
	_, _, err := v.frame() // its READY
	return err == nil
}

// pub is a PUB socket that the relay is connected to. What it says is drained.
func (v *villain) pub() bool {
	if !v.shake("PUB") {
		return false
	}
	go v.listen() // ends with the connection
	return true
}

func (v *villain) frame() (flags byte, body []byte, err error) {
	if flags, err = v.br.ReadByte(); err != nil {
		return 0, nil, err
	}
	size := make([]byte, 1)
	if flags&zmtpLong != 0 {
		size = make([]byte, 8)
	}
	if _, err = io.ReadFull(v.br, size); err != nil {
		return 0, nil, err
	}
	n := uint64(size[0])
	if len(size) == 8 {
		n = binary.BigEndian.Uint64(size)
	}
	if n > 1<<20 {
		return 0, nil, errors.New("the relay sends no such frame")
	}
	body = make([]byte, n)
	_, err = io.ReadFull(v.br, body)
	return flags, body, err
}

// request waits for the relay's next replay request.
func (v *villain) request() (start uint64, ok bool) {
	for {
		flags, body, err := v.frame()
		if err != nil {
			return 0, false
		}
		if flags&(zmtpCommand|zmtpMore) == 0 && len(body) == 8 {
			return binary.BigEndian.Uint64(body), true
		}
	}
}

func zmtpHello(mechanism string) []byte {
	g := make([]byte, 64)
	g[0], g[8], g[9], g[10] = 0xff, 1, 0x7f, 3
	copy(g[12:32], mechanism)
	return g
}

func zmtpReady(socket string, more ...string) []byte {
	b := []byte("\x05READY")
	for i, kv := 0, append([]string{"Socket-Type", socket}, more...); i < len(kv); i += 2 {
		b = append(append(b, byte(len(kv[i]))), kv[i]...)
		b = append(binary.BigEndian.AppendUint32(b, uint32(len(kv[i+1]))), kv[i+1]...)
	}
	return zmtpFrame(zmtpCommand, b)
}

func zmtpFrame(flags byte, body []byte) []byte {
	if len(body) > 255 {
		return append(zmtpHead(flags, uint64(len(body))), body...)
	}
	return append([]byte{flags, byte(len(body))}, body...)
}

// zmtpHead announces a frame of n bytes.
func zmtpHead(flags byte, n uint64) []byte {
	return binary.BigEndian.AppendUint64([]byte{flags | zmtpLong}, n)
}

func zmtpMessage(frames ...[]byte) []byte {
	var b []byte
	for i, f := range frames {
		flags := byte(zmtpMore)
		if i == len(frames)-1 {
			flags = 0
		}
		b = append(b, zmtpFrame(flags, f)...)
	}
	return b
}

func seqOf(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

// liveBatch and replyBatch are a batch as PUB and as ROUTER send it.
func liveBatch(seq uint64, payload []byte) []byte { return zmtpMessage(nil, seqOf(seq), payload) }
func replyBatch(seq uint64, payload []byte) []byte {
	return zmtpMessage(nil, nil, seqOf(seq), payload)
}

var replyEnd = zmtpMessage(nil, nil, seqOf(1<<64-1), nil)

// What must not be seen anywhere but in a prompt.
const (
	plantedToken = 3_987_654_321
	plantedSalt  = "salt-of-tenant-9f31"
	plantedText  = "the patient says: 9f32"
)

// storeBatch is a batch of one store with everything that must not leak.
func storeBatch(hash uint64) []byte { return batchOf(1_790_000_000, storeEvent(hash)) }

func batchOf(ts float64, events ...[]byte) []byte {
	b := msgpack.AppendArrayHeader(nil, 2)
	b = msgpack.AppendFloat(b, ts)
	b = msgpack.AppendArrayHeader(b, len(events))
	for _, e := range events {
		b = append(b, e...)
	}
	return b
}

// storeEvent is a block of four tokens, salted.
func storeEvent(hash uint64) []byte {
	b := msgpack.AppendArrayHeader(nil, 9)
	b = msgpack.AppendStr(b, "BlockStored")
	b = msgpack.AppendUint(msgpack.AppendArrayHeader(b, 1), hash)
	b = msgpack.AppendNil(b)
	b = msgpack.AppendArrayHeader(b, 4)
	for range 4 {
		b = msgpack.AppendUint(b, plantedToken)
	}
	b = msgpack.AppendUint(b, 4)
	b = msgpack.AppendNil(b)
	b = msgpack.AppendNil(b)
	b = msgpack.AppendMapHeader(b, 1)
	b = msgpack.AppendStr(msgpack.AppendStr(b, "cache_salt"), plantedSalt)
	b = msgpack.AppendArrayHeader(b, 1)
	return msgpack.AppendStr(msgpack.AppendArrayHeader(b, 1), plantedText)
}

// rankBatch is a batch that names its rank.
func rankBatch(rank uint32, events ...[]byte) []byte {
	b := batchOf(1_790_000_000, events...)
	b[0]++ // an array of three
	return msgpack.AppendUint(b, uint64(rank))
}
