package zmtp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"testing"

	"github.com/kvrelay/kvrelay/internal/fuzzlimit"
)

var testLimits = limits{frame: 1 << 20, message: 1<<20 + 4096, frames: 8}

// stream is a frameReader over data that arrives in pieces of at most n() bytes.
func stream(data []byte, lim limits, n func() int) (*frameReader, *[][]byte) {
	var commands [][]byte
	src := bytes.NewReader(data)
	return &frameReader{
		lim: lim,
		read: func(p []byte) (int, error) {
			return src.Read(p[:min(len(p), max(1, n()))])
		},
		command: func(b []byte) error {
			commands = append(commands, bytes.Clone(b))
			return nil
		},
	}, &commands
}

func all(f *frameReader) (msgs [][][]byte, err error) {
	for {
		frames, err := f.next()
		if err != nil {
			return msgs, err
		}
		var m [][]byte
		for _, b := range frames {
			m = append(m, bytes.Clone(b))
		}
		msgs = append(msgs, m)
	}
}

func sameMessages(a, b [][][]byte) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if len(a[i]) != len(b[i]) {
			return false
		}
		for j := range a[i] {
			if !bytes.Equal(a[i][j], b[i][j]) {
				return false
			}
		}
	}
	return true
}

// reference cuts a complete stream the plain way. It stops where the stream does, or
// where something is not allowed.
func reference(data []byte, lim limits) (msgs [][][]byte, commands [][]byte, bad bool) {
	var msg [][]byte
	var body uint64
	within := 0
	for len(data) > 0 {
		flags, size, head := data[0], uint64(0), 2
		if flags > 7 || flags&5 == 5 {
			return msgs, commands, true
		}
		if flags&2 != 0 {
			head = 9
		}
		if len(data) < head {
			return msgs, commands, false
		}
		if head == 9 {
			size = binary.BigEndian.Uint64(data[1:])
		} else {
			size = uint64(data[1])
		}
		if flags&4 != 0 {
			if size > maxCommand || within > maxCommandsWithin {
				return msgs, commands, true
			}
		} else if size > lim.frame || body+size > lim.message || len(msg) == lim.frames {
			return msgs, commands, true
		}
		data = data[head:]
		if uint64(len(data)) < size {
			return msgs, commands, false
		}
		b := data[:size]
		data = data[size:]
		if flags&4 != 0 {
			commands = append(commands, b)
			if len(msg) > 0 {
				within += head + len(b)
			}
			continue
		}
		msg, body = append(msg, b), body+size
		if flags&1 == 0 {
			msgs, msg, body, within = append(msgs, msg), nil, 0, 0
		}
	}
	return msgs, commands, false
}

// randomStream is a sound stream of messages of all sizes with commands between
// messages and frames.
func randomStream(r *rand.Rand, n int) []byte {
	var b []byte
	noise := rand.NewChaCha8([32]byte{byte(r.Uint32())})
	command := func() {
		if r.IntN(4) == 0 {
			b = appendCommand(b, "PING", make([]byte, 2+r.IntN(16)))
		}
	}
	for range n {
		command()
		frames := 1 + r.IntN(5)
		for i := range frames {
			size := r.IntN(300)
			switch r.IntN(20) {
			case 0:
				size = r.IntN(200 << 10)
			case 1:
				size = 0
			}
			body := make([]byte, size)
			noise.Read(body)
			var flags byte
			if i < frames-1 {
				flags = flagMore
			}
			b = appendFrame(b, flags, body)
			if i < frames-1 {
				command()
			}
		}
	}
	return b
}

func TestReaderCutsLikeTheReference(t *testing.T) {
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 1))
		data := randomStream(r, 60)
		want, wantCommands, bad := reference(data, testLimits)
		if bad || len(want) != 60 {
			t.Fatalf("seed %d: the reference does not read a sound stream", seed)
		}
		pieces := []int{1, 3, 100, 5000, 1 << 20}[seed%5]
		if pieces == 1 {
			data = data[:min(len(data), 200<<10)]
			want, wantCommands, _ = reference(data, testLimits)
		}
		f, commands := stream(data, testLimits, func() int { return 1 + r.IntN(pieces) })
		got, err := all(f)
		if !sameMessages(got, want) {
			t.Fatalf("seed %d: messages differ (%d, want %d)", seed, len(got), len(want))
		}
		if !sameMessages([][][]byte{*commands}, [][][]byte{wantCommands}) {
			t.Fatalf("seed %d: commands differ", seed)
		}
		if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}

