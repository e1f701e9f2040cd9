package mockengine

import (
	"context"
	"net"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/kvrelay/kvrelay/internal/enginepb/openenginepb"
	"github.com/kvrelay/kvrelay/internal/enginepb/sglangpb"
	"github.com/kvrelay/kvrelay/internal/enginepb/vllmpb"
)

// grpcSide serves an engine's gRPC side and connects to it.
func grpcSide(t *testing.T, e *Engine, d Discovery) *grpc.ClientConn {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- e.ServeGRPC(ctx, l, d) }()
	conn, err := grpc.NewClient("passthrough:///"+l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.Close()
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return conn
}

func TestVLLMOverGRPC(t *testing.T) {
	e := start(t, Options{Ranks: 2, FirstRank: 1, Topic: "kv", BlockSize: 32, Advertise: "engine.example"})
	c := vllmpb.NewControlClient(grpcSide(t, e, DiscoverVLLM))
	got, err := c.GetKvEventSources(timeout(t), &vllmpb.GetKvEventSourcesRequest{})
	if err != nil || len(got.Sources) != 2 {
		t.Fatalf("%v, %v", got, err)
	}
	for i, s := range got.Sources {
		if want := e.Sources()[i]; s.GetDataParallelRank() != uint32(i+1) || s.Endpoint != want.Endpoint || s.ReplayEndpoint != want.ReplayEndpoint || s.Topic != "kv" || s.Transport != "zmq" {
			t.Errorf("source %v, want %v", s, want)
		}
		if host, _, _ := net.SplitHostPort(s.Endpoint[len("tcp://"):]); host != "engine.example" {
			t.Errorf("it advertises %s", s.Endpoint)
		}
	}
	info, err := c.GetServerInfo(timeout(t), &vllmpb.GetServerInfoRequest{})
	if err != nil || info.KvBlockSize != 32 || info.InstanceId != "mock-0" || info.Parallelism.GetDataParallelSizeLocal() != 2 || info.Parallelism.GetDataParallelRank() != 1 {
		t.Errorf("%v, %v", info, err)
	}
	e.Restart()
	if info, err = c.GetServerInfo(timeout(t), &vllmpb.GetServerInfoRequest{}); err != nil || info.InstanceId != "mock-1" {
		t.Errorf("after a restart: %v, %v", info, err)
	}
	if _, err := sglangpb.NewSglangServiceClient(grpcSide(t, e, DiscoverNone)).GetServerInfo(timeout(t), &sglangpb.GetServerInfoRequest{}); status.Code(err) != codes.Unimplemented {
		t.Errorf("an old engine: %v", err)
	}
}

func TestOpenEngineOverGRPC(t *testing.T) {
	e := start(t, Options{Ranks: 3, BlockSize: 8, Role: Prefill})
	c := openenginepb.NewOpenEngineClient(grpcSide(t, e, DiscoverOpenEngine))
	info, err := c.GetEngineInfo(timeout(t), &openenginepb.GetEngineInfoRequest{})
	if err != nil || info.Role != openenginepb.EngineRole_ENGINE_ROLE_PREFILL || len(info.SupportedModels) != 1 {
		t.Fatalf("%v, %v", info, err)
	}
	got, err := c.GetKvEventSources(timeout(t), &openenginepb.GetKvEventSourcesRequest{DataParallelRanks: []uint32{2, 9}})
	if err != nil || len(got.Sources) != 1 || got.Sources[0].GetDataParallelRank() != 2 || got.Sources[0].EndpointAddr.GetPort() != uint32(e.Rank(2).EventPort()) {
		t.Errorf("%v, %v", got, err)
	}
	if m, err := c.GetModelInfo(timeout(t), &openenginepb.GetModelInfoRequest{Model: info.SupportedModels[0]}); err != nil || m.GetKvBlockSize() != 8 {
		t.Errorf("%v, %v", m, err)
	}
	if _, err := c.GetModelInfo(timeout(t), &openenginepb.GetModelInfoRequest{}); status.Code(err) != codes.NotFound {
		t.Errorf("no model: %v", err)
	}
}
