package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/kvrelay/kvrelay/config"
	"github.com/kvrelay/kvrelay/discovery"
)

// discover loads settings and returns the first sources that they lead to.
func discover(t *testing.T, args ...string) []discovery.Source {
	t.Helper()
	cfg, err := config.Load(flag.NewFlagSet("run", flag.ContinueOnError), args)
	if err != nil {
		t.Fatal(err)
	}
	d, err := discovery.New(discoveryOptions(cfg, slog.New(slog.DiscardHandler)))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), commandPatience)
	defer cancel()
	var found []discovery.Source
	if err := d.Watch(ctx, func(list []discovery.Source) {
		found = list
		cancel()
	}); err != nil {
		t.Fatal(err)
	}
	return found
}

// A mock engine is found in every way that it can be asked.
func TestMockIsFound(t *testing.T) {
	for _, c := range []struct{ kind, scheme, how string }{
		{"vllm", "grpc", "vllm"}, {"vllm", "http", "vllm"},
		{"sglang", "grpc", "sglang"}, {"sglang", "http", "sglang"}, {"sglang", "grpc", "sglang-old"}, {"sglang", "http", "sglang-old"},
		{"openengine", "grpc", "openengine"},
	} {
		t.Run(c.how+" "+c.scheme, func(t *testing.T) {
			defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
			m := begin(t, runMock, "--http=127.0.0.1:0", "--grpc=127.0.0.1:0", "--discovery="+c.how, "--block-size=32", "--topic=kv@a", "--data-parallel-size=2", "--data-parallel-start-rank=2")
			url := map[string]*string{"http": new(string), "grpc": new(string)}
			m.line("http %s", url["http"])
			m.line("grpc %s", url["grpc"])
			var want []discovery.Source
			for rank := range uint32(2) {
				s := discovery.Source{Engine: *url[c.scheme], Kind: c.kind, Rank: 2 + rank, Topic: "kv@a", BlockSize: 32, Ranks: 4, Version: "mock"}
				m.line(fmt.Sprintf("rank %d events %%s replay %%s", 2+rank), &s.Endpoint, &s.Replay)
				switch {
				case c.how == "vllm" && c.scheme == "http": // it says only where
					s.BlockSize, s.Ranks, s.Version = 0, 2, ""
				case c.how == "sglang-old": // free ports do not follow each other
					s.Replay = ""
				case c.how == "openengine": // it counts the ranks from the first on
					s.Ranks = 2
				}
				want = append(want, s)
			}
			for _, engine := range []string{"auto", c.kind} {
				if got := discover(t, "--discovery-url="+*url[c.scheme], "--engine="+engine); !reflect.DeepEqual(got, want) {
					t.Errorf("ENGINE=%s:\ngot  %+v\nwant %+v", engine, got, want)
				}
			}
			set := discover(t, "--discovery-url="+*url[c.scheme], "--ranks=1", "--first-rank=3", "--topic=kv@", "--topic-exact", "--block-size=32", "--replay-endpoints=tcp://h:1", "--rewrite-loopback")
			w := want[1]
			w.Topic, w.TopicExact, w.BlockSize, w.Replay = "kv@", true, 32, "tcp://h:1"
			if len(set) != 1 || set[0] != w {
				t.Errorf("with settings:\ngot  %+v\nwant %+v", set, w)
			}
			if got := discover(t, "--discovery-url="+*url[c.scheme], "--replay-endpoints=none"); len(got) != 2 || got[0].Replay != "" {
				t.Errorf("without replay: %+v", got)
			}
			m.end()
		})
	}
}

// ENDPOINTS are told as they are.
func TestStaticSources(t *testing.T) {
	got := discover(t, "--endpoints=tcp://h:10", "--replay-endpoints=tcp://h:20", "--ranks=2", "--first-rank=1", "--topic=t", "--block-size=16")
	var lines []string
	for _, s := range got {
		lines = append(lines, fmt.Sprintf("%s %d %s %s %s %d %d", s.Engine, s.Rank, s.Endpoint, s.Replay, s.Topic, s.BlockSize, s.Ranks))
	}
	if want := "tcp://h:11 1 tcp://h:11 tcp://h:21 t 16 2, tcp://h:12 2 tcp://h:12 tcp://h:22 t 16 2"; strings.Join(lines, ", ") != want {
		t.Errorf("got %s", strings.Join(lines, ", "))
	}
}
