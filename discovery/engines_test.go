package discovery

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"google.golang.org/grpc"

	"github.com/kvrelay/kvrelay/internal/enginepb/openenginepb"
	"github.com/kvrelay/kvrelay/internal/enginepb/sglangpb"
	"github.com/kvrelay/kvrelay/internal/enginepb/vllmpb"
)

func vllmSources(list ...*vllmpb.KvEventSource) func(context.Context) (*vllmpb.GetKvEventSourcesResponse, error) {
	return func(context.Context) (*vllmpb.GetKvEventSourcesResponse, error) {
		return &vllmpb.GetKvEventSourcesResponse{Sources: list}, nil
	}
}

func serveVLLM(t *testing.T, e *vllmEngine) string {
	return "grpc://" + serve(t, func(s *grpc.Server) { vllmpb.RegisterControlServer(s, e) })
}

// lines are sources and refusals in short.
func lines(o outcome) (l []string) {
	for _, s := range o.sources {
		l = append(l, short(s))
	}
	for _, r := range o.refused {
		l = append(l, "refused: "+r.String())
	}
	return append(l, o.warnings...)
}

func same(t *testing.T, got, want []string) {
	t.Helper()
	if len(got)+len(want) > 0 && !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestVLLM(t *testing.T) {
	source := func(rank *uint32, port int) *vllmpb.KvEventSource {
		return &vllmpb.KvEventSource{Transport: "zmq", Endpoint: fmt.Sprintf("tcp://*:%d", port), Topic: "t", ReplayEndpoint: fmt.Sprintf("tcp://*:%d", port+100),
			DataParallelRank: rank, Encoding: "msgpack", SchemaVersion: 1, BufferSteps: 10000, Hwm: 100000}
	}
	for name, c := range map[string]struct {
		sources     []*vllmpb.KvEventSource
		parallelism *vllmpb.ParallelismInfo
		want        []string
	}{
		"one rank":          {[]*vllmpb.KvEventSource{source(nil, 5557)}, &vllmpb.ParallelismInfo{DataParallelSize: 1}, []string{"0 tcp://127.0.0.1:5557 tcp://127.0.0.1:5657 t 16/1"}},
		"no parallelism":    {[]*vllmpb.KvEventSource{source(ptr(uint32(2)), 5557)}, nil, []string{"2 tcp://127.0.0.1:5557 tcp://127.0.0.1:5657 t 16/1"}},
		"two ranks":         {[]*vllmpb.KvEventSource{source(ptr(uint32(0)), 1), source(ptr(uint32(1)), 2)}, &vllmpb.ParallelismInfo{DataParallelSize: 2}, []string{"0 tcp://127.0.0.1:1 tcp://127.0.0.1:101 t 16/2", "1 tcp://127.0.0.1:2 tcp://127.0.0.1:102 t 16/2"}},
		"a rank of its own": {[]*vllmpb.KvEventSource{source(nil, 1)}, &vllmpb.ParallelismInfo{DataParallelSize: 4, DataParallelRank: 3, DataParallelSizeLocal: ptr(uint32(1))}, []string{"3 tcp://127.0.0.1:1 tcp://127.0.0.1:101 t 16/4"}},
		"its size is local": {[]*vllmpb.KvEventSource{source(nil, 1)}, &vllmpb.ParallelismInfo{DataParallelSize: 1, DataParallelRank: 3}, []string{"3 tcp://127.0.0.1:1 tcp://127.0.0.1:101 t 16/1"}},
		"second of two nodes": {[]*vllmpb.KvEventSource{source(ptr(uint32(2)), 1), source(ptr(uint32(3)), 2)}, &vllmpb.ParallelismInfo{DataParallelSize: 4, DataParallelRank: 2, DataParallelSizeLocal: ptr(uint32(2))},
			[]string{"2 tcp://127.0.0.1:1 tcp://127.0.0.1:101 t 16/4", "3 tcp://127.0.0.1:2 tcp://127.0.0.1:102 t 16/4"}},
		"a rank of the other node": {[]*vllmpb.KvEventSource{source(ptr(uint32(0)), 1), source(ptr(uint32(2)), 2)}, &vllmpb.ParallelismInfo{DataParallelSize: 4, DataParallelSizeLocal: ptr(uint32(2))},
			[]string{"0 tcp://127.0.0.1:1 tcp://127.0.0.1:101 t 16/4", "refused: rank 2 at tcp://*:2: rank 2 is outside what the engine says it has: ranks 0 to 1"}},
		"nothing": {nil, &vllmpb.ParallelismInfo{DataParallelSize: 1}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			url := serveVLLM(t, &vllmEngine{sources: vllmSources(c.sources...), info: func(context.Context) (*vllmpb.ServerInfo, error) {
				return &vllmpb.ServerInfo{EngineVersion: "0.33.0", InstanceId: "i-1", KvBlockSize: 16, Parallelism: c.parallelism}, nil
			}})
			a, o := answerOf(t, Options{URL: url})
			if a.kind != KindVLLM || a.version != "0.33.0" || a.instance != "i-1" || a.partial != "" {
				t.Errorf("answer %+v", a)
			}
			same(t, lines(o), c.want)
		})
	}
	t.Run("without server info", func(t *testing.T) {
		a, o := answerOf(t, Options{URL: serveVLLM(t, &vllmEngine{sources: vllmSources(source(ptr(uint32(1)), 1))})})
		if a.partial != "" {
			t.Errorf("partial: %s", a.partial)
		}
		same(t, lines(o), []string{"1 tcp://127.0.0.1:1 tcp://127.0.0.1:101 t 0/1"})
	})
}

