package check

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/kvrelay/kvrelay/convert"
)

// Judge fills Findings and Healthy from what was seen.
func (r *Report) Judge() {
	j := judge{r: r}
	for _, text := range r.Discovery {
		j.add(Problem, "discovery", "", text, "Correct what the engine is started with, or the address given to kvrelay (DISCOVERY_URL, or ENDPOINTS and REPLAY_ENDPOINTS).")
	}
	for _, text := range r.Doubts {
		j.add(Warning, "doubt", "", text, "")
	}
	if len(r.Streams) == 0 && len(r.Discovery) == 0 {
		j.add(Problem, "no_source", "", "no source of KV events was found", "Name the engine with --discovery-url, or its sockets with --endpoints and --replay-endpoints.")
	}
	for _, s := range r.Streams {
		j.where = s.Name
		if j.connection(s) {
			j.numbers(s)
			j.replay(s)
			j.wire(s)
			for _, rank := range s.Ranks {
				j.rank(s, rank)
			}
		}
	}
	slices.SortStableFunc(j.list, func(a, b Finding) int { return worse(a.Level) - worse(b.Level) })
	r.Findings = j.list
	r.Healthy = !slices.ContainsFunc(j.list, func(f Finding) bool { return f.Level == Problem })
}

func worse(l Level) int { return slices.Index([]Level{Problem, Warning, Note}, l) }

// judge collects findings. What several ranks have in common is said once, in
// the words of the first.
type judge struct {
	r     *Report
	where string // name of the stream at hand
	list  []Finding
}

func (j *judge) add(level Level, code, where, what, do string) {
	for i := range j.list {
		f := &j.list[i]
		if f.Code != code || f.Level != level {
			continue
		}
		if where != "" && !slices.Contains(strings.Split(f.Where, ", "), where) && strings.Count(f.Where, ", ") < maxNames {
			f.Where += ", " + where
		}
		if where != "" {
			return
		}
	}
	j.list = append(j.list, Finding{Level: level, Code: code, Where: where, What: what, Do: do})
}

func (j *judge) say(level Level, code, what, do string) { j.add(level, code, j.where, what, do) }

const (
	doEvents = "Start the engine with KV events on: vLLM --kv-events-config '{\"enable_kv_cache_events\":true,\"publisher\":\"zmq\",\"endpoint\":\"tcp://*:5557\",\"replay_endpoint\":\"tcp://*:5558\"}', SGLang --kv-events-config with the same fields. Then check address, port and network policy between kvrelay and the engine."
	doReplay = "Give the engine a replay endpoint (\"replay_endpoint\":\"tcp://*:5558\" in its kv-events-config) and kvrelay the address (REPLAY_ENDPOINTS), if discovery does not say it."
	doReport = "Please report it to kvrelay with a recording (kvrelay record; it holds prompts as token ids)."
)

// connection judges whether anything came at all; false: there is nothing more to say.
func (j *judge) connection(s *Stream) bool {
	l := &s.Live
	switch {
	case !l.Connected && !j.r.File:
		what := "the engine's event socket " + l.Endpoint + " cannot be reached"
		if strings.HasPrefix(l.Endpoint, "listen:") {
			what = "no engine connected to " + l.Endpoint
		}
		if l.Error != "" {
			what += ": " + l.Error
		}
		j.say(Problem, "unreachable", what, doEvents)
		return false
	case l.Odd > 0:
		j.say(Problem, "odd_frames", fmt.Sprintf("%s of no known form came: %s", plural(l.Odd, "message"), l.OddWhy),
			"See that the address is that of the engine's event PUB and of no other socket.")
	}
	if l.Connects > 1 {
		j.say(Warning, "reconnects", fmt.Sprintf("the live connection ended %s within %.0f s: %s", plural(l.Connects-1, "time"), j.r.Seconds, l.Error),
			"See whether the engine was restarted; otherwise look for a proxy or a firewall between it and kvrelay.")
	}
	if s.Numbers.Applied == 0 && l.Odd == 0 {
		switch {
		case j.r.File && s.Replay.Requests > 0:
			return true
		case l.Filtered > 0:
			j.say(Problem, "topic", fmt.Sprintf("%s came, all under other topics than %q: %s", plural(l.Filtered, "message"), string(s.prefix), strings.Join(l.Topics, ", ")),
				"Set TOPIC to the engine's topic, or leave TOPIC_EXACT off.")
		case j.r.File:
			j.say(Problem, "silent", "the recording holds no batch", "Record again while the engine serves requests.")
			return false
		default:
			do := "Send the engine a request of a few hundred tokens while check runs. If nothing comes then: prefix caching is off, KV events are (enable_kv_cache_events), or it is another process's socket."
			if len(s.prefix) > 0 {
				do += fmt.Sprintf(" And see that TOPIC=%q is how the engine's topic begins.", string(s.prefix))
			}
			j.say(Problem, "silent", fmt.Sprintf("connected to %s for %.0f s, but nothing came, live or by replay", l.Endpoint, l.Seconds), do)
		}
	}
	if !j.r.File && l.Messages == 0 && s.Numbers.Applied > 0 {
		prefix := ""
		if len(s.prefix) > 0 {
			prefix = fmt.Sprintf(" See that TOPIC=%q is how the engine's topic begins.", string(s.prefix))
		}
		if s.Numbers.Polled > 0 {
			j.say(Problem, "live_dead", fmt.Sprintf("replay has %s that were made during the look, but none of them came live from %s", plural(s.Numbers.Polled, "batch"), l.Endpoint),
				"See that both sockets are of the same engine and rank, and that nothing between them and kvrelay swallows the live stream."+prefix)
		} else {
			j.say(Warning, "quiet", fmt.Sprintf("nothing came live in %.0f s, and replay has nothing newer: the engine is idle", l.Seconds),
				"Send it a request of a few hundred tokens while check runs."+prefix)
		}
	}
	return true
}

