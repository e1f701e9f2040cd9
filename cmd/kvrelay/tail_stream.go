package main

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// streamMessages reads a JetStream stream from its beginning, and on.
func streamMessages(ctx context.Context, nc *nats.Conn, stream string, subjects []string) (jetstream.MessagesContext, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, err
	}
	setup, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	cons, err := js.OrderedConsumer(setup, stream, jetstream.OrderedConsumerConfig{FilterSubjects: subjects, DeliverPolicy: jetstream.DeliverAllPolicy})
	if err != nil {
		return nil, fmt.Errorf("stream %q: %w", stream, err)
	}
	it, err := cons.Messages()
	if err != nil {
		return nil, fmt.Errorf("stream %q: %w", stream, err)
	}
	return it, nil
}

// readStream brings the messages to msgs until ctx ends (nil), or the stream does.
func readStream(ctx context.Context, it jetstream.MessagesContext, msgs chan<- *nats.Msg) error {
	stop := context.AfterFunc(ctx, it.Stop)
	defer stop()
	for {
		m, err := it.Next()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading the stream: %w", err)
		}
		select {
		case msgs <- &nats.Msg{Subject: m.Subject(), Header: m.Headers(), Data: m.Data()}:
		case <-ctx.Done():
			return nil
		}
	}
}
