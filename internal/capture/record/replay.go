package record

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kvrelay/kvrelay/internal/capture"
	"github.com/kvrelay/kvrelay/internal/zmtp"
)

// fill asks the ROUTER for what comes before to and is not in the file, and
// writes what it has. That there is no ROUTER, or that it fails, costs the
// recording those messages, not its end: only the file's errors are returned,
// and an endpoint that cannot be.
func (r *recorder) fill(ctx context.Context, to uint64) error {
	if r.o.ReplayEndpoint == "" {
		return nil
	}
	for try := 1; ; try++ {
		// From the last message in the file: a ROUTER that has another one under
		// its number is another process's.
		var from uint64
		if r.order.started {
			from = r.order.next - 1
		}
		x := &exchange{Exchange: capture.Exchange{Case: fmt.Sprintf("start=%d", from)}}
		end, err := r.ask(ctx, x, from, to)
		if err != nil {
			return err
		}
		if err := r.transcribe(x); err != nil {
			return err
		}
		switch {
		case ctx.Err() != nil || end == marked:
			return nil
		case end == another:
			r.restarted() // and from 0, which no message can contradict
		case to == capture.EndSeq || try >= tries:
			r.o.Log.Warn("the replay had no end", "endpoint", r.o.ReplayEndpoint, "from", from)
			return nil
		}
		t := time.NewTimer(firstPause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
		}
	}
}

// tries is how often a gap is asked for when a replay ends without its end
// marker; then what is still missing is counted as that.
const tries = 3

// ending is how an exchange ended.
type ending uint8

const (
	marked  ending = iota // with the end marker, or it was not needed
	silent                // with silence, or the connection's end
	another               // the ROUTER is another process's
)

// ask makes one exchange and writes the new messages among the replies.
func (r *recorder) ask(ctx context.Context, x *exchange, from, to uint64) (ending, error) {
	opts := r.o.ZMTP
	opts.Type, opts.Subscriptions = zmtp.DEALER, nil
	conn, err := zmtp.Dial(ctx, r.o.ReplayEndpoint, opts)
	if errors.Is(err, zmtp.ErrEndpoint) {
		return silent, err
	}
	if err != nil {
		if ctx.Err() == nil {
			r.o.Log.Warn("no replay", "endpoint", r.o.ReplayEndpoint, "err", err)
		}
		return silent, nil
	}
	defer func() { _ = conn.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	x.Request = [][]byte{{}, binary.BigEndian.AppendUint64(nil, from)}
	x.asked = time.Now()
	if conn.Send(x.Request...) != nil {
		return silent, nil
	}
	idle := time.AfterFunc(r.o.Idle, func() { _ = conn.Close() })
	defer idle.Stop()
	for !r.full() {
		frames, err := conn.Recv()
		if err != nil {
			return silent, nil
		}
		idle.Reset(r.o.Idle)
		if r.transcript != nil {
			x.keep(frames)
		}
		b := parse(frames)
		switch {
		case b.end:
			return marked, nil
		case b.payload == nil:
		case r.order.contradicts(b.seq, b.payload):
			return another, nil
		case b.seq >= r.order.next && b.seq < to:
			if err := r.replayed(b); err != nil || r.order.next >= to {
				return marked, err // with all that was asked for: what follows is no news
			}
		}
	}
	return marked, nil
}

// replayed writes a message of a replay.
func (r *recorder) replayed(b batch) error {
	topic := b.topic
	if topic == nil {
		topic = r.topic
	}
	r.missed(b.seq)
	r.stats.Replayed++
	return r.put(b.seq, capture.Message{Frames: [][]byte{topic, binary.BigEndian.AppendUint64(nil, b.seq), b.payload}})
}

// exchange is one for the transcript.
type exchange struct {
	capture.Exchange
	asked time.Time
	bytes int
}

// transcribe writes an exchange that was made, when a transcript is wanted.
func (r *recorder) transcribe(x *exchange) error {
	switch {
	case r.transcript == nil || x.Request == nil:
		return nil
	case x.bytes > maxKept:
		r.o.Log.Warn("exchange too large for the transcript", "case", x.Case, "bytes", x.bytes)
		return nil
	}
	return r.transcript.WriteExchange(x.Exchange)
}

// keep adds a reply, or lets go of all when they are too much.
func (x *exchange) keep(frames [][]byte) {
	reply := make([][]byte, len(frames))
	for i, f := range frames {
		x.bytes += len(f)
		reply[i] = slices.Clone(f)
	}
	if x.bytes > maxKept {
		x.Replies = nil
		return
	}
	x.Replies = append(x.Replies, reply)
	at := time.Since(x.asked).Seconds()
	if x.FirstReply == nil {
		x.FirstReply = &at
	}
	x.LastReply = &at
}

// batch is a reply, whose slices alias the frames; payload nil: it is none, and
// perhaps the end marker.
type batch struct {
	topic   []byte // nil: this producer sends none
	seq     uint64
	payload []byte
	end     bool
}

// parse reads a reply from its end: payload, and the seq before it. Producers
// differ in what is before that.
func parse(frames [][]byte) batch {
	n := len(frames)
	if n >= 2 && len(frames[n-2]) == 8 {
		b := batch{seq: binary.BigEndian.Uint64(frames[n-2]), payload: frames[n-1]}
		if b.seq == capture.EndSeq {
			return batch{end: true}
		}
		if n >= 4 {
			b.topic = frames[n-3]
		}
		return b
	}
	return batch{end: n > 0 && len(frames[n-1]) == 8 && binary.BigEndian.Uint64(frames[n-1]) == capture.EndSeq}
}