func TestReaderTellsTheEndFromTheMiddle(t *testing.T) {
	whole := message("topic", "12345678", "payload")
	for cut := range len(whole) + 1 {
		f, _ := stream(whole[:cut], testLimits, func() int { return 7 })
		msgs, err := all(f)
		want := io.ErrUnexpectedEOF
		if cut == 0 || cut == len(whole) {
			want = io.EOF
		}
		if err != want || len(msgs) != cut/len(whole) {
			t.Errorf("cut at %d: %d messages, %v; want %v", cut, len(msgs), err, want)
		}
	}
}

func long(flags byte, size uint64) []byte {
	return binary.BigEndian.AppendUint64([]byte{flags | flagLong}, size)
}

func TestReaderLimits(t *testing.T) {
	lim := limits{frame: 1000, message: 1500, frames: 3}
	some := func(n int) string { return string(make([]byte, n)) }
	cat := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	for _, c := range []struct {
		name   string
		data   []byte
		reason Reason // "": passes
		limit  uint64
	}{
		{"frame at the limit", message(some(1000)), "", 0},
		{"frame above", message(some(1001)), FrameTooLarge, 1000},
		{"message at the limit", message(some(1000), some(500)), "", 0},
		{"message above", message(some(1000), some(501)), MessageTooLarge, 1500},
		{"frames at the limit", message("", "", ""), "", 0},
		{"frames above", message("", "", "", ""), TooManyFrames, 3},
		{"2^62", long(0, 1<<62), FrameTooLarge, 1000},
		{"2^63", long(0, 1<<63), FrameTooLarge, 1000},
		{"2^64-1", long(0, 1<<64-1), FrameTooLarge, 1000},
		{"2 GB in the second frame", cat(long(flagMore, 0), long(0, 2<<30)), FrameTooLarge, 1000},
		{"long form of a short frame", cat(long(0, 3), []byte("abc")), "", 0},
		{"reserved bit", []byte{8, 0}, BadFlags, 0},
		{"all bits", []byte{255}, BadFlags, 0},
		{"command with more", []byte{flagCommand | flagMore, 0}, BadFlags, 0},
		{"command of 4096", cat(long(flagCommand, 4096), make([]byte, 4096), message("x")), "", 0},
		{"command of 4097", long(flagCommand, 4097), CommandTooLarge, maxCommand},
		{"command of 2^62", long(flagCommand, 1<<62), CommandTooLarge, maxCommand},
		{"commands within a message", cat(
			appendFrame(nil, flagMore, []byte("a")),
			bytes.Repeat(cat(long(flagCommand, 4096), make([]byte, 4096)), 15),
			message("b")), "", 0},
		{"too many commands within a message", cat(
			appendFrame(nil, flagMore, []byte("a")),
			bytes.Repeat(cat(long(flagCommand, 4096), make([]byte, 4096)), 17),
			message("b")), CommandTooLarge, maxCommandsWithin},
		{"any number of commands between messages", cat(
			bytes.Repeat([]byte("\x04\x05\x04PING"), 100_000), message("b")), "", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, _ := stream(c.data, lim, func() int { return 1 << 20 })
			msgs, err := all(f)
			var fe *FrameError
			if c.reason == "" {
				if len(msgs) != 1 || err != io.EOF {
					t.Fatalf("%d messages, %v; want one and EOF", len(msgs), err)
				}
				if len(f.buf) > 2*baseBuffer {
					t.Errorf("a buffer of %d", len(f.buf))
				}
				return
			}
			if !errors.As(err, &fe) || fe.Reason != c.reason || fe.Limit != c.limit || len(msgs) != 0 {
				t.Fatalf("%d messages, %v; want %s with limit %d", len(msgs), err, c.reason, c.limit)
			}
			if len(f.buf) > 2*baseBuffer {
				t.Errorf("a refused message cost %d bytes", len(f.buf))
			}
		})
	}
}

// A header's promise costs nothing: what arrives does, at most twice.
func TestReaderGrowsWithWhatArrives(t *testing.T) {
	lim := limits{frame: 64 << 20, message: 65 << 20, frames: 8}
	data := append(long(0, 60<<20), make([]byte, 60<<20)...)
	for _, sent := range []int{10, 1000, 64 << 10, 1 << 20, 10 << 20, 40 << 20} {
		f, _ := stream(data[:sent], lim, func() int { return 1 << 30 })
		if _, err := all(f); err != io.ErrUnexpectedEOF {
			t.Fatal(err)
		}
		if limit := max(baseBuffer, 2*sent); len(f.buf) > limit {
			t.Errorf("%d bytes sent cost %d, want at most %d", sent, len(f.buf), limit)
		}
	}
}