func TestVLLMOverHTTP(t *testing.T) {
	for name, c := range map[string]struct {
		body string
		want []string
	}{
		"by rank": {`{"0":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:5657","buffer_steps":10000,"hwm":100000,"topic":"kv"},
			"1":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5558","replay_endpoint":null,"topic":""}}`,
			[]string{"0 tcp://127.0.0.1:5557 tcp://127.0.0.1:5657 kv 0/2", "1 tcp://127.0.0.1:5558 - - 0/2"}},
		"a list":               {`[{"data_parallel_rank":4,"endpoint":"tcp://10.0.0.1:5557","replay_endpoint":null,"topic":"","something":[1]}]`, []string{"4 tcp://10.0.0.1:5557 - - 0/1"}},
		"a list, no rank":      {` [{"endpoint":"tcp://10.0.0.1:5557"}]`, []string{"0 tcp://10.0.0.1:5557 - - 0/1"}},
		"none":                 {`{}`, nil},
		"an empty list":        {`[]`, nil},
		"null":                 {`null`, nil},
		"switched off":         {`{"0":{"enable_kv_cache_events":false,"publisher":"zmq","endpoint":"tcp://*:5557"},"1":{"publisher":"null","endpoint":"tcp://*:1"},"2":null}`, nil},
		"not a number is null": {`{"0":{"endpoint":"tcp://h:1","hwm":NaN,"x":[-Infinity,Infinity],"topic":"NaN \" Infinity"}}`, []string{`0 tcp://h:1 - NaN " Infinity 0/1`}},
		"what is wrong goes alone": {`{"x":{"endpoint":"tcp://h:1"},"0":{"endpoint":5557},"1":7,"2":{"endpoint":"tcp://h:2"},"2":{"endpoint":"tcp://h:3"},"-1":{},"4294967296":{},"3":{"publisher":"kafka","endpoint":"h"},"4":{}}`,
			[]string{
				"2 tcp://h:2 - - 0/3",
				"refused: source x: want the number of a data-parallel rank as its name",
				"refused: rank 0: endpoint is a number, want a string",
				"refused: rank 1: it is a number, want an object",
				"refused: source -1: want the number of a data-parallel rank as its name",
				"refused: source 4294967296: want the number of a data-parallel rank as its name",
				"refused: rank 3 at h: transport kafka: want zmq",
				"refused: rank 2 at tcp://h:3: rank 2 is advertised twice: rank 2 at tcp://h:2 has it",
				"refused: rank 4: it has no endpoint",
			}},
		"what is wrong in a list": {`[{"data_parallel_rank":-1,"endpoint":"tcp://h:1"},{"data_parallel_rank":1.5},{"data_parallel_rank":"0"},[],{"data_parallel_rank":1,"endpoint":"tcp://h:2","enable_kv_cache_events":"yes"}]`,
			[]string{
				"refused: source 1 of /kv_event_sources: data_parallel_rank is a number, want a whole number from 0 to 4294967295",
				"refused: source 2 of /kv_event_sources: data_parallel_rank is a number, want a whole number from 0 to 4294967295",
				"refused: source 3 of /kv_event_sources: data_parallel_rank is a string, want a whole number from 0 to 4294967295",
				"refused: source 4 of /kv_event_sources: it is an array, want an object",
				"refused: source 5 of /kv_event_sources: enable_kv_cache_events is a string, want true or false",
			}},
	} {
		t.Run(name, func(t *testing.T) {
			a, o := answerOf(t, Options{URL: "http://" + web(t, map[string]string{"/kv_event_sources": c.body})})
			if a.kind != KindVLLM {
				t.Errorf("kind %s", a.kind)
			}
			same(t, lines(o), c.want)
		})
	}
}

