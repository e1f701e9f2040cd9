package discovery

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/grpc"

	"github.com/kvrelay/kvrelay/internal/enginepb/openenginepb"
	"github.com/kvrelay/kvrelay/internal/enginepb/sglangpb"
	"github.com/kvrelay/kvrelay/internal/enginepb/vllmpb"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve runs a gRPC server in this process and returns its address.
func serve(t *testing.T, register func(*grpc.Server), opts ...grpc.ServerOption) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(opts...)
	register(s)
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

// web runs an HTTP server in this process that answers paths with texts; a
// text "503" is that status. It returns its address.
func web(t *testing.T, answers map[string]string) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch text, ok := answers[r.URL.Path]; {
		case !ok:
			http.NotFound(w, r)
		case len(text) == 3:
			code := map[string]int{"301": 301, "400": 400, "401": 401, "403": 403, "405": 405, "429": 429, "500": 500, "501": 501, "502": 502, "503": 503, "504": 504}[text]
			if code == 301 {
				w.Header().Set("Location", "http://elsewhere.example/")
			}
			w.WriteHeader(code)
		default:
			_, _ = w.Write([]byte(text))
		}
	}))
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

// askOnce asks what o says once, in all its ways.
func askOnce(t *testing.T, o Options) ([]prober, []reply, *Discoverer) {
	t.Helper()
	d, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return d.probers, probe(t.Context(), d.probers), d
}

// answerOf is the one answer there must be.
func answerOf(t *testing.T, o Options) (*answer, outcome) {
	t.Helper()
	probers, replies, d := askOnce(t, o)
	i := best(replies)
	if i < 0 {
		t.Fatalf("no answer: %s", silence(probers, replies).text)
	}
	return replies[i].answer, resolve(replies[i].answer, probers[i].target, &d.o)
}

type vllmEngine struct {
	vllmpb.UnimplementedControlServer
	sources func(context.Context) (*vllmpb.GetKvEventSourcesResponse, error)
	info    func(context.Context) (*vllmpb.ServerInfo, error)
}

func (e *vllmEngine) GetKvEventSources(ctx context.Context, _ *vllmpb.GetKvEventSourcesRequest) (*vllmpb.GetKvEventSourcesResponse, error) {
	return e.sources(ctx)
}

func (e *vllmEngine) GetServerInfo(ctx context.Context, r *vllmpb.GetServerInfoRequest) (*vllmpb.ServerInfo, error) {
	if e.info == nil {
		return e.UnimplementedControlServer.GetServerInfo(ctx, r)
	}
	return e.info(ctx)
}

type sglangEngine struct {
	sglangpb.UnimplementedSglangServiceServer
	info string
}

func (e *sglangEngine) GetServerInfo(context.Context, *sglangpb.GetServerInfoRequest) (*sglangpb.GetServerInfoResponse, error) {
	return &sglangpb.GetServerInfoResponse{JsonInfo: e.info}, nil
}

type openEngine struct {
	openenginepb.UnimplementedOpenEngineServer
	sources []*openenginepb.KvEventSource
	info    *openenginepb.EngineInfo
	models  map[string]uint32 // block sizes; 0: it does not say
}

func (e *openEngine) GetKvEventSources(context.Context, *openenginepb.GetKvEventSourcesRequest) (*openenginepb.GetKvEventSourcesResponse, error) {
	return &openenginepb.GetKvEventSourcesResponse{Sources: e.sources}, nil
}

func (e *openEngine) GetEngineInfo(ctx context.Context, r *openenginepb.GetEngineInfoRequest) (*openenginepb.EngineInfo, error) {
	if e.info == nil {
		return e.UnimplementedOpenEngineServer.GetEngineInfo(ctx, r)
	}
	return e.info, nil
}

func (e *openEngine) GetModelInfo(ctx context.Context, r *openenginepb.GetModelInfoRequest) (*openenginepb.ModelInfo, error) {
	size, ok := e.models[r.GetModel()]
	if !ok {
		return e.UnimplementedOpenEngineServer.GetModelInfo(ctx, r)
	}
	if size == 0 {
		return &openenginepb.ModelInfo{}, nil
	}
	return &openenginepb.ModelInfo{KvBlockSize: &size}, nil
}

func ptr[T any](v T) *T { return &v }