func (j *judge) numbers(s *Stream) {
	n, l := &s.Numbers, &s.Live
	if l.Unnumber > 0 {
		j.say(Problem, "no_seq", fmt.Sprintf("%s came without a sequence number: what is lost cannot be noticed", plural(l.Unnumber, "batch")),
			"Use an engine version that sends topic, seq and payload (ATOM: a newer one).")
	}
	switch {
	case n.Missing > 0 && j.r.File:
		j.say(Warning, "holes", fmt.Sprintf("%s are missing in the recording", plural(n.Missing, "number")),
			"Record with --replay. Numbers that replay does not have either were never sent (vLLM 0.9 burns the number of a batch that it fails to encode).")
	case n.Missing > 0 && s.Replay.Connected:
		j.say(Problem, "missing", fmt.Sprintf("%s were lost on the way and replay does not have them", plural(n.Missing, "batch")),
			"Raise buffer_steps in the engine's kv-events-config: it makes more batches than that between a loss and its replay. See also whether the replay socket is the same rank's.")
	case n.Missing > 0:
		j.say(Problem, "missing", fmt.Sprintf("%s were lost on the way (%s) and there is no replay to get them from", plural(n.Missing, "batch"), plural(n.Gaps, "gap")), doReplay)
	case n.Gaps > 0:
		j.say(Note, "gaps", fmt.Sprintf("%s in the live stream, healed with %s from replay", plural(n.Gaps, "gap"), plural(n.Healed, "batch")), "")
	}
	if n.Burned > 0 {
		j.say(Note, "burned", fmt.Sprintf("%s never used: an engine burns the number of a batch that it fails to encode (look into its log). kvrelay passes over them", plural(n.Burned, "number was", "numbers were")), "")
	}
	if j.r.File && n.First != nil && *n.First > 0 && n.Missing == 0 {
		j.say(Note, "late", fmt.Sprintf("the recording begins at number %d: what the engine stored before is not in it", *n.First), "")
	}
	if n.Dropped > 0 {
		j.say(Warning, "too_fast", fmt.Sprintf("%s came faster than they could be looked at while a replay ran, and were passed over", plural(n.Dropped, "live batch")), "")
	}
	if n.Restarts > 0 {
		level := Warning
		if j.r.File {
			level = Note
		}
		j.say(level, "restarts", fmt.Sprintf("the engine was restarted %s while it was looked at: its cache was empty each time", plural(n.Restarts, "time")),
			"If nobody did that, look into the engine's log.")
	}
	if l.lagN > 0 && l.LagMS < -1000 {
		j.say(Note, "clock", fmt.Sprintf("the engine's clock is %.1f s ahead of this host's", -l.LagMS/1e3), "")
	} else if l.lagN > 0 && l.LagMS > 5000 {
		j.say(Warning, "lag", fmt.Sprintf("batches come %.1f s after the engine has stamped them", l.LagMS/1e3),
			"See whether clocks agree; if they do, the engine's publisher thread or the network is too slow.")
	}
}

