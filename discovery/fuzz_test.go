package discovery

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/kvrelay/kvrelay/internal/fuzzlimit"
)

// sound holds an answer's outcome to what the relay relies on.
func sound(t *testing.T, a *answer) {
	t.Helper()
	for _, o := range []Options{{}, {RewriteLoopback: true, NoReplay: true, Topic: "t", BlockSize: 7}, {Replay: []string{"tcp://r:65000"}}} {
		at, _ := parseTarget("grpc://10.0.0.5:50051")
		got := resolve(a, at, &o)
		if len(got.sources) > maxSources {
			t.Fatalf("%d sources", len(got.sources))
		}
		ranks, places := map[uint32]bool{}, map[endpoint]bool{}
		for _, s := range got.sources {
			if ranks[s.Rank] {
				t.Errorf("rank %d twice", s.Rank)
			}
			ranks[s.Rank] = true
			for _, text := range []string{s.Endpoint, s.Replay} {
				if text == "" && text == s.Replay {
					continue
				}
				e, err := parseEndpoint(text)
				if err != nil || e.path == "" && (isWildcard(e.host) || e.port == 0) {
					t.Errorf("source %+v cannot be dialled: %v", s, err)
				}
				if places[e.place()] {
					t.Errorf("%s twice", text)
				}
				places[e.place()] = true
			}
			if s.BlockSize > maxBlockSize || len(s.Topic) > maxTopic || o.NoReplay && s.Replay != "" {
				t.Errorf("source %+v", s)
			}
		}
		for _, r := range got.refused {
			if len(r.String()) > 1000 || !utf8.ValidString(r.String()) || strings.ContainsAny(r.String(), "\n\r\x00") {
				t.Errorf("refusal %q", r)
			}
		}
	}
}

func FuzzVLLM(f *testing.F) {
	for _, seed := range []string{
		`{"0":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:5558","buffer_steps":10000,"hwm":100000,"topic":"kv"}}`,
		`[{"data_parallel_rank":0,"endpoint":"tcp://127.0.0.1:5557","replay_endpoint":null,"topic":""},{"data_parallel_rank":0}]`,
		`{"0":{"endpoint":"ipc:///x"},"1":null,"00":{"endpoint":"tcp://:::1"}}`, `null`, `[]`, `{"0":NaN}`, `{"0":{"endpoint":"tcp://[fe80::1%eth0]:1"}}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		fuzzlimit.Run(t, len(body), func() { _, _ = parseVLLM(body) })
		a, err := parseVLLM(body)
		if err != nil {
			if a != nil || len(err.Error()) > 1000 {
				t.Errorf("%v, %v", a, err)
			}
			return
		}
		sound(t, a)
	})
}

func FuzzSGLang(f *testing.F) {
	for _, seed := range []string{
		`{"version":"0.5.20","dp_size":2,"kv_events":{"publisher":"zmq","endpoint_host":"*","endpoint_port_base":5557,"replay_endpoint_port_base":5559,"topic":"kv","block_size":64,"dp_size":2}}`,
		`{"kv_events":{"publisher":"zmq","endpoint_port_base":65535,"dp_size":4294967295,"publishers":[{"dp_rank":1,"endpoint":"tcp://h:1"}]}}`,
		`{"kv_events":null,"kv_event_sources":[{"dp_rank":0,"endpoint":"tcp://::1:1","topic":"a","block_size":16,"replay_endpoint":"tcp://h:2"}]}`,
		`{"kv_events":{"publisher":"null"},"x":-Infinity}`, `{}`, `[]`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		fuzzlimit.Run(t, len(body), func() { _, _ = parseSGLang(body, "x") })
		a, err := parseSGLang(body, "x")
		if err != nil {
			if a != nil || len(err.Error()) > 1000 {
				t.Errorf("%v, %v", a, err)
			}
			return
		}
		sound(t, a)
	})
}

func FuzzEndpoint(f *testing.F) {
	for _, seed := range []string{"tcp://*:1", "tcp://[::]:1", "tcp://:::1", "ipc:///x", "ipc://@x", "tcp://h:65535", "tcp://[fe80::1%eth0]:1", "tcp://fe80::1%a]b:1", "inproc://x", "tcp://h:0"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		fuzzlimit.Run(t, len(text), func() { _, _ = parseEndpoint(text) })
		e, err := parseEndpoint(text)
		if err != nil {
			if len(err.Error()) > 700 {
				t.Errorf("%d bytes of error", len(err.Error()))
			}
			return
		}
		again, err := parseEndpoint(e.String())
		if err != nil || again != e {
			t.Errorf("%q is %+v, its text %q is %+v, %v", text, e, e.String(), again, err)
		}
	})
}

// FuzzFinite: what is JSON already stays what it is.
func FuzzFinite(f *testing.F) {
	for _, seed := range []string{`{"a":NaN}`, `["NaN","\"Infinity",-Infinity,-1]`, `"\\"`, `NaN`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		fuzzlimit.Run(t, len(text), func() { finite(text) })
		got := finite(text)
		if json.Valid(text) && string(got) != string(text) {
			t.Errorf("%q became %q", text, got)
		}
	})
}

func TestFinite(t *testing.T) {
	for text, want := range map[string]string{
		`{"a":NaN,"b":[Infinity,-Infinity]}`: `{"a":null,"b":[null,null]}`,
		`{"NaN":"-Infinity \" NaN"}`:         `{"NaN":"-Infinity \" NaN"}`,
		`"Infinity\\",NaN`:                   `"Infinity\\",null`,
		`{"a":1}`:                            `{"a":1}`,
	} {
		if got := string(finite([]byte(text))); got != want {
			t.Errorf("%s became %s, want %s", text, got, want)
		}
	}
}
