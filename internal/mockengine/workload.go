package mockengine

import (
	"errors"
	"fmt"
	"math/rand/v2"
)

// Workload describes requests that an engine makes up for itself: prompts that
// share prefixes, some of which go on as further turns of a conversation, with
// answers that grow block by block. A zero field takes the default given with it.
type Workload struct {
	Prefixes     int     // shared prefixes; 8
	PrefixBlocks int     // longest shared prefix, in blocks; an eighth of the pool, 1 to 16
	SuffixBlocks int     // longest own part of a prompt, in blocks; half of PrefixBlocks, at least 1
	AnswerBlocks int     // longest answer, in blocks; 2
	Concurrency  int     // requests running at once; 4
	Arrivals     float64 // mean new requests a step, at most Concurrency; 1
	FollowUps    float64 // probability that a request goes on with an earlier one's text; 0.3
	FullReports  float64 // probability that a request asks for Full; 0: as Options.Report
	ClearEvery   int     // steps between two resets of the whole cache; 0: never
	Steps        int     // the workload ends after so many steps; 0: never
	Vocabulary   int     // token ids are below this; 32000
}

func (w Workload) withDefaults(blockSize, blocks int) (Workload, error) {
	def(&w.Prefixes, 8)
	def(&w.PrefixBlocks, min(max(blocks/8, 1), 16))
	def(&w.SuffixBlocks, max(w.PrefixBlocks/2, 1))
	def(&w.AnswerBlocks, 2)
	def(&w.Concurrency, 4)
	def(&w.Arrivals, 1)
	def(&w.FollowUps, 0.3)
	def(&w.Vocabulary, 32000)
	var errs []error
	bad := func(format string, a ...any) { errs = append(errs, fmt.Errorf("workload: "+format, a...)) }
	for _, f := range []struct {
		name string
		n    int
	}{{"prefixes", w.Prefixes}, {"prefix blocks", w.PrefixBlocks}, {"suffix blocks", w.SuffixBlocks},
		{"answer blocks", w.AnswerBlocks}, {"concurrency", w.Concurrency}} {
		if f.n < 1 || f.n > 1<<16 {
			bad("%s %d: want 1 to 65536", f.name, f.n)
		}
	}
	if w.Vocabulary < 2 || w.Vocabulary > 1<<30 {
		bad("vocabulary %d: want 2 to 2^30", w.Vocabulary)
	}
	if w.ClearEvery < 0 || w.Steps < 0 {
		bad("clear every %d, steps %d: want 0 or more", w.ClearEvery, w.Steps)
	}
	if !(w.Arrivals > 0 && w.Arrivals <= float64(w.Concurrency)) {
		bad("arrivals %v: want more than 0, at most the concurrency", w.Arrivals)
	}
	if !(w.FollowUps >= 0 && w.FollowUps <= 1) || !(w.FullReports >= 0 && w.FullReports <= 1) {
		bad("follow-ups %v, full reports %v: want probabilities", w.FollowUps, w.FullReports)
	}
	if n := w.PrefixBlocks + w.SuffixBlocks + w.AnswerBlocks + 1; len(errs) == 0 && n > blocks {
		bad("one request may need %d blocks of %d tokens, the pool has %d: more blocks are wanted", n, blockSize, blocks)
	}
	return w, errors.Join(errs...)
}

// traffic is a running Workload: pure, one per rank.
type traffic struct {
	w         Workload
	report    ReportMode
	blockSize int
	longest   int // tokens of the longest prompt
	random    *rand.Rand
	prefixes  [][]uint32
	past      [][]uint32 // texts that later requests may go on with, at most Prefixes; an older one is replaced
	running   []*job     // oldest first
	step      int
}

type job struct {
	r    *Request
	left int // tokens of the answer still to come
}

func newTraffic(w Workload, report ReportMode, blockSize int, seed uint64, rank int) *traffic {
	t := &traffic{
		w: w, report: report, blockSize: blockSize,
		longest: (w.PrefixBlocks + w.SuffixBlocks) * blockSize,
		random:  rand.New(rand.NewPCG(seed, uint64(rank)<<16)),
	}
	for range w.Prefixes {
		t.prefixes = append(t.prefixes, t.tokens(blockSize*(1+t.random.IntN(w.PrefixBlocks))))
	}
	return t
}

func (t *traffic) tokens(n int) []uint32 {
	out := make([]uint32, n)
	for i := range out {
		out[i] = uint32(t.random.IntN(t.w.Vocabulary))
	}
	return out
}

// done reports whether the workload has come to its end.
func (t *traffic) done() bool { return t.w.Steps > 0 && t.step >= t.w.Steps }

// next is one scheduler step: running requests get tokens, ended ones give
// back their blocks, new ones come in.
func (t *traffic) next(p *Pool) {
	if t.done() {
		return
	}
	t.step++
	for i := 0; i < len(t.running); {
		j := t.running[i]
		n := min(j.left, 1+t.random.IntN(t.blockSize))
		grown := t.tokens(n)
		for p.Extend(j.r, grown...) != nil {
			if !t.preempt(p) {
				break
			}
			if i >= len(t.running) {
				break // it was the youngest itself
			}
		}
		if i >= len(t.running) {
			break
		}
		if j.left -= n; j.left <= 0 {
			t.remember(j.r.Tokens())
			p.Free(j.r)
			t.running = append(t.running[:i], t.running[i+1:]...)
			continue
		}
		i++
	}
	for range t.arrivals() {
		t.admit(p)
	}
	if t.w.ClearEvery > 0 && t.step%t.w.ClearEvery == 0 {
		t.clear(p)
	}
}

func (t *traffic) arrivals() int {
	whole := int(t.w.Arrivals)
	if t.random.Float64() < t.w.Arrivals-float64(whole) {
		whole++
	}
	return whole
}

func (t *traffic) admit(p *Pool) {
	if len(t.running) >= t.w.Concurrency {
		return
	}
	var prompt []uint32
	if len(t.past) > 0 && t.random.Float64() < t.w.FollowUps {
		prompt = append(prompt, t.past[t.random.IntN(len(t.past))]...)
	} else {
		prompt = append(prompt, t.prefixes[t.random.IntN(len(t.prefixes))]...)
	}
	prompt = append(prompt, t.tokens(1+t.random.IntN(t.w.SuffixBlocks*t.blockSize))...)
	prompt = prompt[:min(len(prompt), t.longest)]
	mode := t.report
	if t.random.Float64() < t.w.FullReports {
		mode = Full
	}
	answer := 1 + t.random.IntN(t.w.AnswerBlocks*t.blockSize)
	r, _, err := p.Admit(prompt, mode)
	if err != nil {
		return // no room now: the client gives up
	}
	t.running = append(t.running, &job{r: r, left: answer})
}

func (t *traffic) remember(text []uint32) {
	if len(t.past) < t.w.Prefixes {
		t.past = append(t.past, text)
		return
	}
	t.past[t.random.IntN(len(t.past))] = text
}

// preempt ends the youngest request to make room. False: there is none.
func (t *traffic) preempt(p *Pool) bool {
	if len(t.running) == 0 {
		return false
	}
	last := len(t.running) - 1
	p.Free(t.running[last].r)
	t.running = t.running[:last]
	return true
}

// restarted forgets the requests of a process that is gone; the clients and
// what they ask go on.
func (t *traffic) restarted() { t.running = nil }

// clear ends every request and resets the cache, as an engine's
// reset_prefix_cache does.
func (t *traffic) clear(p *Pool) {
	for t.preempt(p) {
	}
	if err := p.Clear(); err != nil {
		panic(err) // nobody else holds blocks between two steps
	}
}
