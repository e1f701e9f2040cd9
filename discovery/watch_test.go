package discovery

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func one(endpoint string) answer {
	return answer{kind: KindVLLM, version: "1.0", blockSize: 16, ranks: 1, list: []advertised{zmq(0, endpoint, "")}}
}

// An engine that comes minutes late is waited for: more and more slowly, and
// every 30 s a line says what for.
func TestLateEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := watch(t, Options{URL: "http://h:1"}, "vllm")
		defer s.stop()
		const waits = `level=INFO msg="waiting for the engine to say where its KV events are" because="u: connection refused"`
		s.says(waits)
		s.after(10 * time.Second)
		s.says()
		s.after(80 * time.Second)
		lines := s.logged()
		if len(lines) < 2 || len(lines) > 3 || !strings.HasPrefix(lines[0], waits+" for=3") {
			t.Errorf("in 90 s: %q", lines)
		}
		s.asks("vllm", 19, 30) // in 90 s
		for range 100 {        // of a source that was there before
			s.d.Lost()
			s.after(time.Second)
		}
		s.asks("vllm", 19, 30) // no more for that
		s.logged()
		if st := s.d.State(); st.Awaiting != "u: connection refused" || st.LastError != st.Awaiting || st.Kind != "" || st.Asked != st.Failed || st.Asked < 19 || st.LastAnswer != (time.Time{}) || time.Since(st.Since) != 190*time.Second {
			t.Errorf("state %+v", st)
		}
		s.tells("vllm", refuses(notReady, "not ready yet (503)"))
		s.after(6 * time.Second)
		s.says(`level=INFO msg="waiting for the engine to say where its KV events are" because="u: not ready yet (503)"`) // another state: at once
		s.updated()
		s.tells("vllm", has(one("tcp://*:5557")))
		s.after(6 * time.Second)
		s.updated("0 tcp://10.0.0.1:5557 - - 16/1")
		s.says(`level=INFO msg="found the engine" engine=u kind=vllm version=1.0 sources="rank 0 at tcp://10.0.0.1:5557" block_size=16`)
		if st := s.d.State(); st.Awaiting != "" || st.Kind != KindVLLM || st.Engine != "u" || st.Version != "1.0" || len(st.Sources) != 1 || st.LastAnswer.IsZero() {
			t.Errorf("state %+v", st)
		}
	})
}

// An address that does not know the question is a warning; two of the usual
// ones that belong to something else are not.
func TestUnsupportedIsSaid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for level, names := range map[string][]string{"WARN": {"vllm"}, "INFO": {"vllm", "sglang@v"}} {
			s := watch(t, Options{}, names...)
			s.tells("vllm", refuses(unsupported, "404"))
			s.after(time.Second)
			if lines := s.logged(); len(lines) != 2 || !strings.HasPrefix(lines[1], "level="+level) || !strings.Contains(lines[1], "u answers, but does not know Q; settings that do the same") {
				t.Errorf("%q", lines)
			}
			s.stop()
		}
	})
}

// Sources that appear, move and vanish are told, and nothing is told twice.
func TestSourcesChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := watch(t, Options{URL: "http://h:1", Interval: 10 * time.Second}, "vllm")
		defer s.stop()
		a := one("tcp://*:1")
		a.ranks = 2
		s.tells("vllm", has(a))
		s.after(time.Minute)
		s.updated("0 tcp://10.0.0.1:1 - - 16/2")
		s.asks("vllm", 11, 14) // in a minute: soon after the change, then every 10 s
		s.says(`level=INFO msg="waiting for the engine to say where its KV events are" because="u: connection refused"`,
			`level=INFO msg="found the engine" engine=u kind=vllm version=1.0 sources="rank 0 at tcp://10.0.0.1:1" block_size=16`)
		a.list = []advertised{zmq(0, "tcp://*:1", ""), zmq(1, "tcp://*:2", "")}
		s.tells("vllm", has(a))
		s.after(10 * time.Second)
		s.updated("0 tcp://10.0.0.1:1 - - 16/2, 1 tcp://10.0.0.1:2 - - 16/2")
		s.says(`level=INFO msg="the engine's sources changed" engine=u kind=vllm version=1.0 sources="rank 0 at tcp://10.0.0.1:1, rank 1 at tcp://10.0.0.1:2" block_size=16`)
		a.list = []advertised{zmq(0, "tcp://*:9", ""), zmq(1, "tcp://*:2", "")}
		s.tells("vllm", has(a))
		s.after(time.Minute)
		s.updated("0 tcp://10.0.0.1:9 - - 16/2, 1 tcp://10.0.0.1:2 - - 16/2")
		s.asks("vllm", 13, 18) // soon again after each of the two changes
		a.list = nil
		s.tells("vllm", has(a))
		s.logged()
		s.after(time.Minute)
		s.updated("")
		s.says(`level=WARN msg="the engine publishes nothing: it has the decode role, or prefix caching or KV events are off" engine=u kind=vllm`)
		if st := s.d.State(); !strings.HasPrefix(st.Awaiting, "the engine publishes nothing") || len(st.Sources) != 0 || st.Kind != KindVLLM {
			t.Errorf("state %+v", st)
		}
		s.tells("vllm", has(one("tcp://*:1")))
		s.after(10 * time.Second)
		s.updated("0 tcp://10.0.0.1:1 - - 16/1")
	})
}

