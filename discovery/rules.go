package discovery

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

const (
	// maxSources bounds what one answer may hold: no engine has so many ranks.
	// Further sources are refused, with one line.
	maxSources = 1024
	// maxBlockSize in tokens; an engine that says more is not believed.
	maxBlockSize = 1 << 20
)

// outcome is what an answer comes to.
type outcome struct {
	engine   string   // address that answered
	sources  []Source // by rank
	refused  []Refusal
	warnings []string
	unchosen string // why there are no sources although some are listed: none is chosen; "": not so
}

// resolver applies the rules to one answer. It is pure but for the look at
// socket files.
type resolver struct {
	a *answer
	t target
	o *Options
	outcome

	replays map[uint32]string // of Options.Replay, by rank
	done    map[uint32]string // name of the source that has the rank
	ranks   map[uint32]bool   // advertised and chosen
	listed  map[uint32]bool   // advertised
	taken   map[endpoint]string
}

// resolve makes Sources of what t answered. A source that is not as it should
// be is refused with a reason; the others are not touched by that.
func resolve(a *answer, t target, o *Options) outcome {
	r := resolver{a: a, t: t, o: o, done: map[uint32]string{}, ranks: map[uint32]bool{}, listed: map[uint32]bool{}, taken: map[endpoint]string{}}
	r.engine = t.url
	r.refused = slices.Clone(a.refused)
	r.warnings = slices.Clone(a.warnings)
	list := r.usable()
	r.replays = r.override(list)
	type pair struct {
		adv          *advertised
		live, replay endpoint
		hasReplay    bool
	}
	var pairs []pair
	for i := range list {
		adv := &list[i]
		live, replay, hasReplay, err := r.endpoints(adv)
		if err != nil {
			r.refuse(adv, err)
			continue
		}
		if was, ok := r.done[adv.rank]; ok {
			r.refuse(adv, fmt.Errorf("rank %d is advertised twice: %s has it", adv.rank, was))
			continue
		}
		if was, ok := r.taken[live.place()]; ok {
			r.refuse(adv, fmt.Errorf("%s is also %s: want an endpoint for each rank", live, was))
			continue
		}
		r.done[adv.rank] = adv.name()
		r.taken[live.place()] = "the live endpoint of " + adv.name()
		pairs = append(pairs, pair{adv, live, replay, hasReplay})
	}
	// All live endpoints come before the first replay endpoint: where the two
	// ranges overlap, it is the replay endpoint that cannot be meant.
	for _, p := range pairs {
		if p.hasReplay {
			if was, ok := r.taken[p.replay.place()]; ok {
				r.refuse(p.adv, fmt.Errorf("its replay endpoint %s is also %s: the two ranges of ports overlap; give the engine another replay port, or set REPLAY_ENDPOINTS", p.replay, was))
				continue
			}
			r.taken[p.replay.place()] = "the replay endpoint of " + p.adv.name()
		}
		r.add(p.adv, p.live, p.replay, p.hasReplay)
	}
	slices.SortFunc(r.sources, func(a, b Source) int { return cmp.Compare(a.Rank, b.Rank) })
	r.warnings = append(r.warnings, missingSockets(r.sources)...)
	return r.outcome
}

func (r *resolver) refuse(adv *advertised, err error) {
	r.refused = append(r.refused, Refusal{adv.name(), err.Error()})
}

// usable are the advertised sources that can be subscribed to, by rank.
func (r *resolver) usable() (list []advertised) {
	all := r.a.list
	if len(all) > maxSources {
		r.refused = append(r.refused, Refusal{fmt.Sprintf("%d further sources", len(all)-maxSources), fmt.Sprintf("at most %d are used", maxSources)})
		all = all[:maxSources]
	}
	all = slices.Clone(all)
	for i := range all {
		if !all[i].hasRank {
			all[i].rank = r.a.own
		}
		r.listed[all[i].rank] = true
	}
	all = r.chosen(all)
	slices.SortStableFunc(all, func(a, b advertised) int { return cmp.Compare(a.rank, b.rank) })
	for i := range all {
		adv := &all[i]
		r.ranks[adv.rank] = true
		if err := r.readable(adv, all); err != nil {
			r.refuse(adv, err)
			continue
		}
		list = append(list, *adv)
	}
	return list
}

// chosen are the sources of the ranks that Options choose.
func (r *resolver) chosen(all []advertised) []advertised {
	want := span{r.o.FirstRank, r.o.Ranks}
	chosen := slices.DeleteFunc(slices.Clone(all), func(a advertised) bool { return !want.has(a.rank) })
	if len(all) > 0 && len(chosen) == 0 {
		r.unchosen = fmt.Sprintf("the engine lists sources, %s, and none of them is chosen: FIRST_RANK and RANKS choose %s", rankText(all), want)
	}
	return chosen
}

// rankText says of which ranks the sources are.
func rankText(list []advertised) string {
	low, high := list[0].rank, list[0].rank
	for _, a := range list {
		low, high = min(low, a.rank), max(high, a.rank)
	}
	if low == high {
		return fmt.Sprintf("all of rank %d", low)
	}
	return fmt.Sprintf("of ranks from %d to %d", low, high)
}

