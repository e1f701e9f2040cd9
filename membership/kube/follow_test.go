package kube

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

// runs has a store run until the test ends.
func runs(t *testing.T, s *Store) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); s.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
}

// telling is a store that has put keys, and its log.
func telling(t *testing.T, config *rest.Config, keys ...string) (*Store, *lines) {
	t.Helper()
	said := &lines{}
	s := newStore(t, config, slog.New(slog.NewTextHandler(said, nil)))
	for _, key := range keys {
		if err := s.Put(t.Context(), key, []byte(`{}`)); err != nil {
			t.Fatal(err)
		}
	}
	return s, said
}

// holds says whether the object has a record.
func (f *fakeAPI) holds(key string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	u := f.objects["ns/p-0"]
	return u != nil && parse(u).records[key] != nil
}

// TestWithdrawalIsMadeUpFor: nothing expires here, so a record that could not be
// withdrawn while the API server was away goes when it is back, though nobody asks again.
func TestWithdrawalIsMadeUpFor(t *testing.T) {
	f, config := newFake(t)
	s, said := telling(t, config, aKey, aKey+"2")
	runs(t, s)
	f.failing(func(w http.ResponseWriter, r *http.Request) bool {
		if verb(r) == "watch" {
			return false
		}
		status(w, http.StatusInternalServerError, "InternalError")
		return true
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := s.Delete(ctx, aKey+"2"); err == nil {
		t.Error("withdrawn by nobody")
	}
	waitFor(t, "it is tried again, in vain", func() bool { return strings.Contains(said.String(), "cannot be watched") })
	f.failing(nil)
	waitFor(t, "the record goes", func() bool { return !f.holds(aKey + "2") })
	if !f.holds(aKey) {
		t.Error("the other one went too")
	}
}

// TestRepairThatGaveWay: what a repair was about, when it let a withdrawal by, is repaired all the same.
func TestRepairThatGaveWay(t *testing.T) {
	f, config := newFake(t)
	s, _ := telling(t, config, aKey, aKey+"2")
	hanging := make(chan struct{}, 1)
	f.failing(func(w http.ResponseWriter, r *http.Request) bool {
		if verb(r) != "get" {
			return false
		}
		select {
		case hanging <- struct{}{}:
			return hang(f.stop)(w, r) // the first: the repair's
		default:
			return false
		}
	})
	f.mu.Lock()
	clear(f.objects)
	f.version++
	f.mu.Unlock()
	runs(t, s)
	waitFor(t, "the repair hangs", func() bool { return len(hanging) == 1 })
	if err := s.Delete(t.Context(), aKey+"2"); err != nil {
		t.Error(err)
	}
	waitFor(t, "the other record is put back", func() bool { return f.holds(aKey) })
	if f.holds(aKey + "2") {
		t.Error("the one that was withdrawn, too")
	}
}

// watching has every watch answered by f, and counts them with their times.
func (f *fakeAPI) watching(answer func(w http.ResponseWriter, r *http.Request)) (times func() []time.Time) {
	var mu sync.Mutex
	var at []time.Time
	f.failing(func(w http.ResponseWriter, r *http.Request) bool {
		if verb(r) != "watch" {
			return false
		}
		mu.Lock()
		at = append(at, time.Now())
		mu.Unlock()
		answer(w, r)
		return true
	})
	return func() []time.Time {
		mu.Lock()
		defer mu.Unlock()
		return append([]time.Time(nil), at...)
	}
}

// say answers a watch with one event of an error.
func say(w http.ResponseWriter, code, reason string) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write([]byte(`{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","status":"Failure","code":` + code + `,"reason":"` + reason + `","message":"its own words"}}` + "\n"))
}

// TestWatchEndsAtOnce: watches that end as soon as they begin come ever more
// seldom, and are none of the log's business.
func TestWatchEndsAtOnce(t *testing.T) {
	for what, answer := range map[string]func(http.ResponseWriter, *http.Request){
		"ended":   func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) },
		"too old": func(w http.ResponseWriter, _ *http.Request) { say(w, "410", "Expired") },
		"refused as too old": func(w http.ResponseWriter, _ *http.Request) {
			status(w, http.StatusGone, "Expired")
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			f, config := newFake(t)
			times := f.watching(answer)
			s, said := telling(t, config, aKey)
			runs(t, s)
			waitFor(t, "five watches", func() bool { return len(times()) >= 5 })
			at := times()
			if d := at[4].Sub(at[0]); d < 7*time.Second { // 1/2, 1, 2, 4 s at least
				t.Errorf("five watches within %s", d)
			}
			if strings.Contains(said.String(), "cannot be watched") {
				t.Errorf("the log tells: %s", said.String())
			}
		})
	}
}

