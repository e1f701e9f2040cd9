//go:build !race

package zmtp

import (
	"bufio"
	"bytes"
	"io"
	"slices"
	"testing"
	"time"
	"unsafe"
)

// source hands out block again and again.
func source(block []byte) func([]byte) (int, error) {
	at := 0
	return func(p []byte) (int, error) {
		n := copy(p, block[at:])
		at = (at + n) % len(block)
		return n, nil
	}
}

// reader is a source as io.Reader.
type reader func([]byte) (int, error)

func (r reader) Read(p []byte) (int, error) { return r(p) }

// Frames are handed out where they lie in the buffer.
func TestFramesLieInTheBuffer(t *testing.T) {
	block := bytes.Repeat(message(benchFrames...), 300)
	f := &frameReader{lim: testLimits, read: source(block), command: func([]byte) error { return nil }}
	for range 1000 {
		frames, err := f.next()
		if err != nil || len(frames) != len(benchFrames) {
			t.Fatal(err)
		}
		last := frames[len(frames)-1]
		if at := uintptr(unsafe.Pointer(&last[0])) - uintptr(unsafe.Pointer(&f.buf[0])); at >= uintptr(len(f.buf)) {
			t.Fatal("a frame does not lie in the buffer")
		}
	}
}

// Cutting messages costs about what the plainest loop over a bufio.Reader costs.
// The limit is far above that, and the quickest of many rounds counts.
func TestReaderRatio(t *testing.T) {
	const rounds, messages, limit = 21, 20_000, 4.0
	block := bytes.Repeat(message(benchFrames...), 300)
	f := &frameReader{lim: testLimits, read: source(block), command: func([]byte) error { return nil }}
	ours := func() {
		for range messages {
			if _, err := f.next(); err != nil {
				t.Fatal(err)
			}
		}
	}
	in := bufio.NewReaderSize(reader(source(block)), baseBuffer)
	body := make([]byte, 256)
	plain := func() {
		for range messages * len(benchFrames) {
			if _, err := in.ReadByte(); err != nil {
				t.Fatal(err)
			}
			n, err := in.ReadByte() // all are short ones
			if err == nil {
				_, err = io.ReadFull(in, body[:n])
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	var a, b []time.Duration
	for range rounds {
		for _, x := range []struct {
			f    func()
			into *[]time.Duration
		}{{ours, &a}, {plain, &b}} {
			began := time.Now()
			x.f()
			*x.into = append(*x.into, time.Since(began))
		}
	}
	ratio := float64(slices.Min(a)) / float64(slices.Min(b))
	t.Logf("%.2f times the plain loop", ratio)
	if ratio > limit {
		t.Errorf("%.2f times the plain loop, want at most %v", ratio, limit)
	}
}
