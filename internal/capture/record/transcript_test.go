package record

import (
	"bytes"
	"context"
	"encoding/binary"
	"testing"

	"github.com/kvrelay/kvrelay/internal/capture"
	"github.com/kvrelay/kvrelay/internal/mockengine"
)

func TestTranscript(t *testing.T) {
	g := newRig(t, mockengine.Options{Replay: mockengine.Reply3})
	g.steps(20)
	var live, exchanges bytes.Buffer
	w, err := capture.NewWriter(&live, &capture.Meta{})
	if err != nil {
		t.Fatal(err)
	}
	tw, err := capture.NewWriter(&exchanges, &capture.Meta{})
	if err != nil {
		t.Fatal(err)
	}
	o := g.options()
	n := len(g.exist())
	o.Count = uint64(n) + 1
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		_, err := Run(ctx, o, w, tw)
		ended <- err
	}()
	g.subscribed()
	g.steps(30)
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	r, err := capture.NewReader(&exchanges, "transcript", capture.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	x, err := r.NextExchange()
	if err != nil {
		t.Fatal(err)
	}
	if x.Case != "start=0" || len(x.Request) != 2 || binary.BigEndian.Uint64(x.Request[1]) != 0 || len(x.Replies) < n || len(x.Replies[0]) != 3 || x.FirstReply == nil {
		t.Errorf("exchange %q with %d replies of %d batches", x.Case, len(x.Replies), n)
	}
}
