package relay

import (
	"context"
	"errors"
	"time"

	"github.com/kvrelay/kvrelay/internal/zmtp"
	"github.com/kvrelay/kvrelay/replay"
)

// replayConn is the replay side of a stream; guarded by Stream.mu.
type replayConn struct {
	client *replay.Client
	want   *replay.Request    // asked for by the Cursor, not yet sent
	cancel context.CancelFunc // ends the wait, dial or send for want
	active uint64             // id of the request whose answer is being read; 0: none
	slot   bool               // a replay slot is held
}

// replayLoop sends the Cursor's requests, one at a time, each as soon as one of
// the process's replay slots is free. Answers are read by a goroutine of the
// connection, which this loop waits for.
func (s *Stream) replayLoop(ctx context.Context) {
	readers := make(chan struct{}, 1) // holds a token while a reader runs
	defer func() { readers <- struct{}{} }()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.asked:
		}
		s.mu.Lock()
		req := s.replay.want
		if req == nil {
			s.mu.Unlock()
			continue
		}
		actx, cancel := context.WithCancel(ctx)
		s.replay.cancel = cancel
		s.mu.Unlock()
		s.ask(actx, ctx, *req, readers)
		cancel()
	}
}

// ask sends req: on the present connection, or on a new one. actx ends when
// the Cursor takes the request back.
func (s *Stream) ask(actx, ctx context.Context, req replay.Request, readers chan struct{}) {
	if !s.acquireSlot(actx, req) {
		return
	}
	s.mu.Lock()
	client := s.replay.client
	if req.Fresh && client != nil {
		s.dropClient()
		client = nil
	}
	s.mu.Unlock()

	fresh := client == nil
	if fresh {
		select { // the old connection's reader ends at its Close
		case readers <- struct{}{}:
		case <-ctx.Done():
			s.mu.Lock()
			s.freeSlot() // the session's end may have been before it was taken
			s.mu.Unlock()
			return
		}
		var err error
		client, err = replay.DialRouter(actx, s.src.Replay, s.options(zmtp.DEALER, false))
		if err != nil {
			<-readers
			s.refused(actx, req, err)
			return
		}
		s.mu.Lock()
		if !s.wanted(req) {
			s.mu.Unlock()
			client.Close()
			<-readers
			return
		}
		s.replay.client = client
		s.mu.Unlock()
		go func() {
			defer func() { <-readers }()
			s.readReplies(client)
		}()
	}

	now := s.begin()
	if !s.wanted(req) || s.replay.client != client {
		s.finish(0)
		return
	}
	s.replay.want, s.replay.active, s.story.asks.heard = nil, req.ID, false
	s.cursor.ReplaySent(now, req.ID, fresh)
	s.finish(0)
	if err := client.Ask(req.Start); err != nil {
		s.replayDown(client, err)
	}
}

// acquireSlot waits for one of REPLAY_CONCURRENCY slots. A stream that holds
// one keeps it.
func (s *Stream) acquireSlot(ctx context.Context, req replay.Request) bool {
	s.mu.Lock()
	held := s.replay.slot
	s.mu.Unlock()
	if held {
		return true
	}
	select {
	case s.r.slots <- struct{}{}:
	case <-ctx.Done():
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.wanted(req) {
		<-s.r.slots
		return false
	}
	s.replay.slot = true
	return true
}

// wanted says whether req is still the Cursor's latest. s.mu is held.
func (s *Stream) wanted(req replay.Request) bool {
	return s.replay.want != nil && s.replay.want.ID == req.ID
}

func (s *Stream) refused(ctx context.Context, req replay.Request, err error) {
	now := s.begin()
	defer s.finish(0)
	s.freeSlot()
	if ctx.Err() != nil || !s.wanted(req) {
		return
	}
	s.replay.want = nil
	s.story.replayRefused(s, err)
	s.cursor.ReplayRefused(now, req.ID)
}

// readReplies reads one replay connection to its end.
func (s *Stream) readReplies(client *replay.Client) {
	for {
		reply, err := client.Next()
		var bad *replay.MalformedReply
		switch {
		case err == nil:
			if !s.reply(client, reply) {
				return
			}
		case errors.As(err, &bad):
			s.mu.Lock()
			s.story.replayBad()
			s.mu.Unlock()
		default:
			s.replayDown(client, err)
			return
		}
	}
}

// large is a payload from which on its work may take a notable part of REPLAY_IDLE.
const large = 1 << 20

// reply takes one reply, and says whether the connection is still ours.
func (s *Stream) reply(client *replay.Client, r replay.Reply) bool {
	if len(r.Topic) > 0 && !s.topicFits(r.Topic) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.story.replayHeard(s)
		s.story.otherTopic(s, r.Topic)
		return s.replay.client == client
	}
	want, credit := 0, true
	if !r.End {
		if want = reserveFor(r.Payload); !s.r.credit.take(s, want) {
			want, credit = 0, false
		}
	}
	now := s.begin()
	still := s.replay.client == client
	if id := s.replay.active; still && id != 0 {
		s.story.replayHeard(s)
		switch {
		case r.End:
			s.replay.active = 0
			s.freeSlot()
			s.cursor.ReplayEnd(now, id)
			s.story.roundEnded(s, now)
			s.nothingReplayed()
		case credit && s.credited && !s.republish:
			s.cursor.ReplayBatch(now, id, r.Seq, r.Payload)
			if len(r.Payload) > large { // nobody read while it was worked on: that was no silence
				done := time.Now()
				s.cursor.ReplayArriving(done, id, replay.Arrival{First: done, Newest: done})
			}
		default:
			s.withhold(now)
		}
	}
	s.finish(want)
	return still
}

func (s *Stream) replayDown(client *replay.Client, err error) {
	now := s.begin()
	defer s.finish(0)
	if s.replay.client != client {
		return
	}
	id := s.replay.active
	s.dropClient()
	s.freeSlot()
	if id != 0 {
		s.story.replayDown(s, err)
		s.cursor.ReplayDown(now, id)
	}
}

// dropClient closes the replay connection; its reader ends. s.mu is held.
func (s *Stream) dropClient() {
	if s.replay.client != nil {
		s.replay.client.Close()
		s.replay.client = nil
	}
	s.replay.active = 0
}

// closeReplay ends the replay connection and forgets a waiting request. s.mu is held.
func (s *Stream) closeReplay() {
	s.dropClient()
	s.freeSlot()
	s.replay.want = nil
	if s.replay.cancel != nil {
		s.replay.cancel()
		s.replay.cancel = nil
	}
}

func (s *Stream) freeSlot() {
	if s.replay.slot {
		s.replay.slot = false
		<-s.r.slots
	}
}