func TestReaderGivesLargeBuffersBack(t *testing.T) {
	lim := limits{frame: 64 << 20, message: 65 << 20, frames: 8}
	small := message("", "12345678", "payload")
	read := func(size, after int) *frameReader {
		data := appendFrame(nil, 0, make([]byte, size))
		for range after {
			data = append(data, small...)
		}
		// The small ones one a read, as on a quiet connection.
		piece := 1 << 30
		f, _ := stream(data[:len(data):len(data)], lim, func() int { return piece })
		if _, err := f.next(); err != nil {
			t.Fatal(err)
		}
		piece = len(small)
		for range after {
			if _, err := f.next(); err != nil {
				t.Fatal(err)
			}
		}
		f.fill(1) // as the next Recv does before it waits
		return f
	}
	if f := read(20<<20, 0); len(f.buf) != baseBuffer {
		t.Errorf("after 20 MiB the next wait holds %d", len(f.buf))
	}
	if f := read(500<<10, 1); len(f.buf) < 500<<10 {
		t.Errorf("500 KiB given back at once (%d)", len(f.buf))
	}
	if f := read(500<<10, 2000); len(f.buf) != baseBuffer {
		t.Errorf("500 KiB never given back (%d)", len(f.buf))
	}
}

func TestReaderFramesAreCutOffAndCostNothing(t *testing.T) {
	data := append(message("first", "aaaa"), message("second", "bbbb")...)
	f, _ := stream(data, testLimits, func() int { return 1 << 20 })
	one, err := f.next()
	if err != nil {
		t.Fatal(err)
	}
	if cap(one[0]) != len(one[0]) {
		t.Error("an append to a frame would overwrite the next one")
	}
	if allocs := testing.AllocsPerRun(100, func() {
		f.r = 0
		f.next()
	}); allocs != 0 {
		t.Errorf("%v allocations per message", allocs)
	}
}

func TestBuffered(t *testing.T) {
	one := message("topic", "payload")
	ping := appendCommand(nil, "PING", []byte{0, 0})
	cat := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	for _, c := range []struct {
		name string
		rest []byte
		want bool
	}{
		{"nothing", nil, false},
		{"a message", one, true},
		{"its head", one[:9], false},
		{"all but the last byte", one[:len(one)-1], false},
		{"a command", ping, false},
		{"a command and a message", cat(ping, one), true},
		{"a command within", cat(appendFrame(nil, flagMore, nil), ping, message("x")), true},
		{"bad flags", []byte{8}, true},
		{"a size that is refused", long(0, 1<<40), true},
		{"a command that is refused", long(flagCommand, 1<<40), true},
		{"frames without end", bytes.Repeat([]byte{1, 0}, 9), true},
	} {
		f, _ := stream(cat(one, c.rest), testLimits, func() int { return 1 << 20 })
		if f.buffered() {
			t.Errorf("%s: buffered before the first read", c.name)
		}
		if _, err := f.next(); err != nil {
			t.Fatal(err)
		}
		if got := f.buffered(); got != c.want {
			t.Errorf("%s: buffered = %v", c.name, got)
		}
	}
}

func FuzzReader(f *testing.F) {
	f.Add(message("", "12345678", "payload"), uint8(3))
	f.Add(append(appendCommand(nil, "PING", []byte{0, 1}), message("a", "b")...), uint8(1))
	f.Add(long(0, 1<<62), uint8(9))
	f.Add(append(appendFrame(nil, flagMore, nil), appendCommand(nil, "ERROR", []byte{1})...), uint8(200))
	f.Add(bytes.Repeat([]byte{1, 0}, 70), uint8(255))
	f.Fuzz(func(t *testing.T, data []byte, piece uint8) {
		lim := limits{frame: 300, message: 500, frames: 5}
		fuzzlimit.Run(t, len(data), func() {
			r, _ := stream(data, lim, func() int { return int(piece) })
			for {
				if _, err := r.next(); err != nil {
					return
				}
			}
		})
		want, wantCommands, bad := reference(data, lim)
		r, commands := stream(data, lim, func() int { return int(piece) })
		var got [][][]byte
		var err error
		for err == nil {
			ready := r.buffered()
			held := r.w
			var frames [][]byte
			if frames, err = r.next(); err == nil {
				var m [][]byte
				for _, b := range frames {
					m = append(m, bytes.Clone(b))
				}
				got = append(got, m)
			}
			if ready && r.w != held {
				t.Fatal("buffered, and yet it read")
			}
		}
		if !sameMessages(got, want) || !sameMessages([][][]byte{*commands}, [][][]byte{wantCommands}) {
			t.Fatalf("%d messages, %d commands; want %d, %d", len(got), len(*commands), len(want), len(wantCommands))
		}
		var fe *FrameError
		if errors.As(err, &fe) != bad {
			t.Fatalf("%v; refused by the reference: %v", err, bad)
		}
		if len(r.buf) > baseBuffer {
			t.Fatalf("buffer of %d", len(r.buf))
		}
	})
}

