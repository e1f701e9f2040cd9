package sinks

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/kvrelay/kvrelay/convert"
)

// batchOf is the router events of one engine batch: stores of blocks each.
func batchOf(events, blocks int) []convert.RouterEvent {
	evs := make([]convert.RouterEvent, events)
	h := uint64(1)
	for i := range evs {
		evs[i] = convert.RouterEvent{Kind: convert.Stored, HasParent: true, Parent: h * 0x9E3779B97F4A7C15}
		for range blocks {
			h++
			evs[i].Blocks = append(evs[i].Blocks, convert.Block{Hash: h * 0x9E3779B97F4A7C15, TokensHash: h * 0xC2B2AE3D27D4EB4F})
		}
	}
	return evs
}

// BenchmarkAppend is what a stream pays under its lock for one batch, and what
// packing it into an envelope costs.
func BenchmarkAppend(b *testing.B) {
	for _, pr := range []Profile{Dynamo, JSON} {
		for _, shape := range [][2]int{{1, 1}, {1, 64}, {32, 1}} {
			b.Run(fmt.Sprintf("%v/%dx%d", pr, shape[0], shape[1]), func(b *testing.B) {
				p := newTest(b, Options{Profile: pr})
				o := open(b, p, 42, 0, nil)
				evs := batchOf(shape[0], shape[1])
				var buf []byte
				b.ReportAllocs()
				for b.Loop() {
					b.SetBytes(int64(o.Append(Place{}, evs)))
					msg, _, _, _ := o.take(buf)
					buf = msg
					o.confirm(o.sent)
					p.pop()
				}
			})
		}
	}
}

// BenchmarkPublish is the throughput to a real server, everything confirmed.
func BenchmarkPublish(b *testing.B) {
	for _, pr := range []Profile{Dynamo, DynamoSingle, JSON} {
		for _, shape := range [][2]int{{1, 1}, {1, 64}, {32, 1}} {
			b.Run(fmt.Sprintf("%v/%dx%d", pr, shape[0], shape[1]), func(b *testing.B) {
				s := startServer(b, nil)
				p := newTest(b, Options{Servers: []string{s.ClientURL()}, Profile: pr})
				credit := make(chan int, 1<<16)
				o := open(b, p, 42, 0, func(n int) { credit <- n })
				run(b, p)
				evs := batchOf(shape[0], shape[1])
				out := 0
				b.ReportAllocs()
				b.ResetTimer()
				for b.Loop() {
					n := o.Append(Place{}, evs)
					b.SetBytes(int64(n))
					for out += n; out > 64<<20; { // OUT_BYTES
						out -= <-credit
					}
					for len(credit) > 0 {
						out -= <-credit
					}
				}
				drained(b, p)
				b.StopTimer()
				b.ReportMetric(float64(p.State().Envelopes)/float64(b.N), "envelopes/op")
				b.ReportMetric(float64(b.N*shape[0])/b.Elapsed().Seconds(), "events/s")
			})
		}
	}
}

// BenchmarkLatency is the time from Append on an idle publisher to the
// subscriber's callback, one batch at a time.
func BenchmarkLatency(b *testing.B) {
	s := startServer(b, nil)
	p := newTest(b, Options{Servers: []string{s.ClientURL()}})
	o := open(b, p, 42, 0, nil)
	got := make(chan struct{}, 1)
	nc := connect(b, s.ClientURL())
	if _, err := nc.Subscribe(o.Subject(), func(*nats.Msg) { got <- struct{}{} }); err != nil {
		b.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		b.Fatal(err)
	}
	run(b, p)
	evs := batchOf(1, 4)
	var took []time.Duration
	for b.Loop() {
		start := time.Now()
		o.Append(Place{}, evs)
		<-got
		took = append(took, time.Since(start))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
}
