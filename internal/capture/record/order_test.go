package record

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/kvrelay/kvrelay/internal/fuzzlimit"
)

func TestJudge(t *testing.T) {
	type step struct {
		seq     uint64
		payload string
		want    verdict
	}
	for name, steps := range map[string][]step{
		"in order":         {{0, "a", write}, {1, "b", write}, {2, "c", write}},
		"joins late":       {{5, "a", gap}, {6, "b", write}},
		"gap":              {{0, "a", write}, {2, "c", gap}},
		"back":             {{0, "a", write}, {1, "b", write}, {0, "a", restart}},
		"same again":       {{0, "a", write}, {0, "a", restart}},
		"back to the past": {{3, "a", gap}, {1, "b", restart}},
	} {
		var o order
		for i, s := range steps {
			if got := o.judge(s.seq, []byte(s.payload)); got != s.want {
				t.Errorf("%s: step %d is %d, want %d", name, i, got, s.want)
			}
			o.wrote(s.seq, []byte(s.payload))
		}
	}
	// The replay began with number 5; what was sent live before it is not another process's.
	var joining order
	joining.connected()
	for i := uint64(5); i < 10; i++ {
		joining.wrote(i, fmt.Append(nil, i))
	}
	for i := range uint64(10) {
		if got := joining.judge(i, fmt.Append(nil, i)); got != repeat {
			t.Errorf("joining: seq %d is %d", i, got)
		}
	}
	joining.connected()
	if got := joining.judge(3, []byte("3")); got != restart {
		t.Errorf("an old number over a new connection is %d", got)
	}
	// Over a new connection a repeat is one, another payload is another process.
	var o order
	for i := range uint64(3000) {
		o.wrote(i, fmt.Append(nil, i))
	}
	for _, s := range []step{{2990, "2990", repeat}, {2991, "2991", repeat}, {2992, "other", restart}} {
		if got := o.judge(s.seq, []byte(s.payload)); got != s.want {
			t.Errorf("seq %d is %d, want %d", s.seq, got, s.want)
		}
	}
	o.connected()
	if got := o.judge(1000, []byte("1000")); got != restart {
		t.Errorf("a number from before what is remembered is %d", got)
	}
	if len(o.sums) != remembered {
		t.Errorf("%d sums", len(o.sums))
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte{}, make([]byte, 8), []byte("p"), []byte{}, 4)
	f.Add([]byte{}, bytes.Repeat([]byte{0xff}, 8), []byte{}, []byte{}, 3)
	f.Fuzz(func(t *testing.T, a, b, c, d []byte, n int) {
		frames := [][]byte{a, b, c, d}[:min(max(n, 0), 4)]
		fuzzlimit.Run(t, len(a)+len(b)+len(c)+len(d), func() { parse(frames) })
		r := parse(frames)
		if r.end && r.payload != nil {
			t.Errorf("%x is a batch and the end", frames)
		}
		if r.payload != nil && (len(frames) < 2 || len(frames[len(frames)-2]) != 8) {
			t.Errorf("%x is a batch", frames)
		}
	})
}
