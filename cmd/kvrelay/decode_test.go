package main

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"reflect"
	"strings"
	"testing"
)

// decodeVectors are the lines of convert's vectors: input and answer.
func decodeVectors(t *testing.T) (lines []string, wants []any) {
	t.Helper()
	f, err := os.Open("../../convert/testdata/convert.jsonl.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	s := bufio.NewScanner(z)
	s.Buffer(nil, 1<<24)
	for s.Scan() {
		v := jsonOf(t, s.Bytes()).(map[string]any)
		want := v["want"].(map[string]any)
		want["id"] = v["id"]
		lines, wants = append(lines, s.Text()), append(wants, want)
	}
	if err := s.Err(); err != nil || len(lines) == 0 {
		t.Fatalf("%d vectors: %v", len(lines), err)
	}
	return lines, wants
}

// jsonOf keeps numbers as they are written.
func jsonOf(t *testing.T, b []byte) (v any) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%v in %.200s", err, b)
	}
	return v
}

func TestDecodeVectors(t *testing.T) {
	lines, wants := decodeVectors(t)
	var out, errs strings.Builder
	code := runDecode([]string{"--duplicates", "count"}, strings.NewReader(strings.Join(lines, "\n")), &out, &errs)
	if code != exitOK {
		t.Errorf("code %d, stderr %s", code, errs.String())
	}
	got := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(got) != len(wants) {
		t.Fatalf("%d lines, want %d", len(got), len(wants))
	}
	for i, line := range got {
		if v := jsonOf(t, []byte(line)); !reflect.DeepEqual(v, wants[i]) {
			t.Errorf("%s\nwant %v", line, wants[i])
		}
	}
}

// TestDecodeBadLines: each bad line costs itself only, is named by its number,
// and nothing of it is repeated.
func TestDecodeBadLines(t *testing.T) {
	const ok = `{"payload_hex":"92c09191b0416c6c426c6f636b73436c6561726564"}` // [nil, [["AllBlocksCleared"]]]
	in := strings.Join([]string{
		ok,
		"", // no batch, and no error
		"secret nonsense",
		`{"stream":"s"}`,
		`{"payload_hex":"secret"}`,
		`{"payload_hex":7777}`,
		`["secret"]`,
		`{"payload_hex":"c1","id":"broken"}`,
		strings.Replace(ok, "{", `{"id":5,"worker_id":18446744073709551615,`, 1),
	}, "\r\n")
	var out, errs strings.Builder
	if code := runDecode(nil, strings.NewReader(in), &out, &errs); code != exitFailed {
		t.Errorf("code %d, want %d", code, exitFailed)
	}
	want := `{"id":"1","router_events":[{"worker_id":0,"storage_tier":"device","residency_domain":"worker","event":{"event_id":1,"data":"cleared","dp_rank":0}}],"drops":{}}
{"id":"broken","router_events":[],"drops":{"undecodable_batch":1}}
{"id":5,"router_events":[{"worker_id":0,"storage_tier":"device","residency_domain":"worker","event":{"event_id":2,"data":"cleared","dp_rank":0}}],"drops":{}}
`
	if out.String() != want {
		t.Errorf("got\n%swant\n%s", out.String(), want)
	}
	told := strings.Split(strings.TrimSpace(errs.String()), "\n")
	if len(told) != 5 || strings.Contains(errs.String(), "secret") || strings.Contains(errs.String(), "7777") {
		t.Errorf("stderr:\n%s", errs.String())
	}
	for i, line := range told {
		if prefix := "kvrelay decode: line " + string(rune('3'+i)) + ": "; !strings.HasPrefix(line, prefix) {
			t.Errorf("%q does not begin with %q", line, prefix)
		}
	}
}

