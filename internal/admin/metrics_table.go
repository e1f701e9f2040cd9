package admin

import (
	"strconv"
	"time"

	"github.com/kvrelay/kvrelay/relay"
)

var states = []string{relay.StateLive, relay.StateReplaying, relay.StateSuspect, relay.StateWaiting}

// buildInfo has its values from the binary.
var buildInfo = Metric{Name: "kvrelay_build_info", Type: gauge, Help: "What was built, from what. Always 1.",
	Labels: []Label{{Name: "version"}, {Name: "commit"}, {Name: "goversion"}}}

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func perProcess(name, typ, help string, f func(*snapshot) float64) metric {
	return metric{Metric: Metric{name, typ, help, nil}, process: f}
}

func perSource(name, typ, help string, f func(*relay.SourceStatus) float64) metric {
	return metric{Metric: Metric{name, typ, help, []Label{rankLabel}}, source: f}
}

func perRank(name, typ, help string, f func(*relay.RankStatus) float64) metric {
	return metric{Metric: Metric{name, typ, help, []Label{rankLabel}}, rank: f}
}

func severally(name, typ, help string, labels []Label, f func(*snapshot, func(float64, ...string))) metric {
	return metric{Metric: Metric{name, typ, help, labels}, several: f}
}

// metrics is the table. A label value that is not here does not exist: at 64
// ranks there are some 6 000 series.
func metrics() []metric {
	var list []metric
	for _, part := range [][]metric{processMetrics(), sourceMetrics(), replayMetrics(), eventMetrics(), sinkMetrics()} {
		list = append(list, part...)
	}
	return list
}

func processMetrics() []metric {
	return []metric{
		perProcess("kvrelay_start_time_seconds", gauge, "When the relay was started, in seconds since 1970.",
			func(s *snapshot) float64 { return seconds(s.relay.Started) }),
		severally("kvrelay_worker_info", gauge, "The worker id in router events. Always 1.", []Label{{Name: "worker_id"}},
			func(s *snapshot, add func(float64, ...string)) { add(1, strconv.FormatUint(s.relay.WorkerID, 10)) }),
		perProcess("kvrelay_status_age_seconds", gauge, "How old the figures of this scrape are. More than moments: a lock is not free, and the relay is stuck.",
			func(s *snapshot) float64 { return time.Since(s.at).Seconds() }),
		perProcess("kvrelay_ranks", gauge, "Sources (usually one a data-parallel rank) that the engine is known to have.",
			func(s *snapshot) float64 { return float64(len(s.relay.Sources)) }),
		perProcess("kvrelay_ranks_omitted", gauge, "Ranks that are relayed but left out of metrics and status, which show 256.",
			func(s *snapshot) float64 { return float64(s.omitted) }),
		severally("kvrelay_discovery_rounds_total", counter, "Times the engine was asked where its events are.",
			[]Label{{"outcome", []string{"answered", "failed"}}}, func(s *snapshot, add func(float64, ...string)) {
				add(float64(s.discovery.Asked-s.discovery.Failed), "answered")
				add(float64(s.discovery.Failed), "failed")
			}),
		perProcess("kvrelay_discovery_refused_sources", gauge, "Sources that the engine advertises but that cannot be used; /status says why.",
			func(s *snapshot) float64 { return float64(len(s.discovery.Refused)) }),
		perProcess("kvrelay_held_bytes", gauge, "Live batches held until what is missing before them is replayed.",
			func(s *snapshot) float64 { return float64(s.relay.HeldBytes) }),
		perProcess("kvrelay_hold_limit_bytes", gauge, "HOLD_BYTES: beyond it the newest held batches are dropped and replayed later.",
			func(s *snapshot) float64 { return float64(s.relay.HoldLimit) }),
	}
}

