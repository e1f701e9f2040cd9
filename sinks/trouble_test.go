package sinks

import (
	"errors"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// deniable is a server with JetStream whose user u may not publish to what reload says.
func deniable(t *testing.T, deny ...string) (s *server.Server, reload func(deny ...string)) {
	t.Helper()
	dir := t.TempDir()
	s, change := reloadable(t, func(o *server.Options) {
		o.JetStream, o.StoreDir, o.NoSystemAccount = true, dir, false
		o.Users = denying(deny...)
	})
	return s, func(deny ...string) {
		t.Helper()
		change(func(o *server.Options) { o.Users = denying(deny...) })
	}
}

// TestIdleRankOfAStreamIsWell: where the subject could not be read for a while, all
// is well once it was, though the engine is idle and nothing is to be stored.
func TestIdleRankOfAStreamIsWell(t *testing.T) {
	t.Parallel() // the silence takes five seconds
	s, reload := deniable(t, "$JS.API.STREAM.MSG.GET.>", "$JS.API.DIRECT.GET.>")
	p := newStreamTest(t, s, Options{Auth: Auth{User: "u", Password: "p"}})
	o, err := p.OpenRank(7, 0, RankOptions{Resume: true, Again: func() {}})
	if err != nil {
		t.Fatal(err)
	}
	run(t, p)
	says(t, p, "does not let the user or password publish", "$JS.API.")
	reload("nothing")
	if _, err := o.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all is well", func() bool { return p.State().LastError == "" })
}

// TestTroubleOfAnOldRefusal: a refusal that is over is not what a stream's later
// silence comes from.
func TestTroubleOfAnOldRefusal(t *testing.T) {
	t.Parallel() // two silences of five seconds
	s, reload := deniable(t, rankSubject)
	p := newStreamTest(t, s, Options{Auth: Auth{User: "u", Password: "p"}})
	k := openRank(t, p, 7, 1, 200)
	// NATS core has a subscriber: so no stream is silence.
	nc := connect(t, s.ClientURL(), nats.UserInfo("reader", "p"))
	if _, err := nc.Subscribe(k.o.Subject(), func(*nats.Msg) {}); err != nil {
		t.Fatal(err)
	}
	run(t, p)
	says(t, p, "does not let the user or password publish", rankSubject)
	reload("nothing")
	k.step(k.events())
	drained(t, p)
	if err := s.DisableJetStream(); err != nil {
		t.Fatal(err)
	}
	for last := k.o.LastID(); k.o.LastID() == last; {
		k.step(k.events())
	}
	eventually(t, "the silence", func() bool { return p.State().LastError != "" })
	if text := p.State().LastError; strings.Contains(text, "does not let") {
		t.Errorf("the state says %q", text)
	}
}

// TestSubjectReadLater: a rank that comes while a stream's answers may not be heard
// finds where its subject ends when they may.
func TestSubjectReadLater(t *testing.T) {
	t.Parallel() // the silence takes five seconds
	users := func(deny string) func(*server.Options) {
		return func(o *server.Options) {
			o.Users = deafening(deny)
		}
	}
	dir := t.TempDir()
	s, reload := reloadable(t, func(o *server.Options) {
		o.JetStream, o.StoreDir, o.NoSystemAccount = true, dir, false
		users("nothing")(o)
	})
	p := newStreamTest(t, s, Options{Auth: Auth{User: "u", Password: "p"}})
	openRank(t, p, 7, 1, 200)
	run(t, p)
	drained(t, p)
	reload(users("_INBOX.>"))
	k := openRank(t, p, 8, 2, 200)
	says(t, p, "does not let the user or password subscribe", "_INBOX")
	reload(users("nothing"))
	k.step(k.events())
	drained(t, p)
}

// TestTroubleOfAForgottenRank: what a rank that has left still meets is nobody's trouble.
func TestTroubleOfAForgottenRank(t *testing.T) {
	p := newTest(t, Options{})
	o := open(t, p, 7, 0, nil)
	p.say(o, "trouble", errors.New("first"))
	o.Close()
	forgotten(t, o)
	p.say(o, "trouble", errors.New("second"))
	if text := p.State().LastError; text != "" {
		t.Errorf("the state says %q", text)
	}
}
