package relay

import (
	"strconv"
	"strings"
	"time"
)

// topics is whose messages come, for one who has set TOPIC to what the engine does
// not use: nothing else shows why a stream stays silent.
type topics struct {
	ours       bool      // the present live connection has brought a message of TOPIC
	otherSince time.Time // since when it has brought others alone; zero: it has not
	wrong      bool      // batches come, and none live of TOPIC
	told       bool      // the log has it
	liveless   int       // replays that brought batches although no live message ever came
}

const (
	otherAlone   = 10 * time.Second // others' messages alone for so long are told: ours may only be late
	livelessTold = 3                // one or two can come of live batches that were lost at the start
	maxTopicText = 200              // of a topic in the log; the rest is cut off
)

func (p *topics) connected() { p.ours, p.otherSince, p.wrong = false, time.Time{}, false }

func (p *topics) fits() { p.ours, p.otherSince, p.wrong = true, time.Time{}, false }

// otherLive is a live message that TOPIC_EXACT leaves out. Beside some of ours that
// is as it should be: it is meant for others on the same socket.
func (t *story) otherLive(s *Stream, topic []byte, now time.Time) {
	t.filtered++
	switch p := &t.topics; {
	case p.ours:
	case p.otherSince.IsZero():
		p.otherSince = now
	case now.Sub(p.otherSince) >= min(otherAlone, s.r.o.SilentAfter):
		t.wrongTopic(s, topic)
	}
}

// otherTopic is a replayed batch that TOPIC leaves out.
func (t *story) otherTopic(s *Stream, topic []byte) {
	t.filtered++
	t.wrongTopic(s, topic)
}

func (t *story) wrongTopic(s *Stream, topic []byte) {
	p := &t.topics
	p.wrong = !p.ours
	if p.told {
		return
	}
	p.told = true
	set := "TOPIC to their_topic, or leave it out"
	if s.src.TopicExact && strings.HasPrefix(string(topic), s.src.Topic) {
		set = "TOPIC to their_topic, or TOPIC_EXACT=false"
	}
	s.log.Warn("the engine's batches have another topic than TOPIC and TOPIC_EXACT ask for: they are left out",
		"their_topic", topicText(topic), "topic", s.src.Topic, "topic_exact", s.src.TopicExact, "set", set)
}

// topicText makes a peer's topic fit for a log line: bounded, nothing but printable.
func topicText(topic []byte) string {
	cut := ""
	if len(topic) > maxTopicText {
		topic, cut = topic[:maxTopicText], "…"
	}
	q := strconv.QuoteToASCII(string(topic))
	return q[1:len(q)-1] + cut
}

// replayAlone is a replay that brought batches of an engine from which no live
// message ever came.
func (t *story) replayAlone(s *Stream) {
	if t.topics.liveless++; t.topics.liveless < livelessTold {
		return
	}
	if t.topics.wrong = true; t.topics.liveless > livelessTold {
		return // another connection changes nothing, and the log has it
	}
	s.log.Warn("batches come by replay alone, late, and none live: TOPIC is not the engine's, or the two endpoints are not of one engine", "topic", s.src.Topic, "replay", s.src.Replay)
}
