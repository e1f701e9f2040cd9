package membership

import (
	"context"
	"maps"
	"slices"
	"time"
)

// untilAlone waits until no other publisher is on record for the rank of src, whose record is rec.
func (r *Registry) untilAlone(ctx context.Context, src Source, rec record) error {
	var waiting time.Time // since
	var told time.Time
	for prefix := rec.Prefix; ; {
		var others []Entry
		err := r.retry(ctx, src, "looking for other event sources of the rank", func() error {
			entries, err := r.o.Store.List(ctx, prefix)
			others = rec.rivals(entries)
			return err
		})
		if err != nil {
			return err
		}
		if len(others) == 0 {
			if prefix == rec.Prefix {
				src.SetUnregistered("")
				return nil
			}
			prefix = rec.Prefix // that one has gone
			continue
		}
		now := time.Now()
		if waiting.IsZero() {
			waiting = now
		}
		for _, e := range others {
			if !e.Dead && !r.gone(ctx, e.Value) {
				continue
			}
			if err := r.retry(ctx, src, "removing the record that an earlier life left", func() error { return r.o.Store.Delete(ctx, e.Key) }); err != nil {
				return err
			}
			r.log.Info("removed the record that an earlier life left", "key", e.Key)
		}
		if now.Sub(waiting) > withinLease && now.Sub(told) > repeatLog {
			told = now
			r.log.Error("another publisher keeps this worker's rank on record: nothing is published until it goes; two would make routers ignore both. Switch its events off, or give kvrelay's engine another WORKER_ID or COMPONENT",
				"worker_id", rec.Worker.WorkerID, "dp_rank", rec.Worker.Rank, "key", others[0].Key)
		}
		if now.Sub(waiting) > withinLease {
			prefix = others[0].Key
			src.SetUnregistered(unregistered + "another publisher keeps this worker's rank on record: " + others[0].Key)
		}
		if !sleep(ctx, lookPause(now.Sub(waiting))) {
			return ctx.Err()
		}
	}
}

// lookPause is the pause before another process's record is looked at again that
// has been waited for so long. One that outlives a lease does not go by itself:
// whole fleets may be set up so, and are not to keep the store busy.
func lookPause(waited time.Duration) time.Duration {
	if waited > withinLease {
		return lookSeldom
	}
	return lookAgain
}

// rivals are those of entries that are other publishers' of rec's rank.
func (rec *record) rivals(entries []Entry) (out []Entry) {
	for _, e := range entries {
		if w, ok := workerOf(e.Value); ok && w == rec.Worker && e.Key != rec.Key {
			out = append(out, e)
		}
	}
	return out
}

// lookForRivals tells of publishers that have come on record beside a rank of
// ours: a Dynamo worker that publishes events itself may start after its sidecar.
// One is told of when it is seen twice. The longer there is none, the rarer are
// the looks.
func (r *Registry) lookForRivals(ctx context.Context) {
	var seen map[string]worker // in the last look
	var told time.Time
	for pause := r.lookEvery; sleep(ctx, pause); {
		there, alone, err := r.rivalsOfAll(ctx)
		if err != nil {
			continue // the records' own upkeep tells of it
		}
		for key, w := range there {
			if _, again := seen[key]; again && time.Since(told) > repeatLog {
				told = time.Now()
				r.log.Error("another publisher has come on record for this worker's rank: routers ignore both. Switch its events off, or give kvrelay's engine another WORKER_ID or COMPONENT",
					"worker_id", w.WorkerID, "dp_rank", w.Rank, "key", key)
			}
		}
		if seen = there; alone {
			pause = min(2*pause, rareLooks*r.lookEvery)
		} else {
			pause = r.lookEvery
		}
	}
}

// rivalsOfAll are the live records of other publishers for ranks that are on
// record here, by key. alone: some rank is, and has no rival.
func (r *Registry) rivalsOfAll(ctx context.Context) (rivals map[string]worker, alone bool, err error) {
	r.mu.Lock()
	ours := slices.Collect(maps.Values(r.onRecord))
	r.mu.Unlock()
	if len(ours) == 0 {
		return nil, false, nil
	}
	entries, err := r.o.Store.List(ctx, ours[0].Prefix)
	if err != nil {
		return nil, false, err
	}
	rivals = map[string]worker{}
	for _, rec := range ours {
		for _, e := range rec.rivals(entries) {
			if !e.Dead {
				rivals[e.Key] = rec.Worker
			}
		}
	}
	return rivals, len(rivals) == 0, nil
}
