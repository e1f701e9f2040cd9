package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/kvrelay/kvrelay/config"
	"github.com/kvrelay/kvrelay/consumer"
	"github.com/kvrelay/kvrelay/internal/logging"
)

// How often holdings are shown: in place on a terminal; elsewhere when they have changed.
const (
	holdingsOnTerminal = 500 * time.Millisecond
	holdingsElsewhere  = 2 * time.Second
)

// holding is what one rank holds, and how well that is known.
type holding struct {
	Worker    uint64         `json:"worker_id"`
	Rank      uint32         `json:"dp_rank"`
	State     string         `json:"state"` // of our following: live, stale …
	Relay     string         `json:"relay"` // what its heartbeats say; "": none heard
	Publisher uint64         `json:"publisher_id"`
	LastID    uint64         `json:"last_event_id"`
	Blocks    map[string]int `json:"blocks"`
	Holes     uint64         `json:"holes"`
	Asks      uint64         `json:"asks"`
}

// holdings shows who holds what until ctx ends, and once more then.
func (t *tail) holdings(ctx context.Context, cfg *config.Config, nc *nats.Conn, subject string, stdout io.Writer) error {
	picture := consumer.NewPicture()
	p, err := consumer.ParseProfile(cfg.Profile)
	if err != nil {
		return err
	}
	c, err := consumer.New(consumer.Options{
		Conn: nc, Profile: p, Namespace: cfg.Namespace, Component: cfg.Component, Endpoint: cfg.EndpointName,
		Subject: subject, JetStream: t.stream, Worker: t.worker, OnEvent: picture.Apply,
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	s := holdingsScreen{out: stdout, json: t.json, live: !t.json && logging.IsTerminal(stdout), color: t.color}
	every := holdingsElsewhere
	if s.live {
		every = holdingsOnTerminal
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case err := <-ended:
			if err != nil {
				return err
			}
			return s.show(holdingsOf(c.Ranks(), picture))
		case <-tick.C:
			if err := s.show(holdingsOf(c.Ranks(), picture)); err != nil {
				cancel()
				<-ended
				return fmt.Errorf("writing: %w", err)
			}
		}
	}
}

func holdingsOf(ranks []consumer.RankStatus, picture *consumer.Picture) []holding {
	list := []holding{}
	for _, r := range ranks {
		h := holding{
			Worker: r.Rank.Worker, Rank: r.Rank.DP, State: r.State.String(), Relay: r.Relay.State,
			Publisher: r.Publisher, LastID: r.LastID, Holes: r.Holes, Asks: r.Asks, Blocks: map[string]int{},
		}
		for tier := range consumer.Tier(consumer.NumTiers) {
			h.Blocks[tier.String()] = picture.Len(r.Rank, tier)
		}
		list = append(list, h)
	}
	slices.SortFunc(list, func(a, b holding) int {
		switch {
		case a.Worker < b.Worker:
			return -1
		case a.Worker > b.Worker:
			return 1
		}
		return int(a.Rank) - int(b.Rank)
	})
	return list
}

// holdingsScreen draws holdings.
type holdingsScreen struct {
	out               io.Writer
	json, live, color bool

	last  string
	lines int // drawn last, in place
}

func (s *holdingsScreen) show(list []holding) error {
	if s.json {
		line, err := json.Marshal(list)
		if err != nil {
			return err
		}
		return s.plain(string(line) + "\n")
	}
	text := holdingsText(list)
	if !s.live {
		return s.plain(text + "\n")
	}
	var b strings.Builder
	if s.lines > 0 {
		fmt.Fprintf(&b, "\x1b[%dA", s.lines)
	}
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	for i, l := range lines {
		if i == 0 && s.color {
			l = "\x1b[" + bold + "m" + l + "\x1b[0m"
		}
		b.WriteString("\r\x1b[K" + l + "\n")
	}
	for range max(0, s.lines-len(lines)) {
		b.WriteString("\r\x1b[K\n")
	}
	s.lines = max(s.lines, len(lines))
	_, err := io.WriteString(s.out, b.String())
	return err
}

// plain writes text that differs from the last.
func (s *holdingsScreen) plain(text string) error {
	if text == s.last {
		return nil
	}
	s.last = text
	_, err := io.WriteString(s.out, text)
	return err
}

func holdingsText(list []holding) string {
	if len(list) == 0 {
		return "no worker has been heard of yet\n"
	}
	var b strings.Builder
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "WORKER/RANK\tDEVICE\tHOST_PINNED\tDISK\tEXTERNAL\tLAST ID\tHOLES\tFOLLOWED\tRELAY")
	for _, h := range list {
		fmt.Fprintf(t, "%d/%d", h.Worker, h.Rank)
		for tier := range consumer.Tier(consumer.NumTiers) {
			fmt.Fprintf(t, "\t%d", h.Blocks[tier.String()])
		}
		fmt.Fprintf(t, "\t%d\t%d\t%s\t%s\n", h.LastID, h.Holes, h.State, orText(h.Relay, "–"))
	}
	t.Flush() //nolint:errcheck // a Builder takes everything
	return b.String()
}
