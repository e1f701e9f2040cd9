package mockengine

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
)

// FaultKind names one way an engine, its sockets or its network misbehave.
type FaultKind string

// The kinds. What the value of each means is in Faults.
const (
	FaultDrop     FaultKind = "drop"
	FaultBurst    FaultKind = "burst"
	FaultRestart  FaultKind = "restart"
	FaultOvertake FaultKind = "overtake"
	FaultKill     FaultKind = "kill"
	FaultCut      FaultKind = "cut"
	FaultFreeze   FaultKind = "freeze"
	FaultHalfOpen FaultKind = "halfopen"
	FaultSilent   FaultKind = "silent"
	FaultTruncate FaultKind = "truncate"
	FaultHoles    FaultKind = "holes"
	FaultBurn     FaultKind = "burn"
	FaultEvict    FaultKind = "evict"
	FaultGarbage  FaultKind = "garbage"
	FaultLate     FaultKind = "late"
	FaultSlowJoin FaultKind = "slowjoin"
)

// FaultInfo describes a kind for help texts.
type FaultInfo struct {
	Kind    FaultKind
	Default float64
	Low     float64 // lowest and highest value
	High    float64
	Whole   bool // the value is a whole number
	Doc     string
}

const most = 1 << 24 // of whole values: a count beyond it never happens in a run

var faultInfos = []FaultInfo{
	{FaultDrop, 0.3, 0, 1, false, "probability that a batch is not on PUB; the replay has it"},
	{FaultBurst, 100, 1, most, true, "so many batches in a row not on PUB, about every 5 times as many batches"},
	{FaultRestart, 300, 1, most, true, "mean steps until the engine restarts: empty cache, seq from 0"},
	{FaultOvertake, 300, 1, most, true, "as restart, but reachable again only when it is past the old seq"},
	{FaultKill, 300, 1, most, true, "mean steps until the engine dies in mid-frame; back, empty, 20 steps later"},
	{FaultCut, 300, 1, most, true, "mean steps until its connections are cut in mid-frame; the engine lives on"},
	{FaultFreeze, 300, 1, most, true, "mean steps until the engine and its open connections stand still for 20 steps"},
	{FaultHalfOpen, 300, 1, most, true, "mean steps until open connections stand still for good and a new engine answers"},
	{FaultSilent, 0.5, 0, 1, false, "probability that a replay request gets no answer"},
	{FaultTruncate, 1000, 0, most, true, "replies after so many are not sent, nor the end marker"},
	{FaultHoles, 1000, 0, most, true, "of the replies after so many half are not sent; the end marker is"},
	{FaultBurn, 0.05, 0, 1, false, "probability that a number is drawn and never used"},
	{FaultEvict, 10, 0, most, true, "about every 100 steps the replay buffer forgets all but so many batches"},
	{FaultGarbage, 0.05, 0, 1, false, "probability of a batch of garbage, with its own number"},
	{FaultLate, 50, 1, most, true, "steps after each start until the replay ROUTER answers at all"},
	{FaultSlowJoin, 50, 1, most, true, "so many first batches of each start are not on PUB"},
}

const (
	downSteps  = 20  // of FaultKill and FaultFreeze
	evictSteps = 100 // mean, of FaultEvict
	burstEvery = 5   // bursts cover a fifth of the batches
)

// Faults lists every kind.
func Faults() []FaultInfo { return slices.Clone(faultInfos) }

// Fault is a kind and how strongly it strikes.
type Fault struct {
	Kind  FaultKind
	Value float64
}

// String is the fault as ParseFaults reads it.
func (f Fault) String() string {
	return string(f.Kind) + "=" + strconv.FormatFloat(f.Value, 'g', -1, 64)
}

// ErrFault is in the chain of every error about a fault that cannot be.
var ErrFault = errors.New("bad fault")

func info(k FaultKind) (FaultInfo, bool) {
	i := slices.IndexFunc(faultInfos, func(f FaultInfo) bool { return f.Kind == k })
	if i < 0 {
		return FaultInfo{}, false
	}
	return faultInfos[i], true
}

func (f Fault) check() error {
	in, ok := info(f.Kind)
	if !ok {
		names := make([]string, len(faultInfos))
		for i, f := range faultInfos {
			names[i] = string(f.Kind)
		}
		return fmt.Errorf("%w: %q is none of %s", ErrFault, string(f.Kind), strings.Join(names, ", "))
	}
	if !(f.Value >= in.Low && f.Value <= in.High) || in.Whole && f.Value != float64(int64(f.Value)) {
		kind := "a number"
		if in.Whole {
			kind = "a whole number"
		}
		return fmt.Errorf("%w: %s: want %s from %.0f to %.0f", ErrFault, f, kind, in.Low, in.High)
	}
	return nil
}

