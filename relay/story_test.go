package relay

import (
	"log/slog"
	"strings"
	"testing"
)

// A live message of another topic, which may be meant for others on the same
// socket, does not take the line from a replayed one.
func TestOtherTopicToldOnce(t *testing.T) {
	var log strings.Builder
	s := &Stream{log: slog.New(slog.NewTextHandler(&log, nil))}
	s.story.filtered = 1
	for range 3 {
		s.story.otherTopic(s, []byte("kv@b"))
	}
	if n := strings.Count(log.String(), "another topic"); n != 1 || s.story.filtered != 4 {
		t.Errorf("told %d times, %d filtered: %s", n, s.story.filtered, &log)
	}
}