func sourceMetrics() []metric {
	type src = relay.SourceStatus
	return []metric{
		severally("kvrelay_rank_state", gauge, "1 for the state that the rank is in: live, replaying (batches are being fetched), suspect (its picture may be wrong), waiting (the engine is not reached, or the rank cannot be put on record).",
			[]Label{rankLabel, {"state", states}}, func(s *snapshot, add func(float64, ...string)) {
				for _, r := range rows(&s.relay) {
					for _, state := range states {
						add(number(r.state() == state), rankText(r.number()), state)
					}
				}
			}),
		perSource("kvrelay_rank_ready", gauge, "1 when the rank's first replay has ended, or it has no replay; and it could be put on record, where it is to be.",
			func(s *src) float64 { return number(s.Ready) }),
		perRank("kvrelay_rank_unregistered", gauge, "1 while the rank cannot be put on record for Dynamo routers (MEMBERSHIP), so that nothing of it is published; /readyz says why.",
			func(r *relay.RankStatus) float64 { return number(r.Unregistered != "") }),
		perSource("kvrelay_rank_gap_open", gauge, "1 while batches are known to be missing.",
			func(s *src) float64 { return number(s.Cursor.Missing) }),
		perSource("kvrelay_engine_connected", gauge, "1 while the live connection to the engine is up.",
			func(s *src) float64 { return number(!s.LiveSince.IsZero()) }),
		perSource("kvrelay_engine_reconnects_total", counter, "Live connections to the engine after the first.",
			func(s *src) float64 { return float64(max(s.Connects, 1) - 1) }),
		perSource("kvrelay_engine_restarts_total", counter, "Restarts of the engine: its old blocks were cleared.",
			func(s *src) float64 { return float64(s.Cursor.Restarts) }),
		perSource("kvrelay_sequence", gauge, "Number of the newest batch applied.",
			func(s *src) float64 { return float64(s.Cursor.Position.Seq) }),
		perSource("kvrelay_epoch", gauge, "Counts the engine's incarnations and the new beginnings after lost history.",
			func(s *src) float64 { return float64(s.Cursor.Epoch) }),
		perSource("kvrelay_batches_received_total", counter, "Batches received, live and replayed.",
			func(s *src) float64 { return float64(s.Cursor.Frames) }),
		severally("kvrelay_batches_total", counter, "What became of received batches: applied, repeated (known already), discarded (replayed later: no credit, no proof or no room), malformed (an impossible number). Held ones are in none yet.",
			[]Label{rankLabel, {"outcome", []string{"applied", "repeated", "discarded", "malformed"}}},
			eachSource(func(s *src, add func(float64, string)) {
				c := &s.Cursor
				add(float64(c.Applied), "applied")
				add(float64(c.Repeated), "repeated")
				add(float64(c.Discarded), "discarded")
				add(float64(c.Malformed), "malformed")
			})),
		perSource("kvrelay_batches_replayed_total", counter, "Applied batches that a replay brought.",
			func(s *src) float64 { return float64(s.Cursor.Replayed) }),
		perSource("kvrelay_batches_undecodable_total", counter, "Applied batches of which nothing could be read. The rank is suspect afterwards.",
			func(s *src) float64 { return float64(s.Undecodable) }),
		perSource("kvrelay_batches_of_refused_ranks_total", counter, "Batches dropped because another source has their rank, or the source names too many.",
			func(s *src) float64 { return float64(s.RefusedRanks) }),
		perSource("kvrelay_refused_frames_total", counter, "Messages that are no batch in any variant: probably not the engine's event endpoint.",
			func(s *src) float64 { return float64(s.RefusedFrames) }),
		perSource("kvrelay_filtered_messages_total", counter, "Messages of other topics than TOPIC.",
			func(s *src) float64 { return float64(s.Filtered) }),
		perSource("kvrelay_topic_mismatch", gauge, "1 while batches come, and none live of the topic that TOPIC and TOPIC_EXACT ask for.",
			func(s *src) float64 { return number(s.WrongTopic) }),
		perSource("kvrelay_held_batches", gauge, "Batches of the rank that wait for missing ones.",
			func(s *src) float64 { return float64(s.Cursor.Held) }),
		perSource("kvrelay_panics_total", counter, "Batches that made kvrelay panic: a bug, please report it. The rank was cleared.",
			func(s *src) float64 { return float64(s.Panics) }),
		perSource("kvrelay_backpressure_total", counter, "Times that OUT_BYTES was used up and batches were left in the engine's replay buffer.",
			func(s *src) float64 { return float64(s.Stalls) }),
		perSource("kvrelay_backpressure", gauge, "1 while batches are left in the engine's replay buffer because NATS does not confirm fast enough.",
			func(s *src) float64 { return number(s.Withheld) }),
	}
}

