package check

import (
	"context"
	"encoding/binary"
	"time"

	"github.com/kvrelay/kvrelay/internal/zmtp"
)

// Asking again for what a replay left out: a ROUTER drops replies beyond its
// high-water mark, never among the first replies. A hole that the second answer
// has right behind the batch before it is one of numbers that were never used.
const (
	maxRounds = 64   // of one fetch; after that holes are taken as they are
	safe      = 1000 // replies that no ROUTER drops
)

// fetch gets what replay has from seq from on, and applies it in order and
// once. take chooses the batches that count; nil: all. until is the number that
// is known to exist at least, exclusive; 0: none. It asks again while that
// brings more and an answer was not whole.
func (w *watcher) fetch(ctx context.Context, from, until uint64, take func(seq uint64, payload []byte) bool) {
	s := w.s
	holes := 0 // that the next answer may have
	for round := range maxRounds {
		before := s.Numbers.Applied
		if round == maxRounds-1 {
			holes = safe
		}
		end := w.ask(ctx, from, holes, take)
		progress := s.Numbers.Applied > before
		holes = 0
		switch {
		case ctx.Err() != nil || end == endFailed || !s.begun:
			return
		case end == endHole && !progress:
			holes = 1
		case !progress, end == endMarker && s.next >= until:
			return
		}
		from = s.next - 1
	}
}

// ending is how an answer ended.
type ending uint8

const (
	endMarker ending = iota
	endSilent        // or the connection did
	endHole          // the rest stands behind a hole, and was only counted
	endFailed        // there was none
)

// ask is one request of fetch. Live messages are held meanwhile. holes is how
// many holes may be passed over.
func (w *watcher) ask(ctx context.Context, from uint64, holes int, take func(seq uint64, payload []byte) bool) ending {
	s := w.s
	if w.src.Replay == "" {
		return endFailed
	}
	began := time.Now()
	conn, err := w.request(ctx, from)
	if err != nil {
		if ctx.Err() == nil {
			s.Replay.Error = err.Error()
		}
		return endFailed
	}
	s.Replay.Connected = true
	actx, cancel := context.WithCancel(ctx)
	replies, readerEnded := make(chan message, 64), make(chan struct{})
	go func() {
		defer close(readerEnded)
		read(actx, conn, replies)
	}()
	defer func() { <-readerEnded }()
	defer conn.Close()
	defer cancel()

	a := answer{r: &s.Replay, from: from}
	a.asked()
	defer a.done()
	end := endSilent
	first, anchor := s.Replay.Requests == 1, false
	idle := time.NewTimer(w.o.Idle)
	defer idle.Stop()
	for {
		var m message
		select {
		case <-ctx.Done():
			return end
		case <-idle.C:
			return end
		case m = <-w.live:
			w.hold(m)
			continue
		case m = <-replies:
		}
		if m.err != nil {
			if ctx.Err() == nil {
				s.Replay.Error = m.err.Error()
			}
			return end
		}
		seq, payload, kind := a.reply(m.frames)
		if first {
			s.Replay.TookMS = float64(m.at.Sub(began).Microseconds()) / 1e3
			if s.Replay.FirstMS == 0 {
				s.Replay.FirstMS = s.Replay.TookMS
			}
		}
		switch {
		case kind == replyEnd && end == endHole:
			return end
		case kind == replyEnd:
			return endMarker
		case kind == replyOdd:
			continue
		}
		idle.Reset(w.o.Idle)
		anchor = anchor || s.begun && seq+1 == s.next
		if end == endHole || take != nil && !take(seq, payload) || s.begun && seq < s.next {
			continue
		}
		if s.begun && seq > s.next {
			if holes == 0 {
				end = endHole
				continue
			}
			holes--
			if anchor && a.n <= safe {
				s.Numbers.Burned += seq - s.next
				s.next = seq
			}
		}
		s.numbered(seq, payload)
	}
}

// request connects to the replay ROUTER and asks it for everything from seq from on.
func (w *watcher) request(ctx context.Context, from uint64) (*zmtp.Conn, error) {
	o := w.o.ZMTP
	o.Type, o.Subscriptions = zmtp.DEALER, nil
	conn, err := zmtp.Dial(ctx, w.src.Replay, o)
	if err != nil {
		return nil, err
	}
	if err := conn.Send(nil, binary.BigEndian.AppendUint64(nil, from)); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}