// An engine whose ranks are all left to other relays is not said to publish nothing.
func TestNoneIsChosen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := watch(t, Options{URL: "http://h:1", FirstRank: 8, Ranks: 1}, "vllm")
		defer s.stop()
		s.logged()
		s.tells("vllm", has(one("tcp://*:1")))
		s.after(time.Minute)
		const text = "the engine lists sources, all of rank 0, and none of them is chosen: FIRST_RANK and RANKS choose rank 8 alone"
		s.says(`level=WARN msg="` + text + `" engine=u kind=vllm`)
		if st := s.d.State(); st.Awaiting != text || len(st.Warnings) != 0 {
			t.Errorf("state %+v", st)
		}
	})
}

// A decode engine is no trouble.
func TestDecodeEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := watch(t, Options{URL: "http://h:1"}, "vllm")
		defer s.stop()
		s.logged()
		s.tells("vllm", has(answer{kind: KindOpenEngine, role: roleDecode}))
		s.after(5 * time.Minute)
		s.says(`level=INFO msg="the engine publishes nothing: it has the decode role" engine=u kind=openengine`)
		s.updated()
		if st := s.d.State(); st.Role != roleDecode || st.Failed == st.Asked {
			t.Errorf("state %+v", st)
		}
	})
}

// While an engine is away, what it said last holds; a lost stream has it asked
// at once, but a storm of losses not more than once a second.
func TestLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := watch(t, Options{URL: "http://h:1", Interval: time.Hour}, "vllm")
		defer s.stop()
		s.tells("vllm", has(one("tcp://*:1")))
		s.after(3 * time.Hour)
		s.updated("0 tcp://10.0.0.1:1 - - 16/1")
		s.counts()
		s.logged()
		s.d.Lost()
		s.after(0)
		s.asks("vllm", 1, 1)
		s.after(2 * time.Second) // the stream may end a moment before its engine: soon again
		s.asks("vllm", 2, 4)
		s.after(3 * time.Hour)
		s.counts()
		for range 1000 {
			s.d.Lost()
			s.after(10 * time.Millisecond)
		}
		s.asks("vllm", 8, 11) // in 10 s

		s.tells("vllm", refuses(unreachable, "connection refused"))
		s.d.Lost()
		s.after(time.Minute)
		s.updated()
		if lines := s.logged(); len(lines) == 0 || lines[0] != `level=INFO msg="the engine no longer says where its KV events are: what it said last holds" because="u: connection refused"` {
			t.Errorf("%q", lines)
		}
		if st := s.d.State(); len(st.Sources) != 1 || st.Awaiting == "" {
			t.Errorf("state %+v", st)
		}
		s.tells("vllm", has(one("tcp://*:1")))
		s.after(6 * time.Second)
		s.updated()
		s.says(`level=INFO msg="the engine answers again: its sources are as they were" engine=u`)
		s.tells("vllm", has(one("tcp://*:2"))) // moved: an ephemeral port
		s.d.Lost()
		s.after(time.Second)
		s.updated("0 tcp://10.0.0.1:2 - - 16/1")
	})
}

