package membership

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kvrelay/kvrelay/convert"
	"github.com/kvrelay/kvrelay/decode"
	"github.com/kvrelay/kvrelay/sinks"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long anything may take before a test gives up on it.
const patience = 30 * time.Second

// eventually waits until ok.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); !ok(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

// rank is an engine's rank whose batches are converted and appended to a real
// outbox, which is never published: all of it stays in the ring.
type rank struct {
	*sinks.Outbox
	r  *rand.Rand
	nh uint64 // hashes are 1 … nh

	mu      sync.Mutex
	conv    *convert.Rank
	out     convert.Output
	want    held
	between func() // called by Walk, without the lock
	lo      uint64 // the ring has lost what is before
}

// held is what a consumer of all events holds.
type held map[place]content

type place struct {
	Tier convert.Tier
	Hash uint64
}

type content struct {
	Tokens, Parent uint64
	HasParent      bool
	MM             string
}

func (h held) apply(e *convert.RouterEvent) {
	switch e.Kind {
	case convert.Cleared:
		clear(h)
	case convert.Removed:
		for _, x := range e.Hashes {
			delete(h, place{e.Tier, x})
		}
	case convert.Stored:
		parent, has := e.Parent, e.HasParent
		for _, b := range e.Blocks {
			h[place{e.Tier, b.Hash}] = content{b.TokensHash, parent, has, fmt.Sprint(b.MM)}
			parent, has = b.Hash, true
		}
	}
}

func newRank(t testing.TB, seed, hashes uint64) *rank {
	t.Helper()
	p, err := sinks.New(sinks.Options{Servers: []string{"nats://127.0.0.1:1"}, Namespace: "n", Component: "c", Endpoint: "e"})
	if err != nil {
		t.Fatal(err)
	}
	r := &rank{r: rand.New(rand.NewPCG(seed, 3)), nh: hashes, want: held{}, conv: convert.New(convert.Config{WorkerID: 1 << 60, Rank: 2, BlockSize: 4})}
	if r.Outbox, err = p.OpenRank(1<<60, 2, sinks.RankOptions{Source: r}); err != nil {
		t.Fatal(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.conv.Cleared(&r.out, true)
	r.flush()
	return r
}

func (r *rank) flush() {
	for i := range r.out.Events {
		r.want.apply(&r.out.Events[i])
	}
	r.Append(sinks.Place{}, r.out.Events)
	r.out.Reset()
}

// step converts one random event.
func (r *rank) step() {
	e := decode.Event{Type: decode.Stored, HasTokens: true, HasBlockSz: true, BlockSize: 4}
	switch x := r.r.IntN(500); {
	case x == 0:
		e = decode.Event{Type: decode.Cleared}
	case x < 200:
		e = decode.Event{Type: decode.Removed}
		for range 1 + r.r.IntN(4) {
			e.Hashes = append(e.Hashes, 1+r.r.Uint64N(r.nh))
		}
	default:
		if e.HasParent = r.r.IntN(3) > 0; e.HasParent {
			e.Parent = 1 + r.r.Uint64N(r.nh)
		}
		first := 1 + r.r.Uint64N(r.nh)
		for i := range 1 + r.r.Uint64N(5) {
			if h := 1 + (first+i)%r.nh; !e.HasParent || h != e.Parent {
				e.Hashes = append(e.Hashes, h)
				e.Tokens = append(e.Tokens, byte(h), byte(h>>8), 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1)
			}
		}
	}
	if r.r.IntN(5) == 0 && e.Type != decode.Cleared {
		e.Medium = []byte("CPU")
	}
	r.batch(e)
}

func (r *rank) batch(evs ...decode.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.conv.Convert(&decode.Batch{Events: evs}, &r.out)
	r.flush()
}

func (r *rank) RankState() sinks.RankState { return sinks.RankState{State: sinks.StateLive} }

func (r *rank) published() (held, uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	h := held{}
	for k, v := range r.want {
		h[k] = v
	}
	return h, r.LastID()
}

func (r *rank) Newest() (number, lastID uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.conv.Newest(), r.LastID()
}

func (r *rank) Walk(from, to uint64, out *convert.Output) (next, lastID uint64) {
	if r.between != nil {
		r.between()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.conv.Walk(from, to, out), r.LastID()
}

func (r *rank) Since(from uint64, f func(uint64, *convert.RouterEvent)) (uint64, bool) {
	if from < r.lo {
		return from - 1, false
	}
	return r.Outbox.Since(from, f)
}

// response is a router's reading of an answer.
type response struct {
	Data struct {
		Events *struct {
			Events []json.RawMessage
			Last   uint64 `json:"last_event_id"`
		}
		TreeDump *struct {
			Events []json.RawMessage
			Last   uint64 `json:"last_event_id"`
			Reset  string `json:"reset_scope"`
		}
		TreeDumpFailed *struct {
			Last    uint64 `json:"last_event_id"`
			Message string
		}
		Error *string
	}
	Final *bool `json:"complete_final"`
}

// event is a router event in JSON.
type event struct {
	Worker uint64 `json:"worker_id"`
	Tier   string `json:"storage_tier"`
	Domain string `json:"residency_domain"`
	Event  struct {
		ID   uint64 `json:"event_id"`
		Rank uint32 `json:"dp_rank"`
		Data json.RawMessage
	}
}

// read decodes events, checks whose they are, and gives them to each.
func read(t testing.TB, list []json.RawMessage, each func(id uint64, e *convert.RouterEvent)) {
	t.Helper()
	for _, raw := range list {
		var v event
		if err := json.Unmarshal(raw, &v); err != nil {
			t.Fatalf("%v in %s", err, raw)
		}
		if v.Worker != 1<<60 || v.Event.Rank != 2 {
			t.Fatalf("an event of worker %d, rank %d", v.Worker, v.Event.Rank)
		}
		e := convert.RouterEvent{NoDomain: v.Domain == ""}
		for e.Tier.String() != v.Tier {
			if e.Tier++; e.Tier > convert.External {
				t.Fatalf("tier %q", v.Tier)
			}
		}
		var data struct {
			Stored *struct {
				Parent *uint64 `json:"parent_hash"`
				Blocks []struct {
					Hash   uint64 `json:"block_hash"`
					Tokens uint64 `json:"tokens_hash"`
					MM     *struct {
						Objects []struct {
							Hash    uint64 `json:"mm_hash"`
							Offsets [][2]uint64
						} `json:"mm_objects"`
					} `json:"mm_extra_info"`
				}
			}
			Removed *struct {
				Hashes []uint64 `json:"block_hashes"`
			}
		}
		switch {
		case string(v.Event.Data) == `"cleared"`:
			e.Kind = convert.Cleared
		case json.Unmarshal(v.Event.Data, &data) != nil:
			t.Fatalf("data %s", v.Event.Data)
		case data.Removed != nil:
			e.Kind, e.Hashes = convert.Removed, data.Removed.Hashes
		case data.Stored != nil:
			e.Kind = convert.Stored
			if data.Stored.Parent != nil {
				e.HasParent, e.Parent = true, *data.Stored.Parent
			}
			for _, b := range data.Stored.Blocks {
				block := convert.Block{Hash: b.Hash, TokensHash: b.Tokens}
				if b.MM != nil {
					for _, o := range b.MM.Objects {
						block.MM = append(block.MM, convert.MMObject{Hash: o.Hash, Offsets: o.Offsets})
					}
				}
				e.Blocks = append(e.Blocks, block)
			}
		default:
			t.Fatalf("data %s", v.Event.Data)
		}
		each(v.Event.ID, &e)
	}
}
