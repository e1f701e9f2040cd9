package sinks

import (
	"context"
	"fmt"
)

// runStdout is Run for Stdout: one line per router event. A line that was
// written is confirmed.
//
// A write to a pipe whose reader sleeps cannot be interrupted. So it happens
// on a goroutine of its own, which Run leaves behind when ctx ends during a
// write; it ends with that write, or with the process.
func (p *Publisher) runStdout(ctx context.Context) error {
	p.mu.Lock()
	p.link = linkState{connected: true, server: "stdout", since: p.o.Now()}
	p.mu.Unlock()
	writes := make(chan []byte)
	results := make(chan error, 1)
	go func() {
		for b := range writes {
			_, err := p.o.Stdout.Write(b)
			results <- err
		}
	}()
	defer close(writes)
	var buf []byte
	for {
		o := p.pop()
		if o == nil {
			select {
			case <-ctx.Done():
				return nil
			case <-p.wake:
			}
			continue
		}
		msg, ok, _, more := o.take(buf)
		buf = msg
		if !ok {
			continue
		}
		writes <- msg
		select {
		case <-ctx.Done():
			return nil
		case err := <-results:
			if err != nil {
				return fmt.Errorf("writing router events: %w", err)
			}
		}
		p.envelopes.Add(1)
		o.mark = o.sentID()
		p.confirm(o)
		if more {
			p.push(o)
		}
	}
}