// ParseFaults reads "drop,restart=200,…": kinds of Faults, each with its
// default or a value of its own. A kind may occur once. Every problem is
// reported at once, wrapping ErrFault; an empty text is no faults.
func ParseFaults(text string) ([]Fault, error) {
	var out []Fault
	var errs []error
	for part := range strings.SplitSeq(text, ",") {
		part = strings.TrimSpace(part)
		if part == "" {
			continue
		}
		name, value, has := strings.Cut(part, "=")
		f := Fault{Kind: FaultKind(name)}
		in, _ := info(f.Kind)
		f.Value = in.Default
		if has {
			v, err := strconv.ParseFloat(value, 64)
			if err != nil {
				errs = append(errs, fmt.Errorf("%w: %s: %q is no number", ErrFault, name, value))
				continue
			}
			f.Value = v
		}
		if err := f.check(); err != nil {
			errs = append(errs, err)
			continue
		}
		if slices.ContainsFunc(out, func(o Fault) bool { return o.Kind == f.Kind }) {
			errs = append(errs, fmt.Errorf("%w: %s twice", ErrFault, name))
			continue
		}
		out = append(out, f)
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return out, nil
}

// Injector decides when the faults of one rank strike: pure, not safe for
// concurrent use. Each kind draws from a random stream of its own, so that one
// fault does not move another and replay requests, which come when they
// please, do not move the batches' fates.
type Injector struct {
	value  map[FaultKind]float64
	random map[FaultKind]*rand.Rand
	burst  int // batches of a running burst still to withhold
	fresh  int // batches since the start
}

// NewInjector makes the injector of one rank. The same seed, rank and faults
// give the same fates.
func NewInjector(faults []Fault, seed uint64, rank int) *Injector {
	in := &Injector{value: map[FaultKind]float64{}, random: map[FaultKind]*rand.Rand{}}
	for _, f := range faults {
		in.value[f.Kind] = f.Value
	}
	for i, f := range faultInfos {
		_, on := in.value[f.Kind]
		if on || f.Kind == FaultGarbage { // Garbage is there without the fault, too
			in.random[f.Kind] = rand.New(rand.NewPCG(seed, uint64(rank)<<16|uint64(i+1)))
		}
	}
	return in
}

// Has reports whether k is switched on, and its value.
func (in *Injector) Has(k FaultKind) (float64, bool) {
	v, ok := in.value[k]
	return v, ok
}

// chance strikes with the probability p; a kind that is off never does.
func (in *Injector) chance(k FaultKind, p float64) bool {
	r := in.random[k]
	return r != nil && r.Float64() < p
}

// BatchFate is what happens to one batch.
type BatchFate struct {
	Burn     bool // a number is drawn before it and never used
	Garbage  bool // a batch of garbage comes before it
	Withhold bool // it is not on PUB
}

// Batch draws the fate of the next batch.
func (in *Injector) Batch() BatchFate {
	f := BatchFate{
		Burn:     in.chance(FaultBurn, in.value[FaultBurn]),
		Garbage:  in.chance(FaultGarbage, in.value[FaultGarbage]),
		Withhold: in.chance(FaultDrop, in.value[FaultDrop]),
	}
	if n, ok := in.value[FaultBurst]; ok && in.burst == 0 && in.chance(FaultBurst, 1/(burstEvery*n)) {
		in.burst = int(n)
	}
	if in.burst > 0 {
		in.burst--
		f.Withhold = true
	}
	if n, ok := in.value[FaultSlowJoin]; ok && in.fresh < int(n) {
		f.Withhold = true
	}
	in.fresh++
	return f
}

// Started tells the injector that a new incarnation began.
func (in *Injector) Started() { in.fresh = 0 }

// lifeKinds are the faults that strike between batches, in the order in which
// they are asked; at most one strikes in a step.
var lifeKinds = [...]FaultKind{FaultRestart, FaultOvertake, FaultKill, FaultHalfOpen, FaultCut, FaultFreeze}

// Step draws what strikes in the next step: one of restart, overtake, kill,
// cut, freeze, halfopen, or "" for none; and whether the replay buffer is evicted.
func (in *Injector) Step() (life FaultKind, evict bool) {
	for _, k := range lifeKinds {
		if v, ok := in.value[k]; ok && in.chance(k, 1/v) && life == "" {
			life = k
		}
	}
	return life, in.chance(FaultEvict, 1.0/evictSteps)
}

// ReplayFate is what happens to one replay.
type ReplayFate struct {
	Silent bool
	// Whole replies are sent; the others go as Holes says. Negative: all are.
	Whole int
	Holes bool // half of the others are sent, and the end marker; else nothing more is
}

// Replay draws the fate of the next replay.
func (in *Injector) Replay() ReplayFate {
	f := ReplayFate{Silent: in.chance(FaultSilent, in.value[FaultSilent]), Whole: -1}
	if n, ok := in.value[FaultHoles]; ok {
		f.Whole, f.Holes = int(n), true
	}
	if n, ok := in.value[FaultTruncate]; ok && (f.Whole < 0 || int(n) <= f.Whole) {
		f.Whole, f.Holes = int(n), false
	}
	return f
}

// Hole draws whether one reply of a replay with holes is left out.
func (in *Injector) Hole() bool { return in.chance(FaultHoles, 0.5) }

// garbage is a payload that no decoder takes for a batch. r decides how it is broken.
func garbage(r *rand.Rand) []byte {
	switch r.IntN(6) {
	case 0: // nothing
		return []byte{}
	case 1: // a byte that msgpack never uses, then noise
		b := make([]byte, 1+r.IntN(200))
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		b[0] = 0xc1
		return b
	case 2: // a batch that ends in mid-number
		return []byte{0x93, 0xcb, 0x41, 0xda}
	case 3: // a list of 2^32 − 1 events in a frame of a few bytes
		return []byte{0x93, 0xcb, 0x41, 0xda, 0x31, 0x14, 0x73, 0xe6, 0xaa, 0x3c, 0xdd, 0xff, 0xff, 0xff, 0xff, 0x90}
	case 4: // nested beyond any real shape
		b := make([]byte, 100_000)
		for i := range b {
			b[i] = 0x91
		}
		return b
	}
	return str(nil, "no batch at all") // sound msgpack, but a string
}

// Garbage is a payload for a batch of garbage.
func (in *Injector) Garbage() []byte { return garbage(in.random[FaultGarbage]) }
