package relay

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/kvrelay/kvrelay/internal/zmtp"
	"github.com/kvrelay/kvrelay/replay"
)

// Dialling anew: at once after a connection that had brought something, then
// with doubling, jittered pauses up to maxBackoff.
const (
	minBackoff = 50 * time.Millisecond
	maxBackoff = 5 * time.Second
)

// backoff is a doubling pause with jitter.
type backoff struct{ d time.Duration }

func (b *backoff) next() time.Duration {
	b.d = min(maxBackoff, max(minBackoff, 2*b.d))
	return b.d/2 + rand.N(b.d/2)
}

func (b *backoff) reset() { b.d = 0 }

// pause waits for d or until ctx ends, and says whether to go on.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// liveLoop keeps the live connection: dial, read until it fails, again. A short
// connection that brought nothing does not reset the backoff, so a peer that
// accepts and closes causes no storm. One that we ended ourselves does: the engine is
// there, and the Cursor paces what it reopens.
func (s *Stream) liveLoop(ctx context.Context) {
	var b backoff
	c := s.connector()
	defer c.close()
	for ctx.Err() == nil {
		conn, err := c.connect(ctx)
		if err != nil {
			s.unreachable(ctx, err)
			if !pause(ctx, b.next()) {
				return
			}
			continue
		}
		gen, up := s.liveUp(conn), time.Now()
		got, ours := 0, true
		for {
			frames, err := conn.Recv()
			if err != nil {
				ours = s.liveDown(ctx, gen, err)
				break
			}
			got++
			if !s.message(gen, frames) {
				break
			}
		}
		conn.Close()
		c.ended()
		if got > 0 || ours || time.Since(up) > maxBackoff {
			b.reset()
		}
		if !pause(ctx, b.next()) {
			return
		}
	}
}

// options of a connection; mute: without PINGs, this once, because the peer ended the
// last one at the first of them. One that was restarted looks the same.
func (s *Stream) options(t zmtp.SocketType, mute bool) zmtp.Options {
	o := s.r.o.ZMTP
	o.Type = t
	if t == zmtp.SUB {
		o.Subscriptions = []string{s.src.Topic}
	}
	if mute {
		o.Heartbeat = -1
	}
	return o
}

func (s *Stream) liveUp(conn *zmtp.Conn) (gen int) {
	now := s.begin()
	defer s.finish(0)
	s.liveGen++
	s.live = conn
	if s.ctx.Err() != nil {
		conn.Close() // run has closed what it knew of
	}
	switch s.seqless.kind = kindUnknown; {
	case s.seqless.on && s.src.Replay != "":
		s.renumber(false) // another engine perhaps, and replay can tell
	case s.seqless.on:
		s.seqless.next++ // what was sent meanwhile is unknown: a gap
	}
	s.story.up(s, now)
	s.cursor.LiveUp(now)
	for _, rs := range s.ranks {
		if t := rs.rebuild; t != nil {
			// An engine that is still the same has this one: a replay that is
			// cut short before it is asked for again.
			s.cursor.Discard(now, t.Pos.Seq)
			s.cursor.Credit(now, s.credited)
		}
	}
	return s.liveGen
}

// liveDown takes the end of connection gen, and says whether it was ours.
func (s *Stream) liveDown(ctx context.Context, gen int, err error) (ours bool) {
	now := s.begin()
	defer s.finish(0)
	if s.liveGen != gen || s.live == nil {
		return true
	}
	s.live = nil
	s.cursor.LiveDown(now)
	s.pingRefused.Store(errors.Is(err, zmtp.ErrPingRefused))
	if ctx.Err() == nil {
		s.story.down(s, err)
		s.r.o.SourceLost()
	}
	return false
}

// unreachable tells of a connection that could not be made.
func (s *Stream) unreachable(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.story.unreachable(s, err)
	s.r.o.SourceLost()
}

// stranger tells of one who called at a `listen:` endpoint and is no publisher.
func (s *Stream) stranger(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.story.stranger(s, err)
}