// TestDecodeCapture decodes captures; the one of three incarnations is cleared
// twice and its ids go on.
func TestDecodeCapture(t *testing.T) {
	for name, cleared := range map[string]int{"vllm-0.33.0-base": 0, "vllm-0.33.0-restart": 2} {
		var out, errs strings.Builder
		code := runDecode([]string{"../../integration/testdata/captures/" + name + ".jsonl.gz"}, strings.NewReader(""), &out, &errs)
		if code != exitOK || errs.Len() > 0 {
			t.Fatalf("%s: code %d, stderr %s", name, code, errs.String())
		}
		id, clears := 0, 0
		for line := range strings.Lines(out.String()) {
			var v struct {
				ID     string
				Events []struct {
					Event struct {
						ID   int             `json:"event_id"`
						Data json.RawMessage `json:"data"`
					}
				} `json:"router_events"`
			}
			if err := json.Unmarshal([]byte(line), &v); err != nil || v.ID == "" {
				t.Fatalf("%s: %v in %s", name, err, line)
			}
			for _, e := range v.Events {
				if id++; e.Event.ID != id {
					t.Fatalf("%s: event id %d, want %d", name, e.Event.ID, id)
				}
				if string(e.Event.Data) == `"cleared"` {
					clears++
				}
			}
		}
		if clears != cleared || id == 0 {
			t.Errorf("%s: %d events, cleared %d times, want %d", name, id, clears, cleared)
		}
	}
}

func TestDecodeUsage(t *testing.T) {
	for _, args := range [][]string{{"--duplicates", "many"}, {"a", "b"}, {"--block-size", "x"}, {"--nonsense"}} {
		var out, errs strings.Builder
		if code := runDecode(args, strings.NewReader(""), &out, &errs); code != exitUsage || out.Len() > 0 || strings.Count(errs.String(), "\n") != 1 {
			t.Errorf("%q: code %d, stdout %q, stderr %q", args, code, out.String(), errs.String())
		}
	}
	var out, errs strings.Builder
	if code := runDecode([]string{"-h"}, strings.NewReader(""), &out, &errs); code != exitOK || !strings.Contains(out.String(), "payload_hex") {
		t.Errorf("-h: code %d, stdout %q", code, out.String())
	}
	errs.Reset()
	if code := runDecode([]string{"/nowhere.jsonl"}, strings.NewReader(""), &out, &errs); code != exitFailed || !strings.Contains(errs.String(), "/nowhere.jsonl") {
		t.Errorf("no such file: code %d, stderr %q", code, errs.String())
	}
	errs.Reset()
	if code := runDecode(nil, strings.NewReader("\x1f\x8b\n\n"), &out, &errs); code != exitFailed || errs.String() != "kvrelay decode: stdin is a gzip file: name it as FILE instead\n" {
		t.Errorf("gzip on stdin: code %d, stderr %q", code, errs.String())
	}
}

// TestDecodeBounds: an endless line, further streams and further ranks are errors.
func TestDecodeBounds(t *testing.T) {
	in := bufio.NewReader(io.MultiReader(io.LimitReader(endless{}, maxDecodeLine+5), strings.NewReader("\nnext\n")))
	if _, err := readLine(in); !errors.Is(err, errLongLine) {
		t.Errorf("endless line: %v", err)
	}
	if line, err := readLine(in); err != nil || string(line) != "next\n" {
		t.Errorf("the line after it: %q, %v", line, err)
	}
	var lines strings.Builder
	for rank := range maxDecodeRanks + 1 {
		lines.WriteString(`{"payload_hex":"93c090`)
		lines.WriteString(hexByte(byte(rank)))
		lines.WriteString("\"}\n")
	}
	var out, errs strings.Builder
	if code := runDecode(nil, strings.NewReader(lines.String()), &out, &errs); code != exitFailed ||
		strings.Count(out.String(), "\n") != maxDecodeRanks || !strings.Contains(errs.String(), "line 65: more than 64 ranks") {
		t.Errorf("further ranks: code %d, stderr %q", code, errs.String())
	}
}

// hexByte is a number below 128 in msgpack, in hex.
func hexByte(b byte) string {
	return string([]byte{"0123456789abcdef"[b>>4], "0123456789abcdef"[b&15]})
}

type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}
