package main

import (
	"context"
	"log/slog"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"github.com/kvrelay/kvrelay/config"
	"github.com/kvrelay/kvrelay/convert"
	"github.com/kvrelay/kvrelay/internal/natsd"
	"github.com/kvrelay/kvrelay/internal/zmtp"
	"github.com/kvrelay/kvrelay/relay"
	"github.com/kvrelay/kvrelay/replay"
	"github.com/kvrelay/kvrelay/sinks"
)

// sinkOptions are the settings of the sink. servers replaces NATS_URL where it is empty.
func sinkOptions(c *config.Config, servers []string, log *slog.Logger) (sinks.Options, error) {
	kind, err := sinks.ParseKind(c.Sink)
	if err != nil {
		return sinks.Options{}, err
	}
	profile, err := sinks.ParseProfile(c.Profile)
	if err != nil {
		return sinks.Options{}, err
	}
	if len(c.NATSURL) > 0 {
		servers = c.NATSURL
	}
	return sinks.Options{
		Kind:    kind,
		Servers: servers,
		Auth: sinks.Auth{
			CredsFile: c.NATSCredsFile, NKeyFile: c.NATSNkeyFile,
			User: c.NATSUser, Password: string(c.NATSPassword), Token: string(c.NATSToken),
			TLSCA: c.NATSTLSCA, TLSCert: c.NATSTLSCert, TLSKey: c.NATSTLSKey,
		},
		Profile:   profile,
		Namespace: c.Namespace, Component: c.Component, Endpoint: c.EndpointName,
		Subject: c.Subject,
		Stream:  c.Stream, CreateStream: c.StreamCreate,
		Version:      serviceVersion(),
		RecentEvents: c.RecentEvents, RecentBytes: int(c.RecentBytes),
		Logger: log,
	}, nil
}

// serviceVersion is the build's version as micro services want it; "" where it has none.
func serviceVersion() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	return strings.TrimPrefix(info.Main.Version, "v")
}

// relayOptions are the settings of everything between discovery and the sink.
func relayOptions(c *config.Config, p *sinks.Publisher, profile sinks.Profile, log *slog.Logger) (relay.Options, error) {
	host, err := os.Hostname()
	if err != nil {
		return relay.Options{}, err
	}
	return relay.Options{
		WorkerID: c.Worker(host),
		Convert:  convertConfig(c),
		Replay: replay.Config{
			Lost: map[string]replay.Policy{
				config.LostClear: replay.LostClear, config.LostKeep: replay.LostKeep, config.LostExit: replay.LostExit,
			}[c.Lost],
			Heartbeat: c.Heartbeat, Idle: c.ReplayIdle, Attempts: c.ReplayAttempts, DeadAfter: c.DeadAfter,
		},
		ZMTP: zmtp.Options{
			MaxFrame:  int64(c.MaxFrameBytes),
			Heartbeat: c.Heartbeat, PeerTimeout: c.PeerTimeout,
		},
		Publisher: p, Profile: profile,
		HoldBytes: int64(c.HoldBytes), OutBytes: int64(c.OutBytes), Replays: c.ReplayConcurrency,
		ClearOnExit: c.ClearOnExit,
		Log:         log,
	}, nil
}

// convertConfig are the settings of the conversion.
func convertConfig(c *config.Config) convert.Config {
	return convert.Config{
		BlockSize:  uint64(c.BlockSize),
		ImageToken: optional(c.ImageTokenID), VideoToken: optional(c.VideoTokenID),
		Duplicates: map[string]convert.Duplicates{
			config.DuplicatesAuto: convert.Auto, config.DuplicatesCount: convert.Count, config.DuplicatesPresence: convert.Presence,
		}[c.Duplicates],
		Eagle: map[string]convert.Eagle{
			config.EagleAuto: convert.EagleAuto, config.EagleOn: convert.EagleOn, config.EagleOff: convert.EagleOff,
		}[c.Eagle],
	}
}

func optional(o config.Optional[uint32]) *uint32 {
	if !o.Has {
		return nil
	}
	return &o.Value
}

// startEmbedded starts the server of those who have none yet.
func startEmbedded(ctx context.Context, log *slog.Logger) (*natsd.Server, error) {
	s, err := natsd.Start(ctx, natsd.Options{Log: log})
	if err != nil {
		return nil, err
	}
	const hint = "NATS_URL is not set: router events go to a server inside this process, reachable from this host only"
	if s.Moved {
		log.Warn(hint+"; port 4222 is taken", "url", s.URL())
	} else {
		log.Warn(hint, "url", s.URL())
	}
	return s, nil
}

// remindUnheard says once a minute that nobody subscribes to an embedded server.
func remindUnheard(ctx context.Context, s *natsd.Server, subject string, log *slog.Logger) {
	t := time.NewTicker(time.Minute)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			if s.Interest(subject) == 0 {
				log.Warn("nobody subscribes to the embedded NATS server: set NATS_URL to the server that your router reads, or try `kvrelay tail`", "url", s.URL(), "subject", subject)
			}
		}
	}
}
