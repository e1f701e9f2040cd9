package membership

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Buckets of a worker's records.
const (
	bucketInstances = "v1/instances/"
	bucketModels    = "v1/mdc/"
)

// Engine is what the model card says of the engine behind the worker.
type Engine struct {
	BlockSize uint32 // tokens; 0: as the first store tells
	FirstRank uint32 // of the data-parallel ranks that this relay publishes
	Ranks     uint32 // how many from FirstRank on, at least 1
}

// SetEngine says what the engine is, before its ranks are registered and
// whenever it changes. It matters with Options.RegisterWorker only.
func (r *Registry) SetEngine(e Engine) {
	w := &r.worker
	w.mu.Lock()
	w.engine = e
	w.mu.Unlock()
}

// theWorker is the worker's own records, which all its ranks share. They are
// put with the first rank and withdrawn with the last.
type theWorker struct {
	turn   chan struct{}         // a token for who changes the records
	ranks  []Source              // that are on record; owned by who has the token
	onFile card                  // what was put; likewise
	deafen func(context.Context) // ends hearing requests for the engine; likewise

	mu      sync.Mutex
	engine  Engine
	giveWay context.CancelFunc // of renewCard, while it is at work
}

// card is what varies in a model card.
type card struct {
	blockSize        uint64
	firstRank, ranks uint32
}

// modelCard is the value of a model's record: the least that Dynamo 1.6.1 reads.
type modelCard struct {
	Type      string `json:"type"` // Model
	Namespace string `json:"namespace"`
	Component string `json:"component"`
	Endpoint  string `json:"endpoint"`
	ID        uint64 `json:"instance_id"`
	Card      struct {
		Name      string   `json:"display_name"`
		Slug      string   `json:"slug"`
		Context   uint32   `json:"context_length"`
		BlockSize uint64   `json:"kv_cache_block_size"`
		Migration uint32   `json:"migration_limit"`
		ModelType string   `json:"model_type"`
		Input     string   `json:"model_input"`
		Worker    string   `json:"worker_type"`
		Needs     []string `json:"needs"`
		Runtime   struct {
			Blocks *uint64 `json:"total_kv_blocks"`
			First  uint32  `json:"data_parallel_start_rank"`
			Size   uint32  `json:"data_parallel_size"`
			Index  bool    `json:"enable_local_indexer"`
			Eagle  bool    `json:"enable_eagle"`
		} `json:"runtime_config"`
	} `json:"card_json"`
}

// records are the worker's keys and values.
func (r *Registry) workerRecords(id uint64, c card) (instanceKey, modelKey string, instanceValue, modelValue []byte) {
	e := r.o.Endpoint
	rest := fmt.Sprintf("%s/%s/%s/%x", e.Namespace, e.Component, e.Name, id)
	_, transport := r.way(id, e.Name)
	i := instance{
		Type: "Endpoint", Namespace: e.Namespace, Component: e.Component, Endpoint: e.Name, ID: id,
		Transport: transport, // requests for the engine itself are refused there with a reason
	}
	m := modelCard{Type: "Model", Namespace: e.Namespace, Component: e.Component, Endpoint: e.Name, ID: id}
	m.Card.Name, m.Card.Slug = "kvrelay", "kvrelay"
	m.Card.BlockSize = c.blockSize
	// No model type: frontends find no model to serve here.
	m.Card.Input, m.Card.Worker, m.Card.Needs = "Tokens", "aggregated", []string{}
	m.Card.Runtime.First, m.Card.Runtime.Size, m.Card.Runtime.Index = c.firstRank, c.ranks, true
	return bucketInstances + rest, bucketModels + rest, mustJSON(i), mustJSON(m)
}

// card is what the model card says when ranks, at least one, are on record;
// false: the block size is not known yet.
func (r *Registry) card(ranks ...Source) (card, bool) {
	r.worker.mu.Lock()
	e := r.worker.engine
	r.worker.mu.Unlock()
	if e.Ranks == 0 {
		e.FirstRank, e.Ranks = ranks[0].Rank(), 1
	}
	first, end, size := e.FirstRank, e.FirstRank+e.Ranks, uint64(e.BlockSize)
	for _, src := range ranks {
		first, end = min(first, src.Rank()), max(end, src.Rank()+1)
		if size == 0 {
			size = src.BlockSize()
		}
	}
	return card{blockSize: size, firstRank: first, ranks: end - first}, size > 0
}

