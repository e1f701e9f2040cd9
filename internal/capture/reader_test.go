package capture

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestLiveCaptures(t *testing.T) {
	for name, want := range map[string]struct {
		messages int
		rank     uint32
		topic    string
		hashes   int // of group 0
		queries  bool
	}{
		"dynamo-mocker-1.6.1-golden.jsonl": {4, 0, "", 6, false},
		"sglang-0.5.18-dp2-topic.jsonl.gz": {53, 2, "kv@10.0.3.18@Qwen/Qwen3-8B", 118, true},
		"vllm-0.33.0-bytes.jsonl.gz":       {62, 0, "", 92, true},
		"vllm-0.33.0-restart.jsonl.gz":     {114, 0, "", 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := Load(filepath.Join("testdata", name))
			if err != nil {
				t.Fatal(err)
			}
			m := c.Meta
			if len(c.Messages) != want.messages || *m.Received != want.messages {
				t.Errorf("%d messages, meta says %d, want %d", len(c.Messages), *m.Received, want.messages)
			}
			if m.DPRank != want.rank || m.Topic != want.topic {
				t.Errorf("rank %d topic %q, want %d %q", m.DPRank, m.Topic, want.rank, want.topic)
			}
			if h, err := m.Truth.Hashes("0"); err != nil || want.hashes > 0 && len(h) != want.hashes {
				t.Errorf("truth has %d hashes (%v), want %d", len(h), err, want.hashes)
			}
			if (len(m.Queries) > 0) != want.queries {
				t.Errorf("%d queries", len(m.Queries))
			}
			checkDigest(t, m.State)
			next := uint64(0)
			for i, msg := range c.Messages {
				seq, ok := msg.Seq()
				if !ok || string(msg.Topic()) != want.topic || len(msg.Payload()) == 0 {
					t.Fatalf("message %d: seq %d %v topic %q", i, seq, ok, msg.Topic())
				}
				if seq == 0 {
					next = 0 // an incarnation begins
				}
				if seq != next {
					t.Fatalf("message %d: seq %d, want %d", i, seq, next)
				}
				next++
			}
		})
	}
}

// checkDigest compares a truth with the digest that came with it: both readings
// of a hash, as integer and as bytes, must give the same 64 bits.
func checkDigest(t *testing.T, s State) {
	t.Helper()
	for group, d := range s.TruthDigest {
		hashes, err := s.Truth.Hashes(group)
		if err != nil {
			t.Fatal(err)
		}
		var xor uint64
		blocks := 0
		for h, n := range hashes {
			xor ^= h
			blocks += n
		}
		want, err := d.XOR()
		if err != nil {
			t.Fatal(err)
		}
		if len(hashes) != d.Hashes || blocks != d.Blocks || xor != want {
			t.Errorf("group %s: %d hashes, %d blocks, xor %016x; digest says %d, %d, %s", group, len(hashes), blocks, xor, d.Hashes, d.Blocks, d.XOR64)
		}
	}
}

func TestIncarnations(t *testing.T) {
	c, err := Load("testdata/vllm-0.33.0-restart.jsonl.gz")
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Meta.Incarnations) != 3 {
		t.Fatalf("%d incarnations", len(c.Meta.Incarnations))
	}
	at := 0
	for i, in := range c.Meta.Incarnations {
		if in.FirstMessage != at || in.Messages == nil {
			t.Fatalf("incarnation %d begins at %d, want %d", i, in.FirstMessage, at)
		}
		if seq, _ := c.Messages[at].Seq(); seq != 0 {
			t.Errorf("incarnation %d begins with seq %d", i, seq)
		}
		at += *in.Messages
		if len(in.Checkpoints) == 0 || len(in.Queries) == 0 || len(in.Truth) == 0 {
			t.Errorf("incarnation %d lacks its state", i)
		}
		checkDigest(t, in.State)
	}
	if at != len(c.Messages) {
		t.Errorf("incarnations have %d messages of %d", at, len(c.Messages))
	}
}