// auto asks all at once, goes by the most telling that has sources, and then
// asks that one alone until it fails.
func TestAuto(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := watch(t, Options{}, "vllm", "sglang@v", "openengine@w")
		defer s.stop()
		if n := s.counts(); len(n) != 3 {
			t.Errorf("asked %v", n)
		}
		s.says(`level=INFO msg="waiting for the engine to say where its KV events are" because="u: connection refused; v: connection refused; w: connection refused"`)
		s.tells("vllm", has(answer{kind: KindVLLM}))
		s.after(5 * time.Second)
		s.updated() // it answers, and has nothing: another may come
		b := one("tcp://*:1")
		b.kind = KindSGLang
		s.tells("sglang@v", has(b))
		c := one("tcp://*:2")
		s.tells("openengine@w", has(c))
		s.after(11 * time.Second)
		s.updated("0 tcp://10.0.0.1:1 - - 16/1")
		if st := s.d.State(); st.Engine != "v" || st.Kind != KindSGLang {
			t.Errorf("state %+v", st)
		}
		s.counts()
		s.after(time.Minute)
		if n := s.counts(); len(n) != 1 || n["sglang@v"] < 4 {
			t.Errorf("asked %v", n)
		}
		s.tells("openengine@w", refuses(unreachable, "connection refused"))
		s.tells("sglang@v", refuses(unreachable, "connection refused"))
		s.tells("vllm", refuses(notReady, "503"))
		s.logged()
		s.after(20 * time.Second)
		s.says(`level=INFO msg="the engine no longer says where its KV events are: what it said last holds" because="v: connection refused"`) // once
		s.tells("openengine@w", has(c))
		s.after(11 * time.Second)
		s.updated("0 tcp://10.0.0.1:2 - - 16/1")
		if st := s.d.State(); st.Engine != "w" {
			t.Errorf("state %+v", st)
		}
	})
}

// What an engine says more or less of a stream does not end it; what it says
// otherwise does.
func TestSettle(t *testing.T) {
	told := Source{Engine: "u", Kind: KindVLLM, Rank: 1, Endpoint: "tcp://h:1", Replay: "tcp://h:2", Topic: "t", BlockSize: 16, Ranks: 2, Version: "1"}
	change := func(f func(*Source)) Source {
		s := told
		f(&s)
		return s
	}
	for name, s := range map[string]Source{
		"the same": told, "another address": change(func(s *Source) { s.Engine = "v" }), "no block size": change(func(s *Source) { s.BlockSize = 0 }),
		"no version": change(func(s *Source) { s.Version = "" }), "no ranks, no version": change(func(s *Source) { s.Ranks, s.Version = 0, "" }),
	} {
		if got := settle([]Source{{}, told}, []Source{s}); got[0] != told {
			t.Errorf("%s: %+v", name, got)
		}
	}
	less := change(func(s *Source) { s.BlockSize, s.Version = 0, "" })
	if got := settle([]Source{less}, []Source{told}); got[0] != less {
		t.Errorf("more: %+v", got)
	}
	for name, s := range map[string]Source{
		"endpoint": change(func(s *Source) { s.Endpoint = "x" }), "replay": change(func(s *Source) { s.Replay = "" }), "topic": change(func(s *Source) { s.Topic = "" }),
		"block size": change(func(s *Source) { s.BlockSize = 32 }), "ranks": change(func(s *Source) { s.Ranks = 3 }), "version": change(func(s *Source) { s.Version = "2" }),
		"rank": change(func(s *Source) { s.Rank = 2 }), "kind": change(func(s *Source) { s.Kind = KindSGLang }),
	} {
		if got := settle([]Source{told}, []Source{s}); got[0] != s {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// An answer without the block size is waited on for a moment, since a stream
// cannot be given one later; but not for ever.
func TestPartialIsWaitedOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := watch(t, Options{URL: "http://h:1"}, "vllm")
		defer s.stop()
		partial := answer{kind: KindVLLM, partial: "GetServerInfo: not ready yet", list: []advertised{zmq(0, "tcp://*:1", "")}}
		s.tells("vllm", has(partial))
		s.after(1200 * time.Millisecond)
		s.updated()
		if st := s.d.State(); st.Awaiting != "u: GetServerInfo: not ready yet" {
			t.Errorf("state %+v", st)
		}
		s.tells("vllm", has(one("tcp://*:1")))
		s.after(5 * time.Second)
		s.updated("0 tcp://10.0.0.1:1 - - 16/1")
		s.tells("vllm", has(partial))
		s.logged()
		s.after(time.Minute)
		s.updated() // known already
		s.says()
	})
	synctest.Test(t, func(t *testing.T) {
		s := watch(t, Options{URL: "http://h:1"}, "vllm")
		defer s.stop()
		s.tells("vllm", has(answer{kind: KindVLLM, partial: "GetServerInfo: not ready yet", list: []advertised{zmq(0, "tcp://*:1", "")}}))
		s.after(time.Minute)
		s.updated("0 tcp://10.0.0.1:1 - - 0/1")
		if lines := s.logged(); lines[len(lines)-1] != `level=WARN msg="GetServerInfo: not ready yet; going on without" engine=u` {
			t.Errorf("%q", lines)
		}
	})
}

