package consumer

import (
	"fmt"
	"strconv"
	"strings"
)

// Profile is the form in which a relay publishes (its setting PROFILE).
type Profile uint8

const (
	// Dynamo: an EventEnvelope whose payload is an array of router events.
	Dynamo Profile = iota
	// DynamoSingle: an EventEnvelope whose payload is one router event.
	DynamoSingle
	// JSON: an array of router events as text, no envelope.
	JSON
)

// String is the profile's name in settings.
func (p Profile) String() string {
	switch p {
	case Dynamo:
		return "dynamo"
	case DynamoSingle:
		return "dynamo-single"
	case JSON:
		return "json"
	}
	return "profile(" + strconv.Itoa(int(p)) + ")"
}

// ParseProfile is the profile of that name.
func ParseProfile(s string) (Profile, error) {
	for _, p := range []Profile{Dynamo, DynamoSingle, JSON} {
		if p.String() == s {
			return p, nil
		}
	}
	return 0, fmt.Errorf("profile %q: want dynamo, dynamo-single or json", s)
}

// Subject is where a relay with default settings publishes: one subject for
// all workers in the dynamo profiles on NATS core, else one a rank, given here
// as a pattern over all of them.
func (p Profile) Subject(namespace, component, endpoint string, jetstream bool) string {
	switch {
	case jetstream || p == JSON:
		return "kvrelay." + Escape(namespace) + ".*.*.events"
	case p == DynamoSingle:
		return "namespace." + Escape(namespace) + ".component." + Escape(component) + ".kv-events"
	default:
		return "namespace." + Escape(namespace) + ".component." + Escape(component) +
			".endpoint." + Escape(endpoint) + ".kv-events"
	}
}

// Escape percent-encodes one segment of a subject: all bytes but A-Z, a-z,
// 0-9, _ and -.
func Escape(segment string) string {
	const hex = "0123456789ABCDEF"
	var b strings.Builder
	for i := 0; i < len(segment); i++ {
		c := segment[i]
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-' {
			b.WriteByte(c)
			continue
		}
		b.WriteByte('%')
		b.WriteByte(hex[c>>4])
		b.WriteByte(hex[c&15])
	}
	return b.String()
}

// serviceSubject is a rank's heartbeat or recover subject.
func serviceSubject(namespace string, r Rank, what string) string {
	return "kvrelay." + Escape(namespace) + "." + strconv.FormatUint(r.Worker, 10) + "." +
		strconv.FormatUint(uint64(r.DP), 10) + "." + what
}

// rankOfSubject reads worker and rank out of a service subject.
func rankOfSubject(subject string) (Rank, bool) {
	parts := strings.Split(subject, ".")
	if len(parts) != 5 || parts[0] != "kvrelay" {
		return Rank{}, false
	}
	w, err := strconv.ParseUint(parts[2], 10, 64)
	if err != nil {
		return Rank{}, false
	}
	d, err := strconv.ParseUint(parts[3], 10, 32)
	if err != nil {
		return Rank{}, false
	}
	return Rank{Worker: w, DP: uint32(d)}, true
}
