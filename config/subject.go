package config

import (
	"slices"
	"strings"
	"unicode"
)

// placeholders are what a SUBJECT may contain in braces.
var placeholders = []string{"namespace", "component", "endpoint", "worker_id", "dp_rank"}

// CheckSubject says what is wrong with a subject template. Beside the
// placeholders it is a NATS subject that messages can be published to: tokens
// separated by single dots, no wildcard, no space. perRank demands {worker_id}
// and {dp_rank}: JetStream keeps order and resumes per subject.
func CheckSubject(template string, perRank bool) error {
	var found []string
	var literal strings.Builder
	rest := template
	for rest != "" {
		open := strings.IndexAny(rest, "{}")
		if open < 0 {
			literal.WriteString(rest)
			break
		}
		literal.WriteString(rest[:open])
		end := strings.IndexByte(rest, '}')
		if rest[open] == '}' || end < 0 {
			return wantf("braces in pairs around a placeholder")
		}
		name := rest[open+1 : end]
		if !slices.Contains(placeholders, name) {
			return wantf("only the placeholders {%s}", strings.Join(placeholders, "} {"))
		}
		found = append(found, name)
		literal.WriteByte('x') // a placeholder never expands to nothing, a dot or a wildcard
		rest = rest[end+1:]
	}
	subject := literal.String()
	switch {
	case len(template) > 512:
		return wantf("at most 512 characters")
	case strings.ContainsFunc(subject, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }):
		return wantf("a subject without spaces")
	case strings.ContainsAny(subject, "*>"):
		return wantf("a subject without the wildcards * and >")
	case slices.Contains(strings.Split(subject, "."), ""):
		return wantf("no empty token: single dots, none at the ends")
	case strings.HasPrefix(subject, "$"):
		return wantf("a subject that does not begin with $, which NATS keeps for itself")
	case perRank && !(slices.Contains(found, "worker_id") && slices.Contains(found, "dp_rank")):
		return wantf("{worker_id} and {dp_rank} in it with SINK=jetstream: order and resumption are per subject")
	}
	return nil
}
