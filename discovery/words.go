package discovery

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"
)

// waiting is why there is no answer.
type waiting struct {
	classes string // of every address: what tells one state of waiting from another
	text    string
	level   slog.Level
}

// silence sums up what the addresses said instead of an answer.
func silence(probers []prober, replies []reply) waiting {
	var w waiting
	var texts []string
	worst := unreachable
	for i := 0; i < len(probers); {
		url := probers[i].target.url
		var top, mute *failure // the most telling; one of a question that got no answer at all
		var asks []string
		for ; i < len(probers) && probers[i].target.url == url; i++ {
			f := replies[i].fail
			asks = append(asks, probers[i].asks)
			if top == nil || f.class > top.class {
				top = f
			}
			if f.class == unreachable {
				mute = failf(notReady, "%s for %s", f.text, probers[i].asks)
			}
		}
		if top.class == unsupported && mute != nil {
			top = mute // whoever is there may know this question, and have no time for it
		}
		worst = max(worst, top.class)
		w.classes += fmt.Sprintf("%s %d ", url, top.class)
		if top.class == unsupported {
			texts = append(texts, fmt.Sprintf("%s answers, but does not know %s; settings that do the same: ENGINE=static, "+
				"ENDPOINTS=tcp://HOST:PORT and REPLAY_ENDPOINTS=tcp://HOST:PORT, as in the engine's KV events config", url, strings.Join(asks, ", or ")))
		} else {
			texts = append(texts, url+": "+top.text)
		}
	}
	w.text = strings.Join(texts, "; ")
	// On the usual ports of a host there may well be something else.
	if worst >= denied || worst == unsupported && len(texts) == 1 {
		w.level = slog.LevelWarn
	}
	return w
}

// words are what discovery tells a person: each state once, and every 30 s
// what is still awaited.
type words struct {
	log *slog.Logger

	state    string // what was said last
	since    time.Time
	said     time.Time
	found    string // engine and version
	refused  []Refusal
	warnings []string

	newsSince time.Time // of the lines that room counts
	newsSaid  int
}

// enter begins a state, unless it is there already.
func (w *words) enter(now time.Time, state string) (fresh bool) {
	if w.state == state && !w.since.IsZero() {
		return false
	}
	w.state, w.since, w.said = state, now, time.Time{}
	return true
}

// silent tells of a round without an answer.
func (w *words) silent(now time.Time, why waiting, had bool) {
	state := "silent " + why.classes
	if had {
		state = "silent since it was there" // first asked in one way, then in all
	}
	w.enter(now, state)
	if !w.said.IsZero() && now.Sub(w.said) < sayAgain {
		return
	}
	say := "waiting for the engine to say where its KV events are"
	if had {
		say = "the engine no longer says where its KV events are: what it said last holds"
	}
	attrs := []any{"because", why.text}
	if waited := now.Sub(w.since); waited >= time.Second {
		attrs = append(attrs, "for", waited.Round(time.Second).String())
	}
	w.log.Log(context.Background(), why.level, say, attrs...)
	w.said = now
}

// answered tells of an answer, as far as it is news.
func (w *words) answered(now time.Time, a *answer, o outcome, next []Source, awaiting string, changed bool) {
	was := w.state
	fresh := w.enter(now, "answered "+awaiting)
	log := w.log.With("engine", o.engine)
	found := a.kind + " " + a.version + " " + o.engine
	switch {
	case awaiting != "" && fresh:
		level := slog.LevelWarn
		if a.role == roleDecode {
			level = slog.LevelInfo
		}
		log.Log(context.Background(), level, awaiting, "kind", a.kind)
	case changed && found != w.found:
		log.Info("found the engine", describe(a, next)...)
	case changed:
		log.Info("the engine's sources changed", describe(a, next)...)
	case fresh && strings.HasPrefix(was, "silent"):
		log.Info("the engine answers again: its sources are as they were")
	}
	if len(next) > 0 {
		w.found = found
	}
	refused := news(o.refused, w.refused)
	for i, r := range refused {
		if !w.room(now) {
			log.Warn("not used: more sources, for reasons like those before", "sources", len(refused)-i)
			break
		}
		log.Warn("not used: " + r.String())
	}
	warnings := news(o.warnings, w.warnings)
	for i, text := range warnings {
		if !w.room(now) {
			log.Warn("more is odd about the engine's sources, like what was said before", "warnings", len(warnings)-i)
			break
		}
		log.Warn(text)
	}
	w.refused, w.warnings = o.refused, o.warnings
}

// room says whether one more line about a single source may be said. Their texts
// differ, so that nothing else bounds what an engine can make us say.
func (w *words) room(now time.Time) bool {
	if now.Sub(w.newsSince) >= sayAgain {
		w.newsSince, w.newsSaid = now, 0
	}
	w.newsSaid++
	return w.newsSaid <= newsAtOnce
}

// news are those of now that were not there before.
func news[T comparable](now, before []T) []T {
	was := make(map[T]bool, len(before))
	for _, x := range before {
		was[x] = true
	}
	return slices.DeleteFunc(slices.Clone(now), func(x T) bool { return was[x] })
}

// describe is what a person wants to know of an engine that was found.
func describe(a *answer, sources []Source) []any {
	attrs := []any{"kind", a.kind}
	if a.version != "" {
		attrs = append(attrs, "version", a.version)
	}
	if a.role != "" {
		attrs = append(attrs, "role", a.role)
	}
	if len(sources) > sourcesNamed {
		return append(attrs, "sources", len(sources))
	}
	names := make([]string, len(sources))
	for i, s := range sources {
		names[i] = s.Name()
	}
	attrs = append(attrs, "sources", strings.Join(names, ", "))
	if len(sources) > 0 && sources[0].BlockSize > 0 {
		attrs = append(attrs, "block_size", sources[0].BlockSize)
	}
	return attrs
}
