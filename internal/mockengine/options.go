package mockengine

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"slices"
	"strings"
	"time"
)

// Encoding is the msgpack form of a batch or of an event.
type Encoding string

const (
	Array Encoding = "array" // positional, tag first
	Map   Encoding = "map"   // named; an event's tag is its "type"
)

// HashEncoding is the msgpack form of block hashes.
type HashEncoding string

const (
	Unsigned  HashEncoding = "unsigned" // uint64
	Signed    HashEncoding = "signed"   // int64 of the same bits
	BytesHash HashEncoding = "bytes"    // 32 bytes, the last 8 are the hash, big-endian
)

// ReportMode says which blocks of a prompt are announced.
type ReportMode string

const (
	Incremental ReportMode = "incremental" // only newly stored ones
	Full        ReportMode = "full"        // first the reused prefix, as one root store
)

// ReplayShape is the framing of a ROUTER's replies.
type ReplayShape string

const (
	// Reply4 is "" topic seq payload, end "" "" FF×8 "": vLLM from 0.26,
	// SGLang from 0.5.22, TensorRT-LLM.
	Reply4 ReplayShape = "4frame"
	// Reply3 is "" seq payload, end "" FF×8 "": older vLLM and SGLang,
	// Dynamo's mocker.
	Reply3 ReplayShape = "3frame"
	// ReplyATOM echoes the request's own prefix: [prefix…] seq payload, end [prefix…] FF×8.
	ReplyATOM ReplayShape = "atom"
	// ReplyATOMNoEnd is ReplyATOM without an end marker.
	ReplyATOMNoEnd ReplayShape = "atom-noend"
	// NoReplay: no replay ROUTER at all.
	NoReplay ReplayShape = "none"
)

// Role is what the engine does in a disaggregated deployment.
type Role string

const (
	Aggregated Role = "aggregated"
	Prefill    Role = "prefill"
	Decode     Role = "decode" // publishes nothing and advertises nothing
)

// Options configures an Engine. A zero field takes the default given with it.
type Options struct {
	BlockSize  int  // tokens per block; 16
	Blocks     int  // physical blocks per rank; 1024
	Duplicates bool // keep several physical blocks under one hash, as vLLM does; false: one

	Ranks     int // data-parallel ranks, each with its own pool and sockets; 1
	FirstRank int // number of the first rank; 0
	Role      Role

	Topic         string       // of every message
	Encoding      Encoding     // of events; Map
	BatchEncoding Encoding     // of batches; Array
	Hashes        HashEncoding // Unsigned
	OmitRank      bool         // batches without data_parallel_rank, as vLLM 0.9
	Report        ReportMode   // of prompts that ask for none; Incremental

	Replay      ReplayShape // Reply4
	BufferSteps int         // batches remembered for replay; 10000. The oldest are forgotten.
	HWM         int         // messages waiting per subscriber; 100000. More are dropped.
	ReplayHWM   int         // replies waiting per requester; 2×(BufferSteps+1) with Reply4, else 1000. More are dropped.

	Host       string // address to bind and to advertise; 127.0.0.1
	Advertise  string // address to advertise instead, as engines behind a network do; Host
	EventPort  int    // of the first rank's PUB, the others follow; 0: free ports
	ReplayPort int    // likewise for the ROUTERs

	Workload *Workload // requests made by Step; nil: none, only Prompt
	Rate     float64   // steps a second while Run runs, at most 100000; 0: only by Step
	Seed     uint64    // of workload and faults: the same seed does the same again
	Faults   []Fault   // see ParseFaults

	Log     *slog.Logger     // nil: silent
	Now     func() time.Time // wall clock of the batches' ts; time.Now
	Observe func(Published)  // called for every number drawn, under the rank's lock: must not call the Engine
}

// Published is one number of a rank's sequence and what became of it.
type Published struct {
	Rank        int
	Incarnation int // counts restarts from 0
	Seq         uint64
	Payload     []byte // nil: burned, the number never existed for anyone
	Withheld    bool   // not on PUB, only in the replay buffer
	Garbage     bool   // no batch at all: what a consumer must refuse
}

const (
	defaultBlockSize   = 16
	defaultBlocks      = 1024
	defaultBufferSteps = 10_000
	defaultHWM         = 100_000
	oldReplayHWM       = 1000 // libzmq's own default
	maxRate            = 100_000
	maxRanks           = 1024
)

