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

// fullDisk takes so many bytes and then no more.
type fullDisk struct {
	f    *os.File
	left int
}

var errFull = errors.New("the disk is full")

func (d *fullDisk) Write(b []byte) (int, error) {
	n, err := d.f.Write(b[:min(len(b), d.left)])
	if d.left -= n; err == nil && n < len(b) {
		err = errFull
	}
	return n, err
}

// TestFullDisk: the error is said once, and what is in the file can be read.
func TestFullDisk(t *testing.T) {
	for name, room := range map[string]int{"plain": 150_000, "plain, one long line": 300_000, "packed": 3000} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "x")
			f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
			if err != nil {
				t.Fatal(err)
			}
			disk := &fullDisk{f, room}
			var dst io.Writer = disk
			var z *gzip.Writer
			if name == "packed" {
				z = gzip.NewWriter(disk)
				dst = z
			}
			w, err := NewWriter(dst, &Meta{Engine: "vllm"})
			if err != nil {
				t.Fatal(err)
			}
			w.f, w.z = f, z
			payload := make([]byte, 1000)
			if name == "plain, one long line" {
				payload = make([]byte, 100_000)
			}
			for i := 0; err == nil; i++ {
				binary.BigEndian.PutUint64(payload, uint64(i)*0x9e3779b97f4a7c15)
				if err = w.Write(Message{Frames: [][]byte{payload}}); err == nil && i%10 == 0 {
					err = w.Flush()
				}
			}
			if !errors.Is(err, errFull) {
				t.Fatal(err)
			}
			if again := w.Close(); again == nil || again.Error() != err.Error() {
				t.Errorf("Write: %v; Close: %v", err, again)
			}
			r, err := Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			n := 0
			for ; err == nil; n++ {
				_, err = r.Next()
			}
			if want := map[bool]error{false: io.EOF, true: ErrTorn}[name == "packed"]; !errors.Is(err, want) || n < 2 {
				t.Errorf("after %d messages: %v, want %v", n-1, err, want)
			}
		})
	}
}
