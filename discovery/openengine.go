package discovery

import (
	"context"
	"net"
	"strconv"

	"github.com/kvrelay/kvrelay/internal/enginepb/openenginepb"
)

// clientRevision is the revision of OpenEngine that kvrelay speaks.
const clientRevision = 1

// askOpenEngine asks an engine that speaks OpenEngine.
func askOpenEngine(ctx context.Context, t target, o *Options) (*answer, error) {
	l, err := connect(t, o, maxSourceList)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	client := openenginepb.NewOpenEngineClient(l)
	a := &answer{kind: KindOpenEngine}
	info, err := ask(ctx, l, client.GetEngineInfo, &openenginepb.GetEngineInfoRequest{})
	if err == nil {
		if least := info.GetMinimumClientRevision(); least > clientRevision {
			return nil, failf(tooOld, "the engine wants clients of OpenEngine revision %d or later, and kvrelay has revision %d: use a newer kvrelay", least, clientRevision)
		}
		a.engineInfo(info)
	} else {
		a.without("openengine.v1.OpenEngine/GetEngineInfo", "role and ranks", asFailure(err))
	}
	sources, err := ask(ctx, l, client.GetKvEventSources, &openenginepb.GetKvEventSourcesRequest{})
	if err != nil {
		return nil, err
	}
	for _, s := range sources.GetSources() {
		a.list = append(a.list, openSource(s))
	}
	if models := info.GetSupportedModels(); len(models) > 0 && len(a.list) > 0 {
		model, err := ask(ctx, l, client.GetModelInfo, &openenginepb.GetModelInfoRequest{Model: models[0]})
		if err != nil {
			a.without("openengine.v1.OpenEngine/GetModelInfo", "block sizes", asFailure(err))
		}
		a.blockSize = model.GetKvBlockSize()
	}
	return a, nil
}

func (a *answer) engineInfo(info *openenginepb.EngineInfo) {
	a.version, a.instance = clean(info.GetEngineVersion()), clean(info.GetInstanceId())
	a.role = map[openenginepb.EngineRole]string{
		openenginepb.EngineRole_ENGINE_ROLE_AGGREGATED: roleAggregated,
		openenginepb.EngineRole_ENGINE_ROLE_PREFILL:    rolePrefill,
		openenginepb.EngineRole_ENGINE_ROLE_DECODE:     roleDecode,
	}[info.GetRole()]
	p := info.GetParallelism()
	a.ranks, a.own = p.GetDataParallelSize(), p.GetDataParallelRank()
	switch {
	case p.GetDataParallelStartRank() > 0:
		a.dp = span{p.GetDataParallelStartRank(), a.ranks}
		a.own = max(a.own, a.dp.first)
	case a.own < a.ranks:
		a.dp = span{0, a.ranks}
	default: // it counts the ranks of this server
		a.dp = span{a.own, a.ranks}
	}
}

func openSource(s *openenginepb.KvEventSource) advertised {
	adv := advertised{
		rank: s.GetDataParallelRank(), hasRank: s.DataParallelRank != nil,
		transport: s.GetTransport(), encoding: s.GetEncoding(), replay: s.GetReplayEndpoint(), topic: s.GetTopic(),
	}
	e := s.GetEndpointAddr()
	if e == nil {
		return adv
	}
	protocol := e.GetProtocol()
	if protocol == "" {
		protocol = "tcp"
	}
	if protocol == "ipc" {
		adv.endpoint = "ipc://" + e.GetHost()
	} else {
		adv.endpoint = protocol + "://" + net.JoinHostPort(trimBrackets(e.GetHost()), strconv.FormatUint(uint64(e.GetPort()), 10))
	}
	return adv
}

func trimBrackets(host string) string {
	if n := len(host); n > 2 && host[0] == '[' && host[n-1] == ']' {
		return host[1 : n-1]
	}
	return host
}