func TestSGLang(t *testing.T) {
	for name, c := range map[string]struct {
		body string
		want []string
	}{
		"one rank": {`{"version":"0.5.20","dp_size":1,"page_size":64,"last_gen_throughput":NaN,"kv_events":{"publisher":"zmq","endpoint_host":"*","endpoint_port_base":5557,"topic":"kv","block_size":64,"dp_size":1}}`,
			[]string{"0 tcp://127.0.0.1:5557 - kv 64/1"}},
		"ports count up": {`{"version":"0.5.20","kv_events":{"publisher":"zmq","endpoint_host":"0.0.0.0","endpoint_port_base":5557,"replay_endpoint_port_base":5657,"topic":"","block_size":32,"dp_size":2}}`,
			[]string{"0 tcp://127.0.0.1:5557 tcp://127.0.0.1:5657 - 32/2", "1 tcp://127.0.0.1:5558 tcp://127.0.0.1:5658 - 32/2"}},
		"no rank count": {`{"version":"0.5.20","kv_events":{"publisher":"zmq","endpoint_host":"::","endpoint_port_base":5557}}`, []string{"0 tcp://127.0.0.1:5557 - - 0/1"}},
		"an IPv6 host":  {`{"version":"0.5.20","kv_events":{"publisher":"zmq","endpoint_host":"fd00::1","endpoint_port_base":5557,"replay_endpoint_port_base":5600}}`, []string{"0 tcp://[fd00::1]:5557 tcp://[fd00::1]:5600 - 0/1"}},
		"beyond the last port": {`{"version":"0.5.20","kv_events":{"publisher":"zmq","endpoint_host":"h","endpoint_port_base":65534,"dp_size":4}}`,
			[]string{"0 tcp://h:65534 - - 0/4", "1 tcp://h:65535 - - 0/4",
				"refused: rank 2 at tcp://h:65536: endpoint tcp://h:65536: want a port from 1 to 65535", "refused: rank 3 at tcp://h:65537: endpoint tcp://h:65537: want a port from 1 to 65535"}},
		"replay beyond the last port": {`{"version":"0.5.20","kv_events":{"publisher":"zmq","endpoint_host":"h","endpoint_port_base":5557,"replay_endpoint_port_base":65535,"dp_size":2}}`,
			[]string{"0 tcp://h:5557 tcp://h:65535 - 0/2", "refused: rank 1 at tcp://h:5558: its replay endpoint tcp://h:65536: want a port from 1 to 65535; REPLAY_ENDPOINTS can name another, or none"}},
		"ranges that overlap": {`{"version":"0.5.20","kv_events":{"publisher":"zmq","endpoint_host":"h","endpoint_port_base":5557,"replay_endpoint_port_base":5558,"dp_size":2}}`,
			[]string{"1 tcp://h:5558 tcp://h:5559 - 0/2", "refused: rank 0 at tcp://h:5557: its replay endpoint tcp://h:5558 is also the live endpoint of rank 1 at tcp://h:5558: the two ranges of ports overlap; give the engine another replay port, or set REPLAY_ENDPOINTS"}},
		"no port": {`{"version":"0.5.20","kv_events":{"publisher":"zmq","endpoint_host":"h","endpoint_port_base":null}}`, []string{"refused: kv_events: it has no endpoint_port_base"}},
		"port unknown": {`{"version":"0.5.20","kv_events":{"publisher":"zmq","endpoint_host":"h","endpoint_port_base":0,"dp_size":2}}`,
			[]string{"refused: rank 0 at tcp://h:0: endpoint tcp://h:0: the engine does not say which port it was given", "refused: rank 1 at tcp://h:0: endpoint tcp://h:0: the engine does not say which port it was given"}},
		"no ranks":          {`{"version":"0.5.20","kv_events":{"publisher":"zmq","endpoint_host":"h","endpoint_port_base":1,"dp_size":0}}`, []string{"refused: kv_events: its dp_size is 0"}},
		"another publisher": {`{"version":"0.5.20","kv_events":{"publisher":"kafka","endpoint_host":"h","endpoint_port_base":1}}`, []string{"refused: rank 0 at tcp://h:1: transport kafka: want zmq"}},
		"of another type":   {`{"version":"0.5.20","kv_events":{"publisher":"zmq","endpoint_host":"h","endpoint_port_base":"5557"}}`, []string{"refused: kv_events: endpoint_port_base is a string, want a whole number from 0 to 4294967295"}},
		"no object":         {`{"version":"0.5.20","kv_events":[]}`, []string{"refused: kv_events: it is an array, want an object"}},
		"nothing":           {`{"version":"0.5.20","kv_events":null}`, nil},
		"switched off":      {`{"version":"0.5.20","kv_events":{"publisher":"null"}}`, nil},
		"nothing, newer":    {`{"version":"0.5.20","kv_events":null,"kv_event_sources":[]}`, nil},
		"publishers": {`{"version":"0.5.20","kv_events":{"publisher":"zmq","endpoint_host":"*","endpoint_port_base":5557,"replay_endpoint_port_base":6557,"topic":"kv","block_size":16,"dp_size":8,
			"publishers":[{"dp_rank":0,"endpoint":"tcp://10.0.0.1:5557"},{"dp_rank":4,"endpoint":"tcp://[fd00::2]:5561"},{"dp_rank":8,"endpoint":"tcp://10.0.0.1:5565"},7]}}`,
			[]string{"0 tcp://10.0.0.1:5557 tcp://10.0.0.1:6557 kv 16/8", "4 tcp://[fd00::2]:5561 tcp://[fd00::2]:6561 kv 16/8",
				"refused: entry 4 of kv_events.publishers: it is a number, want an object", "refused: rank 8 at tcp://10.0.0.1:5565: rank 8 is outside what the engine says it has: ranks 0 to 7"}},
		"newer": {`{"version":"0.5.20","dp_size":3,"kv_events":null,"kv_event_sources":[{"dp_rank":1,"endpoint":"tcp://*:2","topic":"b","block_size":32,"replay_endpoint":"tcp://*:12"},{"dp_rank":0,"endpoint":"tcp://*:1","topic":"a","block_size":16},
			{"dp_rank":2,"endpoint":"tcp://*:3","encoding":"json"},{"endpoint":7}]}`,
			[]string{"0 tcp://127.0.0.1:1 - a 16/3", "1 tcp://127.0.0.1:2 tcp://127.0.0.1:12 b 32/3", "refused: entry 4 of kv_event_sources: endpoint is a number, want a string", "refused: rank 2 at tcp://*:3: encoding json: want msgpack"}},
		"newer beside older": {`{"version":"0.5.20","kv_events":{"publisher":"zmq","endpoint_host":"*","endpoint_port_base":1,"replay_endpoint_port_base":11,"topic":"kv","block_size":16,"dp_size":2},
			"kv_event_sources":[{"dp_rank":0,"endpoint":"tcp://*:1","topic":""},{"dp_rank":1,"endpoint":"tcp://*:2"}]}`,
			[]string{"0 tcp://127.0.0.1:1 tcp://127.0.0.1:11 - 16/2", "1 tcp://127.0.0.1:2 tcp://127.0.0.1:12 kv 16/2"}},
		"newer and wrong": {`{"version":"0.5.20","kv_events":{"publisher":"zmq","endpoint_host":"h","endpoint_port_base":1},"kv_event_sources":{}}`,
			[]string{"0 tcp://h:1 - - 0/1", "refused: kv_event_sources: it is an object, want a list"}},
	} {
		t.Run(name, func(t *testing.T) {
			addr := serve(t, func(s *grpc.Server) { sglangpb.RegisterSglangServiceServer(s, &sglangEngine{info: c.body}) })
			for _, url := range []string{
				"http://" + web(t, map[string]string{"/server_info": c.body, "/get_server_info": "500"}),
				"http://" + web(t, map[string]string{"/get_server_info": c.body}),
				"grpc://" + addr,
			} {
				a, o := answerOf(t, Options{URL: url})
				if a.kind != KindSGLang || a.version != "0.5.20" {
					t.Errorf("%s: answer %+v", url, a)
				}
				same(t, lines(o), c.want)
			}
		})
	}
	t.Run("so many ranks", func(t *testing.T) {
		a, o := answerOf(t, Options{URL: "http://" + web(t, map[string]string{"/server_info": `{"kv_events":{"publisher":"zmq","endpoint_port_base":1,"dp_size":4294967295}}`})})
		if len(o.sources) != 1024 || len(o.refused) != 1 || o.refused[0].String() != "ranks 1024 to 4294967294: at most 1024 are used" || a.ranks != 4294967295 {
			t.Errorf("%d sources, refused %v", len(o.sources), o.refused)
		}
	})
}

