package sinks

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"os"
	"strings"
	"time"
)

// Kind says where router events go.
type Kind uint8

const (
	// NATS is NATS core: at least once, forgotten by the server at once.
	NATS Kind = iota
	// JetStream is a NATS stream that keeps the events.
	JetStream
	// Stdout writes one JSON router event a line.
	Stdout
)

var kindNames = [...]string{"nats", "jetstream", "stdout"}

// String is the kind as the setting SINK spells it.
func (k Kind) String() string { return nameOf(kindNames[:], int(k), "sink") }

// ParseKind is the Kind that SINK=s means.
func ParseKind(s string) (Kind, error) {
	i, err := parseName(kindNames[:], s, "SINK")
	return Kind(i), err
}

// Profile says how router events are packed into messages.
type Profile uint8

const (
	// Dynamo is an EventEnvelope around a msgpack array of router events.
	Dynamo Profile = iota
	// DynamoSingle is an EventEnvelope around one router event, for Dynamo ≤ 1.3.
	DynamoSingle
	// JSON is a JSON array of router events without an envelope.
	JSON
)

var profileNames = [...]string{"dynamo", "dynamo-single", "json"}

// String is the profile as the setting PROFILE spells it.
func (p Profile) String() string { return nameOf(profileNames[:], int(p), "profile") }

// ParseProfile is the Profile that PROFILE=s means.
func ParseProfile(s string) (Profile, error) {
	i, err := parseName(profileNames[:], s, "PROFILE")
	return Profile(i), err
}

func nameOf(names []string, i int, what string) string {
	if i < len(names) {
		return names[i]
	}
	return fmt.Sprintf("%s(%d)", what, i)
}

func parseName(names []string, s, setting string) (int, error) {
	for i, n := range names {
		if n == s {
			return i, nil
		}
	}
	return 0, fmt.Errorf("%s: %q is not one of %s", setting, s, strings.Join(names, ", "))
}

// Auth is how the NATS servers know us. Files are read at every dial, so a
// rotated or late secret needs no restart.
type Auth struct {
	CredsFile string // NATS_CREDS_FILE: JWT and seed
	NKeyFile  string // NATS_NKEY_FILE: nkey seed
	User      string // NATS_USER
	Password  string // NATS_PASSWORD
	Token     string // NATS_TOKEN
	TLSCA     string // NATS_TLS_CA: PEM file; set: TLS is required
	TLSCert   string // NATS_TLS_CERT and NATS_TLS_KEY: PEM files, both or none
	TLSKey    string
}

// Options are a Publisher's fixed surroundings.
type Options struct {
	Kind    Kind
	Servers []string // NATS URLs; each dial tries them all in random order, then those of their cluster
	Auth    Auth
	Name    string // of the connection, as NATS monitoring shows it; "": kvrelay

	Profile   Profile // Stdout ignores it
	Namespace string
	Component string
	Endpoint  string
	// Subject is a template with {namespace} {component} {endpoint}
	// {worker_id} {dp_rank}; "": the profile's own.
	Subject string

	// Stream is the JetStream stream; "": KVRELAY. It is created when it is
	// absent and CreateStream is set; never changed or deleted.
	Stream       string
	CreateStream bool

	// Version is told by the recovery service; what is no semantic version
	// becomes 0.0.0.
	Version string
	// Listen is how long a rank's heartbeats are listened to before its first
	// event, so that no two relays have one rank. 0: 1.5 s.
	Listen time.Duration

	// Register, when not nil, puts a rank that is owned on record where routers
	// look. Nothing of the rank is published before it returns; withdraw is
	// called when nothing more is published for it, before another outbox of the
	// rank begins. Its error is ctx's: it waits as long as there is hope. Only
	// ranks with a Source are put on record.
	Register func(ctx context.Context, o *Outbox) (withdraw func(), err error)

	// RecentEvents and RecentBytes bound the confirmed router events that each
	// outbox keeps for consumers that missed some; whichever is reached first
	// lets the oldest go. 0: 16384 and 16 MiB.
	RecentEvents int
	RecentBytes  int

	Logger *slog.Logger // nil: none
	Stdout io.Writer    // nil: os.Stdout

	// Dial replaces the TCP dialer; nil: net.Dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Now replaces the wall clock of envelopes; nil: time.Now.
	Now func() time.Time
}

// Limits that are not settings.
const (
	defaultRecentEvents = 16384
	defaultRecentBytes  = 16 << 20
	// maxBatchEvents and maxBatchBlocks bound one envelope: Dynamo's own
	// limits. What is more goes into the next one; an event with more blocks
	// is split.
	maxBatchEvents = 128
	maxBatchBlocks = 8192
	// unknownMaxPayload is assumed until a server has told its max_payload: nats-server's default.
	unknownMaxPayload = 1 << 20
	defaultStream     = "KVRELAY"
	maxStreamName     = 128
)

// withDefaults fills in what is zero and reports every problem at once.
func (o Options) withDefaults() (Options, error) {
	var errs []error
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Stdout == nil {
		o.Stdout = os.Stdout
	}
	if o.Dial == nil {
		o.Dial = (&net.Dialer{}).DialContext
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Name == "" {
		o.Name = "kvrelay"
	}
	if o.RecentEvents == 0 {
		o.RecentEvents = defaultRecentEvents
	}
	if o.RecentBytes == 0 {
		o.RecentBytes = defaultRecentBytes
	}
	if o.RecentEvents < 0 || o.RecentBytes < 0 {
		errs = append(errs, errors.New("RECENT_EVENTS and RECENT_BYTES must not be negative"))
	}
	if int(o.Profile) >= len(profileNames) {
		errs = append(errs, fmt.Errorf("PROFILE: %v", o.Profile))
	}
	switch o.Kind {
	case Stdout:
		o.RecentEvents, o.RecentBytes = 0, 0 // nobody can ask for them
		return o, errors.Join(errs...)
	case JetStream:
		if o.Stream == "" {
			o.Stream = defaultStream
		}
		if strings.ContainsAny(o.Stream, " \t\r\n\f.*>/\\") || len(o.Stream) > maxStreamName {
			errs = append(errs, fmt.Errorf("STREAM: %q is no stream name: without spaces, dots, *, >, slashes, %d characters at most", o.Stream, maxStreamName))
		}
	case NATS:
	default:
		errs = append(errs, fmt.Errorf("SINK: %v", o.Kind))
	}
	if len(o.Servers) == 0 {
		errs = append(errs, errors.New("NATS_URL: no server"))
	}
	for i, s := range o.Servers {
		if !validServer(s) {
			// The entry may hold a password: its number must do.
			errs = append(errs, fmt.Errorf("NATS_URL: entry %d is no NATS URL; nats://host:4222 would be", i+1))
		}
	}
	if (o.Auth.TLSCert == "") != (o.Auth.TLSKey == "") {
		errs = append(errs, errors.New("NATS_TLS_CERT and NATS_TLS_KEY: set both or none"))
	}
	return o, errors.Join(errs...)
}

func validServer(s string) bool {
	if !strings.Contains(s, "://") {
		s = "nats://" + s
	}
	u, err := url.Parse(s)
	if err != nil || u.Hostname() == "" {
		return false
	}
	switch u.Scheme {
	case "nats", "tls", "ws", "wss":
		return true
	}
	return false
}

// redact is a server URL without user, password or token.
func redact(server string) string {
	if i := strings.LastIndexByte(server, '@'); i >= 0 {
		if j := strings.Index(server, "://"); j >= 0 && j < i {
			return server[:j+3] + server[i+1:]
		}
		return server[i+1:]
	}
	return server
}
