package docs

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/kvrelay/kvrelay/consumer"
)

const patience = 30 * time.Second

// guarded is a NATS server with the users and permissions of one block of
// security.md, and these settings before it.
func guarded(t *testing.T, block, settings string) string {
	t.Helper()
	found := blocks(pages(t)["security.md"], block)
	if len(found) != 1 {
		t.Fatalf("security.md has %d blocks %q", len(found), block)
	}
	for _, user := range []string{"RELAY", "ROUTER", "OPERATOR"} {
		t.Setenv(user+"_PASSWORD", strings.ToLower(user)+"-secret")
	}
	file := filepath.Join(t.TempDir(), "nats.conf")
	if err := os.WriteFile(file, []byte("host: 127.0.0.1\nport: -1\n"+settings+found[0]), 0o600); err != nil {
		t.Fatal(err)
	}
	o, err := server.ProcessConfigFile(file)
	if err != nil {
		t.Fatal(err)
	}
	o.NoSigs, o.NoLog = true, true
	s, err := server.NewServer(o)
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	if !s.ReadyForConnections(patience) {
		t.Fatal("nats-server is not ready")
	}
	return s.ClientURL()
}

// as connects one of the users; what it is not allowed goes to the channel.
func as(t *testing.T, url, user string) (*nats.Conn, <-chan error) {
	t.Helper()
	refused := make(chan error, 100)
	nc, err := nats.Connect(url, nats.UserInfo(user, user+"-secret"),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { refused <- err }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc, refused
}

// process is a running kvrelay.
type process struct {
	stop func() // and waits for its end

	mu  sync.Mutex
	out bytes.Buffer
}

func (p *process) text() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.String()
}

// start runs kvrelay until the test ends, and waits for a line with mark.
func start(t *testing.T, mark string, env []string, args ...string) *process {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, built(t), args...)
	cmd.Env = environment(t, env...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = patience
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p, seen, ended := &process{}, make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		told := false
		for lines := bufio.NewScanner(pipe); lines.Scan(); {
			p.mu.Lock()
			p.out.WriteString(lines.Text() + "\n")
			p.mu.Unlock()
			if !told && strings.Contains(lines.Text(), mark) {
				told = true
				close(seen)
			}
		}
	}()
	p.stop = sync.OnceFunc(func() {
		cancel()
		<-ended
		_ = cmd.Wait() // its end is not what is tested
	})
	t.Cleanup(p.stop)
	select {
	case <-seen:
	case <-ended:
		t.Fatalf("kvrelay %v has ended:\n%s", args, p.text())
	case <-time.After(patience):
		t.Fatalf("kvrelay %v says no %q:\n%s", args, mark, p.text())
	}
	return p
}

// TestPermissions: with the permissions of security.md everything works that
// kvrelay and its readers do, in each profile, and nothing else.
func TestPermissions(t *testing.T) {
	url := guarded(t, "conf authorization", "")
	endpoint, replay := mock(t)
	var subjects []string
	for _, profile := range []string{"dynamo", "dynamo-single", "json"} {
		p, err := consumer.ParseProfile(profile)
		if err != nil {
			t.Fatal(err)
		}
		// A worker of its own, so that no two relays have one rank.
		worker := len(subjects) + 1
		relay := start(t, "the first replay has ended", []string{"KVRELAY_NATS_USER=relay", "KVRELAY_NATS_PASSWORD=relay-secret"},
			"--nats-url", url, "--endpoints", endpoint, "--replay-endpoints", replay, "--profile", profile,
			"--worker-id", fmt.Sprint(worker), "--admin-addr", "off")
		nc, refused := as(t, url, "router")
		// A router that comes late: what was before it has to be asked for.
		stored := follow(t, nc, p, uint64(worker))
		select {
		case <-stored:
		case err := <-refused:
			t.Fatalf("%s: the router may not read: %v", profile, err)
		case <-time.After(patience):
			t.Fatalf("%s: no picture\n%s", profile, relay.text())
		}
		if strings.Contains(relay.text(), "Permissions Violation") || strings.Contains(relay.text(), "recovery service have trouble") {
			t.Errorf("%s: the relay may not do what it has to:\n%s", profile, relay.text())
		}
		subjects = append(subjects, profile)
	}

	operator, refused := as(t, url, "operator")
	if m, err := operator.Request("$SRV.STATS.kvrelay", nil, patience); err != nil || !strings.Contains(string(m.Data), "recover") {
		t.Errorf("`nats micro stats kvrelay` would not work: %v", err)
	}
	select {
	case err := <-refused:
		t.Errorf("the operator: %v", err)
	default:
	}
	const events = "namespace.dynamo.component.backend.endpoint.generate.kv-events"
	forbidden(t, url, []deed{
		{"router", "publish", events},
		{"router", "publish", "kvrelay.dynamo.1.0.events"},
		{"router", "publish", "kvrelay.dynamo.1.0.heartbeat"},
		{"router", "subscribe", "kvrelay.dynamo.*.*.recover"},
		{"router", "subscribe", "kvrelay.other.*.*.events"},
		{"router", "subscribe", ">"},
		{"relay", "subscribe", events},
		{"relay", "subscribe", "_INBOX.>"},
		{"relay", "publish", "kvrelay.other.1.0.events"},
		{"relay", "publish", "_INBOX.someone"},
		{"relay", "publish", "$JS.API.STREAM.DELETE.KVRELAY"},
		{"operator", "publish", events},
	})
}

