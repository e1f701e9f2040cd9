package capture

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/kvrelay/kvrelay/internal/fuzzlimit"
)

type jsonRaw = json.RawMessage

func clone(m *Meta) *Meta {
	c := *m
	c.Extra = maps.Clone(m.Extra)
	return &c
}

// FuzzReader: nothing read may panic or exceed its limits, and what was read
// is the same after it was written and read again.
func FuzzReader(f *testing.F) {
	golden, err := os.ReadFile(filepath.Join("testdata", "dynamo-mocker-1.6.1-golden.jsonl"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(golden)
	f.Add([]byte(meta + `{"case":"a","request":["","00"],"replies":[["","ff"]],"first_reply_s":null,"last_reply_s":1}`))
	f.Add([]byte(`{"live_payload_sha256_16":[[1,"ab"]],"truth":{"0":{"-1":2}},"other":[{}],"seed":null}` + "\n" + `{"frames":["AB"]}`))
	f.Add([]byte(`{"truth":{},"groups":[]}`)) // empty is not absent
	f.Add([]byte("\x1f\x8b\x08\x00"))
	f.Fuzz(func(t *testing.T, data []byte) {
		limits := Limits{Line: 4096, File: 1 << 16, Frames: 8}
		fuzzlimit.Run(t, len(data), func() {
			r, err := NewReader(bytes.NewReader(data), "fuzz", limits)
			if err != nil {
				return
			}
			for err == nil {
				_, err = r.entry()
			}
		})
		r, err := NewReader(bytes.NewReader(data), "fuzz", limits)
		if err != nil {
			return
		}
		c := Capture{Meta: r.Meta()}
		var out bytes.Buffer
		w, err := NewWriter(&out, c.Meta)
		if err != nil {
			t.Fatalf("meta that was read cannot be written: %v", err)
		}
		for {
			e, err := r.entry()
			if err != nil {
				break
			}
			if e.Frames != nil {
				m, err := r.message(e)
				if err != nil {
					break
				}
				c.Messages = append(c.Messages, m)
				if err := w.Write(m); err != nil {
					t.Fatal(err)
				}
				continue
			}
			x, err := r.exchange(e)
			if err != nil {
				break
			}
			c.Exchanges = append(c.Exchanges, x)
			if err := w.WriteExchange(x); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		again, err := loadFrom(out.String())
		if err != nil {
			t.Fatalf("what was written cannot be read: %v\n%s", err, out.String())
		}
		if !reflect.DeepEqual(again.Messages, c.Messages) || !reflect.DeepEqual(again.Exchanges, c.Exchanges) {
			t.Fatalf("read something else than was written:\n%s", out.String())
		}
		if len(again.Meta.Extra) != len(c.Meta.Extra) || again.Meta.Engine != c.Meta.Engine || !reflect.DeepEqual(again.Meta.Truth, c.Meta.Truth) {
			t.Fatalf("meta changed:\n%s", out.String())
		}
	})
}

func loadFrom(text string) (*Capture, error) {
	r, err := NewReader(strings.NewReader(text), "again", Limits{})
	if err != nil {
		return nil, err
	}
	return r.rest()
}
