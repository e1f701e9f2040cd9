package main

import (
	"context"
	"log/slog"

	"github.com/nats-io/nats.go"

	"github.com/kvrelay/kvrelay/config"
	"github.com/kvrelay/kvrelay/discovery"
	"github.com/kvrelay/kvrelay/membership"
	"github.com/kvrelay/kvrelay/sinks"
)

// dynamo is what puts ranks on record for Dynamo routers; nil: MEMBERSHIP=off.
type dynamo struct {
	registry *membership.Registry
	leave    func()
}

// joinDynamo has every rank put on record before it publishes. The context that
// it returns ends with the reason when that cannot be; done is called when
// nothing is published any more.
func joinDynamo(ctx context.Context, c *config.Config, so *sinks.Options, log *slog.Logger) (joined context.Context, d *dynamo, err error) {
	if c.Membership == config.MembershipOff {
		return ctx, nil, nil
	}
	var plane natsPlane
	if c.RequestPlane == config.PlaneNATS {
		servers := *so
		plane = func(ctx context.Context, trouble func(error)) (*nats.Conn, <-chan struct{}, error) {
			return sinks.Connect(ctx, servers, "recovery", trouble)
		}
	}
	store, err := recordStore(c, log)
	if err != nil {
		return nil, nil, err
	}
	registry, err := membership.New(membership.Options{
		Endpoint:       membership.Endpoint{Namespace: c.Namespace, Component: c.Component, Name: c.EndpointName},
		Store:          store,
		RecoveryAddr:   c.RecoveryAddr,
		NATS:           plane,
		RegisterWorker: c.RegisterWorker,
		Log:            log,
	})
	if err != nil {
		return nil, nil, err
	}
	so.Register = func(ctx context.Context, o *sinks.Outbox) (func(), error) { return registry.Register(ctx, o) }
	joined, fail := context.WithCancelCause(ctx)
	stop := background(context.WithoutCancel(ctx), func(ctx context.Context) {
		if err := registry.Run(ctx); err != nil {
			fail(err)
		}
	})
	return joined, &dynamo{registry, func() { stop(); fail(nil) }}, nil
}

// recordStore is where MEMBERSHIP has records kept.
func recordStore(c *config.Config, log *slog.Logger) (membership.Store, error) {
	switch c.Membership {
	case config.MembershipEtcd:
		return etcdStore(c, log)
	case config.MembershipKubernetes:
		return kubeStore(c, log)
	}
	return membership.NewFile(c.MembershipPath, log), nil
}

// natsPlane connects to where routers ask over NATS: the servers of the events.
type natsPlane = func(ctx context.Context, trouble func(error)) (*nats.Conn, <-chan struct{}, error)

// done ends what joinDynamo began.
func (d *dynamo) done() {
	if d != nil {
		d.leave()
	}
}

// watcher is what tells a relay its sources.
type watcher = func(ctx context.Context, update func([]discovery.Source)) error

// watch tells the registry too, before the relay knows.
func (d *dynamo) watch(w watcher) watcher {
	if d == nil {
		return w
	}
	return func(ctx context.Context, update func([]discovery.Source)) error {
		return w(ctx, func(sources []discovery.Source) {
			if len(sources) > 0 {
				d.registry.SetEngine(engineOf(sources))
			}
			update(sources)
		})
	}
}

// engineOf is what a model card says of an engine with these sources.
func engineOf(sources []discovery.Source) membership.Engine {
	first, last, size := sources[0].Rank, sources[0].Rank, uint32(0)
	for _, s := range sources {
		first, last, size = min(first, s.Rank), max(last, s.Rank), max(size, s.BlockSize)
	}
	return membership.Engine{BlockSize: size, FirstRank: first, Ranks: last - first + 1}
}
