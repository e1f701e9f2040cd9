package membership

import (
	"context"
	"time"
)

// Store is a place where Dynamo keeps records. Its methods may be called from
// any goroutine, before, while and after Run runs; none but Run waits longer than its ctx.
type Store interface {
	// Run keeps alive what was put, until ctx ends. What is lost meanwhile it puts again.
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
