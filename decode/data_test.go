package decode

import (
	"bufio"
	"compress/gzip"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
)

// lines calls f with each line of a compressed file.
func lines(t testing.TB, path string, f func(line []byte)) {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	z, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	s := bufio.NewScanner(z)
	s.Buffer(nil, 4<<20)
	for s.Scan() {
		f(s.Bytes())
	}
	if err := s.Err(); err != nil {
		t.Fatal(err)
	}
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// vector is one case of the conversion vectors: the payload, and of the drops
// only those that are decided here.
type vector struct {
	id, what string
	payload  []byte
	drops    map[string]int
}

func vectors(t testing.TB) (out []vector) {
	t.Helper()
	lines(t, filepath.Join("testdata", "vectors.jsonl.gz"), func(line []byte) {
		var v struct {
			ID, What, Payload string
			Drops             map[string]int
		}
		if err := json.Unmarshal(line, &v); err != nil {
			t.Fatal(err)
		}
		out = append(out, vector{v.ID, v.What, unhex(t, v.Payload), v.Drops})
	})
	if len(out) < 190 {
		t.Fatalf("%d vectors only", len(out))
	}
	return out
}

// What is undecodable, malformed, unknown or ignored in the vectors is so here.
func TestVectors(t *testing.T) {
	var b Batch
	for _, v := range vectors(t) {
		err := b.Decode(v.payload)
		got := map[string]int{}
		if err != nil {
			got["undecodable_batch"]++
		}
		for i := range b.Events {
			ev := &b.Events[i]
			switch {
			case ev.Type == Malformed, ev.Pairs == UnsoundPairs:
				got["malformed_event"]++
			case ev.Type == Unknown:
				got["unknown_tag"]++
			case ev.Type == Ignored:
				got["ignored_event"]++
			}
		}
		for _, reason := range []string{"undecodable_batch", "malformed_event", "unknown_tag", "ignored_event"} {
			if got[reason] != v.drops[reason] {
				t.Errorf("%s (%s): %s %d, want %d", v.id, v.what, reason, got[reason], v.drops[reason])
			}
		}
		agree(t, &b, v.payload)
	}
}

// capture is the recorded stream of an engine.
type capture struct {
	truth    map[string]map[string]int
	payloads [][]byte
}

func captures(t testing.TB) map[string]capture {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("testdata", "captures", "*.jsonl.gz"))
	if err != nil || len(files) < 5 {
		t.Fatal(files, err)
	}
	out := map[string]capture{}
	for _, file := range files {
		var c capture
		first := true
		lines(t, file, func(line []byte) {
			var m struct {
				Truth  map[string]map[string]int
				Frames []string
			}
			if err := json.Unmarshal(line, &m); err != nil {
				t.Fatal(err)
			}
			if first {
				c.truth, first = m.Truth, false
				return
			}
			c.payloads = append(c.payloads, unhex(t, m.Frames[len(m.Frames)-1]))
		})
		out[strings.TrimSuffix(filepath.Base(file), ".jsonl.gz")] = c
	}
	return out
}

// Engines' own streams hold nothing malformed, read as the reference reads
// them, and add up to what the engine says it holds.
func TestCaptures(t *testing.T) {
	var b Batch
	for name, c := range captures(t) {
		t.Run(name, func(t *testing.T) {
			held := map[string]map[uint64]int{} // group and tier → hash → copies
			for _, p := range c.payloads {
				agree(t, &b, p)
				if ts, ok := PeekTS(p); ts != b.TS || !ok || ts < 1.7e9 {
					t.Fatalf("ts %v, peeked %v", b.TS, ts)
				}
				for i := range b.Events {
					ev := &b.Events[i]
					group := strconv.Itoa(int(ev.Group))
					if m := string(ev.Medium); m != "" && m != "GPU" {
						group += "/" + m
					}
					if held[group] == nil {
						held[group] = map[uint64]int{}
					}
					switch ev.Type {
					case Stored:
						if ev.HasTokens && ev.Tokens.Len() > 0 && ev.BlockSize == 0 {
							t.Fatal("tokens of no block size")
						}
						for _, h := range ev.Hashes {
							held[group][h]++
						}
					case Removed:
						for _, h := range ev.Hashes {
							held[group][h]--
						}
					case Cleared:
						clear(held)
					default:
						t.Fatalf("type %d: %s %s", ev.Type, ev.Problem, ev.Name)
					}
				}
			}
			for group, truth := range c.truth {
				want := map[uint64]int{}
				for h, n := range truth {
					want[hashOf(t, h)] += n
				}
				for h, n := range held[group] {
					if n != want[h] {
						t.Errorf("group %s: %d copies of %d, the engine has %d", group, n, h, want[h])
					}
					delete(want, h)
				}
				if len(want) > 0 {
					t.Errorf("group %s: %d hashes missing", group, len(want))
				}
			}
		})
	}
}

// hashOf reads a hash as captures write it: a decimal integer of either sign,
// or 64 hex digits.
func hashOf(t *testing.T, s string) uint64 {
	if len(s) == 64 {
		s = "0x" + s[48:]
	}
	if v, err := strconv.ParseUint(s, 0, 64); err == nil {
		return v
	}
	v, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return uint64(v)
}

// allocated is how many bytes f allocates.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}
