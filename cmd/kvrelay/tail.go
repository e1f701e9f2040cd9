package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/kvrelay/kvrelay/config"
	"github.com/kvrelay/kvrelay/consumer"
	"github.com/kvrelay/kvrelay/convert"
	"github.com/kvrelay/kvrelay/internal/logging"
	"github.com/kvrelay/kvrelay/sinks"
)

const tailHelp = `
Usage: kvrelay tail [flags] [settings]

Shows router events as they pass on NATS, in any profile: a line each for people,
or JSON lines with --json. It only listens: what passed before is not shown, and
ids that are missing are marked. With --stream it begins with what a JetStream
stream has kept. With --index it follows as a router does, recovery included,
and shows who holds how many blocks in which tier (of relays with SINK=jetstream
give --stream as well: else all of it comes by recovery, and HOLES counts that).

  kvrelay tail --nats-url nats://127.0.0.1:4222
  kvrelay tail --index

Exit codes: 0 stopped as asked, 1 failed, 2 bad usage.`

// natsSettings are the settings of commands that read from NATS.
var natsSettings = []string{
	"NATS_URL", "NATS_CREDS_FILE", "NATS_NKEY_FILE", "NATS_USER", "NATS_PASSWORD", "NATS_PASSWORD_FILE",
	"NATS_TOKEN", "NATS_TOKEN_FILE", "NATS_TLS_CA", "NATS_TLS_CERT", "NATS_TLS_KEY",
	"PROFILE", "NAMESPACE", "COMPONENT", "ENDPOINT_NAME",
}

// runTail is `kvrelay tail`.
func runTail(ctx context.Context, args []string, _ io.Reader, stdout, stderr io.Writer) int {
	fs := flag.NewFlagSet("tail", flag.ContinueOnError)
	var t tail
	fs.BoolVar(&t.json, "json", false, "JSON lines instead of text")
	fs.Uint64Var(&t.worker, "worker", 0, "this worker's events only; 0: all")
	rank := fs.Int("rank", -1, "this data-parallel rank's events only; -1: all")
	fs.BoolVar(&t.beats, "heartbeats", false, "show heartbeats too")
	fs.IntVar(&t.count, "count", 0, "stop after so many events; 0: when interrupted")
	length := lengthFlag(fs)
	subject := fs.String("subject", "", "listen there instead of the profile's subject; wildcards are allowed")
	fs.StringVar(&t.stream, "stream", "", "JetStream stream to show from its beginning (relays with SINK=jetstream)")
	holdings := fs.Bool("index", false, "show who holds how many blocks instead of events")
	cfg, code, done := settings(fs, tailHelp, args, stdout, stderr, natsSettings...)
	if done {
		return code
	}
	var wrong string
	switch {
	case fs.NArg() > 0:
		wrong = "an argument that is no flag; the server is given with --nats-url" // not shown: its address may hold a login
	case *rank < -1 || *rank > 65535:
		wrong = fmt.Sprintf("--rank=%d: want a rank from 0 to 65535, or -1 for all", *rank)
	case t.count < 0:
		wrong = fmt.Sprintf("--count=%d: want 0 or more", t.count)
	case *holdings && (*rank >= 0 || t.beats || t.count > 0):
		wrong = "--index shows ranks, not events: it goes with --worker, --for, --subject, --stream and --json only"
	}
	if wrong != "" {
		fmt.Fprintf(stderr, "kvrelay tail: %s\n", wrong)
		return exitUsage
	}
	t.rank = *rank
	t.color = !t.json && logging.IsTerminal(stdout) && os.Getenv("NO_COLOR") == ""
	nc, err := connectNATS(cfg)
	if err != nil {
		return fail(stderr, "tail", err)
	}
	defer nc.Close()
	ctx, stop := bounded(ctx, *length)
	defer stop()
	if *holdings {
		err = t.holdings(ctx, cfg, nc, *subject, stdout)
	} else {
		var beats []string
		if t.beats {
			beats = []string{"kvrelay." + consumer.Escape(cfg.Namespace) + ".*.*.heartbeat"}
		}
		err = t.run(ctx, nc, tailSubjects(cfg, *subject, t.stream != ""), beats, stdout, stderr)
	}
	if err != nil {
		return fail(stderr, "tail", err)
	}
	return exitOK
}