// TestJetStreamPermissions: the same of a stream: made, resumed by a second life,
// and read from its beginning.
func TestJetStreamPermissions(t *testing.T) {
	url := guarded(t, "conf jetstream", fmt.Sprintf("jetstream { store_dir: %q }\n", t.TempDir()))
	endpoint, replay := mock(t)
	for _, mark := range []string{"created the JetStream stream", "resumed: the stream goes on"} {
		relay := start(t, mark, []string{"KVRELAY_NATS_USER=relay", "KVRELAY_NATS_PASSWORD=relay-secret"},
			"--nats-url", url, "--endpoints", endpoint, "--replay-endpoints", replay, "--sink", "jetstream",
			"--worker-id", "7", "--admin-addr", "off", "--log-format", "json")
		// It reads the stream from its beginning.
		reader := start(t, "stored", []string{"KVRELAY_NATS_USER=router", "KVRELAY_NATS_PASSWORD=router-secret"},
			"tail", "--nats-url", url, "--stream", "KVRELAY", "--json")
		reader.stop()
		relay.stop()
		for _, bad := range []string{"ermissions", "have trouble", "no connection to NATS"} {
			if strings.Contains(relay.text(), bad) || strings.Contains(reader.text(), bad) {
				t.Errorf("something may not be done that has to be:\n%s\n%s", relay.text(), reader.text())
			}
		}
	}
	forbidden(t, url, []deed{
		{"relay", "publish", "$JS.API.STREAM.DELETE.KVRELAY"},
		{"relay", "publish", "$JS.API.STREAM.PURGE.KVRELAY"},
		{"relay", "publish", "$JS.API.STREAM.UPDATE.KVRELAY"},
		{"relay", "publish", "$JS.API.STREAM.MSG.DELETE.KVRELAY"},
		{"relay", "publish", "$JS.API.STREAM.CREATE.OTHER"},
		{"relay", "publish", "$JS.API.DIRECT.GET.OTHER.x"},
		{"relay", "publish", "kvrelay.other.1.0.events"},
		{"relay", "subscribe", "kvrelay.dynamo.*.*.events"},
		{"router", "publish", "kvrelay.dynamo.1.0.events"},
		{"router", "publish", "$JS.API.STREAM.DELETE.KVRELAY"},
		{"router", "publish", "$JS.API.STREAM.PURGE.KVRELAY"},
		{"router", "publish", "$JS.API.CONSUMER.CREATE.OTHER.x"},
		{"operator", "publish", "$JS.API.STREAM.DELETE.KVRELAY"},
	})
}

// deed is what a user tries.
type deed struct{ user, verb, subject string }

// forbidden fails for each deed that the server allows.
func forbidden(t *testing.T, url string, deeds []deed) {
	t.Helper()
	for _, c := range deeds {
		nc, refused := as(t, url, c.user)
		var err error
		if c.verb == "publish" {
			err = nc.Publish(c.subject, []byte("x"))
		} else {
			_, err = nc.SubscribeSync(c.subject)
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := nc.Flush(); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-refused:
			if !strings.Contains(strings.ToLower(err.Error()), "permissions violation") {
				t.Errorf("%v: %v", c, err)
			}
		case <-time.After(patience):
			t.Errorf("%s may %s %s", c.user, c.verb, c.subject)
		}
	}
}

// mock is an engine that publishes until the test ends.
func mock(t *testing.T) (endpoint, replay string) {
	t.Helper()
	engine := start(t, "rank 0 events", nil, "mock", "--rate", "50", "--http", "127.0.0.1:0")
	for line := range strings.Lines(engine.text()) {
		_, _ = fmt.Sscanf(line, "rank 0 events %s replay %s", &endpoint, &replay) // other lines do not match
	}
	return endpoint, replay
}

// follow reads as a router does, and closes stored when a snapshot has come
// and events after it.
func follow(t *testing.T, nc *nats.Conn, profile consumer.Profile, worker uint64) (stored <-chan struct{}) {
	t.Helper()
	done := make(chan struct{})
	walked, numbered, told := false, false, false
	c, err := consumer.New(consumer.Options{
		Conn: nc, Profile: profile, Worker: worker,
		OnEvent: func(e *consumer.Event) {
			if e.Kind == consumer.Stored {
				walked = walked || e.ID == 0
				numbered = numbered || e.ID != 0
			}
			if walked && numbered && !told {
				told = true
				close(done)
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		<-ended // its end was asked for
	})
	return done
}
