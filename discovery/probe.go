package discovery

import (
	"context"
	"errors"
	"sync"
	"time"
)

// prober asks one address in one engine's way.
type prober struct {
	kind   string
	target target
	asks   string // the question, for a person: "/kv_event_sources (vLLM 0.31 or later)"
	ask    func(context.Context) (*answer, error)
}

// probersOf are the ways to ask t, the most telling first.
func probersOf(t target, o *Options) []prober {
	var list []prober
	add := func(kind string, overGRPC bool, asks string, ask func(context.Context, target, *Options) (*answer, error)) {
		if overGRPC != t.grpc || o.Kind != KindAuto && o.Kind != kind {
			return
		}
		list = append(list, prober{kind, t, asks, func(ctx context.Context) (*answer, error) { return o.discreet(ask(ctx, t, o)) }})
	}
	add(KindVLLM, true, "vllm.Control/GetKvEventSources (vLLM 0.27 or later)", askVLLM)
	add(KindOpenEngine, true, "openengine.v1.OpenEngine/GetKvEventSources (engines that speak OpenEngine)", askOpenEngine)
	add(KindSGLang, true, "sglang.runtime.v1.SglangService/GetServerInfo with kv_events (SGLang 0.5.13 or later)", askSGLang)
	add(KindVLLM, false, "/kv_event_sources (vLLM 0.31 or later)", askVLLMOverHTTP)
	add(KindSGLang, false, "/server_info with kv_events (SGLang 0.5.13 or later)", askSGLangOverHTTP)
	return list
}

// schemesOf says how engines of a kind are asked.
func schemesOf(kind string) string {
	switch kind {
	case KindOpenEngine:
		return "grpc:// or grpcs:// with ENGINE=openengine"
	case KindVLLM, KindSGLang, KindAuto:
		return "grpc://, grpcs://, http:// or https://"
	}
	return "ENGINE auto, vllm, sglang, openengine or static"
}

// grace is how long other ways to ask are waited for once one has brought
// sources: an address that never answers must not hold up one that does.
const grace = 300 * time.Millisecond

// reply is what one prober got: an answer, or why not.
type reply struct {
	answer *answer
	fail   *failure
}

// probe asks in all ways at once, and returns each one's reply. It returns
// when all have replied, or grace after the first with sources.
func probe(ctx context.Context, probers []prober) []reply {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var hurry sync.Once
	timer := time.AfterFunc(3*callTimeout, cancel) // the most that one prober takes: three questions
	defer timer.Stop()
	replies := make([]reply, len(probers))
	var wg sync.WaitGroup
	for i, p := range probers {
		wg.Go(func() {
			a, err := p.ask(ctx)
			if replies[i] = (reply{answer: a}); err != nil {
				replies[i] = reply{fail: asFailure(err)}
			} else if len(a.list) > 0 {
				hurry.Do(func() { timer.Reset(grace) })
			}
		})
	}
	wg.Wait()
	return replies
}

func asFailure(err error) *failure {
	var f *failure
	if errors.As(err, &f) {
		return f
	}
	return failf(broken, "%s", clean(err.Error()))
}

// best is the index of the reply to go by: the first with sources, else the
// first answer; −1: there is none.
func best(replies []reply) int {
	at := -1
	for i, r := range replies {
		switch {
		case r.answer == nil:
		case len(r.answer.list) > 0:
			return i
		case at < 0:
			at = i
		}
	}
	return at
}