// connectNATS connects a reader, with the settings of the relay. It reconnects
// for ever; the first connection must stand.
func connectNATS(cfg *config.Config) (*nats.Conn, error) {
	auth := sinks.Auth{
		CredsFile: cfg.NATSCredsFile, NKeyFile: cfg.NATSNkeyFile,
		User: cfg.NATSUser, Password: string(cfg.NATSPassword), Token: string(cfg.NATSToken),
		TLSCA: cfg.NATSTLSCA, TLSCert: cfg.NATSTLSCert, TLSKey: cfg.NATSTLSKey,
	}
	opts, err := auth.Options()
	if err != nil {
		return nil, err
	}
	servers := cfg.NATSURL
	if len(servers) == 0 {
		servers = config.URLs{"nats://127.0.0.1:4222"} // where a relay without NATS_URL has its own
	}
	nc, err := nats.Connect(strings.Join(servers, ","), append(opts, nats.Name("kvrelay reader"), nats.MaxReconnects(-1),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))...)
	if err != nil {
		return nil, auth.Explain(servers, err)
	}
	return nc, nil
}

// tailSubjects is where the events are: the subject asked for, else that of the
// profile, in a JetStream stream, or on NATS core as both sinks publish.
func tailSubjects(cfg *config.Config, subject string, stream bool) []string {
	if subject != "" {
		return []string{subject}
	}
	p, _ := consumer.ParseProfile(cfg.Profile) // config has refused others
	js := p.Subject(cfg.Namespace, cfg.Component, cfg.EndpointName, true)
	core := p.Subject(cfg.Namespace, cfg.Component, cfg.EndpointName, false)
	if stream || js == core {
		return []string{js}
	}
	return []string{core, js}
}

// tail shows events.
type tail struct {
	json, color, beats bool
	worker             uint64
	rank               int
	count              int
	stream             string

	out  *bufio.Writer
	last map[consumer.Rank]tailPlace // bounded by maxTailRanks
	n    int
}

// tailPlace is the newest event shown of a rank.
type tailPlace struct{ publisher, id uint64 }

// maxTailRanks bounds the ranks whose ids are watched; of further ones missing
// ids are not marked.
const maxTailRanks = 4096

// run shows the events of subjects, and what comes on beats, until ctx ends or
// count is reached.
func (t *tail) run(ctx context.Context, nc *nats.Conn, subjects, beats []string, stdout, stderr io.Writer) error {
	t.out, t.last = bufio.NewWriter(stdout), map[consumer.Rank]tailPlace{}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	msgs := make(chan *nats.Msg, 1024)
	ended := make(chan error, 1) // how reading the stream did
	where := append(slices.Clone(subjects), beats...)
	if t.stream != "" {
		it, err := streamMessages(ctx, nc, t.stream, subjects)
		if err != nil {
			return err
		}
		reader := make(chan struct{})
		go func() {
			defer close(reader)
			ended <- readStream(ctx, it, msgs)
		}()
		defer func() { cancel(nil); <-reader }()
		where[0] += " of stream " + t.stream
		subjects = nil
	}
	for _, s := range append(slices.Clone(subjects), beats...) {
		if _, err := nc.ChanSubscribe(s, msgs); err != nil { // ends with the connection
			return fmt.Errorf("subscribing to %s: %w", s, err)
		}
	}
	if err := nc.FlushWithContext(withDeadline(ctx, 5*time.Second)); err != nil && ctx.Err() == nil {
		return fmt.Errorf("subscribing: %w", err)
	}
	fmt.Fprintf(stderr, "listening on %s at %s\n", strings.Join(where, ", "), nc.ConnectedUrlRedacted())
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-ended:
			return err
		case m := <-msgs:
			done, err := t.message(m)
			if err == nil && (done || len(msgs) == 0) {
				err = t.out.Flush()
			}
			if done || err != nil {
				return err
			}
		}
	}
}

// message shows one message, and says whether enough was shown.
func (t *tail) message(m *nats.Msg) (done bool, err error) {
	if strings.HasSuffix(m.Subject, ".heartbeat") {
		_, err = fmt.Fprintf(t.out, "%s %s\n", m.Subject, m.Data)
		return false, err
	}
	msg, err := consumer.ParseMessage(m.Subject, m.Header, m.Data)
	if err != nil {
		_, err = fmt.Fprintf(t.out, "%s\n", t.paint(red, err.Error()))
		return false, err
	}
	for i := range msg.Events {
		e := &msg.Events[i]
		if t.worker != 0 && e.Rank.Worker != t.worker || t.rank >= 0 && int(e.Rank.DP) != t.rank {
			continue
		}
		if err := t.event(msg, e); err != nil {
			return true, err
		}
		if t.n++; t.count > 0 && t.n >= t.count {
			return true, nil
		}
	}
	return false, nil
}

