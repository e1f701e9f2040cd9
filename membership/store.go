package membership

import (
	"context"
	"encoding/json"
	"strings"
	"time"
)

// Store is a place where Dynamo keeps records. Its methods may be called from
// any goroutine, before, while and after Run runs; none but Run waits longer than its ctx.
type Store interface {
	// Run keeps alive what was put, until ctx ends. What is lost or changed
	// meanwhile it puts again, where it is Restorable.
	Run(ctx context.Context)
	// Put writes a record, or replaces it.
	Put(ctx context.Context, key string, value []byte) error
	// Delete removes a record; one that is not there is no error.
	Delete(ctx context.Context, key string) error
	// List is every record whose key begins with prefix.
	List(ctx context.Context, prefix string) ([]Entry, error)
}

// Entry is a record in a Store.
type Entry struct {
	Key   string
	Value []byte
	// Dead: whoever put it does not keep it alive any more, and it may be removed.
	Dead bool
}

// withinLease is how long a record can outlive its process: Dynamo's lease of 10 s, and some time to notice.
const withinLease = 12 * time.Second

// TakenOver is the log line of records that are not Restorable.
const TakenOver = "another process has put itself on record in this worker's place, and is left there: where a Dynamo process has registered the engine, REGISTER_WORKER must be false"

// Restorable says whether a record of ours is to be put again where its key now
// has the value there. An event source's key has our publisher id, so it is
// nobody else's. The worker's may have become those of a Dynamo process that
// registered the engine, which is then the one to ask for prompts.
func Restorable(key string, there []byte) bool {
	if strings.HasPrefix(key, bucketSources) {
		return true
	}
	var v struct{ Type string }
	return json.Unmarshal(there, &v) != nil || v.Type != "Endpoint" && v.Type != "Model"
}
