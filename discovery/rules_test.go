package discovery

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
)

// short is a Source in one line: rank endpoint replay topic block/ranks.
func short(s Source) string {
	return fmt.Sprintf("%d %s %s %s %d/%d", s.Rank, s.Endpoint, or(s.Replay, "-"), or(s.Topic, "-"), s.BlockSize, s.Ranks)
}

func or(s, t string) string {
	if s == "" {
		return t
	}
	return s
}

func zmq(rank uint32, endpoint, replay string) advertised {
	return advertised{rank: rank, hasRank: true, transport: "zmq", endpoint: endpoint, replay: replay}
}

// Every rule with its exact words: what an engine advertises, what comes of it.
func TestRules(t *testing.T) {
	type list = []advertised
	many := func(n int) (l list) {
		for i := range n {
			l = append(l, zmq(uint32(i), fmt.Sprintf("tcp://h:%d", 1000+i), ""))
		}
		return l
	}
	for _, c := range []struct {
		name     string
		at       string // discovery address; "": grpc://10.0.0.5:50051
		o        Options
		a        answer
		list     list
		want     []string // sources
		refused  []string
		warnings []string
		unchosen string
	}{
		{name: "plain", list: list{zmq(0, "tcp://10.0.0.7:5557", "tcp://10.0.0.7:5558")}, want: []string{"0 tcp://10.0.0.7:5557 tcp://10.0.0.7:5558 - 0/1"}},
		{name: "nothing"},
		{name: "what the engine knows", a: answer{blockSize: 16, ranks: 2, dp: span{0, 2}},
			list: list{{rank: 1, hasRank: true, transport: "zmq", encoding: "MsgPack", endpoint: "tcp://h:1", topic: "kv@p@m"}},
			want: []string{"1 tcp://h:1 - kv@p@m 16/2"}},
		{name: "a block size of the source's own", a: answer{blockSize: 16},
			list: list{{transport: "zmq", endpoint: "tcp://h:1", blockSize: 64}}, want: []string{"0 tcp://h:1 - - 64/1"}},
		{name: "in the order of ranks", list: list{zmq(7, "tcp://h:7", ""), zmq(2, "tcp://h:2", ""), zmq(5, "tcp://h:5", "")},
			want: []string{"2 tcp://h:2 - - 0/3", "5 tcp://h:5 - - 0/3", "7 tcp://h:7 - - 0/3"}},

		{name: "wildcards", list: list{
			zmq(0, "tcp://*:1", "tcp://*:11"), zmq(1, "tcp://0.0.0.0:2", "tcp://0.0.0.0:12"), zmq(2, "tcp://[::]:3", "tcp://[::]:13"),
			zmq(3, "tcp://:::4", "tcp://:::14"), zmq(4, "tcp://:5", ""), zmq(5, "tcp://[::ffff:0.0.0.0]:6", "")},
			want: []string{
				"0 tcp://10.0.0.5:1 tcp://10.0.0.5:11 - 0/6", "1 tcp://10.0.0.5:2 tcp://10.0.0.5:12 - 0/6", "2 tcp://10.0.0.5:3 tcp://10.0.0.5:13 - 0/6",
				"3 tcp://10.0.0.5:4 tcp://10.0.0.5:14 - 0/6", "4 tcp://10.0.0.5:5 - - 0/6", "5 tcp://10.0.0.5:6 - - 0/6"}},
		{name: "wildcards asked over IPv6", at: "http://[fd00::5]:8000", list: list{zmq(0, "tcp://*:1", "tcp://[::]:2")},
			want: []string{"0 tcp://[fd00::5]:1 tcp://[fd00::5]:2 - 0/1"}},
		{name: "wildcards asked by name", at: "grpcs://engine-0.engines:443", list: list{zmq(0, "tcp://*:1", "")},
			want: []string{"0 tcp://engine-0.engines:1 - - 0/1"}},
		{name: "IPv6 endpoints", list: list{zmq(0, "tcp://[fd00::7]:1", "tcp://fd00::7:2")}, want: []string{"0 tcp://[fd00::7]:1 tcp://[fd00::7]:2 - 0/1"}},

		{name: "loopback in one pod", at: "grpc://127.0.0.1:50051", list: list{zmq(0, "tcp://127.0.0.1:1", "tcp://localhost:2")},
			want: []string{"0 tcp://127.0.0.1:1 tcp://localhost:2 - 0/1"}},
		{name: "loopback from elsewhere", list: list{zmq(0, "tcp://127.0.0.1:1", "tcp://[::1]:2")}, want: []string{"0 tcp://127.0.0.1:1 tcp://[::1]:2 - 0/1"},
			warnings: []string{
				"rank 0 at tcp://127.0.0.1:1: the engine advertises tcp://127.0.0.1:1, which reaches it only from its own pod or host, and was asked at 10.0.0.5; if that is another, set REWRITE_LOOPBACK=true to dial tcp://10.0.0.5:1, and have the engine bind tcp://*:1",
				"rank 0 at tcp://127.0.0.1:1: the engine advertises tcp://[::1]:2, which reaches it only from its own pod or host, and was asked at 10.0.0.5; if that is another, set REWRITE_LOOPBACK=true to dial tcp://10.0.0.5:2, and have the engine bind tcp://*:2"}},
		{name: "loopback rewritten", o: Options{RewriteLoopback: true}, list: list{zmq(0, "tcp://127.8.0.1:1", "tcp://LocalHost:2"), zmq(1, "tcp://[::1]:3", ""), zmq(2, "tcp://h:4", "")},
			want: []string{"0 tcp://10.0.0.5:1 tcp://10.0.0.5:2 - 0/3", "1 tcp://10.0.0.5:3 - - 0/3", "2 tcp://h:4 - - 0/3"}},
		{name: "loopback rewritten to another loopback", at: "grpc://127.0.0.2:50051", o: Options{RewriteLoopback: true}, list: list{zmq(0, "tcp://127.0.0.1:1", "")},
			want: []string{"0 tcp://127.0.0.2:1 - - 0/1"}},

		{name: "ipc without its file", list: list{zmq(0, "ipc:///no/such/kv.sock", "ipc:///no/such/replay.sock"), zmq(1, "ipc://@abstract", "")},
			want: []string{"0 ipc:///no/such/kv.sock ipc:///no/such/replay.sock - 0/2", "1 ipc://@abstract - - 0/2"},
			warnings: []string{
				"rank 0 at ipc:///no/such/kv.sock: there is no ipc:///no/such/kv.sock here; the engine's socket must be on a volume that kvrelay shares, at the same path",
				"rank 0 at ipc:///no/such/kv.sock: there is no ipc:///no/such/replay.sock here; the engine's socket must be on a volume that kvrelay shares, at the same path"}},

		{name: "another transport", list: list{{transport: "nixl", hasRank: true, rank: 1, endpoint: "tcp://h:1"}, zmq(0, "tcp://h:2", ""), {transport: "", endpoint: "tcp://h:3"}},
			want: []string{"0 tcp://h:2 - - 0/2"},
			refused: []string{`the source without a rank at tcp://h:3: transport "": want zmq`,
				"rank 1 at tcp://h:1: transport nixl: want zmq"}},
		{name: "its own stream beside zmq", list: list{{transport: "grpc", hasRank: true, endpoint: "tcp://h:1"}, zmq(0, "tcp://h:2", "")},
			want: []string{"0 tcp://h:2 - - 0/1"}, refused: []string{"rank 0 at tcp://h:1: transport grpc (SubscribeKvEvents) is not supported yet; the engine's zmq source of the rank is used"}},
		{name: "its own stream alone", list: list{{transport: "grpc", hasRank: true}},
			refused: []string{"rank 0: transport grpc (SubscribeKvEvents) is not supported yet: have the engine publish over zmq"}},
		{name: "another encoding", list: list{{transport: "zmq", encoding: "json", endpoint: "tcp://h:1"}},
			refused: []string{"the source without a rank at tcp://h:1: encoding json: want msgpack"}},
		{name: "no endpoint", list: list{zmq(0, "", ""), zmq(1, "tcp://h:1", "")}, want: []string{"1 tcp://h:1 - - 0/2"}, refused: []string{"rank 0: it has no endpoint"}},
		{name: "a rank twice", list: list{zmq(0, "tcp://h:1", ""), zmq(0, "tcp://h:2", ""), zmq(1, "tcp://h:3", "")},
			want: []string{"0 tcp://h:1 - - 0/2", "1 tcp://h:3 - - 0/2"}, refused: []string{"rank 0 at tcp://h:2: rank 0 is advertised twice: rank 0 at tcp://h:1 has it"}},
		{name: "a rank twice, once wrong", list: list{zmq(0, "", ""), zmq(0, "tcp://h:2", "")}, want: []string{"0 tcp://h:2 - - 0/1"}, refused: []string{"rank 0: it has no endpoint"}},
		{name: "two without a rank", a: answer{own: 3}, list: list{{transport: "zmq", endpoint: "tcp://h:1"}, {transport: "zmq", endpoint: "tcp://h:2"}},
			want:    []string{"3 tcp://h:1 - - 0/1"},
			refused: []string{"the source without a rank at tcp://h:2: rank 3 is advertised twice: the source without a rank at tcp://h:1 has it"}},
		{name: "outside the range", a: answer{dp: span{4, 4}, ranks: 8}, list: list{zmq(3, "tcp://h:1", ""), zmq(4, "tcp://h:2", ""), zmq(7, "tcp://h:3", ""), zmq(8, "tcp://h:4", "")},
			want: []string{"4 tcp://h:2 - - 0/8", "7 tcp://h:3 - - 0/8"},
			refused: []string{"rank 3 at tcp://h:1: rank 3 is outside what the engine says it has: ranks 4 to 7",
				"rank 8 at tcp://h:4: rank 8 is outside what the engine says it has: ranks 4 to 7"}},
		{name: "outside one rank", a: answer{dp: span{0, 1}, ranks: 1}, list: list{zmq(4294967295, "tcp://h:1", "")},
			refused: []string{"rank 4294967295 at tcp://h:1: rank 4294967295 is outside what the engine says it has: rank 0 alone"}},
		{name: "one endpoint for two", list: list{zmq(0, "tcp://localhost:1", ""), zmq(1, "tcp://127.0.0.1:1", "")}, at: "http://localhost:1",
			want: []string{"0 tcp://localhost:1 - - 0/2"}, refused: []string{"rank 1 at tcp://127.0.0.1:1: tcp://127.0.0.1:1 is also the live endpoint of rank 0 at tcp://localhost:1: want an endpoint for each rank"}},
		{name: "one endpoint for two, spelt otherwise", list: list{zmq(0, "tcp://Engine:1", ""), zmq(1, "tcp://engine:1", ""), zmq(2, "tcp://[::ffff:10.0.0.9]:1", ""), zmq(3, "tcp://10.0.0.9:1", "")},
			want: []string{"0 tcp://Engine:1 - - 0/4", "2 tcp://[::ffff:10.0.0.9]:1 - - 0/4"},
			refused: []string{"rank 1 at tcp://engine:1: tcp://engine:1 is also the live endpoint of rank 0 at tcp://Engine:1: want an endpoint for each rank",
				"rank 3 at tcp://10.0.0.9:1: tcp://10.0.0.9:1 is also the live endpoint of rank 2 at tcp://[::ffff:10.0.0.9]:1: want an endpoint for each rank"}},
		{name: "ranges that overlap", list: list{zmq(0, "tcp://*:5557", "tcp://*:5558"), zmq(1, "tcp://*:5558", "tcp://*:5559")}, want: []string{"1 tcp://10.0.0.5:5558 tcp://10.0.0.5:5559 - 0/2"},
			refused: []string{"rank 0 at tcp://*:5557: its replay endpoint tcp://10.0.0.5:5558 is also the live endpoint of rank 1 at tcp://*:5558: the two ranges of ports overlap; give the engine another replay port, or set REPLAY_ENDPOINTS"}},
		{name: "overlap with itself", list: list{zmq(0, "tcp://*:5557", "tcp://*:5557")},
			refused: []string{"rank 0 at tcp://*:5557: its replay endpoint tcp://10.0.0.5:5557 is also the live endpoint of rank 0 at tcp://*:5557: the two ranges of ports overlap; give the engine another replay port, or set REPLAY_ENDPOINTS"}},
		{name: "the same ports on two hosts", list: list{zmq(0, "tcp://a:5557", "tcp://b:5557"), zmq(1, "tcp://b:5558", "tcp://a:5558")},
			want: []string{"0 tcp://a:5557 tcp://b:5557 - 0/2", "1 tcp://b:5558 tcp://a:5558 - 0/2"}},
		{name: "one replay endpoint for two", list: list{zmq(0, "tcp://h:1", "tcp://h:9"), zmq(1, "tcp://h:2", "tcp://h:9")}, want: []string{"0 tcp://h:1 tcp://h:9 - 0/2"},
			refused: []string{"rank 1 at tcp://h:2: its replay endpoint tcp://h:9 is also the replay endpoint of rank 0 at tcp://h:1: the two ranges of ports overlap; give the engine another replay port, or set REPLAY_ENDPOINTS"}},

		{name: "endpoints that are none", list: list{
			zmq(0, "h:1", ""), zmq(1, "inproc://kv", ""), zmq(2, "udp://h:1", ""), zmq(3, "tcp://h", ""), zmq(4, "tcp://h:0", ""), zmq(5, "tcp://*:*", ""),
			zmq(6, "tcp://h:65536", ""), zmq(7, "tcp://h:-1", ""), zmq(8, "tcp://[h]:1", ""), zmq(9, "tcp://[::1:1", ""), zmq(10, "tcp://a b:1", ""), zmq(11, "ipc://", ""),
			zmq(12, "tcp://h:1\n", ""), zmq(13, "tcp://eth0;h:1", ""), zmq(14, "tcp://"+strings.Repeat("h", 600)+":1", ""), zmq(15, "ipc://"+strings.Repeat("p", 104), ""), zmq(16, "tcp://**:1", "")},
			refused: []string{
				"rank 0 at h:1: endpoint h:1: want tcp://host:port or ipc://path",
				"rank 1 at inproc://kv: inproc:// is inside the engine's own process: give the engine a tcp:// or ipc:// endpoint",
				"rank 2 at udp://h:1: endpoint udp://h:1: want tcp://host:port or ipc://path",
				"rank 3 at tcp://h: endpoint tcp://h: it has no port",
				"rank 4 at tcp://h:0: endpoint tcp://h:0: the engine does not say which port it was given",
				"rank 5 at tcp://*:*: endpoint tcp://*:*: the engine does not say which port it was given",
				"rank 6 at tcp://h:65536: endpoint tcp://h:65536: want a port from 1 to 65535",
				"rank 7 at tcp://h:-1: endpoint tcp://h:-1: want a port from 1 to 65535",
				"rank 8 at tcp://[h]:1: endpoint tcp://[h]:1: want an IPv6 address in the brackets",
				"rank 9 at tcp://[::1:1: endpoint tcp://[::1:1: want an IPv6 address in the brackets",
				`rank 10 at "tcp://a b:1": endpoint "tcp://a b:1": want a host before the port`,
				"rank 11 at ipc://: endpoint ipc://: want ipc:// and a path of 1 to 103 bytes",
				`rank 12 at "tcp://h:1\n": endpoint "tcp://h:1\n": want a port from 1 to 65535`,
				"rank 13 at tcp://eth0;h:1: endpoint tcp://eth0;h:1: want a host before the port",
				"rank 14 at tcp://" + strings.Repeat("h", 114) + "…: its endpoint is longer than 512 bytes",
				"rank 15 at ipc://" + strings.Repeat("p", 104) + ": endpoint ipc://" + strings.Repeat("p", 104) + ": want ipc:// and a path of 1 to 103 bytes",
				"rank 16 at tcp://**:1: endpoint tcp://**:1: want a host before the port"}},
		{name: "a replay endpoint that is none", list: list{zmq(0, "tcp://h:1", "tcp://h:70000")},
			refused: []string{"rank 0 at tcp://h:1: its replay endpoint tcp://h:70000: want a port from 1 to 65535; REPLAY_ENDPOINTS can name another, or none"}},
		{name: "no use for a wrong replay endpoint", o: Options{NoReplay: true}, list: list{zmq(0, "tcp://h:1", "tcp://h:70000")}, want: []string{"0 tcp://h:1 - - 0/1"}},
		{name: "a long topic", list: list{{transport: "zmq", endpoint: "tcp://h:1", topic: strings.Repeat("t", 1025)}},
			refused: []string{"the source without a rank at tcp://h:1: its topic is longer than 1024 bytes"}},
		{name: "too many", list: many(1030)[:1026], want: nil, refused: []string{"2 further sources: at most 1024 are used"}},

		{name: "replay set for one", o: Options{Replay: []string{"tcp://r:9"}}, list: list{zmq(3, "tcp://h:1", "tcp://h:2")}, want: []string{"3 tcp://h:1 tcp://r:9 - 0/1"}},
		{name: "replay counts up", o: Options{Replay: []string{"tcp://r:90"}}, list: list{zmq(2, "tcp://h:1", ""), zmq(3, "tcp://h:2", "")},
			want: []string{"2 tcp://h:1 tcp://r:92 - 0/2", "3 tcp://h:2 tcp://r:93 - 0/2"}},
		{name: "replay of each", o: Options{Replay: []string{"tcp://r:9", "ipc://@r"}}, list: list{zmq(3, "tcp://h:2", ""), zmq(2, "tcp://h:1", "")},
			want: []string{"2 tcp://h:1 tcp://r:9 - 0/2", "3 tcp://h:2 ipc://@r - 0/2"}},
		{name: "replay that does not fit", o: Options{Replay: []string{"tcp://r:9", "tcp://r:10"}}, list: list{zmq(0, "tcp://h:1", "tcp://h:5"), zmq(1, "tcp://h:2", ""), zmq(2, "tcp://h:3", "")},
			want:     []string{"0 tcp://h:1 tcp://h:5 - 0/3", "1 tcp://h:2 - - 0/3", "2 tcp://h:3 - - 0/3"},
			warnings: []string{"REPLAY_ENDPOINTS has 2 entries and the engine 3 ranks: want one entry, or one for each rank; what the engine says is used"}},
		{name: "replay beyond the last port", o: Options{Replay: []string{"tcp://r:65535"}}, list: list{zmq(0, "tcp://h:1", ""), zmq(1, "tcp://h:2", "")},
			want:     []string{"0 tcp://h:1 tcp://r:65535 - 0/2", "1 tcp://h:2 - - 0/2"},
			warnings: []string{"REPLAY_ENDPOINTS: port 65535 + rank 1 is beyond 65535; what the engine says of rank 1 is used"}},
		{name: "one replay path for two", o: Options{Replay: []string{"ipc:///r"}}, list: list{zmq(0, "tcp://h:1", ""), zmq(1, "tcp://h:2", "tcp://h:3")},
			want: []string{"0 tcp://h:1 - - 0/2", "1 tcp://h:2 tcp://h:3 - 0/2"},
			warnings: []string{"REPLAY_ENDPOINTS: a path does not count up: want one endpoint for each rank; what the engine says of rank 0 is used",
				"REPLAY_ENDPOINTS: a path does not count up: want one endpoint for each rank; what the engine says of rank 1 is used"}},
		{name: "a loopback replay that was set", o: Options{Replay: []string{"tcp://127.0.0.1:9"}}, list: list{zmq(0, "tcp://h:1", "")}, want: []string{"0 tcp://h:1 tcp://127.0.0.1:9 - 0/1"}},
		{name: "no replay wanted", o: Options{NoReplay: true}, list: list{zmq(0, "tcp://h:1", "tcp://h:2")}, want: []string{"0 tcp://h:1 - - 0/1"}},

		{name: "a topic set", o: Options{Topic: "kv@"}, list: list{{transport: "zmq", endpoint: "tcp://h:1", topic: "kv@p@m"}}, want: []string{"0 tcp://h:1 - kv@ 0/1"}},
		{name: "a longer topic set", o: Options{Topic: "kv@p@m"}, list: list{{transport: "zmq", endpoint: "tcp://h:1", topic: "kv@"}}, want: []string{"0 tcp://h:1 - kv@p@m 0/1"}},
		{name: "a topic set that lets nothing through", o: Options{Topic: "kw"}, list: list{{transport: "zmq", endpoint: "tcp://h:1", topic: "kv@p@m"}}, want: []string{"0 tcp://h:1 - kw 0/1"},
			warnings: []string{"the source without a rank at tcp://h:1: the engine publishes under topic kv@p@m, so TOPIC=kw lets nothing through"}},
		{name: "a block size set", o: Options{BlockSize: 32}, a: answer{blockSize: 16}, list: list{zmq(0, "tcp://h:1", "")}, want: []string{"0 tcp://h:1 - - 32/1"},
			warnings: []string{"rank 0 at tcp://h:1: BLOCK_SIZE is 32 but the engine's blocks have 16 tokens"}},
		{name: "a block size set and unknown", o: Options{BlockSize: 32}, list: list{zmq(0, "tcp://h:1", "")}, want: []string{"0 tcp://h:1 - - 32/1"}},
		{name: "a block size beyond belief", a: answer{blockSize: 1 << 21}, list: list{zmq(0, "tcp://h:1", "")}, want: []string{"0 tcp://h:1 - - 0/1"},
			warnings: []string{"rank 0 at tcp://h:1: a block size of 2097152 is not believed: want at most 1048576 tokens"}},
		{name: "some of the ranks", o: Options{Ranks: 2, FirstRank: 1}, a: answer{ranks: 4}, list: many(4), want: []string{"1 tcp://h:1001 - - 0/4", "2 tcp://h:1002 - - 0/4"}},
		{name: "none of the ranks", o: Options{Ranks: 2, FirstRank: 4}, list: many(2), unchosen: "the engine lists sources, of ranks from 0 to 1, and none of them is chosen: FIRST_RANK and RANKS choose ranks 4 to 5"},
	} {
		t.Run(c.name, func(t *testing.T) {
			at, err := parseTarget(or(c.at, "grpc://10.0.0.5:50051"))
			if err != nil {
				t.Fatal(err)
			}
			c.a.kind, c.a.version, c.a.list = KindVLLM, "1.2", c.list
			got := resolve(&c.a, at, &c.o)
			if got.unchosen != c.unchosen {
				t.Errorf("unchosen %q", got.unchosen)
			}
			var sources, refused []string
			for _, s := range got.sources {
				sources = append(sources, short(s))
				if s.Engine != at.url || s.Kind != KindVLLM || s.Version != "1.2" || s.TopicExact {
					t.Errorf("source %+v", s)
				}
			}
			for _, r := range got.refused {
				refused = append(refused, r.String())
			}
			if c.name == "too many" {
				if len(sources) != 1024 {
					t.Errorf("%d sources", len(sources))
				}
				sources = nil
			}
			for _, x := range []struct {
				what      string
				got, want []string
			}{{"sources", sources, c.want}, {"refused", refused, c.refused}, {"warnings", got.warnings, c.warnings}} {
				if len(x.got)+len(x.want) > 0 && !reflect.DeepEqual(x.got, x.want) {
					t.Errorf("%s\n%s\nwant\n%s", x.what, strings.Join(x.got, "\n"), strings.Join(x.want, "\n"))
				}
			}
		})
	}
}

// A socket file that is there is not missed.
func TestSocketThatIsThere(t *testing.T) {
	path := t.TempDir()
	at, _ := parseTarget("http://h:1")
	got := resolve(&answer{list: []advertised{zmq(0, "ipc://"+path, "")}}, at, &Options{})
	if len(got.sources) != 1 || len(got.warnings) != 0 {
		t.Errorf("%+v", got)
	}
}

func TestSpan(t *testing.T) {
	last := span{4294967290, 10} // reaches beyond the last number
	for rank, want := range map[uint32]bool{4294967289: false, 4294967290: true, 4294967295: true, 0: false, 3: false} {
		if last.has(rank) != want {
			t.Errorf("%v has %d: %v", last, rank, !want)
		}
	}
	if got := last.String(); got != "ranks 4294967290 to 4294967299" {
		t.Error(got)
	}
	if !(span{5, 0}).has(0) {
		t.Error("an unknown range excludes a rank")
	}
}
