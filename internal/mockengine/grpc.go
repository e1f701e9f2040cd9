package mockengine

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"strconv"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kvrelay/kvrelay/internal/enginepb/openenginepb"
	"github.com/kvrelay/kvrelay/internal/enginepb/sglangpb"
	"github.com/kvrelay/kvrelay/internal/enginepb/vllmpb"
)

// DiscoverOpenEngine is OpenEngine's way, which is gRPC alone: over HTTP there
// is nothing with it.
const DiscoverOpenEngine Discovery = "openengine"

// mockVersion is what discovery calls the engine's version.
const mockVersion = "mock"

// RegisterGRPC adds the engine's gRPC side to s, in d's way: vllm.Control,
// SglangService, or OpenEngine; with DiscoverNone nothing, so that every call
// is answered UNIMPLEMENTED, as older engines do.
func (e *Engine) RegisterGRPC(s grpc.ServiceRegistrar, d Discovery) {
	switch d {
	case DiscoverVLLM:
		vllmpb.RegisterControlServer(s, vllmControl{e: e})
	case DiscoverSGLang, DiscoverSGLangOld:
		sglangpb.RegisterSglangServiceServer(s, sglangService{e: e, newer: d == DiscoverSGLang})
	case DiscoverOpenEngine:
		openenginepb.RegisterOpenEngineServer(s, openEngine{e: e})
	}
}

// ServeGRPC serves the gRPC side on l until ctx ends, then it cuts what is open.
func (e *Engine) ServeGRPC(ctx context.Context, l net.Listener, d Discovery) error {
	s := grpc.NewServer()
	e.RegisterGRPC(s, d)
	stop := context.AfterFunc(ctx, s.Stop)
	defer stop()
	if err := s.Serve(l); !errors.Is(err, grpc.ErrServerStopped) {
		return err
	}
	return nil // stopped before it began
}

// instance names this life of the engine: it changes with a restart.
func (e *Engine) instance() string {
	return mockVersion + "-" + strconv.Itoa(e.ranks[0].Incarnation())
}

type vllmControl struct {
	vllmpb.UnimplementedControlServer
	e *Engine
}

func (c vllmControl) GetKvEventSources(context.Context, *vllmpb.GetKvEventSourcesRequest) (*vllmpb.GetKvEventSourcesResponse, error) {
	resp := &vllmpb.GetKvEventSourcesResponse{}
	for _, s := range c.e.Sources() {
		rank := uint32(s.Rank)
		resp.Sources = append(resp.Sources, &vllmpb.KvEventSource{
			Transport: "zmq", Endpoint: s.Endpoint, Topic: s.Topic, ReplayEndpoint: s.ReplayEndpoint, DataParallelRank: &rank,
			Encoding: "msgpack", SchemaVersion: 1, BufferSteps: uint32(c.e.o.BufferSteps), Hwm: uint32(c.e.o.HWM), MaxQueueSize: defaultHWM,
		})
	}
	return resp, nil
}

func (c vllmControl) GetServerInfo(context.Context, *vllmpb.GetServerInfoRequest) (*vllmpb.ServerInfo, error) {
	o := &c.e.o
	local := uint32(o.Ranks)
	return &vllmpb.ServerInfo{
		EngineVersion: mockVersion, InstanceId: c.e.instance(),
		KvBlockSize: uint32(o.BlockSize), TotalKvBlocks: uint64(o.Blocks),
		Parallelism: &vllmpb.ParallelismInfo{
			TensorParallelSize: 1, PipelineParallelSize: 1, WorldSize: 1,
			DataParallelSize: uint32(o.FirstRank + o.Ranks), DataParallelRank: uint32(o.FirstRank), DataParallelSizeLocal: &local,
		},
	}, nil
}

type sglangService struct {
	sglangpb.UnimplementedSglangServiceServer
	e     *Engine
	newer bool
}

func (s sglangService) GetServerInfo(context.Context, *sglangpb.GetServerInfoRequest) (*sglangpb.GetServerInfoResponse, error) {
	text, err := json.Marshal(s.e.sglangInfo(s.newer))
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &sglangpb.GetServerInfoResponse{JsonInfo: string(text)}, nil
}

// mockModel is the one model of the mock engine.
const mockModel = "mock"

type openEngine struct {
	openenginepb.UnimplementedOpenEngineServer
	e *Engine
}

func (s openEngine) GetKvEventSources(_ context.Context, req *openenginepb.GetKvEventSourcesRequest) (*openenginepb.GetKvEventSourcesResponse, error) {
	asked := map[uint32]bool{}
	for _, r := range req.GetDataParallelRanks() {
		asked[r] = true
	}
	resp := &openenginepb.GetKvEventSourcesResponse{}
	for _, src := range s.e.Sources() {
		rank, steps, hwm := uint32(src.Rank), uint32(s.e.o.BufferSteps), uint32(s.e.o.HWM)
		if len(asked) > 0 && !asked[rank] {
			continue
		}
		host, portText, err := net.SplitHostPort(strings.TrimPrefix(src.Endpoint, "tcp://"))
		if err != nil {
			return nil, status.Error(codes.Internal, err.Error())
		}
		port, err := strconv.ParseUint(portText, 10, 16)
		if err != nil {
			return nil, status.Error(codes.Internal, err.Error())
		}
		resp.Sources = append(resp.Sources, &openenginepb.KvEventSource{
			Transport: "zmq", EndpointAddr: &openenginepb.KvEndpoint{Host: host, Port: uint32(port), Protocol: "tcp"},
			Topic: src.Topic, ReplayEndpoint: src.ReplayEndpoint, DataParallelRank: &rank,
			Encoding: "msgpack", BufferSteps: &steps, Hwm: &hwm,
		})
	}
	return resp, nil
}

func (s openEngine) GetEngineInfo(context.Context, *openenginepb.GetEngineInfoRequest) (*openenginepb.EngineInfo, error) {
	o := &s.e.o
	size, first := uint32(o.Ranks), uint32(o.FirstRank)
	return &openenginepb.EngineInfo{
		EngineName: mockModel, EngineVersion: mockVersion, InstanceId: s.e.instance(),
		Role: map[Role]openenginepb.EngineRole{
			Aggregated: openenginepb.EngineRole_ENGINE_ROLE_AGGREGATED,
			Prefill:    openenginepb.EngineRole_ENGINE_ROLE_PREFILL,
			Decode:     openenginepb.EngineRole_ENGINE_ROLE_DECODE,
		}[o.Role],
		SupportedModels: []string{mockModel},
		Parallelism:     &openenginepb.ParallelismInfo{DataParallelSize: &size, DataParallelStartRank: &first},
		SchemaRevision:  1, MinimumClientRevision: 1,
	}, nil
}

func (s openEngine) GetModelInfo(_ context.Context, req *openenginepb.GetModelInfoRequest) (*openenginepb.ModelInfo, error) {
	if req.GetModel() != mockModel {
		return nil, status.Error(codes.NotFound, "no such model")
	}
	size := uint32(s.e.o.BlockSize)
	return &openenginepb.ModelInfo{KvBlockSize: &size}, nil
}
