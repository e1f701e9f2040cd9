package relay

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/kvrelay/kvrelay/discovery"
	"github.com/kvrelay/kvrelay/sinks"
)

// update starts streams for new sources and ends those that are gone. A source
// whose endpoint moved is another source; its ranks keep their outboxes.
func (r *Relay) update(ctx context.Context, fail context.CancelCauseFunc, sources []discovery.Source, wg *sync.WaitGroup) {
	sources = r.asStreams(sources)
	want := map[discovery.Source]bool{}
	byName := map[string]discovery.Source{}
	for _, src := range sources {
		want[src] = true
		byName[src.Name()] = src
	}
	r.mu.Lock()
	var gone []*running
	for src, run := range r.streams {
		if !want[src] {
			gone = append(gone, run)
			delete(r.streams, src)
		}
	}
	r.mu.Unlock()
	for _, run := range gone {
		run.cancel()
		<-run.done
		was := run.stream.src
		if now, ok := byName[was.Name()]; ok {
			r.o.Log.Info("the engine says something else of this source: it is cleared and begins again", "source", was.Name(), "changed", changes(was, now))
		} else {
			r.o.Log.Info("the engine no longer has this source", "source", was.Name())
		}
	}
	if ctx.Err() != nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, src := range sources {
		if r.streams[src] != nil {
			continue
		}
		sctx, cancel := context.WithCancel(ctx)
		run := &running{stream: newStream(r, src), cancel: cancel, done: make(chan struct{})}
		r.streams[src] = run
		wg.Go(func() {
			defer close(run.done)
			if err := run.stream.run(ctx, sctx); err != nil {
				fail(err)
			}
		})
	}
	r.dropUnowned(sources)
}

// asStreams are the sources with no more in them than their streams depend on:
// a change of anything else must not end a stream and clear its rank.
func (r *Relay) asStreams(sources []discovery.Source) []discovery.Source {
	out := make([]discovery.Source, len(sources))
	for i, src := range sources {
		if r.needsRanks() {
			src.Ranks = min(src.Ranks, 2) // one or several
		} else {
			src.Ranks = 0
		}
		out[i] = src
	}
	return out
}

// needsRanks says whether a `cleared` of one rank would clear the others too:
// where they share a subject whose readers do not tell ranks apart. Not in a
// stream: it has a subject a rank, which routers up to Dynamo 1.3 do not read,
// and a resumption needs a `cleared` that stands alone.
func (r *Relay) needsRanks() bool {
	return r.o.Profile == sinks.DynamoSingle && r.o.Publisher.Kind() != sinks.JetStream
}

// changes are the differences of two sources of one name, for a person.
func changes(was, now discovery.Source) string {
	var list []string
	for _, c := range []struct {
		what     string
		was, now any
	}{
		{"replay endpoint", was.Replay, now.Replay},
		{"topic", was.Topic, now.Topic}, {"exact topic", was.TopicExact, now.TopicExact}, {"block size", was.BlockSize, now.BlockSize},
		{"engine", was.Engine, now.Engine}, {"kind", was.Kind, now.Kind}, {"version", was.Version, now.Version},
	} {
		if c.was != c.now {
			list = append(list, fmt.Sprintf("%s %v → %v", c.what, c.was, c.now))
		}
	}
	if was.Ranks != now.Ranks { // as asStreams leaves it
		list = append(list, "one rank → several")
	}
	return strings.Join(list, ", ")
}

// dropUnowned closes the outboxes of ranks that no source has any more. What
// they published is cleared. r.mu is held.
func (r *Relay) dropUnowned(sources []discovery.Source) {
	named := map[uint32]bool{}
	for _, src := range sources {
		named[src.Rank] = true
	}
	for rank, o := range r.owners {
		if o.stream.Load() == nil && !named[rank] {
			o.outbox.Close()
			delete(r.owners, rank)
		}
	}
}