func replayMetrics() []metric {
	type src = relay.SourceStatus
	return []metric{
		perSource("kvrelay_gaps_total", counter, "Times that a live batch was ahead of the one expected.",
			func(s *src) float64 { return float64(s.Cursor.Gaps) }),
		severally("kvrelay_lost_history_total", counter, "Times that history was declared lost: gone (the engine no longer had it), exhausted (REPLAY_ATTEMPTS brought nothing, or there is no replay).",
			[]Label{rankLabel, {"cause", []string{"gone", "exhausted"}}},
			eachSource(func(s *src, add func(float64, string)) {
				add(float64(s.Cursor.Gone), "gone")
				add(float64(s.Cursor.Losses-min(s.Cursor.Gone, s.Cursor.Losses)), "exhausted")
			})),
		perSource("kvrelay_lost_batches_total", counter, "Batch numbers that were declared lost.",
			func(s *src) float64 { return float64(s.Cursor.Lost) }),
		perSource("kvrelay_burned_batches_total", counter, "Batch numbers that the engine drew but never used. Nothing is lost.",
			func(s *src) float64 { return float64(s.Cursor.Burned) }),
		perSource("kvrelay_replay_requests_total", counter, "Replay requests sent or wanted.",
			func(s *src) float64 { return float64(s.Cursor.Requests) }),
		severally("kvrelay_replays_total", counter, "How replays ended: ended (with the end marker), stalled (silent, or the connection broke), refused (the endpoint cannot be reached), dropped (by kvrelay, before their end).",
			[]Label{rankLabel, {"outcome", []string{"ended", "stalled", "refused", "dropped"}}},
			eachSource(func(s *src, add func(float64, string)) {
				c := &s.Cursor
				add(float64(c.Counters.Ended), "ended")
				add(float64(c.Stalled), "stalled")
				add(float64(c.Refused), "refused")
				add(float64(c.Dropped), "dropped")
			})),
		perSource("kvrelay_replay_polls_total", counter, "Replay requests made because the engine was silent.",
			func(s *src) float64 { return float64(s.Cursor.Polls) }),
		perSource("kvrelay_replay_attempts", gauge, "Replay attempts in a row without progress; at REPLAY_ATTEMPTS history counts as lost.",
			func(s *src) float64 { return float64(s.Cursor.Attempts) }),
		perSource("kvrelay_replay_failing", gauge, "1 when the newest replay request was refused or not answered: a gap would stay open.",
			func(s *src) float64 { return number(s.ReplayFailing) }),
		perSource("kvrelay_replay_running", gauge, "1 while a replay is under way.",
			func(s *src) float64 { return number(s.Cursor.Replaying) }),
	}
}

func eventMetrics() []metric {
	type rank = relay.RankStatus
	return []metric{
		perRank("kvrelay_events_received_total", counter, "Engine events received. Each ends published, suppressed or dropped.",
			func(r *rank) float64 { return float64(r.Convert.Events.In) }),
		perRank("kvrelay_events_published_total", counter, "Engine events published, at least in part.",
			func(r *rank) float64 { return float64(r.Convert.Events.Published) }),
		perRank("kvrelay_events_suppressed_total", counter, "Engine events that change nothing for a router, such as a further copy of a block.",
			func(r *rank) float64 { return float64(r.Convert.Events.Suppressed) }),
		severally("kvrelay_events_dropped_total", counter, "Engine events dropped whole or in part, and undecodable batches, by reason.",
			[]Label{rankLabel, {"reason", reasonNames()}}, func(s *snapshot, add func(float64, ...string)) {
				for _, r := range rows(&s.relay) {
					if r.rank == nil {
						continue
					}
					for _, reason := range reasons() {
						add(float64(r.rank.Convert.Drops(reason)), rankText(r.rank.Rank), reason.String())
					}
				}
			}),
		perRank("kvrelay_router_events_total", counter, "Router events made of engine events.",
			func(r *rank) float64 { return float64(r.Convert.RouterEvents) }),
		perRank("kvrelay_ledger_blocks", gauge, "Blocks published as present, counted per tier.",
			func(r *rank) float64 { return float64(r.Convert.Present) }),
		perRank("kvrelay_ledger_kept_blocks", gauge, "Blocks of an engine that is away, to be published again when it returns.",
			func(r *rank) float64 { return float64(r.Convert.Kept) }),
		perRank("kvrelay_block_size_tokens", gauge, "Tokens a block. 0: not known yet.",
			func(r *rank) float64 { return float64(r.Convert.BlockSize) }),
		perRank("kvrelay_block_size_mismatch", gauge, "1 when the engine stores blocks of another size than expected: they are dropped.",
			func(r *rank) float64 { return number(r.Convert.Mismatched) }),
		perRank("kvrelay_bounds_reached_total", counter, "Times that a bound on what an engine could invent without end took effect; the log says which.",
			func(r *rank) float64 {
				var n uint64
				for _, b := range r.Convert.Bounds {
					n += b
				}
				return float64(n)
			}),
		perRank("kvrelay_rank_unconfirmed_events", gauge, "Router events of the rank that NATS has not confirmed.",
			func(r *rank) float64 { return float64(r.LastID - min(r.Confirmed, r.LastID)) }),
		{Metric: Metric{"kvrelay_lag_seconds", histogram, "Age of a batch when it was applied: the relay's clock less the batch's own time.", []Label{rankLabel}}},
	}
}

