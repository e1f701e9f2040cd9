package sinks

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Default subjects of the profiles, as templates.
const (
	subjectDynamo       = "namespace.{namespace}.component.{component}.endpoint.{endpoint}.kv-events"
	subjectDynamoSingle = "namespace.{namespace}.component.{component}.kv-events"
	subjectRank         = "kvrelay.{namespace}.{worker_id}.{dp_rank}.events"
)

// maxSubject bounds a subject with the longest numbers. nats-server refuses a
// protocol line above 4096 bytes by closing the connection.
const maxSubject = 1024

// subject is a parsed subject template.
type subject struct {
	parts []string // literals and {names}, in order
	names map[string]string
	// shared: the default for JetStream, whose namespaces share a stream.
	shared bool
}

// newSubject parses o's template or the profile's default.
func newSubject(o *Options) (*subject, error) {
	tmpl := o.Subject
	if tmpl == "" && int(o.Profile) < len(profileNames) {
		tmpl = [...]string{subjectDynamo, subjectDynamoSingle, subjectRank}[o.Profile]
	}
	shared := false
	if o.Kind == JetStream {
		if tmpl, shared = o.Subject, o.Subject == ""; shared {
			tmpl = subjectRank
		}
	}
	s := &subject{shared: shared, names: map[string]string{
		"{namespace}": o.Namespace,
		"{component}": o.Component,
		"{endpoint}":  o.Endpoint,
	}}
	for rest := tmpl; rest != ""; {
		i := strings.IndexAny(rest, "{}")
		if i < 0 {
			s.parts = append(s.parts, rest)
			break
		}
		if i > 0 {
			s.parts = append(s.parts, rest[:i])
		}
		j := strings.IndexByte(rest[i:], '}')
		if rest[i] == '}' || j < 0 {
			return nil, fmt.Errorf("SUBJECT: unbalanced brace in %q", tmpl)
		}
		name := rest[i : i+j+1]
		switch name {
		case "{worker_id}", "{dp_rank}":
		case "{namespace}", "{component}", "{endpoint}":
			if s.names[name] == "" {
				return nil, fmt.Errorf("SUBJECT: %s is used and empty", name)
			}
		default:
			return nil, fmt.Errorf("SUBJECT: %s is unknown; known are {namespace} {component} {endpoint} {worker_id} {dp_rank}", name)
		}
		s.parts = append(s.parts, name)
		rest = rest[i+j+1:]
	}
	if o.Kind == JetStream && (!slices.Contains(s.parts, "{worker_id}") || !slices.Contains(s.parts, "{dp_rank}")) {
		return nil, fmt.Errorf("SUBJECT: %q must contain {worker_id} and {dp_rank} with SINK=jetstream: order and resumption are per subject", tmpl)
	}
	full := s.of(1<<64-1, 1<<32-1)
	if err := checkSubject(full); err != nil {
		return nil, fmt.Errorf("SUBJECT: %q %w", tmpl, err)
	}
	return s, nil
}

// Kind is where router events go.
func (p *Publisher) Kind() Kind { return p.o.Kind }

// Subject is where the events of one rank go; "" for Stdout.
func (p *Publisher) Subject(workerID uint64, rank uint32) string {
	if p.subject == nil {
		return ""
	}
	return p.subject.of(workerID, rank)
}

// of is the subject of one rank.
func (s *subject) of(workerID uint64, rank uint32) string {
	var b strings.Builder
	for _, p := range s.parts {
		switch p {
		case "{worker_id}":
			b.WriteString(strconv.FormatUint(workerID, 10))
		case "{dp_rank}":
			b.WriteString(strconv.FormatUint(uint64(rank), 10))
		default:
			if v, ok := s.names[p]; ok {
				b.WriteString(escape(v))
			} else {
				b.WriteString(p)
			}
		}
	}
	return b.String()
}

// pattern is what all ranks' subjects match, with * for worker and rank. The
// default one has it for the namespace too, so that namespaces share a stream.
func (s *subject) pattern() string {
	var b strings.Builder
	for _, p := range s.parts {
		switch v, ok := s.names[p]; {
		case p == "{worker_id}", p == "{dp_rank}", s.shared && p == "{namespace}":
			b.WriteString("*")
		case ok:
			b.WriteString(escape(v))
		default:
			b.WriteString(p)
		}
	}
	return b.String()
}

// checkSubject says what makes s no subject to publish to.
func checkSubject(s string) error {
	if len(s) > maxSubject {
		return fmt.Errorf("is longer than %d bytes", maxSubject)
	}
	for _, tok := range strings.Split(s, ".") {
		if tok == "" {
			return errors.New("has an empty segment")
		}
		if strings.ContainsAny(tok, "*>") {
			return errors.New("holds a wildcard")
		}
		for i := range len(tok) {
			if tok[i] <= ' ' || tok[i] == 0x7f {
				return errors.New("holds a space or control character")
			}
		}
	}
	return nil
}

// escape makes one subject segment of any text: every byte outside
// [A-Za-z0-9_-] becomes %XX, as Dynamo does.
func escape(s string) string {
	const hex = "0123456789ABCDEF"
	var b strings.Builder
	for i := range len(s) {
		c := s[i]
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '_', c == '-':
			b.WriteByte(c)
		default:
			b.WriteByte('%')
			b.WriteByte(hex[c>>4])
			b.WriteByte(hex[c&15])
		}
	}
	return b.String()
}
