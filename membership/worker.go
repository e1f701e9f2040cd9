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
	ranks  int                   // that are on record; owned by who has the token
	onFile card                  // what was put; likewise
	deafen func(context.Context) // ends hearing requests for the engine; likewise

	mu     sync.Mutex
	engine Engine
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

// card is what the model card says when src is on record too; false: the block
// size is not known yet.
func (r *Registry) card(src Source) (card, bool) {
	r.worker.mu.Lock()
	e := r.worker.engine
	r.worker.mu.Unlock()
	if e.Ranks == 0 {
		e.FirstRank, e.Ranks = src.Rank(), 1
	}
	first := min(e.FirstRank, src.Rank())
	c := card{blockSize: uint64(e.BlockSize), firstRank: first, ranks: max(e.FirstRank+e.Ranks, src.Rank()+1) - first}
	if c.blockSize == 0 {
		c.blockSize = src.BlockSize()
	}
	return c, c.blockSize > 0
}

// joinWorker puts the worker on record, or counts src in where it is already.
func (r *Registry) joinWorker(ctx context.Context, src Source) error {
	c, known := r.card(src)
	for said := false; !known; c, known = r.card(src) {
		if !said {
			said = true
			r.log.Warn("the worker's record needs the block size, which the engine has not said: waiting for its first store, or set BLOCK_SIZE")
		}
		if !sleep(ctx, lookAgain) {
			return ctx.Err()
		}
	}
	w := &r.worker
	if !w.take(ctx) {
		return ctx.Err()
	}
	defer w.give()
	instanceKey, modelKey, instanceValue, modelValue := r.workerRecords(src.WorkerID(), c)
	if w.ranks == 0 {
		err := r.untilFree(ctx, instanceKey)
		if err == nil {
			path, _ := r.way(src.WorkerID(), r.o.Endpoint.Name)
			w.deafen, err = r.hear(ctx, path)
		}
		put := false
		if err == nil {
			err = r.retry(ctx, "putting the worker on record", func() error {
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
		if err := r.retry(ctx, "putting the model card on record", func() error { return r.o.Store.Put(ctx, modelKey, modelValue) }); err != nil {
			if w.ranks == 0 {
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
	w.ranks++
	return nil
}

// leaveWorker counts a rank out; the last one takes the worker off the record,
// with ctx.
func (r *Registry) leaveWorker(ctx context.Context, src Source) {
	w := &r.worker
	w.take(context.WithoutCancel(ctx)) // whoever has it gives it back when the process ends
	defer w.give()
	if w.ranks--; w.ranks == 0 {
		instanceKey, modelKey, _, _ := r.workerRecords(src.WorkerID(), w.onFile)
		r.withdraw(ctx, modelKey)
		r.withdraw(ctx, instanceKey)
		w.deafen(ctx)
	}
}

// untilFree waits until nobody else keeps key alive.
func (r *Registry) untilFree(ctx context.Context, key string) error {
	var waiting, told time.Time
	for {
		var there *Entry
		err := r.retry(ctx, "looking for the worker's record", func() error {
			list, err := r.o.Store.List(ctx, key)
			there = nil
			for i := range list {
				if list[i].Key == key {
					there = &list[i]
				}
			}
			return err
		})
		if err != nil || there == nil || there.Dead || r.gone(ctx, there.Value) {
			return err
		}
		now := time.Now()
		if waiting.IsZero() {
			waiting = now
		}
		if now.Sub(waiting) > withinLease && now.Sub(told) > repeatLog {
			told = now
			r.log.Error("another process keeps this worker on record: nothing is published until it goes; where a Dynamo process has registered the engine, REGISTER_WORKER must be false", "key", key)
		}
		if !sleep(ctx, lookAgain) {
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

func (w *theWorker) give() { <-w.turn }

// lookForWorker is how often it is looked whether a worker that kvrelay speaks
// for is on record. Twice not, and the log tells: engines start slowly.
const lookForWorker = 30 * time.Second

// maxTold bounds the ids in a log line; there may be thousands of workers.
const maxTold = 32

func few(ids []uint64) []uint64 { return ids[:min(len(ids), maxTold)] }

// lookForWorkers tells of workers that no Dynamo process has on record: routers
// ignore their event sources.
func (r *Registry) lookForWorkers(ctx context.Context) {
	missed := map[uint64]int{}
	for sleep(ctx, r.lookEvery) {
		ours := r.server.workers()
		if len(ours) == 0 {
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
		for _, id := range ours {
			if there[id] {
				continue
			}
			if missed[id]++; missed[id] == 2 {
				r.log.Error("no Dynamo process has this worker on record, so routers ignore its events: set WORKER_ID to the id of the engine's Dynamo worker, or REGISTER_WORKER=true where there is none",
					"worker_id", id, "on_record", few(slices.Sorted(maps.Keys(there))))
			}
		}
	}
}
