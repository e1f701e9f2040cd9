package discovery

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// The total of ranks is not told anew when a rank vanishes, so that the streams
// of those that stay go on.
func TestTotalOfRanksDoesNotShrink(t *testing.T) {
	told := Source{Endpoint: "tcp://h:1", Ranks: 2}
	less, more := told, told
	less.Ranks, more.Ranks = 1, 3
	if got := settle([]Source{told}, []Source{less}); got[0] != told {
		t.Errorf("a smaller total: %+v", got)
	}
	if got := settle([]Source{told}, []Source{more}); got[0] != more {
		t.Errorf("a larger total: %+v", got)
	}
	if takesBack([]Source{told}, []Source{more}) || !takesBack([]Source{told}, nil) {
		t.Error("it is not the total that says whether a source was taken back")
	}
}

// An answer that is another each time ends streams after longer and longer
// pauses, whatever hurries the questions; afterwards all is as before.
func TestFlippingAnswer(t *testing.T) {
	alone, both, moved := one("tcp://*:1"), one("tcp://*:1"), one("tcp://*:1")
	both.list = append(both.list, zmq(1, "tcp://*:2", ""))
	moved.blockSize = 32
	for name, other := range map[string]answer{"a rank comes and goes": both, "the block size": moved, "nothing at all": {kind: KindVLLM}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := watch(t, Options{URL: "http://h:1"}, "vllm")
				defer s.stop()
				n := 0
				s.tells("vllm", func() (*answer, error) {
					a := alone
					if n++; n%2 == 0 {
						a = other
					}
					return &a, nil
				})
				for range 600 { // 10 minutes
					s.after(time.Second)
					s.d.Lost() // a stream that ends hurries the next question
				}
				if got := len(s.told()); got > 55 || got < 20 {
					t.Errorf("told %d times in 10 minutes", got)
				}
				for range 120 {
					s.after(time.Second)
					s.d.Lost()
				}
				if got := len(s.told()); got > 6 {
					t.Errorf("told %d times in 2 minutes, after 10", got)
				}
				said := 0
				for _, line := range s.logged() {
					if strings.Contains(line, "again and again") {
						said++
					}
				}
				if said != 1 {
					t.Errorf("said %d times that it flips", said)
				}
				s.tells("vllm", has(alone))
				s.after(4 * time.Minute)
				s.told()
				s.tells("vllm", has(one("tcp://*:9")))
				s.d.Lost()
				s.after(time.Second)
				s.updated("0 tcp://10.0.0.1:9 - - 16/1")
			})
		})
	}
}
