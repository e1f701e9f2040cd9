package sinks

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"strings"
	"sync"
	"testing"

	"github.com/kvrelay/kvrelay/convert"
)

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(b)
}

// TestStdout: one JSON router event a line, each whole, in order, and confirmed when written.
func TestStdout(t *testing.T) {
	var out syncBuffer
	p := newTest(t, Options{Kind: Stdout, Profile: DynamoSingle, Stdout: &out})
	freed := 0
	o := open(t, p, 42, 1, func(n int) { freed += n })
	stop := run(t, p)
	charged := 0
	w := newWorkload(2)
	w.large = 20_000
	want := fold{}
	for range 60 {
		evs := w.events(3)
		for i := range evs {
			want.apply(&evs[i])
		}
		charged += o.Append(Place{}, evs)
	}
	drained(t, p)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if freed != charged {
		t.Errorf("released %d of %d", freed, charged)
	}
	text := out.b.String()
	if !strings.HasSuffix(text, "\n") {
		t.Fatal("the last line does not end")
	}
	state := fold{}
	for i, line := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
		if !json.Valid([]byte(line)) {
			t.Fatalf("line %d is no JSON", i)
		}
		evs, err := parseEvents(JSON, []byte("["+line+"]"))
		if err != nil || len(evs) != 1 || evs[0].id != uint64(i+1) || evs[0].worker != 42 || evs[0].rank != 1 {
			t.Fatalf("line %d: %+v, %v", i, evs, err)
		}
		state.apply(&evs[0].e)
	}
	if !maps.Equal(state, want) {
		t.Error("the lines say something else")
	}
	if len(o.log.segs) > 1 {
		t.Errorf("%d segments are kept for nobody", len(o.log.segs))
	}
}

type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

func TestStdoutFails(t *testing.T) {
	p := newTest(t, Options{Kind: Stdout, Stdout: brokenPipe{}})
	o := open(t, p, 1, 0, nil)
	o.Append(Place{}, []convert.RouterEvent{{Kind: convert.Cleared}})
	if err := p.Run(context.Background()); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("Run: %v", err)
	}
	if n := p.Drain(context.Background()); n != 1 {
		t.Errorf("%d unconfirmed", n)
	}
}

// TestStdoutBlocked: a reader that sleeps does not keep Run from ending.
func TestStdoutBlocked(t *testing.T) {
	r, w := io.Pipe()
	p := newTest(t, Options{Kind: Stdout, Stdout: w})
	o := open(t, p, 1, 0, nil)
	stop := run(t, p)
	o.Append(Place{}, []convert.RouterEvent{{Kind: convert.Cleared}})
	if _, err := r.Read(make([]byte, 1)); err != nil { // the rest of the line blocks
		t.Fatal(err)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	if o.Confirmed() != 0 {
		t.Error("half a line is confirmed")
	}
	_ = r.Close() // lets the write end
}