// TestWatchTrouble: a watch that ends with a reason, or never begins, is told of.
func TestWatchTrouble(t *testing.T) {
	for what, c := range map[string]struct {
		answer func(f *fakeAPI, w http.ResponseWriter, r *http.Request)
		want   []string
	}{
		"right taken":   {func(_ *fakeAPI, w http.ResponseWriter, _ *http.Request) { say(w, "403", "Forbidden") }, []string{`verb \"watch\"`, "Role"}},
		"broken":        {func(_ *fakeAPI, w http.ResponseWriter, _ *http.Request) { say(w, "500", "InternalError") }, []string{"its own words"}},
		"noise":         {func(_ *fakeAPI, w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("{]\n")) }, []string{"watch"}},
		"never answers": {func(f *fakeAPI, w http.ResponseWriter, r *http.Request) { hang(f.stop)(w, r) }, []string{"did not answer in time", "watch"}},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			f, config := newFake(t)
			times := f.watching(func(w http.ResponseWriter, r *http.Request) { c.answer(f, w, r) })
			s, said := telling(t, config, aKey)
			runs(t, s)
			waitFor(t, "the log tells", func() bool { return strings.Contains(said.String(), "cannot be watched") })
			for _, want := range c.want {
				if !strings.Contains(said.String(), want) {
					t.Errorf("%q is not in: %s", want, said.String())
				}
			}
			n := len(times())
			f.failing(nil)
			f.mu.Lock()
			clear(f.objects)
			f.version++
			f.mu.Unlock()
			waitFor(t, "once it can be watched all goes on", func() bool { return f.holds(aKey) })
			if told := strings.Count(said.String(), "cannot be watched"); told != 1 {
				t.Errorf("told %d times of %d watches", told, n)
			}
		})
	}
}

// TestPutBackIsTold: somebody who goes on taking records away is told of, and
// then no longer with every repair; which stay a second apart.
func TestPutBackIsTold(t *testing.T) {
	f, config := newFake(t)
	s, said := telling(t, config, aKey)
	runs(t, s)
	var at []time.Time // of objects that were made again
	for range 8 {
		f.mu.Lock()
		f.remove("ns/p-0")
		f.mu.Unlock()
		waitFor(t, "it is put back", func() bool { return f.holds(aKey) })
		at = append(at, time.Now())
	}
	if d := at[7].Sub(at[0]); d < 6*repairPause {
		t.Errorf("eight repairs within %s", d)
	}
	if info, warn := strings.Count(said.String(), "were put back"), strings.Count(said.String(), "again and again"); info != oftenRepaired-1 || warn != 1 {
		t.Errorf("told %d and %d times: %s", info, warn, said.String())
	}
}

// TestBusy: 429 is told as what it is, whatever the server says of when to ask again.
func TestBusy(t *testing.T) {
	f, config := newFake(t)
	s, _ := telling(t, config)
	f.failing(func(w http.ResponseWriter, _ *http.Request) bool {
		w.Header().Set("Retry-After", "3600")
		status(w, http.StatusTooManyRequests, "TooManyRequests")
		return true
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	began := time.Now()
	err := s.Put(ctx, aKey, []byte(`{}`))
	if err == nil || !strings.Contains(err.Error(), "busy") || !strings.Contains(err.Error(), config.Host) {
		t.Error(err)
	}
	if d := time.Since(began); d > callFor/2 {
		t.Errorf("it took %s", d)
	}
	f.failing(nil)
	if err := s.Put(t.Context(), aKey, []byte(`{}`)); err != nil {
		t.Error(err)
	}
}

// TestNotTheRole: what the cluster forbids to everybody is not told as a right that is missing.
func TestNotTheRole(t *testing.T) {
	f, config := newFake(t)
	s, _ := telling(t, config)
	words := ""
	f.failing(func(w http.ResponseWriter, r *http.Request) bool {
		if verb(r) != "create" {
			return false
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusForbidden)
		_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","code":403,"reason":"Forbidden","message":"` + words + `"}`))
		return true
	})
	const begin = `dynamoworkermetadatas.nvidia.com \"p-0\" is forbidden: `
	for text, role := range map[string]bool{
		begin + `exceeded quota: q, requested: count/dynamoworkermetadatas.nvidia.com=1, used: 1, limited: 1`:                      false,
		begin + `unable to create new content in namespace ns because it is being terminated`:                                      false,
		begin + `User \"system:serviceaccount:ns:x\" cannot create resource \"dynamoworkermetadatas\" in API group \"nvidia.com\"`: true,
	} {
		words = text
		err := s.Put(t.Context(), aKey, []byte(`{}`))
		if err == nil || strings.Contains(err.Error(), "Role") != role || !strings.Contains(err.Error(), "p-0") {
			t.Errorf("%s: %v", text, err)
		}
	}
}