// joinWorker puts the worker on record, or counts src in where it is already.
func (r *Registry) joinWorker(ctx context.Context, src Source) error {
	w := &r.worker
	var ranks []Source // with src
	var c card
	for said := false; ; said = true {
		if !w.await(ctx, src) {
			return ctx.Err()
		}
		ranks = append(slices.Clone(w.ranks), src)
		var known bool
		if c, known = r.card(ranks...); known {
			break
		}
		w.give()
		if !said {
			r.log.Warn("the worker's record needs the block size, which the engine has not said: waiting for its first store, or set BLOCK_SIZE")
		}
		if !sleep(ctx, lookAgain) {
			return ctx.Err()
		}
	}
	defer w.give()
	instanceKey, modelKey, instanceValue, modelValue := r.workerRecords(src.WorkerID(), c)
	if len(w.ranks) == 0 {
		err := r.untilFree(ctx, src, instanceKey)
		if err == nil {
			path, _ := r.way(src.WorkerID(), r.o.Endpoint.Name)
			w.deafen, err = r.hear(ctx, src, path)
		}
		put := false
		if err == nil {
			err = r.retry(ctx, src, "putting the worker on record", func() error {
				put = true // whatever it returns
				return r.o.Store.Put(ctx, instanceKey, instanceValue)
			})
		}
		if err != nil {
			ctx, cancel := takingBack(ctx)
			defer cancel()
			if put {
				r.withdraw(ctx, instanceKey)
			}
			if w.deafen != nil {
				w.deafen(ctx)
			}
			return err
		}
		w.onFile = card{}
	}
	if c != w.onFile {
		if err := r.retry(ctx, src, "putting the model card on record", func() error { return r.o.Store.Put(ctx, modelKey, modelValue) }); err != nil {
			if len(w.ranks) == 0 {
				ctx, cancel := takingBack(ctx)
				defer cancel()
				r.withdraw(ctx, modelKey)
				r.withdraw(ctx, instanceKey)
				w.deafen(ctx)
			}
			return err
		}
		w.onFile = c
	}
	w.ranks = ranks
	return nil
}

// renewCards has the model card say what the engine is by now, until ctx ends.
func (r *Registry) renewCards(ctx context.Context) {
	for sleep(ctx, r.cardEvery) {
		r.renewCard(ctx)
	}
}

// renewCard puts the model card again where the engine has another block size or
// other ranks than it says: routers would ask for prompts in vain, or choose a
// rank that has gone. What fails is tried again by the next one; the records' own
// upkeep tells of it. A rank that leaves does not wait for it.
func (r *Registry) renewCard(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w := &r.worker
	w.mu.Lock()
	w.giveWay = cancel
	w.mu.Unlock()
	if !w.take(ctx) {
		return
	}
	defer w.give()
	if len(w.ranks) == 0 {
		return
	}
	c, known := r.card(w.ranks...)
	if !known || c == w.onFile { // not known: an engine that was restarted has stored nothing yet
		return
	}
	_, modelKey, _, modelValue := r.workerRecords(w.ranks[0].WorkerID(), c)
	if r.o.Store.Put(ctx, modelKey, modelValue) != nil {
		return
	}
	w.onFile = c
	r.log.Info("the engine has changed, and its model card with it", "block_size", c.blockSize, "first_rank", c.firstRank, "ranks", c.ranks)
}

