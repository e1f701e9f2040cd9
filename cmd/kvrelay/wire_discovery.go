package main

import (
	"log/slog"

	"github.com/kvrelay/kvrelay/config"
	"github.com/kvrelay/kvrelay/discovery"
)

// discoveryOptions are the settings that say where the engine's events are, or
// whom to ask.
func discoveryOptions(c *config.Config, log *slog.Logger) discovery.Options {
	o := discovery.Options{
		Kind:  c.Engine,
		URL:   string(c.DiscoveryURL),
		Token: string(c.DiscoveryToken),
		Topic: c.Topic, TopicExact: c.TopicExact,
		BlockSize:       uint32(c.BlockSize),
		NoReplay:        c.ReplayEndpoints.None,
		RewriteLoopback: c.RewriteLoopback,
		Log:             log,
	}
	if c.IsStatic() {
		o.Kind, o.Static = discovery.KindStatic, staticSources(c)
		return o
	}
	if c.Origin("RANKS") != config.FromDefault || c.Origin("FIRST_RANK") != config.FromDefault {
		o.Ranks, o.FirstRank = uint32(c.Ranks), uint32(c.FirstRank)
	}
	for _, e := range c.ReplayEndpoints.List {
		o.Replay = append(o.Replay, e.String())
	}
	return o
}

// staticSources are the sources that the settings name.
func staticSources(c *config.Config) []discovery.Source {
	var list []discovery.Source
	for _, s := range c.Sources() {
		src := discovery.Source{
			Engine: s.Live.String(), Kind: discovery.KindStatic,
			Rank: uint32(s.Rank), Ranks: uint32(c.Ranks),
			Endpoint: s.Live.String(), Topic: c.Topic, TopicExact: c.TopicExact,
			BlockSize: uint32(c.BlockSize),
		}
		if s.HasReplay {
			src.Replay = s.Replay.String()
		}
		list = append(list, src)
	}
	return list
}
