package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/kvrelay/kvrelay/config"
	"github.com/kvrelay/kvrelay/consumer"
	"github.com/kvrelay/kvrelay/consumer/index"
)

const queryHelp = `
Usage: kvrelay query --prompt-tokens 11,22,… [flags] [settings]

Asks, as a router does, who holds how much of a prompt now: it follows the router
events on NATS, asks every relay's recovery service for what was before, and
prints for each worker and rank how many leading blocks of the prompt it holds,
in each tier or a faster one.

  kvrelay query --nats-url nats://127.0.0.1:4222 --prompt-tokens 11,22,33,44
  tokenize prompt.txt | kvrelay query --prompt-file - --block-size 32 --json

Tokens are numbers with commas or white space between them, in brackets if
wanted. Without --block-size the usual sizes are tried.

Exit codes: 0 somebody holds at least one block, 1 nobody does, or nobody
answered, 2 bad usage.`

// usualSizes are tried when --block-size is not given.
var usualSizes = []int{16, 1, 2, 4, 8, 32, 64, 128, 256, 512, 1024}

// maxPrompt bounds the text of a prompt; a longer one is refused.
const maxPrompt = 64 << 20

// query is one question.
type query struct {
	prompt    index.Prompt
	blockSize int // 0: the usual ones are tried
	eagle     bool
	wait      time.Duration
	settle    time.Duration // how long further ranks are listened for, however well the known ones are followed
	stream    string
	worker    uint64
}

// runQuery is `kvrelay query`.
func runQuery(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	fs := flag.NewFlagSet("query", flag.ContinueOnError)
	q := query{settle: 1500 * time.Millisecond} // a heartbeat comes every second
	tokens := fs.String("prompt-tokens", "", "the prompt's token ids: 11,22,33")
	file := fs.String("prompt-file", "", "file with the token ids; - is stdin")
	fs.IntVar(&q.blockSize, "block-size", 0, "tokens per block of the engines; 0: the usual sizes are tried")
	fs.StringVar(&q.prompt.LoRA, "lora", "", "name of the request's LoRA adapter")
	fs.StringVar(&q.prompt.Salt, "cache-salt", "", "the request's cache_salt")
	fs.BoolVar(&q.eagle, "eagle", false, "the engines hash token pairs (EAGLE)")
	fs.DurationVar(&q.wait, "wait", 5*time.Second, "give up after so long, with what is known then")
	fs.StringVar(&q.stream, "stream", "", "JetStream stream to read (relays with SINK=jetstream)")
	fs.Uint64Var(&q.worker, "worker", 0, "ask about this worker only; 0: all")
	asJSON := fs.Bool("json", false, "the answer as JSON")
	cfg, code, done := settings(fs, queryHelp, args, stdout, stderr, natsSettings...)
	if done {
		return code
	}
	var err error
	switch {
	case fs.NArg() > 0:
		err = errors.New("an argument that is no flag; tokens are given with --prompt-tokens or --prompt-file")
	case (*tokens == "") == (*file == ""):
		err = errors.New("want the prompt as one of --prompt-tokens and --prompt-file")
	case q.blockSize < 0:
		err = fmt.Errorf("--block-size=%d: want 0 or more", q.blockSize)
	case q.wait <= 0:
		err = fmt.Errorf("--wait=%v: want more than 0", q.wait)
	default:
		q.prompt.Tokens, err = readPrompt(*tokens, *file, stdin)
	}
	if err != nil {
		fmt.Fprintf(stderr, "kvrelay query: %v\n", err)
		return exitUsage
	}
	nc, err := connectNATS(cfg)
	if err != nil {
		return fail(stderr, "query", err)
	}
	defer nc.Close()
	a, err := q.ask(ctx, cfg, nc)
	if err != nil {
		return fail(stderr, "query", err)
	}
	if *asJSON {
		err = json.NewEncoder(stdout).Encode(a)
	} else {
		err = a.text(stdout)
	}
	if err != nil {
		return fail(stderr, "query", fmt.Errorf("writing: %w", err))
	}
	if !a.found() {
		return exitFailed
	}
	return exitOK
}

