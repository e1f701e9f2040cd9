package convert

import "github.com/kvrelay/kvrelay/decode"

// Rank is the conversion state of one (worker, data-parallel rank): what its
// router events so far have said, and what is needed to say the next ones.
// It is not safe for concurrent use: its stream's lock guards it.
type Rank struct {
	cfg   Config
	stats Stats
	tags  map[string]uint64

	ledger    ledger
	groups    groups
	refused   memory // hashes that step 5 refused: their children are orphans
	ambiguous memory // hashes seen under several salts
	full      bool   // the engine reports fully
	sweepFrom uint64 // number where the sweep for full reporting goes on

	blockSize uint64 // 0: not known yet
	matched   bool   // a store had it since the last restart
	misses    int    // stores since then that had not
	trust     trust

	// Scratch of one batch.
	hasher  hasher
	repeats repeats
	roots   set // last hashes of the batch's announcements, by rootPlace
	climb   []uint32
}

const (
	maxRefused   = 1 << 16 // BoundRefused
	maxAmbiguous = 1 << 16 // BoundAmbiguous
)

// New is a Rank without history.
func New(c Config) *Rank {
	r := &Rank{
		cfg:       c,
		ledger:    newLedger(c.maxBlocks()),
		refused:   memory{limit: maxRefused},
		ambiguous: memory{limit: maxAmbiguous},
	}
	r.hasher.configure(&c)
	r.blockSize = c.BlockSize
	return r
}

// Convert appends the router events of one batch to out. Nothing of the batch
// is kept. Its rank is not looked at: RankOf tells whose it is.
func (r *Rank) Convert(b *decode.Batch, out *Output) {
	before := len(out.Events)
	r.stats.Batches++
	if b.BadRank {
		r.stats.BadRank++
	}
	r.roots.n = 0
	for i := range b.Events {
		r.event(&b.Events[i], out)
	}
	r.stats.RouterEvents += uint64(len(out.Events) - before)
	if r.full && r.ledger.doubted > 0 {
		r.sweep(out)
	}
	out.settle()
}

// Undecodable counts a batch that could not be decoded.
func (r *Rank) Undecodable() { r.stats.Undecodable++ }

func (r *Rank) event(ev *decode.Event, out *Output) {
	r.stats.Events.In += 1 + uint64(ev.Folded)
	r.stats.Blocks.In += uint64(len(ev.Hashes))
	switch ev.Type {
	case decode.Stored, decode.Removed, decode.Cleared:
	case decode.Unknown:
		r.countTag(ev.Name, 1+uint64(ev.Folded), out)
		r.drop(ev, ReasonUnknownTag)
		return
	case decode.Ignored:
		r.drop(ev, ReasonIgnored)
		return
	default:
		r.drop(ev, ReasonMalformed)
		return
	}
	tier, reason := place(ev)
	if reason != noReason {
		r.drop(ev, reason)
		return
	}
	if ev.Type == decode.Cleared {
		r.clear(out)
		return
	}
	group, reason := r.group(ev, tier, out)
	switch {
	case reason != noReason:
		r.drop(ev, reason)
	case ev.Type == decode.Stored:
		r.store(ev, tier, group, out)
	default:
		r.remove(ev, tier, group, out)
	}
}

// drop counts a whole event that is not published.
func (r *Rank) drop(ev *decode.Event, reason Reason) {
	r.stats.Events.Dropped[reason] += 1 + uint64(ev.Folded)
	r.stats.Blocks.Dropped[reason] += uint64(len(ev.Hashes))
}

// refuse drops a whole store for a reason that makes its children orphans.
func (r *Rank) refuse(ev *decode.Event, reason Reason, out *Output) {
	r.drop(ev, reason)
	r.refuseHashes(ev.Hashes, out)
}

func (r *Rank) refuseHashes(hashes []uint64, out *Output) {
	for _, h := range hashes {
		if r.refused.add(h) {
			r.bound(BoundRefused, out)
		}
	}
}

// bound counts that a bound took effect, and tells it the first time.
func (r *Rank) bound(b Bound, out *Output) {
	if r.stats.Bounds[b]++; r.stats.Bounds[b] == 1 {
		out.Notices = append(out.Notices, Notice{Kind: NoticeBound, Bound: b})
	}
}

const maxTags = 32 // BoundTags

// otherTags counts tags beyond maxTags, and those that are no plain word: an
// engine's text does not leave the process unless it looks like a tag.
const otherTags = "other"

func (r *Rank) countTag(name []byte, n uint64, out *Output) {
	if was, ok := r.tags[string(name)]; ok {
		r.tags[string(name)] = was + n
		return
	}
	tag := string(name)
	if len(tag) == 0 || len(tag) > 40 || !isWord(tag) {
		tag = otherTags
	} else if len(r.tags) >= maxTags {
		r.bound(BoundTags, out)
		tag = otherTags
	}
	if r.tags == nil {
		r.tags = make(map[string]uint64)
	}
	r.tags[tag] += n
}

func isWord(s string) bool {
	for _, c := range []byte(s) {
		if (c|0x20 < 'a' || c|0x20 > 'z') && (c < '0' || c > '9') && c != '_' {
			return false
		}
	}
	return true
}

// UnknownTags counts unknown events by their tags; "other" stands for the rest.
func (r *Rank) UnknownTags() map[string]uint64 {
	tags := make(map[string]uint64, len(r.tags))
	for t, n := range r.tags {
		tags[t] = n
	}
	return tags
}

// Stats is a copy of the counters.
func (r *Rank) Stats() Stats {
	s := r.stats
	s.Kept = r.ledger.kept
	s.Present = r.ledger.size() - s.Kept
	s.BlockSize = r.blockSize
	s.FullReporting = r.full
	return s
}
