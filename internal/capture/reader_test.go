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
	"reflect"
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
		"cut line":            {meta + `{"frames":["00"`, 2, ErrFormat, "JSON broken"},
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
	if err := drain(bytes.NewReader(whole[:len(whole)-9]), Limits{}); !errors.Is(err, io.ErrUnexpectedEOF) {
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

func TestOpenMissing(t *testing.T) {
	if _, err := Open(filepath.Join(t.TempDir(), "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error %v", err)
	}
}

func TestWriteRead(t *testing.T) {
	n := 7
	at := 0.25
	in := Capture{
		Meta: &Meta{Engine: "vllm", Version: "1", Topic: "kv@x", DPRank: 3, BlockSize: []uint32{16}, Received: &n,
			State: State{Truth: Truth{"0": {"1": 2}}}, Extra: map[string]jsonRaw{"driver": jsonRaw(`{"a":[1]}`), "engine": jsonRaw(`"other"`)}},
		Messages: []Message{{Frames: [][]byte{{}, {0, 1}, bytes.Repeat([]byte{0xff}, 70_000)}}, {Frames: [][]byte{}}},
		Exchanges: []Exchange{
			{Case: `"quoted" \ case`, Request: [][]byte{{}, {1}}, Replies: [][][]byte{{{2}, {}}, {{3}}}, FirstReply: &at, LastReply: &at},
			{Case: "silent", Request: [][]byte{}},
		},
	}
	for _, name := range []string{"plain.jsonl", "packed.jsonl.gz"} {
		path := filepath.Join(t.TempDir(), name)
		w, err := Create(path, in.Meta)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range in.Messages {
			if err := w.Write(m); err != nil {
				t.Fatal(err)
			}
		}
		// What was flushed can be read while the writer is open.
		if err := w.Flush(); err != nil {
			t.Fatal(err)
		}
		r, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if m, err := r.Next(); err != nil || len(m.Frames) != 3 {
			t.Fatalf("after Flush: %v", err)
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		for _, x := range in.Exchanges {
			if err := w.WriteExchange(x); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if err := w.Write(in.Messages[0]); err == nil {
			t.Error("a closed writer writes")
		}
		got, err := Load(path)
		if err != nil {
			t.Fatal(err)
		}
		want := in
		want.Meta = clone(in.Meta)
		delete(want.Meta.Extra, "engine") // a known field is not overridden
		if !reflect.DeepEqual(got.Meta, want.Meta) {
			t.Errorf("%s: meta %+v, want %+v", name, got.Meta, want.Meta)
		}
		if !reflect.DeepEqual(got.Messages, want.Messages) || !reflect.DeepEqual(got.Exchanges, want.Exchanges) {
			t.Errorf("%s: read something else than was written", name)
		}
		if _, err := Create(path, in.Meta); !errors.Is(err, fs.ErrExist) {
			t.Errorf("%s: Create over a file: %v", name, err)
		}
		if packed, _ := os.ReadFile(path); (packed[0] == 0x1f) != strings.HasSuffix(name, ".gz") {
			t.Errorf("%s: begins with %x", name, packed[:2])
		}
	}
}

func TestWriterBounds(t *testing.T) {
	var b bytes.Buffer
	w, err := NewWriter(&b, &Meta{})
	if err != nil {
		t.Fatal(err)
	}
	w.limits = Limits{Line: 100, Frames: 3}
	if err := w.Write(Message{Frames: [][]byte{make([]byte, 60)}}); !errors.Is(err, ErrTooLarge) {
		t.Errorf("long: %v", err)
	}
	if err := w.Write(Message{Frames: make([][]byte, 4)}); !errors.Is(err, ErrTooLarge) {
		t.Errorf("frames: %v", err)
	}
	if err := w.Write(Message{Frames: make([][]byte, 3)}); err != nil {
		t.Errorf("after refusals: %v", err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if want := `{"dp_rank":0,"topic":""}` + "\n" + `{"frames":["","",""]}` + "\n"; b.String() != want {
		t.Errorf("wrote %q, want %q", b.String(), want)
	}
}

type brokenDisk struct{}

func (brokenDisk) Write([]byte) (int, error) { return 0, fs.ErrInvalid }

func TestWriterKeepsError(t *testing.T) {
	w, err := NewWriter(brokenDisk{}, &Meta{})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Flush(); !errors.Is(err, fs.ErrInvalid) {
		t.Errorf("Flush: %v", err)
	}
	if err := w.Write(Message{}); !errors.Is(err, fs.ErrInvalid) {
		t.Errorf("Write after it: %v", err)
	}
	if err := w.Close(); !errors.Is(err, fs.ErrInvalid) {
		t.Errorf("Close after it: %v", err)
	}
}