// readPrompt reads token ids from text, or from the file. Its errors never
// quote them.
func readPrompt(text, file string, stdin io.Reader) ([]uint32, error) {
	if file != "" {
		src := stdin
		if file != "-" {
			f, err := os.Open(file)
			if err != nil {
				return nil, err
			}
			defer func() { _ = f.Close() }() // only read
			src = f
		}
		all, err := io.ReadAll(io.LimitReader(src, maxPrompt+1))
		if err != nil {
			return nil, fmt.Errorf("reading the prompt: %w", err)
		}
		if len(all) > maxPrompt {
			return nil, fmt.Errorf("a prompt of more than %d bytes of text", maxPrompt)
		}
		text = string(all)
	}
	text = strings.TrimSpace(text)
	if inner, ok := strings.CutPrefix(text, "["); ok {
		text, ok = strings.CutSuffix(inner, "]")
		if !ok {
			return nil, errors.New("the prompt's bracket is not closed")
		}
	}
	var list []uint32
	for i, field := range strings.FieldsFunc(text, func(c rune) bool { return c == ',' || c == ' ' || c == '\n' || c == '\t' || c == '\r' }) {
		n, err := strconv.ParseUint(field, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("token %d of the prompt is no number from 0 to %d", i+1, uint32(1<<32-1))
		}
		list = append(list, uint32(n))
	}
	if len(list) == 0 {
		return nil, errors.New("the prompt has no tokens")
	}
	return list, nil
}

// ask follows the events until every rank that is heard of is followed, or wait
// is over, and looks the prompt up.
func (q *query) ask(ctx context.Context, cfg *config.Config, nc *nats.Conn) (*queryAnswer, error) {
	x := index.New(index.Options{Eagle: q.eagle})
	c, err := newFollower(cfg, nc, q.stream, q.worker, x.Apply)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, q.wait)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for wait := true; wait; {
		select {
		case err := <-ended:
			if err != nil {
				return nil, err
			}
			wait = false
			ended <- nil
		case <-tick.C:
			wait = time.Since(began) < q.settle || !followed(c.Ranks())
		}
	}
	ranks := c.Ranks()
	cancel()
	if err := <-ended; err != nil {
		return nil, err
	}
	return q.lookUp(x, ranks), nil
}

// newFollower is a Consumer with the settings of the command.
func newFollower(cfg *config.Config, nc *nats.Conn, stream string, worker uint64, onEvent func(*consumer.Event)) (*consumer.Consumer, error) {
	p, err := consumer.ParseProfile(cfg.Profile)
	if err != nil {
		return nil, err
	}
	return consumer.New(consumer.Options{
		Conn: nc, Profile: p, Namespace: cfg.Namespace, Component: cfg.Component, Endpoint: cfg.EndpointName,
		JetStream: stream, Worker: worker, OnEvent: onEvent,
	})
}

// followed says whether all that can be known of the ranks is known.
func followed(ranks []consumer.RankStatus) bool {
	return len(ranks) > 0 && !slices.ContainsFunc(ranks, func(r consumer.RankStatus) bool {
		return r.State == consumer.Waiting || r.State == consumer.Recovering
	})
}

// queryAnswer says who holds how much.
type queryAnswer struct {
	Tokens    int           `json:"tokens"`
	BlockSize int           `json:"block_size"` // 0: none of the usual ones had a hit
	Blocks    int           `json:"blocks"`     // whole blocks of the prompt; 0 when the size is not known
	Complete  bool          `json:"complete"`   // every rank that was heard of is followed
	Holders   []queryHolder `json:"holders"`    // most first

	worker uint64 // that was asked about; 0: all
}

// queryHolder is one rank. Blocks and Tokens count the prompt's leading blocks
// held in a tier or a faster one.
type queryHolder struct {
	Worker uint64         `json:"worker_id"`
	Rank   uint32         `json:"dp_rank"`
	State  string         `json:"state"`
	Blocks map[string]int `json:"blocks"`
	Tokens map[string]int `json:"tokens"`

	counts [consumer.NumTiers]int
}

