package mockengine

import (
	"io"
	"testing"

	"github.com/go-zeromq/zmq4"
)

// BenchmarkPublish is one batch of one block to one subscriber over loopback.
func BenchmarkPublish(b *testing.B) {
	e, err := Start(Options{BlockSize: 16, Blocks: 1024})
	if err != nil {
		b.Fatal(err)
	}
	defer e.Close()
	r := e.Rank(0)
	c := subscribe(b, r.Publisher, r.Endpoint(), "")
	go func() { _, _ = io.Copy(io.Discard, c.nc) }()
	prompt := from32(0, 17)
	b.ReportAllocs()
	for b.Loop() {
		prompt[0]++
		if _, err := e.Prompt(prompt, PromptOptions{}); err != nil {
			b.Fatal(err)
		}
		e.Step()
	}
}

// BenchmarkReplay is a replay of 10 000 batches of 1 KB.
func BenchmarkReplay(b *testing.B) {
	p := publisher(b, PublisherOptions{})
	for range 10_000 {
		p.Publish(make([]byte, 1024))
	}
	c := dial(b, p.endpoint(), zmq4.Dealer)
	b.SetBytes(10_000 * 1024)
	for b.Loop() {
		if err := c.nc.SetDeadline(deadline()); err != nil {
			b.Fatal(err)
		}
		if got := c.ask(0); len(got) != 10_000 {
			b.Fatalf("%d replies", len(got))
		}
	}
}
