package replay

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/kvrelay/kvrelay/internal/fuzzlimit"
)

func framesOf(parts ...string) [][]byte {
	var f [][]byte
	for _, p := range parts {
		f = append(f, []byte(p))
	}
	return f
}

const (
	seq7 = "\x00\x00\x00\x00\x00\x00\x00\x07"
	ends = "\xff\xff\xff\xff\xff\xff\xff\xff"
)

func TestParseReply(t *testing.T) {
	batch := func(topic string) Reply { return Reply{Seq: 7, Topic: []byte(topic), Payload: []byte("batch")} }
	end := Reply{Seq: endSeq, End: true}
	for _, c := range []struct {
		name   string
		frames [][]byte
		want   Reply
		bad    bool
	}{
		{"vLLM now", framesOf("", "", seq7, "batch"), batch(""), false},
		{"vLLM now, with a topic", framesOf("", "kv@pod@m/odel", seq7, "batch"), batch("kv@pod@m/odel"), false},
		{"a topic of eight bytes", framesOf("", "kv@pod@m", seq7, "batch"), batch("kv@pod@m"), false},
		{"vLLM before", framesOf("", seq7, "batch"), batch(""), false},
		{"ATOM, nothing echoed", framesOf(seq7, "batch"), batch(""), false},
		{"an end now", framesOf("", "", ends, ""), end, false},
		{"an end before", framesOf("", ends, ""), end, false},
		{"an end, nothing echoed", framesOf(ends, ""), end, false},
		{"an end without payload frame", framesOf("", ends), end, false},
		{"an end without anything", framesOf(ends), end, false},
		{"an end with a topic and no payload frame", framesOf("", "topic", ends), end, false},
		{"an end with a payload is no batch", framesOf("", "", ends, "batch"), end, false},
		{"an empty payload is the engine's", framesOf("", "", seq7, ""), Reply{Seq: 7}, false},
		{"a payload like a seq", framesOf("", "", seq7, seq7), Reply{Seq: 7, Payload: []byte(seq7)}, false},
		{"a payload like an end", framesOf("", "", seq7, ends), Reply{Seq: 7, Payload: []byte(ends)}, false},
		{"more in front", framesOf("id", "", "", seq7, "batch"), batch(""), false},
		{"nothing", framesOf(""), Reply{}, true},
		{"a payload alone", framesOf("batch"), Reply{}, true},
		{"a seq alone", framesOf(seq7), Reply{}, true},
		{"a short seq", framesOf("", "", seq7[1:], "batch"), Reply{}, true},
		{"a long seq", framesOf("", "", seq7+"\x00", "batch"), Reply{}, true},
		{"a seq behind the payload", framesOf("", "batch", seq7), Reply{}, true},
	} {
		got, problem := parseReply(c.frames)
		if (problem != "") != c.bad {
			t.Errorf("%s: problem %q", c.name, problem)
			continue
		}
		if problem == "" && (got.Seq != c.want.Seq || got.End != c.want.End || !bytes.Equal(got.Topic, c.want.Topic) && !got.End || !bytes.Equal(got.Payload, c.want.Payload)) {
			t.Errorf("%s: %+v", c.name, got)
		}
	}
}

func TestParseLive(t *testing.T) {
	for _, c := range []struct {
		name   string
		frames [][]byte
		want   Live
		bad    bool
	}{
		{"standard", framesOf("kv@pod", seq7, "batch"), Live{Topic: []byte("kv@pod"), Seq: 7, HasSeq: true, Payload: []byte("batch")}, false},
		{"no topic", framesOf("", seq7, "batch"), Live{Seq: 7, HasSeq: true, Payload: []byte("batch")}, false},
		{"two frames", framesOf("topic", "batch"), Live{Topic: []byte("topic"), Payload: []byte("batch")}, false},
		{"two frames, a topic of eight bytes", framesOf("kv@pod@m", "batch"), Live{Topic: []byte("kv@pod@m"), Payload: []byte("batch")}, false},
		{"one frame", framesOf("batch"), Live{Payload: []byte("batch")}, false},
		{"the end marker's seq", framesOf("", ends, "batch"), Live{}, true},
		{"a short seq", framesOf("", "7", "batch"), Live{}, true},
		{"no seq", framesOf("", "", "batch"), Live{}, true},
		{"four frames", framesOf("", "", seq7, "batch"), Live{}, true},
		{"no frames", nil, Live{}, true},
	} {
		got, problem := ParseLive(c.frames)
		if (problem != "") != c.bad {
			t.Errorf("%s: problem %q", c.name, problem)
		}
		if got.Seq != c.want.Seq || got.HasSeq != c.want.HasSeq || !bytes.Equal(got.Topic, c.want.Topic) || !bytes.Equal(got.Payload, c.want.Payload) {
			t.Errorf("%s: %+v", c.name, got)
		}
	}
}