// lookUp finds the prompt in x, with the block size that finds most of it.
func (q *query) lookUp(x *index.Index, ranks []consumer.RankStatus) *queryAnswer {
	a := &queryAnswer{Tokens: len(q.prompt.Tokens), BlockSize: q.blockSize, Complete: followed(ranks), Holders: []queryHolder{}, worker: q.worker}
	sizes := usualSizes
	if q.blockSize > 0 {
		sizes = []int{q.blockSize}
	}
	var best []index.Match
	most := 0
	for _, size := range sizes {
		hashes := index.TokensHashes(nil, size, q.eagle, q.prompt)
		if q.blockSize > 0 {
			a.Blocks = len(hashes)
		}
		for _, m := range x.MatchHashes(nil, hashes) {
			if n := m.Blocks[consumer.External] * size; n > most {
				most, best, a.BlockSize, a.Blocks = n, x.MatchHashes(nil, hashes), size, len(hashes)
			}
		}
	}
	for _, r := range ranks {
		h := queryHolder{Worker: r.Rank.Worker, Rank: r.Rank.DP, State: r.State.String(), Blocks: map[string]int{}, Tokens: map[string]int{}}
		for _, m := range best {
			if m.Rank == r.Rank {
				h.counts = m.Blocks
			}
		}
		for t := range consumer.Tier(consumer.NumTiers) {
			h.Blocks[t.String()], h.Tokens[t.String()] = h.counts[t], h.counts[t]*a.BlockSize
		}
		a.Holders = append(a.Holders, h)
	}
	slices.SortFunc(a.Holders, func(a, b queryHolder) int {
		if c := slices.Compare(b.counts[:], a.counts[:]); c != 0 {
			return c
		}
		if a.Worker != b.Worker {
			return map[bool]int{true: -1, false: 1}[a.Worker < b.Worker]
		}
		return int(a.Rank) - int(b.Rank)
	})
	return a
}

func (a *queryAnswer) found() bool {
	return slices.ContainsFunc(a.Holders, func(h queryHolder) bool { return h.counts[consumer.External] > 0 })
}

// text is the answer for people.
func (a *queryAnswer) text(w io.Writer) error {
	if len(a.Holders) == 0 && a.worker != 0 {
		_, err := fmt.Fprintf(w, "worker %d did not answer: no event and no heartbeat of it came; without --worker everyone who answers is shown\n", a.worker)
		return err
	}
	if len(a.Holders) == 0 {
		_, err := fmt.Fprintln(w, "nobody answered: no event and no heartbeat came; see that a relay runs, and publishes to this NATS server, namespace and profile")
		return err
	}
	what := fmt.Sprintf("prompt of %d tokens", a.Tokens)
	switch {
	case a.BlockSize == 0:
		what += ": no block of it is held anywhere, at any usual block size"
	case a.found():
		what += fmt.Sprintf(": %d whole blocks of %d", a.Blocks, a.BlockSize)
	default:
		what += fmt.Sprintf(": none of its %d whole blocks of %d is held anywhere", a.Blocks, a.BlockSize)
	}
	fmt.Fprintln(w, what)
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, "\nWORKER/RANK\tDEVICE\t+ HOST_PINNED\t+ DISK\t+ EXTERNAL\tTOKENS\tSTATE")
	for _, h := range a.Holders {
		fmt.Fprintf(t, "%d/%d", h.Worker, h.Rank)
		for _, n := range h.counts {
			fmt.Fprintf(t, "\t%d", n)
		}
		fmt.Fprintf(t, "\t%d\t%s\n", h.counts[consumer.External]*a.BlockSize, h.State)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if !a.Complete {
		_, err := fmt.Fprintln(w, "\nNot every rank is followed yet: what it said before now is unknown. See that its relay's recovery service answers (nats micro ls), or try a longer --wait.")
		return err
	}
	return nil
}