func TestOpenEngine(t *testing.T) {
	source := func(rank *uint32, e *openenginepb.KvEndpoint) *openenginepb.KvEventSource {
		return &openenginepb.KvEventSource{Transport: "zmq", EndpointAddr: e, Topic: "t", ReplayEndpoint: "", DataParallelRank: rank, Encoding: "msgpack"}
	}
	at := func(host string, port uint32, protocol string) *openenginepb.KvEndpoint {
		return &openenginepb.KvEndpoint{Host: host, Port: port, Protocol: protocol}
	}
	full := func(p *openenginepb.ParallelismInfo) *openenginepb.EngineInfo {
		return &openenginepb.EngineInfo{EngineVersion: "2.0", InstanceId: "i", Role: openenginepb.EngineRole_ENGINE_ROLE_PREFILL, SupportedModels: []string{"m", "n"},
			Parallelism: p, SchemaRevision: 3, MinimumClientRevision: 1}
	}
	grpcSource := source(ptr(uint32(0)), at("h", 50051, "grpc"))
	grpcSource.Transport = "grpc"
	for name, c := range map[string]struct {
		e    openEngine
		want []string
	}{
		"full": {openEngine{sources: []*openenginepb.KvEventSource{source(ptr(uint32(0)), at("*", 1, "tcp")), source(ptr(uint32(1)), at("::", 2, ""))}, info: full(&openenginepb.ParallelismInfo{DataParallelSize: ptr(uint32(2))}), models: map[string]uint32{"m": 64}},
			[]string{"0 tcp://127.0.0.1:1 - t 64/2", "1 tcp://127.0.0.1:2 - t 64/2"}},
		"little":             {openEngine{sources: []*openenginepb.KvEventSource{source(nil, at("[fd00::1]", 1, "tcp"))}}, []string{"0 tcp://[fd00::1]:1 - t 0/1"}},
		"block size unknown": {openEngine{sources: []*openenginepb.KvEventSource{source(nil, at("h", 1, "tcp"))}, info: full(nil), models: map[string]uint32{"m": 0}}, []string{"0 tcp://h:1 - t 0/1"}},
		"ranks above 0": {openEngine{sources: []*openenginepb.KvEventSource{source(ptr(uint32(4)), at("h", 1, "tcp")), source(ptr(uint32(3)), at("h", 2, "tcp")), source(ptr(uint32(8)), at("h", 3, "tcp"))},
			info: full(&openenginepb.ParallelismInfo{DataParallelSize: ptr(uint32(4)), DataParallelStartRank: ptr(uint32(4))}), models: map[string]uint32{"m": 16}},
			[]string{"4 tcp://h:1 - t 16/4", "refused: rank 3 at tcp://h:2: rank 3 is outside what the engine says it has: ranks 4 to 7", "refused: rank 8 at tcp://h:3: rank 8 is outside what the engine says it has: ranks 4 to 7"}},
		"without a rank, above 0": {openEngine{sources: []*openenginepb.KvEventSource{source(nil, at("h", 1, "tcp"))}, info: full(&openenginepb.ParallelismInfo{DataParallelSize: ptr(uint32(4)), DataParallelStartRank: ptr(uint32(4))})}, []string{"4 tcp://h:1 - t 0/4"}},
		"a rank of its own":       {openEngine{sources: []*openenginepb.KvEventSource{source(nil, at("h", 1, "tcp"))}, info: full(&openenginepb.ParallelismInfo{DataParallelSize: ptr(uint32(4)), DataParallelRank: ptr(uint32(2))})}, []string{"2 tcp://h:1 - t 0/4"}},
		"ranks unknown":           {openEngine{sources: []*openenginepb.KvEventSource{source(ptr(uint32(9)), at("h", 1, "tcp"))}, info: full(&openenginepb.ParallelismInfo{})}, []string{"9 tcp://h:1 - t 0/1"}},
		"its own stream":          {openEngine{sources: []*openenginepb.KvEventSource{grpcSource}}, []string{"refused: rank 0 at grpc://h:50051: transport grpc (SubscribeKvEvents) is not supported yet: have the engine publish over zmq"}},
		"its own stream beside zmq": {openEngine{sources: []*openenginepb.KvEventSource{grpcSource, source(ptr(uint32(0)), at("h", 1, "tcp"))}},
			[]string{"0 tcp://h:1 - t 0/1", "refused: rank 0 at grpc://h:50051: transport grpc (SubscribeKvEvents) is not supported yet; the engine's zmq source of the rank is used"}},
		"no endpoint":      {openEngine{sources: []*openenginepb.KvEventSource{source(ptr(uint32(0)), nil)}}, []string{"refused: rank 0: it has no endpoint"}},
		"no port":          {openEngine{sources: []*openenginepb.KvEventSource{source(ptr(uint32(0)), at("h", 0, ""))}}, []string{"refused: rank 0 at tcp://h:0: endpoint tcp://h:0: the engine does not say which port it was given"}},
		"a port too high":  {openEngine{sources: []*openenginepb.KvEventSource{source(ptr(uint32(0)), at("h", 1<<31, ""))}}, []string{"refused: rank 0 at tcp://h:2147483648: endpoint tcp://h:2147483648: want a port from 1 to 65535"}},
		"another protocol": {openEngine{sources: []*openenginepb.KvEventSource{source(ptr(uint32(0)), at("h", 1, "udp"))}}, []string{"refused: rank 0 at udp://h:1: endpoint udp://h:1: want tcp://host:port or ipc://path"}},
		"nothing":          {openEngine{info: full(nil)}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			url := "grpc://" + serve(t, func(s *grpc.Server) { openenginepb.RegisterOpenEngineServer(s, &c.e) })
			a, o := answerOf(t, Options{URL: url})
			if a.kind != KindOpenEngine || a.partial != "" || c.e.info != nil && (a.version != "2.0" || a.instance != "i" || a.role != "prefill") {
				t.Errorf("answer %+v", a)
			}
			same(t, lines(o), c.want)
		})
	}
}