// Each refusal and warning is said once; one that comes anew is said anew.
func TestRefusalsAreSaidOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := watch(t, Options{URL: "http://h:1"}, "vllm")
		defer s.stop()
		s.logged()
		wrong := answer{kind: KindVLLM, list: []advertised{{rank: 1, hasRank: true, transport: "x", endpoint: "tcp://h:2"}}}
		s.tells("vllm", has(wrong))
		s.after(5 * time.Minute)
		s.says(`level=WARN msg="none of the engine's sources can be used" engine=u kind=vllm`, `level=WARN msg="not used: rank 1 at tcp://h:2: transport x: want zmq" engine=u`)
		if st := s.d.State(); st.Awaiting != "none of the engine's sources can be used" || len(st.Refused) != 1 {
			t.Errorf("state %+v", st)
		}
		s.tells("vllm", has(answer{kind: KindVLLM, list: []advertised{zmq(0, "tcp://127.0.0.1:1", "")}}))
		s.after(time.Minute)
		if lines := s.logged(); len(lines) != 2 || !strings.Contains(lines[0], "found the engine") || !strings.Contains(lines[1], "REWRITE_LOOPBACK") {
			t.Errorf("%q", lines)
		}
		if st := s.d.State(); len(st.Refused) != 0 || len(st.Warnings) != 1 {
			t.Errorf("state %+v", st)
		}
		s.tells("vllm", has(wrong))
		s.after(time.Minute)
		if lines := s.logged(); len(lines) != 2 || !strings.Contains(lines[1], "not used") {
			t.Errorf("%q", lines)
		}
	})
}

// An engine that says something else of a thousand sources each time makes few lines.
func TestManyRefusalsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := watch(t, Options{URL: "http://h:1"}, "vllm")
		defer s.stop()
		s.logged()
		lies := func(round int) answer {
			a := answer{kind: KindVLLM, list: []advertised{zmq(1000, fmt.Sprintf("tcp://127.0.0.1:%d", round+1), "")}}
			for rank := range 1000 {
				a.list = append(a.list, advertised{rank: uint32(rank), hasRank: true, transport: fmt.Sprint(round), endpoint: "tcp://h:2"})
			}
			return a
		}
		for round := range 10 {
			s.tells("vllm", has(lies(round)))
			s.after(time.Second)
		}
		lines := s.logged()
		single, counts := 0, 0
		for _, line := range lines {
			if strings.Contains(line, "not used: rank") {
				single++
			}
			if strings.Contains(line, "not used: more sources") {
				counts++
			}
		}
		if single != newsAtOnce || counts == 0 || len(lines) > 60 {
			t.Errorf("%d lines, %d of them about one source, %d with a count: %q", len(lines), single, counts, lines)
		}
		s.after(sayAgain)
		s.logged()
		s.tells("vllm", has(lies(10)))
		s.after(time.Minute)
		if lines := s.logged(); !strings.Contains(strings.Join(lines, "\n"), "not used: rank 0") {
			t.Errorf("news is not told again: %q", lines)
		}
	})
}

func TestManySourcesAreCounted(t *testing.T) {
	if got := fmt.Sprint(describe(&answer{kind: "vllm", role: "prefill"}, make([]Source, 9))); got != "[kind vllm role prefill sources 9]" {
		t.Error(got)
	}
}

func TestStatic(t *testing.T) {
	list := []Source{{Engine: "e", Kind: KindStatic, Endpoint: "ipc:///no/such/sock"}, {Rank: 1, Endpoint: "listen:tcp://*:1"}}
	var log bytes.Buffer
	d, err := New(Options{Static: list, Log: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var got []Source
	if err := d.Watch(ctx, func(l []Source) { got = l }); err != nil || !reflect.DeepEqual(got, list) {
		t.Errorf("%v, %v", got, err)
	}
	d.Lost()
	if st := d.State(); st.Kind != KindStatic || st.Engine != "e" || len(st.Sources) != 2 || len(st.Warnings) != 1 || st.Awaiting != "" || !strings.Contains(log.String(), "no ipc:///no/such/sock here") {
		t.Errorf("%+v; %s", st, log.String())
	}
}

// The whole of Watch against a real server that comes, moves and goes.
func TestWatchARealEngine(t *testing.T) {
	answers := map[string]string{"/kv_event_sources": `{"0":{"endpoint":"tcp://*:1"}}`}
	told := make(chan []Source, 1)
	d, err := New(Options{URL: "http://" + web(t, answers)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- d.Watch(ctx, func(l []Source) { told <- l }) }()
	if l := <-told; len(l) != 1 || short(l[0]) != "0 tcp://127.0.0.1:1 - - 0/1" {
		t.Errorf("%v", l)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