// A large frame that drips in by single bytes costs linear time: moved once per
// byte it would take hours.
func TestReaderDrip(t *testing.T) {
	lim := limits{frame: 4 << 20, message: 5 << 20, frames: 8}
	data := append(message("x"), appendFrame(nil, 0, make([]byte, 4<<20))...)
	f, _ := stream(data, lim, func() int { return 1 })
	msgs, err := all(f)
	if len(msgs) != 2 || len(msgs[1][0]) != 4<<20 || err != io.EOF {
		t.Errorf("%d messages, %v", len(msgs), err)
	}
}

// However a message comes – in pieces of any size, in one frame or in many, with
// commands between them – the buffer is at most twice what has arrived: it is
// never grown for what a header only announces. Of many frames, which come slowly
// from who means harm, it doubles: what is left behind is small too.
func TestReaderGrowth(t *testing.T) {
	lim := limits{frame: 64 << 20, message: 64 << 20, frames: 1 << 20}
	for name, data := range map[string][]byte{
		"one frame":   append(long(0, 60<<20), make([]byte, 16<<20)...),
		"many frames": bytes.Repeat(append([]byte{flagMore, 200}, make([]byte, 200)...), 40_000),
		"growing ones": func() (b []byte) {
			for n := 1; n <= 4<<20; n *= 2 {
				b = appendFrame(b, flagMore, make([]byte, n))
			}
			return append(b, long(flagMore, 50<<20)...)
		}(),
		"commands between": bytes.Repeat(append(appendFrame(nil, flagMore, make([]byte, 100_000)), flagCommand, 6, 4, 'P', 'I', 'N', 'G', 0), 100),
	} {
		for _, piece := range []int{1 << 10, 10_000, 1 << 20, 1 << 30} {
			f, _ := stream(data, lim, func() int { return piece })
			read, arrived, allocated, was := f.read, 0, 0, 0
			f.read = func(p []byte) (int, error) {
				if len(f.buf) != was {
					was = len(f.buf)
					allocated += was
				}
				if most := max(baseBuffer, 2*arrived); len(f.buf) > most {
					t.Fatalf("%s, %d at a time: a buffer of %d for %d bytes", name, piece, len(f.buf), arrived)
				}
				n, err := read(p)
				arrived += n
				return n, err
			}
			_, _ = all(f) // every one of them ends in its middle
			if most := 4 * max(baseBuffer, 2*arrived); name == "many frames" && allocated > most {
				t.Errorf("%s, %d at a time: %d bytes allocated for %d", name, piece, allocated, arrived)
			}
			if arrived != len(data) {
				t.Errorf("%s: %d of %d bytes were read", name, arrived, len(data))
			}
		}
	}
}

// What is coming is told while it is coming, without the commands between
// messages.
func TestReaderTellsWhatArrives(t *testing.T) {
	ping := []byte{flagCommand, 7, 4, 'P', 'I', 'N', 'G', 0, 0}
	data := append(bytes.Clone(ping), appendFrame(nil, 0, make([]byte, 300_000))...)
	data = append(append(data, ping...), message("x")...)
	f, _ := stream(data, testLimits, func() int { return 1000 })
	var told []int
	whole := 0
	f.arrives = func(n int, all bool) {
		if all {
			whole++
			if n != 300_009 && n != 3 {
				t.Errorf("a message of %d bytes", n)
			}
			return
		}
		told = append(told, n)
	}
	if msgs, err := all(f); len(msgs) != 2 || err != io.EOF {
		t.Fatal(len(msgs), err)
	}
	for i, n := range told {
		if n != 0 && i > 0 && n <= told[i-1] {
			t.Errorf("%d bytes after %d", n, told[i-1])
		}
	}
	if whole != 2 || len(told) < 290 || told[0] != 0 || told[len(told)-1] != 0 {
		t.Errorf("told %d times, %d times of a whole message", len(told), whole)
	}
}