func TestTranscript(t *testing.T) {
	c, err := Load("testdata/replay-vllm-0.9.0-sha256-holes-buf10000.jsonl.gz")
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Messages) != 0 || len(c.Exchanges) != 11 {
		t.Fatalf("%d messages, %d exchanges", len(c.Messages), len(c.Exchanges))
	}
	if *c.Meta.LastSeq != 53 || *c.Meta.BufferSteps != 10000 || *c.Meta.OldestBufferedSeq != 0 {
		t.Errorf("meta %+v", c.Meta)
	}
	if want := (PayloadSum{19, "9a87c885db6c0d5e"}); len(c.Meta.LivePayloads) != 3 || c.Meta.LivePayloads[0] != want {
		t.Errorf("payload sums %v", c.Meta.LivePayloads)
	}
	x := c.Exchanges[0]
	if x.Case != "start=0" || len(x.Request) != 2 || len(x.Replies) != 4 || x.FirstReply == nil {
		t.Errorf("exchange %+v", x)
	}
	if end := x.Replies[3]; binary.BigEndian.Uint64(end[1]) != EndSeq || len(end[2]) != 0 {
		t.Errorf("end marker %x", end)
	}
	silent := c.Exchanges[6]
	if silent.Case != "no delimiter frame" || len(silent.Replies) != 0 || silent.FirstReply != nil {
		t.Errorf("exchange %+v", silent)
	}
	// Next passes over exchanges.
	r, err := Open("testdata/replay-vllm-0.9.0-sha256-holes-buf10000.jsonl.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := r.Next(); !errors.Is(err, io.EOF) {
		t.Errorf("Next in a transcript: %v", err)
	}
}

func TestParseHash(t *testing.T) {
	for text, want := range map[string]uint64{
		"0":                    0,
		"18446744073709551615": 1<<64 - 1,
		"-1":                   1<<64 - 1,
		"-9223372036854775808": 1 << 63,
		"139674bb2bfb98d262fec0f259c736b1de9d13879dda6fe60b820e7355125171": 0x0b820e7355125171,
	} {
		if got, err := ParseHash(text); err != nil || got != want {
			t.Errorf("ParseHash(%s) = %d, %v, want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "-", "x", "1.5", "18446744073709551616", "-9223372036854775809", strings.Repeat("g", 64), strings.Repeat("a", 63)} {
		if got, err := ParseHash(text); !errors.Is(err, ErrFormat) {
			t.Errorf("ParseHash(%q) = %d, %v", text, got, err)
		}
	}
}

const meta = `{"engine":"vllm"}` + "\n"

func TestRefuses(t *testing.T) {
	const secret = "987654321987654321"
	small := Limits{Line: 200, File: 400, Frames: 3}
	for name, c := range map[string]struct {
		text string
		line int
		want error
		says string
	}{
		"empty":               {"", 1, ErrFormat, "empty file"},
		"blank":               {"\n \n", 1, ErrFormat, "empty file"},
		"meta is no JSON":     {secret + "x\n", 1, ErrFormat, "meta: JSON broken at byte 19"},
		"meta is a list":      {"[1]\n", 1, ErrFormat, "meta"},
		"meta of wrong type":  {`{"dp_rank":-1}`, 1, ErrFormat, `"dp_rank" has a wrong type`},
		"tokens out of range": {`{"queries":[{"token_ids":[` + secret + `]}]}`, 1, ErrFormat, "token_ids"},
		"message first":       {`{"frames":["00"]}`, 1, ErrFormat, "where the meta line should be"},
		"no frames":           {meta + `{"x":1}`, 2, ErrFormat, "neither frames nor a request"},
		"null frames":         {meta + `{"frames":null}`, 2, ErrFormat, "neither frames nor a request"},
		"frames and request":  {meta + `{"frames":[],"request":[]}`, 2, ErrFormat, "both frames and a request"},
		"frame is a number":   {meta + `{"frames":[` + secret + `]}`, 2, ErrFormat, `"frames`},
		"odd hex":             {meta + "\n\n" + `{"frames":["","` + secret + `1"]}`, 4, ErrFormat, "frame 1 is no hex"},
		"no hex":              {meta + `{"frames":["xy"]}`, 2, ErrFormat, "frame 0 is no hex"},
		"reply no hex":        {meta + `{"request":[],"replies":[["0"]]}`, 2, ErrFormat, "frame 0 is no hex"},
		"cut line":            {meta + `{"frames":["00"` + "\n" + `{"frames":["00"]}` + "\n", 2, ErrFormat, "JSON broken"},
		"torn last line":      {meta + `{"frames":["00"]}` + "\n" + `{"frames":["0`, 3, ErrTorn, "ends here, in the middle of a line"},
		"broken last line":    {meta + `{"frames":["00"]}` + "\n" + `frames`, 3, ErrFormat, "JSON broken"},
		"torn meta":           {`{"engine":"vl`, 1, ErrFormat, "JSON broken"},
		"too many frames":     {meta + `{"frames":["","","",""]}`, 2, ErrTooLarge, "4 frames in a message, at most 3"},
		"long line":           {meta + `{"frames":["` + strings.Repeat("0", 200) + `"]}`, 2, ErrTooLarge, "line longer than 200 bytes"},
		"long line, no end":   {meta + strings.Repeat(" ", 300), 2, ErrTooLarge, "line longer than 200 bytes"},
		"long file":           {meta + strings.Repeat(`{"frames":["","",""]}`+"\n", 30), 19, ErrTooLarge, "more than 400 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			err := drain(strings.NewReader(c.text), small)
			var at *Error
			if !errors.As(err, &at) || at.Line != c.line || at.File != "name" {
				t.Fatalf("error %v, want one at name:%d", err, c.line)
			}
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("error %v, want %v saying %q", err, c.want, c.says)
			}
			if strings.Contains(err.Error(), secret) {
				t.Errorf("error quotes the capture: %v", err)
			}
		})
	}
}

