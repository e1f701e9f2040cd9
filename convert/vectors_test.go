package convert

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/hex"
	"encoding/json"
	"os"
	"reflect"
	"testing"

	"github.com/kvrelay/kvrelay/decode"
)

// vector is one line of testdata/convert.jsonl.gz: a batch, and what Dynamo
// 1.6.1, or where that loses or invents something our rules, make of it.
type vector struct {
	ID, What, Stream string
	Payload          string  `json:"payload_hex"`
	BlockSize        uint64  `json:"kv_block_size"`
	WorkerID         uint64  `json:"worker_id"`
	ImageToken       *uint32 `json:"image_token_id"`
	VideoToken       *uint32 `json:"video_token_id"`
	Want             struct {
		RouterEvents []json.RawMessage `json:"router_events"`
		Drops        map[string]uint64
	}
}

// readLines hands every line of a compressed file to f.
func readLines(tb testing.TB, path string, f func(line []byte)) {
	tb.Helper()
	file, err := os.Open(path)
	if err != nil {
		tb.Fatal(err)
	}
	defer file.Close()
	z, err := gzip.NewReader(file)
	if err != nil {
		tb.Fatal(err)
	}
	s := bufio.NewScanner(z)
	s.Buffer(nil, 1<<24)
	for s.Scan() {
		f(s.Bytes())
	}
	if err := s.Err(); err != nil {
		tb.Fatal(err)
	}
}

func readVectors(tb testing.TB) []vector {
	tb.Helper()
	var out []vector
	readLines(tb, "testdata/convert.jsonl.gz", func(line []byte) {
		var v vector
		if err := json.Unmarshal(line, &v); err != nil {
			tb.Fatal(err)
		}
		out = append(out, v)
	})
	return out
}

func unhex(tb testing.TB, s string) []byte {
	tb.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

// vectorStream is what the lines of one stream share: ranks and their event ids.
type vectorStream struct {
	ranks map[uint32]*Rank
	ids   map[uint32]uint64
}

func TestVectors(t *testing.T) {
	vectors := readVectors(t)
	if len(vectors) != 194 {
		t.Fatalf("%d vectors, want 194", len(vectors))
	}
	streams := map[string]*vectorStream{}
	for _, v := range vectors {
		s := streams[v.Stream]
		if s == nil {
			s = &vectorStream{ranks: map[uint32]*Rank{}, ids: map[uint32]uint64{}}
			streams[v.Stream] = s
		}
		t.Run(v.ID, func(t *testing.T) {
			got, drops := s.convert(t, &v)
			checkJSON(t, got, v.Want.RouterEvents)
			if !reflect.DeepEqual(drops, v.Want.Drops) {
				t.Errorf("%s: drops %v, want %v", v.What, drops, v.Want.Drops)
			}
		})
	}
}

func (s *vectorStream) convert(t *testing.T, v *vector) (events [][]byte, drops map[string]uint64) {
	t.Helper()
	var b decode.Batch
	err := b.Decode(unhex(t, v.Payload))
	number := RankOf(&b, 0)
	r := s.ranks[number]
	if r == nil {
		r = New(Config{
			WorkerID: v.WorkerID, Rank: number, BlockSize: v.BlockSize,
			ImageToken: v.ImageToken, VideoToken: v.VideoToken, Duplicates: Count,
		})
		s.ranks[number] = r
	}
	before := r.Stats()
	var out Output
	if err != nil {
		r.Undecodable()
	} else {
		r.Convert(&b, &out)
	}
	after := r.Stats()
	drops = map[string]uint64{}
	for reason := range NumReasons {
		if n := after.Drops(reason) - before.Drops(reason); n > 0 {
			drops[reason.String()] = n
		}
	}
	for i := range out.Events {
		s.ids[number]++
		events = append(events, AppendEventJSON(nil, &out.Events[i], v.WorkerID, number, s.ids[number]))
	}
	return events, drops
}

// checkJSON compares router events as JSON values, numbers by their digits.
func checkJSON(t *testing.T, got [][]byte, want []json.RawMessage) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%d router events, want %d:\n%s\nwant\n%s", len(got), len(want), bytes.Join(got, []byte("\n")), want)
		return
	}
	for i := range got {
		if !reflect.DeepEqual(jsonValue(t, got[i]), jsonValue(t, want[i])) {
			t.Errorf("router event %d:\n%s\nwant\n%s", i, got[i], want[i])
		}
	}
}

func jsonValue(t *testing.T, b []byte) (v any) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%v in %s", err, b)
	}
	return v
}
