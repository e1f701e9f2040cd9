package main

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kvrelay/kvrelay/internal/mockengine"
	"github.com/kvrelay/kvrelay/internal/natsd"
)

// startUnregistered starts a relay whose rank cannot be put on record while file is there.
func startUnregistered(t *testing.T) (r *shownRelay, url, file string) {
	t.Helper()
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, before) })
	e, err := mockengine.Start(mockengine.Options{BlockSize: 16, Blocks: 64, Workload: &mockengine.Workload{}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	s, err := natsd.Start(t.Context(), natsd.Options{Port: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	file = filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r = startShown(t, "--admin-addr=127.0.0.1:0", "--sink=nats", "--nats-url="+s.URL(),
		"--endpoints="+e.Rank(0).Endpoint(), "--replay-endpoints="+e.Rank(0).ReplayEndpoint(),
		"--membership=file", "--membership-path="+filepath.Join(file, "kv"), "--recovery-addr=127.0.0.1:0", "--worker-id=7")
	url, _ = r.says("status page")["url"].(string)
	for range 20 {
		e.Step()
	}
	r.says("Dynamo routers cannot be told of this engine yet")
	return r, url, file
}

// TestUnregisteredToTheEnd: what was not published is told of at the end, with the
// reason.
func TestUnregisteredToTheEnd(t *testing.T) {
	r, _, _ := startUnregistered(t)
	r.stop()
	if err, _ := r.says("ended")["err"].(string); !strings.Contains(err, "not on record for Dynamo routers") || !strings.Contains(err, "MEMBERSHIP_PATH") {
		t.Errorf("the end says %q", err)
	}
	if code := r.end(); code != exitUnconfirmed {
		t.Errorf("exit code %d", code)
	}
}

// TestUnregistered: a relay whose rank cannot be put on record publishes nothing,
// and says so wherever one looks; once it can all is well.
func TestUnregistered(t *testing.T) {
	r, url, file := startUnregistered(t)
	const why = "not on record for Dynamo routers, so nothing is published: "
	status := func() (st struct {
		Ready, Healthy bool
		Ranks          []struct {
			State, Reason string
			Ready         bool
		}
		Sink struct {
			Confirmed uint64 `json:"confirmed_events"`
		}
	}) {
		t.Helper()
		_, body := fetch(t, url+"/status")
		if err := json.Unmarshal([]byte(body), &st); err != nil {
			t.Fatal(err)
		}
		return st
	}
	until := func(what string, ok func() bool) {
		t.Helper()
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for end := time.Now().Add(commandPatience); !ok(); <-tick.C {
			if time.Now().After(end) {
				t.Fatalf("never %s: %+v", what, status())
			}
		}
	}
	until("not ready for that reason", func() bool {
		code, body := fetch(t, url+"/readyz")
		return code == http.StatusServiceUnavailable && strings.Contains(body, "rank 0: "+why) && strings.Contains(body, "MEMBERSHIP_PATH")
	})
	st := status()
	if len(st.Ranks) != 1 || st.Ranks[0].State != "waiting" || st.Ranks[0].Ready || !strings.HasPrefix(st.Ranks[0].Reason, why) || st.Ready || !st.Healthy || st.Sink.Confirmed > 0 {
		t.Errorf("status %+v", st)
	}
	if _, body := fetch(t, url+"/metrics"); !strings.Contains(body, `kvrelay_rank_unregistered{rank="0"} 1`) {
		t.Error("the metric does not say so")
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	until("ready", func() bool { code, _ := fetch(t, url+"/readyz"); return code == http.StatusOK })
	until("published", func() bool { return status().Sink.Confirmed > 0 })
	if st := status(); st.Ranks[0].State != "live" || st.Ranks[0].Reason != "" {
		t.Errorf("status %+v", st)
	}
	if code := r.end(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
}