// withDefaults fills in defaults and reports every problem at once.
func (o Options) withDefaults() (Options, error) {
	def(&o.BlockSize, defaultBlockSize)
	def(&o.Blocks, defaultBlocks)
	def(&o.Ranks, 1)
	def(&o.Role, Aggregated)
	def(&o.Encoding, Map)
	def(&o.BatchEncoding, Array)
	def(&o.Hashes, Unsigned)
	def(&o.Report, Incremental)
	def(&o.Replay, Reply4)
	def(&o.BufferSteps, defaultBufferSteps)
	def(&o.HWM, defaultHWM)
	def(&o.Host, "127.0.0.1")
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	var errs []error
	bad := func(format string, a ...any) { errs = append(errs, fmt.Errorf(format, a...)) }
	// Named as the flags of `kvrelay mock`. What follows from a wrong value is not
	// judged by it: its bound would be wrong, too.
	within := func(name string, n, low, high int, or string) bool {
		ok := n >= low && n <= high
		if !ok {
			bad("%s %d: want %d to %d%s", name, n, low, high, or)
		}
		return ok
	}
	size := within("block-size", o.BlockSize, 1, 1<<16, "")
	size = within("blocks", o.Blocks, 2, 1<<24, "") && size
	ranks := o.Ranks
	if !within("data-parallel-size", ranks, 1, maxRanks, "") {
		ranks = 1
	}
	within("data-parallel-start-rank", o.FirstRank, 0, math.MaxUint16-ranks+1, "")
	steps := within("buffer-steps", o.BufferSteps, 1, 1<<24, "")
	within("hwm", o.HWM, 1, 1<<24, "")
	if o.ReplayHWM != 0 {
		within("replay-hwm", o.ReplayHWM, 1, 1<<26, ", or 0")
	} else if steps {
		o.ReplayHWM = replayHWM(o.Replay, o.BufferSteps)
	}
	ports := true
	port := func(name string, p int) {
		if p != 0 && !within(name, p, 1, math.MaxUint16-ranks+1, ", or 0 for free ones") {
			ports = false
		}
	}
	port("event-port", o.EventPort)
	port("replay-port", o.ReplayPort)
	if ports && o.EventPort != 0 && o.ReplayPort != 0 && o.Replay != NoReplay && abs(o.EventPort-o.ReplayPort) < ranks {
		bad("event ports %d… and replay ports %d… of %d ranks overlap", o.EventPort, o.ReplayPort, ranks)
	}
	oneOf(bad, "encoding", o.Encoding, Array, Map)
	oneOf(bad, "batch-encoding", o.BatchEncoding, Array, Map)
	oneOf(bad, "hashes", o.Hashes, Unsigned, Signed, BytesHash)
	oneOf(bad, "kv-cache-report-mode", o.Report, Incremental, Full)
	oneOf(bad, "replay", o.Replay, Reply4, Reply3, ReplyATOM, ReplyATOMNoEnd, NoReplay)
	oneOf(bad, "role", o.Role, Aggregated, Prefill, Decode)
	if !(o.Rate >= 0 && o.Rate <= maxRate) {
		bad("rate %v: want 0 to %d steps a second", o.Rate, maxRate)
	}
	for _, f := range o.Faults {
		if err := f.check(); err != nil {
			errs = append(errs, err)
		} else if f.Kind == FaultOvertake && o.Workload == nil {
			bad("fault %s needs a workload to overtake with", f.Kind)
		}
	}
	if o.Workload != nil && size {
		w, err := o.Workload.withDefaults(o.BlockSize, o.Blocks)
		if err != nil {
			errs = append(errs, err)
		}
		o.Workload = &w
	}
	return o, errors.Join(errs...)
}

// replayHWM is the high-water mark that engines of that reply shape set on
// their ROUTER: vLLM sizes it to its buffer since 0.33, before that it is libzmq's default.
func replayHWM(s ReplayShape, bufferSteps int) int {
	if s == Reply4 {
		return 2 * (bufferSteps + 1)
	}
	return oldReplayHWM
}

func def[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

func abs(n int) int { return max(n, -n) }

func oneOf[T ~string](bad func(string, ...any), name string, v T, want ...T) {
	if slices.Contains(want, v) {
		return
	}
	texts := make([]string, len(want))
	for i, w := range want {
		texts[i] = string(w)
	}
	bad("%s %q: want %s", name, string(v), strings.Join(texts, ", "))
}

// hostPort is the bind address of the i-th rank's port p.
func hostPort(host string, p, i int) string {
	if p != 0 {
		p += i
	}
	if host == "*" {
		host = ""
	}
	return net.JoinHostPort(host, fmt.Sprint(p))
}