// drain reads everything; its error is the first that is not io.EOF.
func drain(src io.Reader, l Limits) error {
	r, err := NewReader(src, "name", l)
	if err != nil {
		return err
	}
	for {
		e, err := r.entry()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if e.Frames != nil {
			_, err = r.message(e)
		} else {
			_, err = r.exchange(e)
		}
		if err != nil {
			return err
		}
	}
}

func TestStaysFailed(t *testing.T) {
	r, err := NewReader(strings.NewReader(meta+"x\n"+`{"frames":[""]}`+"\n"), "name", Limits{})
	if err != nil {
		t.Fatal(err)
	}
	_, first := r.Next()
	if _, again := r.Next(); first == nil || !errors.Is(again, first) {
		t.Errorf("after %v came %v", first, again)
	}
}

func gzipped(t *testing.T, text string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := z.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestGzip(t *testing.T) {
	whole := gzipped(t, meta+strings.Repeat(`{"frames":["","",""]}`+"\n", 1000))
	if err := drain(bytes.NewReader(whole), Limits{}); err != nil {
		t.Errorf("whole: %v", err)
	}
	if err := drain(bytes.NewReader(whole[:len(whole)-9]), Limits{}); !errors.Is(err, ErrTorn) {
		t.Errorf("truncated: %v", err)
	}
	bomb := gzipped(t, meta+strings.Repeat("\n", 10<<20))
	if err := drain(bytes.NewReader(bomb), Limits{File: 1 << 20}); !errors.Is(err, ErrTooLarge) {
		t.Errorf("bomb of %d bytes: %v", len(bomb), err)
	}
	var at *Error
	if err := drain(strings.NewReader("\x1f\x8bno gzip at all"), Limits{}); !errors.As(err, &at) {
		t.Errorf("no gzip: %v", err)
	}
}

// What is wrong with a file is what reading it says. Closing says it no second
// time: a torn file that was looked at and closed is no failure.
func TestCloseTornGzip(t *testing.T) {
	whole := gzipped(t, meta+`{"frames":["","",""]}`+"\n")
	path := filepath.Join(t.TempDir(), "torn.gz")
	if err := os.WriteFile(path, whole[:len(whole)-9], 0o644); err != nil {
		t.Fatal(err)
	}
	r, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = r.Next()
	}
	if !errors.Is(err, ErrTorn) {
		t.Errorf("read to its end: %v", err)
	}
	for range 2 {
		if err := r.Close(); err != nil {
			t.Errorf("closed: %v", err)
		}
	}
}

func TestOpenMissing(t *testing.T) {
	if _, err := Open(filepath.Join(t.TempDir(), "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error %v", err)
	}
}