// Why an engine that answers has no sources.
func TestNothing(t *testing.T) {
	for want, a := range map[string]answer{
		"the engine publishes nothing: it has the decode role":                                                                                   {role: roleDecode},
		"the engine publishes nothing: it has the decode role, or prefix caching or KV events are off":                                           {kind: KindVLLM},
		"the engine publishes nothing: it has the decode role, or prefix caching or KV events are off, or its KV events have no tcp:// endpoint": {kind: KindSGLang},
	} {
		if got := a.nothing(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	a, _ := answerOf(t, Options{URL: "http://" + web(t, map[string]string{"/server_info": `{"disaggregation_mode":"decode","kv_events":null}`})})
	if a.role != roleDecode {
		t.Errorf("role %q", a.role)
	}
}

// Lists without end cost no memory: what is beyond the bound is refused in one line.
func TestEndlessLists(t *testing.T) {
	ones := "[1" + strings.Repeat(",1", 1<<20) + "]"
	var keys strings.Builder
	for i := range 3000 {
		fmt.Fprintf(&keys, `,"%d":7`, i)
	}
	for name, parse := range map[string]func() (*answer, error){
		"vLLM, list":      func() (*answer, error) { return parseVLLM([]byte(ones)) },
		"vLLM, object":    func() (*answer, error) { return parseVLLM([]byte("{" + keys.String()[1:] + "}")) },
		"SGLang, sources": func() (*answer, error) { return parseSGLang([]byte(`{"kv_event_sources":`+ones+`}`), "x") },
		"SGLang, publishers": func() (*answer, error) {
			return parseSGLang([]byte(`{"kv_events":{"publisher":"zmq","publishers":`+ones+`}}`), "x")
		},
	} {
		a, err := parse()
		if err != nil || len(a.list) != 0 || len(a.refused) != maxSources+1 || a.refused[maxSources].String() != "further sources: at most 1024 are used" {
			t.Errorf("%s: %v, %d refused", name, err, len(a.refused))
		}
	}
}