func (j *judge) replay(s *Stream) {
	p := &s.Replay
	if j.r.File && p.Requests == 0 {
		return
	}
	switch {
	case p.Off:
		j.say(Warning, "replay_off", "replay is switched off: every lost batch costs the whole picture of the rank, and what the engine stored before kvrelay came stays unknown",
			"Leave REPLAY_ENDPOINTS=none out if the engine has a replay endpoint.")
	case !p.Configured:
		j.say(Problem, "no_replay", "no replay endpoint is known: every lost batch costs the whole picture of the rank, and what the engine stored before kvrelay came stays unknown", doReplay)
	case !p.Connected:
		j.say(Problem, "replay_unreachable", "the replay socket "+p.Endpoint+" cannot be reached: "+p.Error, doReplay)
	case p.Answered == 0 && p.Odd == 0:
		j.say(Problem, "replay_silent", fmt.Sprintf("the replay socket took %s and answered nothing", plural(p.Requests, "request")),
			"See that the port is that of the engine's replay ROUTER. An engine that hangs does the same.")
	case p.Batches == 0 && s.Live.Messages > 0 && !j.r.File:
		j.say(Problem, "replay_empty", "replay answers, but has no batch although live ones came",
			"See that both sockets are of the same engine and rank, and that buffer_steps is not 0.")
	}
	if p.Odd > 0 {
		j.say(Problem, "replay_odd", fmt.Sprintf("%s from the replay socket are of no known form", plural(p.Odd, "reply")), "See that the port is that of the engine's replay ROUTER.")
	}
	if p.First != nil && *p.First > 0 {
		j.say(Warning, "replay_short", fmt.Sprintf("replay reaches back to batch %d only: blocks stored before are unknown to routers until they are stored again", *p.First),
			"Start kvrelay with the engine, or raise buffer_steps in the engine's kv-events-config (default 10000 batches).")
	}
	if p.Holes > 0 && s.Numbers.Burned == 0 {
		j.say(Note, "replay_holes", fmt.Sprintf("replay left out %s: the ROUTER drops replies beyond its high-water mark (1000 in vLLM up to 0.32 and SGLang), or their numbers were never used. kvrelay asks again from there", plural(p.Holes, "batch")), "")
	}
	if p.Answered > 0 && p.EndMarkers == 0 {
		j.say(Note, "no_end_marker", "answers end without a marker; kvrelay waits for silence (REPLAY_IDLE) instead", "")
	}
}

func (j *judge) wire(s *Stream) {
	w := &s.Wire
	for _, name := range names(w.Unknown) {
		j.say(Note, "unknown_tag_"+name, fmt.Sprintf("%s of type %s, which kvrelay passes over", plural(w.Unknown[name], "event"), name), "")
	}
	if len(w.Malformed) > 0 {
		var list []string
		n := uint64(0)
		for _, why := range names(w.Malformed) {
			list = append(list, why)
			n += w.Malformed[why]
		}
		j.say(Problem, "malformed", fmt.Sprintf("%s are not as engines write them: %s", plural(n, "event"), strings.Join(list[:min(3, len(list))], "; ")), doReport)
	}
	if w.ExtraText > 0 {
		j.say(Note, "extra_text", fmt.Sprintf("%s carry text in extra_keys. vLLM's cache_salt is sent that way and cannot be told from other text, so it separates nothing for routers", plural(w.ExtraText, "store")),
			"Where tenants are kept apart by salts, send the salt as dynamo-cache-salt:<salt>, or as the field cache_salt of the event.")
	}
	if len(w.Groups) > 1 && slices.ContainsFunc(w.Groups, func(g Group) bool { return !g.Routable }) {
		j.say(Note, "hybrid", "a hybrid model: only full attention groups are routable. The engine hits what all of its groups agree on, which may be less than routers believe", "")
	}
	if len(s.Ranks) == 1 && s.Ranks[0].Rank != s.Own && w.RankNamed > 0 {
		j.say(Note, "other_rank", fmt.Sprintf("the batches say that they are of data-parallel rank %d; that is what counts", s.Ranks[0].Rank), "")
	}
	if len(s.Ranks) > 1 {
		j.say(Note, "several_ranks", fmt.Sprintf("one socket carries %d data-parallel ranks; a restart clears them all", len(s.Ranks)), "")
	}
}

