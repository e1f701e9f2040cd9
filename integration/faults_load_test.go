package integration

import (
	"math/rand/v2"
	"testing"

	"github.com/kvrelay/kvrelay/consumer"
	"github.com/kvrelay/kvrelay/convert"
	"github.com/kvrelay/kvrelay/decode"
	"github.com/kvrelay/kvrelay/internal/capture"
	"github.com/kvrelay/kvrelay/internal/mockengine"
)

// workload makes the batches of one rank of an engine, and knows what must be
// held after them.
type workload struct {
	t    testing.TB
	r    *rand.Rand
	rank uint32
	size int // tokens per block

	// One of: a mock engine's pool, or a recorded stream while it lasts.
	pool     *mockengine.Pool
	enc      mockengine.Encoder
	families [][]uint32 // prompts that share prefixes
	recorded []capture.Message
	full     bool     // some requests announce the blocks that they reuse
	pure     bool     // pool tells the truth: nothing was recorded, and no announcement has to be guessed at
	marks    []uint64 // stored by mark and not cleared since

	seq uint64
	ts  float64
	// What exists of this incarnation, in order, without burned numbers and
	// garbage.
	batches [][]byte
}

// recordings are streams of one rank that need no settings but a block size.
var recordings = []string{"vllm-0.33.0-evict", "vllm-0.33.0-dup", "vllm-0.18.1-dup", "vllm-0.33.0-full-report", "vllm-0.33.0-clear", "sglang-0.5.23-page16"}

func newWorkload(t testing.TB, r *rand.Rand, rank uint32) *workload {
	w := &workload{t: t, r: r, rank: rank, size: 16, ts: 1_790_000_000}
	if rank == 0 && r.IntN(3) == 0 {
		w.recorded = loadCapture(t, recordings[r.IntN(len(recordings))]).Messages
	}
	w.begin()
	return w
}

// begin is a new incarnation of a mock engine.
func (w *workload) begin() {
	pick := func(of ...mockengine.Encoding) mockengine.Encoding { return of[w.r.IntN(len(of))] }
	w.pool = mockengine.NewPool(w.size, 40+w.r.IntN(60), w.r.IntN(2) == 0)
	w.enc = mockengine.Encoder{
		Batch: pick(mockengine.Array, mockengine.Map), Event: pick(mockengine.Array, mockengine.Map), BlockSize: w.size, Rank: int(w.rank),
		Hashes: []mockengine.HashEncoding{mockengine.Unsigned, mockengine.Signed, mockengine.BytesHash}[w.r.IntN(3)],
	}
	w.seq, w.batches, w.marks = 0, nil, nil
	w.full = w.r.IntN(3) == 0
	w.pure = len(w.recorded) == 0 && !w.full
	w.families = nil
	for range 6 {
		var f []uint32
		for range w.size * 12 {
			f = append(f, w.r.Uint32N(150_000))
		}
		w.families = append(w.families, f)
	}
}

// restart is another process of the engine, with an empty cache.
func (w *workload) restart() {
	w.recorded = nil
	w.begin()
}

// next is the next batch's payload.
func (w *workload) next() []byte {
	var payload []byte
	if len(w.recorded) > 0 {
		payload = w.recorded[0].Payload()
		w.recorded = w.recorded[1:]
		w.ts, _ = decode.PeekTS(payload)
	} else {
		w.ts += 0.01
		payload = w.enc.Encode(nil, w.ts, w.step())
	}
	w.batches = append(w.batches, payload)
	w.seq++
	return payload
}

// step runs a few requests through the pool.
func (w *workload) step() []mockengine.Event {
	if len(w.batches) > 0 && w.r.IntN(200) == 0 {
		if err := w.pool.Clear(); err != nil {
			w.t.Fatal(err)
		}
		w.marks = nil
	}
	for range 1 + w.r.IntN(3) {
		f := w.families[w.r.IntN(len(w.families))]
		// Two blocks at least: an engine computes the last block of a prompt anew,
		// and a second copy of a first block, with a next one in the same batch,
		// cannot be told from full reporting.
		prompt := append([]uint32{}, f[:w.size*(2+w.r.IntN(10))]...)
		for range w.r.IntN(40) {
			prompt = append(prompt, w.r.Uint32N(150_000))
		}
		mode := mockengine.Incremental
		if w.full && w.r.IntN(2) == 0 {
			mode = mockengine.Full
		}
		req, _, err := w.pool.Admit(prompt, mode)
		if err != nil {
			w.t.Fatal(err)
		}
		for range w.r.IntN(30) {
			if err := w.pool.Extend(req, w.r.Uint32N(150_000)); err != nil {
				break // full: the request ends here
			}
		}
		w.pool.Free(req)
	}
	return w.pool.Take()
}

// mark is a batch that stores a block nobody else has.
func (w *workload) mark(hash uint64) []byte {
	w.ts += 0.01
	m := &capture.Meta{BlockSize: []uint32{uint32(w.size)}, DPRank: w.rank}
	payload := markBatch(m, hash, w.ts)
	w.batches = append(w.batches, payload)
	w.marks = append(w.marks, hash)
	w.seq++
	return payload
}

// truth is what the engine itself holds; ok is false where that takes the rules
// of package convert to know.
func (w *workload) truth() (out held, ok bool) {
	if !w.pure {
		return nil, false
	}
	out = held{consumer.Device: {}, consumer.HostPinned: {}}
	for h := range w.pool.Held() {
		out[consumer.Device][h] = true
	}
	for _, h := range w.marks {
		out[consumer.Device][h] = true
	}
	return out, true
}

// fold is what a router must hold after some batches of one incarnation.
func (w *workload) fold(batches [][]byte) held {
	out := held{consumer.Device: {}, consumer.HostPinned: {}}
	conv := convert.New(convert.Config{WorkerID: 42, Rank: w.rank, BlockSize: uint64(w.size)})
	var b decode.Batch
	var o convert.Output
	for _, payload := range batches {
		if err := b.Decode(payload); err != nil {
			w.t.Fatal(err)
		}
		o.Reset()
		conv.Convert(&b, &o)
		for _, e := range o.Events {
			tier := consumer.Tier(e.Tier)
			switch e.Kind {
			case convert.Cleared:
				for _, hs := range out {
					clear(hs)
				}
			case convert.Removed:
				for _, h := range e.Hashes {
					delete(out[tier], h)
				}
			case convert.Stored:
				for _, bl := range e.Blocks {
					out[tier][bl.Hash] = true
				}
			}
		}
	}
	return out
}