func TestRequest(t *testing.T) {
	f := request(0x0102030405060708)
	if len(f) != 2 || len(f[0]) != 0 || string(f[1]) != "\x01\x02\x03\x04\x05\x06\x07\x08" {
		t.Errorf("% x", f)
	}
}

// What real engines answered (recorded by a plain DEALER): every reply is read, with
// the payload that was published under its seq.
func TestParseRecordedReplies(t *testing.T) {
	files, err := filepath.Glob("../integration/testdata/replay/*.jsonl.gz")
	if err != nil || len(files) == 0 {
		t.Fatalf("no transcripts: %v", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) { parseRecorded(t, file) })
	}
}

func parseRecorded(t *testing.T, file string) {
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(z)
	lines.Buffer(nil, 64<<20)
	var meta struct {
		LastSeq uint64              `json:"last_seq"`
		Sums    [][]json.RawMessage `json:"live_payload_sha256_16"`
	}
	if !lines.Scan() {
		t.Fatal("empty")
	}
	if err := json.Unmarshal(lines.Bytes(), &meta); err != nil {
		t.Fatal(err)
	}
	sums := map[string]string{}
	for _, s := range meta.Sums {
		sums[string(s[0])] = string(s[1])
	}
	var batches, endMarkers int
	for lines.Scan() {
		var x struct {
			Case    string     `json:"case"`
			Replies [][]string `json:"replies"`
		}
		if err := json.Unmarshal(lines.Bytes(), &x); err != nil {
			t.Fatal(err)
		}
		for i, reply := range x.Replies {
			var frames [][]byte
			for _, s := range reply {
				b, err := hex.DecodeString(s)
				if err != nil {
					t.Fatal(err)
				}
				frames = append(frames, b)
			}
			r, problem := parseReply(frames)
			if problem != "" || r.End != (i == len(x.Replies)-1) {
				t.Errorf("%s, reply %d: %q, end %v", x.Case, i, problem, r.End)
				continue
			}
			if r.End {
				endMarkers++
				continue
			}
			batches++
			seq, _ := json.Marshal(r.Seq)
			sum := sha256.Sum256(r.Payload)
			if want := sums[string(seq)]; r.Seq > meta.LastSeq || want != `"`+hex.EncodeToString(sum[:8])+`"` {
				t.Errorf("%s: seq %d has a payload of another", x.Case, r.Seq)
			}
		}
	}
	if err := lines.Err(); err != nil || batches == 0 || endMarkers == 0 {
		t.Errorf("%d batches, %d ends, %v", batches, endMarkers, err)
	}
}

// fuzzFrames cuts data into frames: a length byte before each.
func fuzzFrames(data []byte) (frames [][]byte) {
	for len(data) > 0 {
		n := min(int(data[0]), len(data)-1)
		frames, data = append(frames, data[1:1+n]), data[1+n:]
	}
	return frames
}

func FuzzParseFrames(f *testing.F) {
	f.Add([]byte("\x00\x00\x08" + seq7 + "\x05batch"))
	f.Add([]byte("\x00\x08" + ends + "\x00"))
	f.Add([]byte("\x08" + ends))
	f.Add([]byte("\x05topic\x08" + seq7 + "\x05batch"))
	f.Fuzz(func(t *testing.T, data []byte) {
		frames := fuzzFrames(data)
		if len(frames) == 0 {
			return // a message has a frame
		}
		last := frames[len(frames)-1]
		fuzzlimit.Run(t, len(data), func() {
			_, _ = parseReply(frames)
			_, _ = ParseLive(frames)
		})
		r, problem := parseReply(frames)
		switch {
		case problem != "":
			if r.End || r.Payload != nil {
				t.Fatalf("%+v with problem %q", r, problem)
			}
		case r.End != (r.Seq == endSeq):
			t.Fatalf("%+v", r)
		case !r.End && !bytes.Equal(r.Payload, last):
			t.Fatalf("payload % x, last frame % x", r.Payload, last)
		}
		if !r.End && problem == "" {
			again, p := parseReply([][]byte{nil, r.Topic, frames[len(frames)-2], r.Payload})
			if p != "" || again.Seq != r.Seq || !bytes.Equal(again.Topic, r.Topic) {
				t.Fatalf("%+v, the same in the standard form: %+v, %q", r, again, p)
			}
		}
		if l, problem := ParseLive(frames); problem == "" {
			if !bytes.Equal(l.Payload, last) || l.HasSeq != (len(frames) == 3) || l.HasSeq && l.Seq == endSeq {
				t.Fatalf("%+v", l)
			}
		}
	})
}