// closeLive ends the live connection without telling the Cursor. s.mu is held.
func (s *Stream) closeLive() {
	s.liveGen++
	s.story.liveSince = time.Time{}
	if s.live != nil {
		s.live.Close()
		s.live = nil
	}
}

// message takes one live message, and says whether the connection is still ours.
func (s *Stream) message(gen int, frames [][]byte) bool {
	m, problem := replay.ParseLive(frames)
	switch {
	case problem != "":
		return s.pass(gen, func(t *story) { t.refused(s, frames, problem) })
	case !s.topicFits(m.Topic):
		return s.pass(gen, func(t *story) { t.otherLive(s, m.Topic, t.lastMessage) })
	}
	want := reserveFor(m.Payload)
	credit := s.r.credit.take(s, want)
	now := s.begin()
	still := s.liveGen == gen
	if still {
		s.take(now, credit, m)
		still = s.liveGen == gen
	}
	if !credit {
		want = 0
	}
	s.finish(want)
	return still
}

// topicFits says whether a message of topic is the stream's.
func (s *Stream) topicFits(topic []byte) bool {
	if s.src.TopicExact {
		return string(topic) == s.src.Topic
	}
	return bytes.HasPrefix(topic, s.topic)
}

// pass counts a message that is no batch of ours, and says whether the
// connection is still the stream's.
func (s *Stream) pass(gen int, count func(*story)) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.story.lastMessage = time.Now()
	count(&s.story)
	return s.liveGen == gen
}

// take brings one live batch to the Cursor, or discards it where there is no
// credit. s.mu is held.
func (s *Stream) take(now time.Time, credit bool, m replay.Live) {
	s.story.lastMessage = now
	s.story.topics.fits()
	if !s.number(now, &m) {
		return
	}
	if credit && s.credited && !s.republish {
		s.cursor.Live(now, m.Seq, m.Payload)
		return
	}
	s.withhold(now)
	s.cursor.Discard(now, m.Seq)
}

// reserveFor is the credit taken for a batch before anyone knows what becomes
// of it: a block of 16 tokens is about as large there as its router event.
func reserveFor(payload []byte) int { return len(payload) + 256 }

// number gives a batch of an engine that sends no numbers the next one: gaps
// cannot be seen then, only that a connection was lost. The first batch of a
// connection says which kind of engine it leads to; ok is false for a later one
// of the other kind, which no engine sends: it must not cost a stream its replay.
func (s *Stream) number(now time.Time, m *replay.Live) (ok bool) {
	kind := kindNumbered
	if !m.HasSeq {
		kind = kindBare
	}
	if s.seqless.kind != kindUnknown && s.seqless.kind != kind {
		s.story.mixed(s)
		return false
	}
	s.seqless.kind = kind
	if bare := kind == kindBare; bare != s.seqless.on {
		s.renumber(bare)
		s.cursor.LiveUp(now)
		if bare {
			s.log.Warn("the engine sends batches without sequence numbers: lost ones cannot be noticed; a newer engine version sends them")
		}
	}
	if s.seqless.on {
		m.Seq = s.seqless.next
		s.seqless.next++
	}
	return true
}

// renumber begins anew with a Cursor for batches without numbers, which has no
// replay, or with one for batches that have them. Whatever was known is another
// engine's. s.mu is held.
func (s *Stream) renumber(bare bool) {
	s.seqless.on, s.seqless.next = bare, 0
	s.closeReplay()
	s.story.asks.failing = "" // no news of what is not asked any more
	was := s.cursor.State()
	c := s.cursorConfig(bare || s.src.Replay == "")
	if c.Epoch = was.Epoch; was.Begun {
		c.Epoch++
		(*host)(s).NewEpoch(c.Epoch, replay.CauseRestart)
	}
	s.cursor.Stop()
	s.cursor = replay.NewCursor(c, (*host)(s))
	if !s.credited {
		s.cursor.Credit(s.now, false)
	}
}
