package sinks

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// permitted are the users of a server that lets the relay do this much, and a reader
// all.
func permitted(p server.Permissions) []*server.User {
	return []*server.User{{Username: "u", Password: "p", Permissions: &p}, {Username: "reader", Password: "p"}}
}

// denying are those of one that does not let the relay publish to subject.
func denying(subject ...string) []*server.User {
	return permitted(server.Permissions{Publish: &server.SubjectPermission{Deny: subject}})
}

// deafening are those of one that does not let the relay subscribe to subject.
func deafening(subject ...string) []*server.User {
	return permitted(server.Permissions{Subscribe: &server.SubjectPermission{Deny: subject}})
}

// TestOneRankDenied: a rank whose subject NATS refuses is told of and held,
// the others go on over the same link. When it is allowed it goes on in order.
func TestOneRankDenied(t *testing.T) {
	denied := []string{"kvrelay.dynamo.7.1.events", "kvrelay.dynamo.7.3.events"}
	s, reload := reloadable(t, func(o *server.Options) { o.Users = denying(denied...) })
	var log logLines
	p := newTest(t, Options{Profile: JSON, Servers: []string{s.ClientURL()}, Auth: Auth{User: "u", Password: "p"}, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	p.timing = quick
	nc := connect(t, s.ClientURL(), nats.UserInfo("reader", "p"))
	var os []*Outbox
	var cs []*consumer
	var wants []fold
	for r := range uint32(4) {
		o := open(t, p, 7, r, nil)
		os, cs, wants = append(os, o), append(cs, follow(t, nc, o.Subject(), JSON)), append(wants, fold{})
	}
	ws := []*workload{newWorkload(1), newWorkload(2), newWorkload(3), newWorkload(4)}
	feed := func() {
		for range 20 {
			for i, o := range os {
				evs := ws[i].events(10)
				for k := range evs {
					wants[i].apply(&evs[k])
				}
				o.Append(Place{}, evs)
			}
		}
	}
	run(t, p)
	for range 5 {
		feed()
		eventually(t, "the ranks that are allowed", func() bool {
			return os[0].Confirmed() == os[0].LastID() && os[2].Confirmed() == os[2].LastID()
		})
		if os[1].Confirmed() != 0 || os[3].Confirmed() != 0 {
			t.Fatal("confirmed what the server refused")
		}
	}
	st := p.State()
	if !st.Connected || st.Reconnects != 0 {
		t.Errorf("one rank costs the others their link: %+v", st)
	}
	if !strings.Contains(st.LastError, `does not let the user or password publish`) || !strings.Contains(st.LastError, `"kvrelay.dynamo.7.`) {
		t.Errorf("the state says %q", st.LastError)
	}
	before := p.State().Envelopes
	eventually(t, "more tries", func() bool { return p.State().Envelopes > before+4 })
	for _, d := range denied {
		if n := strings.Count(strings.Join(log.lines(), "\n"), d); n != 1 {
			t.Errorf("%s is said %d times", d, n)
		}
	}
	reload(func(o *server.Options) { o.Users = denying(denied[1]) })
	eventually(t, "the rank that is allowed now", func() bool { return os[1].Confirmed() == os[1].LastID() })
	if p.State().LastError == "" {
		t.Error("all is well, it says, while one rank is refused")
	}
	reload(func(o *server.Options) { o.Users = denying("nothing") })
	feed()
	drained(t, p)
	for i, c := range cs {
		arrived(t, c, os[i], wants[i])
	}
	if st := p.State(); st.LastError != "" || st.Reconnects != 0 {
		t.Errorf("afterwards: %+v", st)
	}
	if last := log.lines(); !strings.Contains(last[len(last)-1], "takes the events of all ranks again") {
		t.Errorf("the end is not told: %q", last)
	}
}

// TestPermissionsChangeUnderWay: while a rank is refused one envelope of it is on
// its way at most, so that none overtakes another when it is allowed at any moment.
func TestPermissionsChangeUnderWay(t *testing.T) {
	const subject = "kvrelay.dynamo.7.0.events"
	s, reload := reloadable(t, func(o *server.Options) { o.Users = denying(subject) })
	p := newTest(t, Options{Profile: JSON, Servers: []string{s.ClientURL()}, Auth: Auth{User: "u", Password: "p"}})
	p.timing = quick
	p.timing.maxBackoff = 4 * time.Millisecond
	o := open(t, p, 7, 0, nil)
	c := follow(t, connect(t, s.ClientURL(), nats.UserInfo("reader", "p")), o.Subject(), JSON)
	run(t, p)
	w, want := newWorkload(1), fold{}
	add := func(n int) {
		evs := w.events(n)
		for k := range evs {
			want.apply(&evs[k])
		}
		o.Append(Place{}, evs)
	}
	for range 40 {
		add(1) // alone: it is refused before anything behind it goes out
		eventually(t, "the refusal", func() bool { return p.State().LastError != "" })
		for range 40 {
			add(100)
		}
		<-time.After(time.Duration(w.r.IntN(5000)) * time.Microsecond) // any moment will do
		reload(func(o *server.Options) { o.Users = denying("nothing") })
		drained(t, p)
		reload(func(o *server.Options) { o.Users = denying(subject) })
	}
	reload(func(o *server.Options) { o.Users = denying("nothing") })
	drained(t, p)
	arrived(t, c, o, want)
}

// TestOneRankOfAStreamDenied: the trouble of one rank stays told while others are stored.
func TestOneRankOfAStreamDenied(t *testing.T) {
	t.Parallel() // the silence before the refusal takes five seconds
	s, reload := reloadable(t, func(o *server.Options) {
		o.JetStream, o.StoreDir, o.NoSystemAccount = true, t.TempDir(), false
		o.Users = denying("kvrelay.dynamo.8.0.events")
	})
	var log logLines
	p := newStreamTest(t, s, Options{Auth: Auth{User: "u", Password: "p"}, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	a, b := openRank(t, p, 7, 1, 200), openRank(t, p, 8, 2, 200)
	run(t, p)
	eventually(t, "the refusal", func() bool { return strings.Contains(p.State().LastError, `"kvrelay.dynamo.8.0.events"`) })
	for range 20 {
		a.step(a.events())
		eventually(t, "the other rank", func() bool { return a.o.Confirmed() == a.o.LastID() })
		if p.State().LastError == "" {
			t.Fatal("all is well, it says, while one rank is refused")
		}
	}
	if b.o.Confirmed() != 0 {
		t.Error("confirmed what is refused")
	}
	reload(func(o *server.Options) { o.Users = denying("nothing") })
	b.step(b.events())
	drained(t, p)
	if st := p.State(); st.LastError != "" {
		t.Errorf("%+v", st)
	}
	if text := strings.Join(log.lines(), "\n"); strings.Count(text, "takes no events") != 1 || strings.Count(text, "takes events again") != 1 {
		t.Error(text)
	}
}

// TestSharedSubjectDenied: ranks of one subject, as the Dynamo profile has, are refused and allowed together.
func TestSharedSubjectDenied(t *testing.T) {
	s, reload := reloadable(t, func(o *server.Options) { o.Users = denying("namespace.>") })
	p := newTest(t, Options{Servers: []string{s.ClientURL()}, Auth: Auth{User: "u", Password: "p"}})
	p.timing = quick
	for r := range uint32(8) {
		o := open(t, p, 7, r, nil)
		w := newWorkload(uint64(r))
		for range 20 {
			o.Append(Place{}, w.events(20))
		}
	}
	run(t, p)
	says(t, p, "does not let")
	eventually(t, "tries", func() bool { return p.State().Failures > 40 })
	if st := p.State(); st.ConfirmedEvents != 0 || st.Reconnects != 0 {
		t.Errorf("%+v", st)
	}
	reload(func(o *server.Options) { o.Users = denying("nothing") })
	drained(t, p)
	if st := p.State(); st.LastError != "" {
		t.Errorf("%+v", st)
	}
}