func sinkMetrics() []metric {
	get := func(name, typ, help string, f func(*relay.Status) float64) metric {
		return perProcess(name, typ, help, func(s *snapshot) float64 { return f(&s.relay) })
	}
	return []metric{
		get("kvrelay_nats_connected", gauge, "1 while NATS is connected (SINK=stdout: always).",
			func(s *relay.Status) float64 { return number(s.Sink.Connected) }),
		get("kvrelay_nats_reconnects_total", counter, "Connections to NATS after the first.",
			func(s *relay.Status) float64 { return float64(s.Sink.Reconnects) }),
		get("kvrelay_publish_errors_total", counter, "Connections to NATS that could not be made, broke, or were ended for an error, and tries at events that NATS or the stream refused. What was unconfirmed is sent again.",
			func(s *relay.Status) float64 { return float64(s.Sink.Failures) }),
		get("kvrelay_envelopes_total", counter, "Messages handed to NATS, resent ones included.",
			func(s *relay.Status) float64 { return float64(s.Sink.Envelopes) }),
		get("kvrelay_envelopes_resent_total", counter, "Messages sent again after a lost connection.",
			func(s *relay.Status) float64 { return float64(s.Sink.Resent) }),
		get("kvrelay_confirmed_events_total", counter, "Router events that NATS has confirmed.",
			func(s *relay.Status) float64 { return float64(s.Sink.ConfirmedEvents) }),
		get("kvrelay_confirmed_bytes_total", counter, "Bytes of router events that NATS has confirmed.",
			func(s *relay.Status) float64 { return float64(s.Sink.ConfirmedBytes) }),
		get("kvrelay_unconfirmed_events", gauge, "Router events that NATS has not confirmed.",
			func(s *relay.Status) float64 { return float64(s.Sink.UnconfirmedEvents) }),
		get("kvrelay_unconfirmed_bytes", gauge, "Bytes charged to OUT_BYTES: router events not confirmed, and batches being converted.",
			func(s *relay.Status) float64 { return float64(s.Unconfirmed) }),
		get("kvrelay_out_limit_bytes", gauge, "OUT_BYTES: beyond it batches are left in the engine's replay buffer.",
			func(s *relay.Status) float64 { return float64(s.OutLimit) }),
		get("kvrelay_events_split_total", counter, "Router events split for NATS' max_payload, or for their number of blocks.",
			func(s *relay.Status) float64 { return float64(s.Sink.Split) }),
		get("kvrelay_blocks_too_large_total", counter, "Blocks dropped because one alone exceeds NATS' max_payload.",
			func(s *relay.Status) float64 { return float64(s.Sink.TooLarge) }),
	}
}

// eachSource labels what f gives with the source's rank.
func eachSource(f func(*relay.SourceStatus, func(float64, string))) func(*snapshot, func(float64, ...string)) {
	return func(s *snapshot, add func(float64, ...string)) {
		for i := range s.relay.Sources {
			src := &s.relay.Sources[i]
			f(src, func(v float64, label string) { add(v, rankText(src.Source.Rank), label) })
		}
	}
}

func seconds(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixMilli()) / 1000
}
