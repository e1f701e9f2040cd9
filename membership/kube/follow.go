package kube

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
)

const (
	// firstPause and lastPause bound the wait after trouble, which doubles.
	firstPause = time.Second
	lastPause  = 30 * time.Second
	// watchFor is how long one watch lasts; then the object is read anew, so
	// that a change that was never told is found.
	watchFor = 5 * time.Minute
	// repairPause is the least time between two repairs: somebody who takes our
	// records away as fast as we write them is not to keep the API server busy.
	repairPause = time.Second
	// oftenRepaired is how many repairs within tellEvery of each other are told of.
	oftenRepaired = 3
	// tellEvery is the least time between two log lines about trouble here.
	tellEvery = time.Minute
)

// Run watches the object, puts back what someone else took away, and takes away
// what a Delete could not. (What ends without Delete stays until the next life of
// kvrelay, or as long as the pod.)
func (s *Store) Run(ctx context.Context) {
	pause, told := firstPause, time.Time{}
	for {
		began := time.Now()
		err := s.follow(ctx)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > lastPause { // a watch that ends at once, again and again, is trouble too
			pause = firstPause
		}
		if err != nil && time.Since(told) > tellEvery {
			told = time.Now()
			s.log.Warn("the records in Kubernetes cannot be watched: if someone takes them away they are not put back", "error", err)
		}
		wait := time.NewTimer(pause/2 + rand.N(pause/2)) // so that pods do not come all at once
		select {
		case <-wait.C:
		case <-ctx.Done():
			wait.Stop()
			return
		}
		pause = min(2*pause, lastPause)
	}
}

// follow looks at the object, and then at every change of it. It returns when
// the watch has ended, as it does now and then.
func (s *Store) follow(ctx context.Context) error {
	only := fields.OneTermEqualSelector(metav1.ObjectNameField, s.o.Name).String()
	lctx, cancel := context.WithTimeout(ctx, callFor)
	defer cancel()
	list, err := s.api.List(lctx, metav1.ListOptions{FieldSelector: only})
	if err != nil {
		return s.explain(lctx, verbList, err)
	}
	if err := s.repair(ctx, s.find(list)); err != nil {
		return err
	}
	seconds := int64(watchFor / time.Second)
	wctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	late := func() { stop(context.DeadlineExceeded) }
	answer := time.AfterFunc(callFor, late)
	w, err := s.api.Watch(wctx, metav1.ListOptions{FieldSelector: only, ResourceVersion: list.GetResourceVersion(), TimeoutSeconds: &seconds})
	if !answer.Stop() && err == nil {
		w.Stop()
		err = context.DeadlineExceeded
	}
	if err != nil {
		return s.watched(wctx, err)
	}
	defer w.Stop()
	defer time.AfterFunc(watchFor+callFor, late).Stop() // where the server does not end it
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.look:
			return nil // and look after the pause
		case e, ok := <-w.ResultChan():
			if !ok {
				return nil
			}
			if e.Type == watch.Error {
				return s.watched(wctx, apierrors.FromObject(e.Object))
			}
			obj, _ := e.Object.(*unstructured.Unstructured)
			if e.Type == watch.Deleted {
				obj = nil
			}
			if err := s.repair(ctx, obj); err != nil {
				return err
			}
		}
	}
}

// watched says why a watch failed; nil where it only asked for what is too old.
func (s *Store) watched(ctx context.Context, err error) error {
	if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		return nil
	}
	if cause := context.Cause(ctx); errors.Is(cause, context.DeadlineExceeded) {
		err = cause
	}
	return s.explain(ctx, verbWatch, err)
}

func (s *Store) find(list *unstructured.UnstructuredList) *unstructured.Unstructured {
	for i := range list.Items {
		if list.Items[i].GetName() == s.o.Name {
			return &list.Items[i]
		}
	}
	return nil
}

// repair applies our records where u, nil when there is no object, lacks one, and
// takes away what is to go.
func (s *Store) repair(ctx context.Context, u *unstructured.Unstructured) error {
	s.mu.Lock()
	lacks, owes := false, len(s.leaving) > 0
	if s.applied > 0 && len(s.mine) > 0 { // before that Put is at work, and tells of trouble itself
		lacks = u == nil || !parse(u).has(s.mine)
	}
	rctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if lacks || owes {
		s.stopRepair = cancel
	}
	s.mu.Unlock()
	if !lacks && !owes {
		return nil
	}
	wrote := false
	err := s.inTurn(rctx, func(ctx context.Context) error {
		err := s.takeAway(ctx)
		if err == nil && lacks {
			wrote, err = s.apply(ctx)
		}
		return err
	})
	s.mu.Lock()
	s.stopRepair = nil
	s.mu.Unlock()
	switch {
	case rctx.Err() != nil: // somebody with news was let by
		s.again()
		return nil
	case err != nil:
		return err
	case !wrote: // also where u was older than what has been written since
		return nil
	}
	if now := time.Now(); now.Sub(s.repaired) > tellEvery {
		s.repaired, s.repairs = now, 0
	}
	s.total++
	switch s.repairs++; {
	case s.repairs < oftenRepaired:
		s.log.Info("the records in Kubernetes were put back", "name", s.o.Name)
	case s.repairs == oftenRepaired:
		s.log.Warn("somebody takes our records in Kubernetes away again and again: does a second kvrelay write to the same custom resource?", "name", s.o.Name, "put_back_so_far", s.total)
	}
	pause := time.NewTimer(repairPause)
	defer pause.Stop()
	select {
	case <-pause.C:
	case <-ctx.Done():
	}
	return nil
}