// badReasons say what to do about drops; reasons that are not here are the
// normal life of an engine, or are judged elsewhere.
var badReasons = []struct {
	reason   convert.Reason
	level    Level
	what, do string
}{
	{convert.ReasonUndecodable, Problem, "%s could not be decoded: their blocks are unknown or stay where they are not", doReport},
	{convert.ReasonUnknownMedium, Problem, "%s name a storage medium that kvrelay does not know", doReport},
	{convert.ReasonUnknownKind, Problem, "%s name a kind of cache group that kvrelay does not know, so they are not routed", doReport},
	{convert.ReasonUnnamedLora, Problem, "%s belong to a LoRA adapter without a name; routers would take their blocks for the base model's", "Use an engine version that sends lora_name (vLLM from 0.15)."},
	{convert.ReasonUnlearnedGroup, Warning, "%s belong to a cache group whose kind was never said", "The engine should say kv_cache_spec_kind (vLLM from 0.22); groups above 0 are not routed without it."},
	{convert.ReasonAmbiguousSalt, Warning, "%s hang on blocks seen under two salts, and nothing says which they belong to", "An engine that sends cache_salt with every store has no such doubts."},
	{convert.ReasonShortTokens, Warning, "%s have fewer tokens than their blocks need", ""},
	{convert.ReasonSurplusTokens, Warning, "%s have more tokens than their blocks need, and nothing says which belong to which", "Hybrid models that skip blocks do so; their prefixes are hit less than they could be."},
	{convert.ReasonNoTokens, Warning, "%s have no tokens and their blocks were not known before, so no router could find them", "Usual for a lower tier when kvrelay came later than the engine. If it stays, look whether replay reaches back to 0."},
	{convert.ReasonSelfReference, Warning, "%s repeat a hash within themselves", ""},
	{convert.ReasonOrphan, Warning, "%s hang on blocks that were refused themselves", "Look at the other reasons first."},
	{convert.ReasonLedgerFull, Problem, "%s came when the ledger was full", doReport},
	{convert.ReasonForeignOwner, Note, "%s are of a KV store beside the engine", ""},
	{convert.ReasonNonLocal, Note, "%s are of blocks elsewhere than on this worker", ""},
}

func (j *judge) rank(s *Stream, r *Rank) {
	if r.Untrusted || j.r.Engine == "sglang" && oldSGLang(j.r.Version) {
		what := "the engine's block hashes stand for several places or name wrong parents: prefixes cannot be trusted, and routers will see hits that are none"
		if !r.Untrusted {
			what = "SGLang " + j.r.Version + " hashes each page alone: one hash stands for many places, and prefixes cannot be trusted"
		}
		j.say(Problem, "untrusted_hashes", what, "Use SGLang 0.5.6 or later; up to 0.5.5 it hashes each page alone and sends wrong parents.")
	}
	switch name := convert.ReasonBlockSize.String(); {
	case r.Mismatched:
		learned := "is expected"
		if s.config.BlockSize == 0 {
			learned = "was learned from the first store"
		}
		j.say(Problem, "block_size", fmt.Sprintf("the engine stores blocks of %d tokens, but %d %s: such stores are not published", r.OtherSize, r.BlockSize, learned),
			fmt.Sprintf("Set BLOCK_SIZE=%d if that is the engine's block size, and give routers the same.", r.OtherSize))
	case r.Drops[name].Events > 0:
		j.say(Note, "partial_blocks", fmt.Sprintf("%s of another block size than %d: partial blocks, as hybrid engines send them", plural(r.Drops[name].Events, "store"), r.BlockSize), "")
	}
	for _, bad := range badReasons {
		if d := r.Drops[bad.reason.String()]; d.Events > 0 {
			noun := "event"
			if bad.reason == convert.ReasonUndecodable {
				noun = "batch"
			}
			j.say(bad.level, bad.reason.String(), fmt.Sprintf(bad.what, plural(d.Events, noun)), bad.do)
		}
	}
	if r.BadRank > 0 {
		j.say(Warning, "bad_rank", fmt.Sprintf("%s name a data-parallel rank that is no number from 0 to 65535; they count as rank %d", plural(r.BadRank, "batch"), s.Own), "")
	}
	if r.Events > 0 && r.Published == 0 && r.Suppressed < r.Events {
		j.say(Problem, "nothing_published", fmt.Sprintf("of %s not one becomes a router event", plural(r.Events, "event")), "Look at the reasons above; the list of drops has an example of each.")
	}
	if r.FullReporting {
		j.say(Note, "full_reporting", "the engine reports fully (kv_cache_report_mode=full): it announces reused blocks again. kvrelay does not take them for copies", "")
	} else if r.Suppressed > 0 && s.Wire.Reused == 0 {
		j.say(Note, "copies", "the engine keeps copies of blocks; kvrelay removes a block when its last copy has gone", "")
	}
}

// oldSGLang says whether a version is 0.5.5 or before.
func oldSGLang(version string) bool {
	var v [3]int
	parts := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3)
	if len(parts) < 3 {
		return false
	}
	for i, p := range parts {
		digits := strings.IndexFunc(p, func(c rune) bool { return c < '0' || c > '9' })
		if digits < 0 {
			digits = len(p)
		}
		n, err := strconv.Atoi(p[:digits])
		if err != nil {
			return false
		}
		v[i] = n
	}
	return slices.Compare(v[:], []int{0, 5, 5}) <= 0
}