// leaveWorker counts a rank out; the last one takes the worker off the record,
// with ctx.
func (r *Registry) leaveWorker(ctx context.Context, src Source) {
	w := &r.worker
	w.mu.Lock()
	if w.giveWay != nil {
		w.giveWay()
	}
	w.mu.Unlock()
	w.take(context.WithoutCancel(ctx)) // whoever has it gives it back when the process ends
	defer w.give()
	w.ranks = slices.DeleteFunc(w.ranks, func(s Source) bool { return s.PublisherID() == src.PublisherID() })
	if len(w.ranks) == 0 {
		instanceKey, modelKey, _, _ := r.workerRecords(src.WorkerID(), w.onFile)
		r.withdraw(ctx, modelKey)
		r.withdraw(ctx, instanceKey)
		w.deafen(ctx)
	}
}

// untilFree waits until nobody else keeps key alive.
func (r *Registry) untilFree(ctx context.Context, src Source, key string) error {
	var waiting, told time.Time
	for {
		var there *Entry
		err := r.retry(ctx, src, "looking for the worker's record", func() error {
			list, err := r.o.Store.List(ctx, key)
			there = nil
			for i := range list {
				if list[i].Key == key {
					there = &list[i]
				}
			}
			return err
		})
		if err != nil {
			return err
		}
		if there == nil || there.Dead || r.gone(ctx, there.Value) {
			src.SetUnregistered("")
			return nil
		}
		now := time.Now()
		if waiting.IsZero() {
			waiting = now
		}
		if now.Sub(waiting) > withinLease {
			src.SetUnregistered(unregistered + "another process keeps this worker on record: " + key)
		}
		if now.Sub(waiting) > withinLease && now.Sub(told) > repeatLog {
			told = now
			r.log.Error("another process keeps this worker on record: nothing is published until it goes; where a Dynamo process has registered the engine, REGISTER_WORKER must be false", "key", key)
		}
		if !sleep(ctx, lookPause(now.Sub(waiting))) {
			return ctx.Err()
		}
	}
}

func (w *theWorker) take(ctx context.Context) bool {
	select {
	case w.turn <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

// await is take for a rank that comes on record: the one before it may wait for long.
func (w *theWorker) await(ctx context.Context, src Source) bool {
	soon, cancel := context.WithTimeout(ctx, withinLease)
	defer cancel()
	if w.take(soon) {
		return true
	}
	src.SetUnregistered(unregistered + "another rank of the worker is not on record either")
	if !w.take(ctx) {
		return false
	}
	src.SetUnregistered("")
	return true
}

func (w *theWorker) give() { <-w.turn }

// lookForChange is how often it is looked whether the model card still holds.
const lookForChange = 3 * time.Second

// lookForWorker is how often it is looked whether a worker that kvrelay speaks
// for is on record. Twice not, and the log tells: engines start slowly.
const lookForWorker = 30 * time.Second

// maxTold bounds the ids in a log line; there may be thousands of workers.
const maxTold = 32

func few(ids []uint64) []uint64 { return ids[:min(len(ids), maxTold)] }

// lookForWorkers tells of workers that no Dynamo process has on record: routers
// ignore their event sources. While all are there the looks become rarer.
func (r *Registry) lookForWorkers(ctx context.Context) {
	missed := map[uint64]int{}
	for pause := r.lookEvery; sleep(ctx, pause); {
		ours := r.server.workers()
		if len(ours) == 0 {
			pause = r.lookEvery
			continue
		}
		entries, err := r.o.Store.List(ctx, bucketInstances)
		if err != nil {
			continue // the records' own upkeep tells of it
		}
		there := map[uint64]bool{}
		for _, e := range entries {
			if i := strings.LastIndexByte(e.Key, '/'); !e.Dead {
				if id, err := strconv.ParseUint(e.Key[i+1:], 16, 64); err == nil {
					there[id] = true
				}
			}
		}
		for id := range missed {
			if there[id] {
				delete(missed, id)
			}
		}
		pause = min(2*pause, rareLooks*r.lookEvery)
		for _, id := range ours {
			if there[id] {
				continue
			}
			pause = r.lookEvery
			if missed[id]++; missed[id] == 2 {
				r.log.Error("no Dynamo process has this worker on record, so routers ignore its events: set WORKER_ID to the id of the engine's Dynamo worker, or REGISTER_WORKER=true where there is none",
					"worker_id", id, "on_record", few(slices.Sorted(maps.Keys(there))))
			}
		}
	}
}