// readable says why a source cannot be subscribed to, whatever its address.
func (r *resolver) readable(adv *advertised, all []advertised) error {
	switch {
	case adv.transport == "grpc":
		if slices.ContainsFunc(all, func(o advertised) bool { return o.rank == adv.rank && o.transport == "zmq" }) {
			return fmt.Errorf("transport grpc (SubscribeKvEvents) is not supported yet; the engine's zmq source of the rank is used")
		}
		return fmt.Errorf("transport grpc (SubscribeKvEvents) is not supported yet: have the engine publish over zmq")
	case adv.transport != "zmq":
		return fmt.Errorf("transport %s: want zmq", show(adv.transport))
	case adv.encoding != "" && !strings.EqualFold(adv.encoding, "msgpack"):
		return fmt.Errorf("encoding %s: want msgpack", show(adv.encoding))
	case !r.a.dp.has(adv.rank):
		return fmt.Errorf("rank %d is outside what the engine says it has: %s", adv.rank, r.a.dp)
	case len(adv.topic) > maxTopic:
		return fmt.Errorf("its topic is longer than %d bytes", maxTopic)
	}
	return nil
}

// override spreads Options.Replay over the advertised ranks.
func (r *resolver) override(list []advertised) map[uint32]string {
	given := r.o.Replay
	if r.o.NoReplay || len(given) == 0 {
		return nil
	}
	byRank := map[uint32]string{}
	switch {
	case len(given) == len(r.ranks):
		ranks := make([]uint32, 0, len(r.ranks))
		for rank := range r.ranks {
			ranks = append(ranks, rank)
		}
		slices.Sort(ranks)
		for i, rank := range ranks {
			byRank[rank] = given[i]
		}
	case len(given) == 1:
		base, err := parseEndpoint(given[0])
		if err != nil {
			r.warnings = append(r.warnings, fmt.Sprintf("REPLAY_ENDPOINTS: %v; what the engine says is used", err))
			return nil
		}
		for _, adv := range list {
			e, err := base.plus(adv.rank)
			if err != nil {
				r.warnings = append(r.warnings, fmt.Sprintf("REPLAY_ENDPOINTS: %v; what the engine says of rank %d is used", err, adv.rank))
				continue
			}
			byRank[adv.rank] = e.String()
		}
	case len(r.ranks) > 0:
		r.warnings = append(r.warnings, fmt.Sprintf("REPLAY_ENDPOINTS has %d entries and the engine %d ranks: want one entry, or one for each rank; what the engine says is used", len(given), len(r.ranks)))
	}
	return byRank
}

// endpoints are where adv is to be dialled.
func (r *resolver) endpoints(adv *advertised) (live, replay endpoint, hasReplay bool, err error) {
	if live, err = parseEndpoint(adv.endpoint); err != nil {
		return live, replay, false, err
	}
	live = r.reachable(adv, live)
	text, overridden := r.replays[adv.rank]
	if !overridden {
		text = adv.replay
	}
	if text == "" || r.o.NoReplay {
		return live, replay, false, nil
	}
	if replay, err = parseEndpoint(text); err != nil {
		return live, replay, false, fmt.Errorf("its replay %v; REPLAY_ENDPOINTS can name another, or none", err)
	}
	if !overridden {
		replay = r.reachable(adv, replay)
	}
	return live, replay, true, nil
}

// reachable is where e, which the engine bound, is dialled from here.
func (r *resolver) reachable(adv *advertised, e endpoint) endpoint {
	if e.path != "" {
		return e
	}
	there := endpoint{host: r.t.host, port: e.port}
	switch {
	case isWildcard(e.host):
		return there
	case isLoopback(e.host) && r.o.RewriteLoopback:
		return there
	case isLoopback(e.host) && !isLoopback(r.t.host):
		r.warnings = append(r.warnings, fmt.Sprintf("%s: the engine advertises %s, which reaches it only from its own pod or host, and was asked at %s; "+
			"if that is another, set REWRITE_LOOPBACK=true to dial %s, and have the engine bind tcp://*:%d", adv.name(), e, r.t.host, there, e.port))
	}
	return e
}

// add makes a Source.
func (r *resolver) add(adv *advertised, live, replay endpoint, hasReplay bool) {
	s := Source{
		Engine: r.t.url, Kind: r.a.kind, Version: r.a.version,
		Rank: adv.rank, Ranks: max(r.a.ranks, uint32(len(r.listed))),
		Endpoint: live.String(),
		Topic:    r.topic(adv), TopicExact: r.o.TopicExact,
		BlockSize: r.blockSize(adv),
	}
	if hasReplay {
		s.Replay = replay.String()
	}
	r.sources = append(r.sources, s)
}

func (r *resolver) topic(adv *advertised) string {
	own := r.o.Topic
	if own == "" {
		return adv.topic
	}
	// An engine's topic may itself be the beginning of its messages' topics.
	if adv.topic != "" && !strings.HasPrefix(adv.topic, own) && !strings.HasPrefix(own, adv.topic) {
		r.warnings = append(r.warnings, fmt.Sprintf("%s: the engine publishes under topic %s, so TOPIC=%s lets nothing through", adv.name(), show(adv.topic), show(own)))
	}
	return own
}

func (r *resolver) blockSize(adv *advertised) uint32 {
	size := adv.blockSize
	if size == 0 {
		size = r.a.blockSize
	}
	if size > maxBlockSize {
		r.warnings = append(r.warnings, fmt.Sprintf("%s: a block size of %d is not believed: want at most %d tokens", adv.name(), size, maxBlockSize))
		size = 0
	}
	if own := r.o.BlockSize; own != 0 {
		if size != 0 && size != own {
			r.warnings = append(r.warnings, fmt.Sprintf("%s: BLOCK_SIZE is %d but the engine's blocks have %d tokens", adv.name(), own, size))
		}
		return own
	}
	return size
}
