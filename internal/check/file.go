package check

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/kvrelay/kvrelay/convert"
	"github.com/kvrelay/kvrelay/internal/capture"
)

// File reports on a recording: its live messages, and its exchanges with a
// replay ROUTER where it has some. c.BlockSize 0: learned.
func File(path string, c convert.Config) (*Report, error) {
	began := time.Now()
	r, err := capture.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = r.Close() }() // only read
	meta := r.Meta()
	s := NewStream(fmt.Sprintf("rank %d", meta.DPRank), meta.DPRank, c)
	rep := &Report{Target: path, Engine: meta.Engine, Version: meta.Version, File: true, Streams: []*Stream{s}}
	for n := 0; ; n++ {
		m, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if errors.Is(err, capture.ErrTorn) {
			rep.Doubts = append(rep.Doubts, err.Error())
			break
		}
		if err != nil {
			return nil, err
		}
		s.recorded(n, m.Frames)
	}
	if err := s.transcript(path); err != nil {
		return nil, err
	}
	s.finish()
	rep.Seconds = time.Since(began).Seconds()
	rep.Judge()
	return rep, nil
}

// recorded takes message n of a file. Numbers that go back are another
// incarnation of the engine.
func (s *Stream) recorded(n int, frames [][]byte) {
	s.Live.Connected = true
	m, ok := s.message(frames)
	switch {
	case !ok:
	case !m.HasSeq:
		s.apply(strconv.Itoa(n), m.Payload)
	default:
		if s.begun && m.Seq < s.next {
			s.restart()
		}
		if s.begun && m.Seq > s.next {
			s.Numbers.Gaps++
		}
		s.numbered(m.Seq, m.Payload)
	}
}

// transcript reports the exchanges of a file with a replay ROUTER.
func (s *Stream) transcript(path string) error {
	r, err := capture.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }() // only read
	for {
		x, err := r.NextExchange()
		if errors.Is(err, io.EOF) || errors.Is(err, capture.ErrTorn) { // the latter File has said
			return nil
		}
		if err != nil {
			return err
		}
		if len(x.Request) != 2 || len(x.Request[0]) != 0 || len(x.Request[1]) != 8 {
			continue // malformed on purpose: a ROUTER need not answer it
		}
		s.Replay.Configured, s.Replay.Connected = true, true
		a := answer{r: &s.Replay, from: binary.BigEndian.Uint64(x.Request[1])}
		a.asked()
		for _, frames := range x.Replies {
			if _, _, kind := a.reply(frames); kind == replyEnd {
				break
			}
		}
		a.done()
		if s.Replay.Requests == 1 && x.FirstReply != nil && x.LastReply != nil {
			s.Replay.FirstMS, s.Replay.TookMS = 1e3**x.FirstReply, 1e3**x.LastReply
		}
	}
}