func (t *tail) event(msg *consumer.Message, e *consumer.Event) error {
	note := t.follow(msg.Publisher, e)
	if t.json {
		line, err := json.Marshal(jsonEvent(msg.Publisher, e, note))
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(t.out, "%s\n", line)
		return err
	}
	if note != "" {
		if _, err := fmt.Fprintf(t.out, "%s\n", t.paint(yellow, "  … "+note)); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintln(t.out, t.line(e))
	return err
}

// follow says what is odd about e's place in its rank's ids; "": nothing.
func (t *tail) follow(publisher uint64, e *consumer.Event) string {
	before, known := t.last[e.Rank]
	if !known && len(t.last) >= maxTailRanks {
		return ""
	}
	t.last[e.Rank] = tailPlace{publisher, e.ID}
	switch {
	case !known:
	case before.publisher != publisher:
		return fmt.Sprintf("worker %d rank %d: another publisher, ids count anew", e.Rank.Worker, e.Rank.DP)
	case e.ID > before.id+1:
		return fmt.Sprintf("worker %d rank %d: %d events missing", e.Rank.Worker, e.Rank.DP, e.ID-before.id-1)
	case e.ID <= before.id:
		t.last[e.Rank] = before
		return fmt.Sprintf("worker %d rank %d: sent again", e.Rank.Worker, e.Rank.DP)
	}
	return ""
}

func (t *tail) paint(code, text string) string {
	if !t.color {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

// line is an event for people.
func (t *tail) line(e *consumer.Event) string {
	var what, color string
	switch e.Kind {
	case consumer.Stored:
		what, color = fmt.Sprintf("stored  %4d %s", len(e.Blocks), blocksText(len(e.Blocks))), green
		if len(e.Blocks) > 0 {
			what += fmt.Sprintf("  %016x", e.Blocks[0].Hash)
			if len(e.Blocks) > 1 {
				what += fmt.Sprintf("…%016x", e.Blocks[len(e.Blocks)-1].Hash)
			}
		}
		if e.HasParent {
			what += fmt.Sprintf("  after %016x", e.Parent)
		}
	case consumer.Removed:
		what, color = fmt.Sprintf("removed %4d %s", len(e.Hashes), blocksText(len(e.Hashes))), red
		if len(e.Hashes) > 0 {
			what += fmt.Sprintf("  %016x", e.Hashes[0])
		}
		if len(e.Hashes) > 1 {
			what += "…"
		}
	default:
		what, color = "cleared", yellow
	}
	if e.Session != "" {
		what += fmt.Sprintf("  session %q", e.Session)
	}
	return fmt.Sprintf("%d/%d #%-7d %-11s %s", e.Rank.Worker, e.Rank.DP, e.ID, e.Tier, t.paint(color, what))
}

func blocksText(n int) string {
	if n == 1 {
		return "block "
	}
	return "blocks"
}

// tailEvent is one JSON line: the router event as the json profile has it,
// and what tail adds.
type tailEvent struct {
	Publisher uint64          `json:"publisher_id"`
	Note      string          `json:"note,omitempty"`
	Event     json.RawMessage `json:"router_event"`
}

func jsonEvent(publisher uint64, e *consumer.Event, note string) tailEvent {
	r := convert.RouterEvent{
		Kind: convert.Kind(e.Kind), Tier: convert.Tier(e.Tier), NoDomain: e.Domain == "",
		HasParent: e.HasParent, Parent: e.Parent, Hashes: e.Hashes,
	}
	if e.Session != "" {
		r.SessionID = []byte(e.Session)
	}
	for _, b := range e.Blocks {
		c := convert.Block{Hash: b.Hash, TokensHash: b.TokensHash}
		for _, o := range b.MM {
			c.MM = append(c.MM, convert.MMObject(o))
		}
		r.Blocks = append(r.Blocks, c)
	}
	return tailEvent{publisher, note, convert.AppendEventJSON(nil, &r, e.Rank.Worker, e.Rank.DP, e.ID)}
}

// withDeadline is ctx with a deadline; its timer ends by itself.
func withDeadline(ctx context.Context, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(ctx, d)
	context.AfterFunc(ctx, cancel)
	return ctx
}
