// Package kube keeps Dynamo's records in Kubernetes: in the worker's custom
// resource (dynamoworkermetadatas.nvidia.com, v1alpha1), which the pod owns.
// Dynamo's own process applies it as field manager dynamo-worker; this package
// applies its own keys, and no others, as kvrelay. Only who imports it links
// Kubernetes' client. Seen with Dynamo 1.6.1 and Kubernetes 1.37.
package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/kvrelay/kvrelay/membership"
)

// manager is whose fields ours are.
const manager = "kvrelay"

var resource = schema.GroupVersionResource{Group: "nvidia.com", Version: "v1alpha1", Resource: "dynamoworkermetadatas"}

// callFor bounds one Put, Delete, List or repair; after it the call fails, and
// whoever called tries again.
const callFor = 10 * time.Second

// Options say which custom resource. All but Config.Timeout, Create and Log are needed.
type Options struct {
	Config    *rest.Config // how the API server is reached
	Namespace string       // Kubernetes', not Dynamo's
	Name      string       // of the custom resource
	Pod       string       // name of the pod that owns it
	PodUID    string
	// Create makes the object where there is none. Without it a Dynamo process
	// does, and an object that was deleted is never made again.
	Create bool
	Log    *slog.Logger // nil: none
}

// Store is a membership.Store. Use New.
//
// What it writes are this process's records alone: one process per custom
// resource keeps records as kvrelay, as two would take each other's for those
// of an earlier life.
type Store struct {
	o   Options
	log *slog.Logger
	api dynamic.ResourceInterface

	turn chan struct{} // a token for who writes: an apply names all of our keys
	look chan struct{} // Run is to look: a withdrawal failed, or a repair gave way

	mu         sync.Mutex
	mine       map[string]any // records that are kept, by key
	leaving    map[string]any // what is to be taken away, by key; nil: whatever is there
	changes    uint64         // of mine
	applied    uint64         // how many of them are on record
	stopRepair context.CancelFunc

	toldTaken time.Time // when it was told last that another process has a record; owned by who has the turn

	// Owned by Run.
	repaired time.Time // the first repair of the last minute or so
	repairs  int       // since then
	total    int       // of all repairs
}

var _ membership.Store = (*Store)(nil)

// New makes a Store. It reads the files that Config names, and does no other I/O.
func New(o Options) (*Store, error) {
	if o.Config == nil || o.Namespace == "" || o.Name == "" || o.Pod == "" || o.PodUID == "" {
		return nil, errors.New("kube: config, namespace, name, pod and its uid must be given")
	}
	c := rest.CopyConfig(o.Config)
	c.UserAgent = manager
	// Calls are few, and bounded by the ranks; the client's own brake (5 a
	// second) would only make the end longer than it may be.
	c.QPS = -1
	c.Wrap(func(next http.RoundTripper) http.RoundTripper { return askAgain{next} })
	client, err := dynamic.NewForConfig(c)
	if err != nil {
		return nil, fmt.Errorf("kube: making a client: %w", err)
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Store{
		o: o, log: o.Log, api: client.Resource(resource).Namespace(o.Namespace),
		turn: make(chan struct{}, 1), look: make(chan struct{}, 1), mine: map[string]any{}, leaving: map[string]any{},
	}, nil
}

// Put puts a record into the object. The first one of a process takes away
// everything that an earlier life of kvrelay left there. One that fails may be
// on record all the same, and Run puts it there later: Delete it to be sure.
func (s *Store) Put(ctx context.Context, key string, value []byte) error {
	if _, _, err := place(key); err != nil {
		return err
	}
	record, err := decode(value)
	if err != nil {
		return fmt.Errorf("the record %s: %w", key, err)
	}
	s.mu.Lock()
	s.mine[key] = record
	delete(s.leaving, key)
	s.changes++
	change := s.changes
	s.mu.Unlock()
	return s.write(ctx, func(ctx context.Context) error {
		s.mu.Lock()
		there := s.applied >= change // somebody else's turn put it there too
		s.mu.Unlock()
		if there {
			return nil
		}
		_, err := s.apply(ctx)
		return err
	})
}

// Delete takes a record away, and with it whatever else is to go. One that fails
// is made up for by Run, as nothing expires here.
func (s *Store) Delete(ctx context.Context, key string) error {
	if _, _, err := place(key); err != nil {
		return err
	}
	s.mu.Lock()
	if record, ours := s.mine[key]; ours || s.leaving[key] == nil {
		s.leaving[key] = record
	}
	delete(s.mine, key)
	s.mu.Unlock()
	err := s.write(ctx, s.takeAway)
	if err != nil {
		s.again()
	}
	return err
}

// again has Run look at the object anew.
func (s *Store) again() {
	select {
	case s.look <- struct{}{}:
	default:
	}
}

// takeAway takes away all that is to go. The caller has the turn.
func (s *Store) takeAway(ctx context.Context) error {
	s.mu.Lock()
	keys := maps.Clone(s.leaving)
	s.mu.Unlock()
	if len(keys) == 0 {
		return nil // somebody else's turn took it away too
	}
	if err := s.remove(ctx, keys); err != nil {
		return err
	}
	s.mu.Lock()
	for k := range keys {
		delete(s.leaving, k)
	}
	s.mu.Unlock()
	return nil
}

// List is what stands in this worker's object: other workers have their own.
// Dead are the records that kvrelay put there in an earlier life: a container
// is started again only when it has ended.
func (s *Store) List(ctx context.Context, prefix string) ([]membership.Entry, error) {
	bucket, _, err := place(prefix)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, callFor)
	defer cancel()
	obj, err := s.get(ctx)
	if err != nil || obj == nil || !obj.ownedBy(s.o.PodUID) {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []membership.Entry
	for key := range obj.records {
		if !strings.HasPrefix(key, prefix) {
			continue
		}
		value, err := obj.value(key)
		if err != nil {
			return nil, fmt.Errorf("reading %s of the custom resource %s: %w", bucket, s.o.Name, err)
		}
		_, ours := s.mine[key]
		out = append(out, membership.Entry{Key: key, Value: value, Dead: obj.applied[key] && !ours})
	}
	return out, nil
}

// write runs f when it is its turn. A repair gives way.
func (s *Store) write(ctx context.Context, f func(context.Context) error) error {
	s.mu.Lock()
	if s.stopRepair != nil {
		s.stopRepair()
	}
	s.mu.Unlock()
	return s.inTurn(ctx, f)
}

func (s *Store) inTurn(ctx context.Context, f func(context.Context) error) error {
	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-s.turn }()
	ctx, cancel := context.WithTimeout(ctx, callFor)
	defer cancel()
	return f(ctx)
}

// apply has the object say what is in mine. What kvrelay said there in an
// earlier life goes first: two records of a rank are worse than none. So does what
// somebody else has made of one of ours, whose fields an apply would not take back.
// wrote: it did not say so already.
func (s *Store) apply(ctx context.Context) (wrote bool, err error) {
	obj, err := s.get(ctx)
	if err == nil && obj == nil {
		obj, err = s.create(ctx)
	}
	if err != nil {
		return false, err
	}
	if err := s.mayWrite(obj); err != nil {
		return false, err
	}
	s.mu.Lock()
	mine, change, known := maps.Clone(s.mine), s.changes, s.applied == s.changes
	s.mu.Unlock()
	stale := map[string]bool{}
	for key := range obj.applied {
		if _, ok := mine[key]; !ok {
			stale[key] = true
		}
	}
	if known { // else what is there may be what we said before
		for _, key := range obj.changed(mine) {
			if obj.takenOver(key, mine[key]) { // an apply with it would be refused
				s.tellTaken(key)
				delete(mine, key)
			} else {
				stale[key] = true
			}
		}
	}
	if len(stale) > 0 {
		if err := s.mergeNull(ctx, obj.uid, stale); err != nil {
			return false, err
		}
	}
	if wrote = !obj.has(mine); wrote {
		if err := s.applyKeys(ctx, obj.uid, mine); err != nil {
			return false, err
		}
	}
	s.mu.Lock()
	s.applied = change
	s.mu.Unlock()
	return wrote, nil
}

// remove takes records out of the object, where they are in it.
func (s *Store) remove(ctx context.Context, records map[string]any) error {
	obj, err := s.get(ctx)
	if err != nil || obj == nil || !obj.ownedBy(s.o.PodUID) {
		return err // there is nothing of ours to take away
	}
	there := map[string]bool{}
	for key, record := range records {
		if _, ok := obj.records[key]; ok && !obj.takenOver(key, record) {
			there[key] = true
		}
	}
	if len(there) == 0 {
		return nil
	}
	if err := s.mergeNull(ctx, obj.uid, there); err != nil && !errors.Is(err, errGone) {
		return err
	}
	return nil
}

// tellTaken tells once a minute of a record that is another process's by now.
func (s *Store) tellTaken(key string) {
	if time.Since(s.toldTaken) > tellEvery {
		s.toldTaken = time.Now()
		s.log.Error(membership.TakenOver, "key", key)
	}
}

// mayWrite says why obj is not ours to write to.
func (s *Store) mayWrite(obj *object) error {
	switch {
	case !obj.ownedBy(s.o.PodUID):
		return fmt.Errorf("the custom resource %s is not owned by this pod (uid %s), but most likely by an earlier one of its name: waiting until Kubernetes has removed it; if it stays, see whether POD_UID (KVRELAY_POD_UID) is the pod's", s.o.Name, s.o.PodUID)
	case obj.deleted:
		return fmt.Errorf("the custom resource %s is being deleted", s.o.Name)
	}
	return nil
}

// owner is the reference that Dynamo makes too, word for word: two managers
// that say the same do not conflict.
func (s *Store) owner() metav1.OwnerReference {
	no := false
	return metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: s.o.Pod, UID: uid(s.o.PodUID), Controller: &no, BlockOwnerDeletion: &no}
}
