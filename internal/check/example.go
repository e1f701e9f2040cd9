package check

import (
	"fmt"
	"strings"

	"github.com/kvrelay/kvrelay/convert"
	"github.com/kvrelay/kvrelay/decode"
)

// examples keeps the first example of every reason that s.batch, which has just
// been converted, is dropped for.
func (s *Stream) examples(r *Rank, name string, broken error) {
	st := r.conv.Stats()
	for reason := range convert.NumReasons {
		n := st.Drops(reason)
		if n == r.seen[reason] {
			continue
		}
		r.seen[reason] = n
		if _, has := r.Drops[reason.String()]; has {
			continue
		}
		text := "batch " + name
		if broken != nil {
			text += ": " + broken.Error()
		} else if i := s.culprit(reason, st); i >= 0 {
			text += fmt.Sprintf(", event %d: %s", i+1, describe(&s.batch.Events[i]))
		}
		r.Drops[reason.String()] = Drop{Example: text}
	}
}

// culprit is the event of s.batch that was dropped for reason: one that would
// be even if it came alone, else one of the sort that the reason is about.
func (s *Stream) culprit(reason convert.Reason, st convert.Stats) int {
	c := s.config
	c.BlockSize = st.BlockSize
	second := -1
	for i := range s.batch.Events {
		ev := &s.batch.Events[i]
		if reasonAlone(c, ev) == reason {
			return i
		}
		var fits bool
		switch reason {
		case convert.ReasonNonMainGroup, convert.ReasonUnlearnedGroup, convert.ReasonUnknownKind:
			fits = ev.HasGroup && !ev.HasKind && !s.routable(ev.Group)
		case convert.ReasonOrphan:
			fits = ev.Type == decode.Stored && ev.HasParent
		case convert.ReasonNoTokens:
			fits = ev.Type == decode.Stored && ev.Tokens.Len() == 0
		default:
			fits = ev.Type == decode.Stored
		}
		if fits && second < 0 {
			second = i
		}
	}
	return second
}

// routable says whether a group is so far taken for one that routers hit.
func (s *Stream) routable(group uint32) bool {
	for _, g := range s.Wire.Groups {
		if g.Index != nil && *g.Index == group {
			return g.Routable
		}
	}
	return false // not listed: beyond maxNames
}

// describe is an event in one line: shapes and names of the protocol, never
// tokens, salts or names of users' things.
func describe(ev *decode.Event) string {
	var b strings.Builder
	say := func(format string, a ...any) { fmt.Fprintf(&b, format, a...) }
	switch ev.Type {
	case decode.Malformed:
		say("%s malformed: %s", orText(plainOrNone(ev.Name), "event"), ev.Problem)
		return b.String()
	case decode.Unknown:
		say("%s, which kvrelay does not know", plain(ev.Name))
		return b.String()
	case decode.Ignored:
		return "Ignored"
	case decode.Cleared:
		say("AllBlocksCleared")
	case decode.Stored:
		say("BlockStored, %s", plural(len(ev.Hashes), "block"))
		switch n := ev.Tokens.Len(); {
		case n == 0:
			say(" without tokens")
		case ev.Pairs != decode.NoPairs:
			say(" of %d with %d tokens in pairs", ev.BlockSize, n)
		default:
			say(" of %d with %d tokens", ev.BlockSize, n)
		}
	case decode.Removed:
		say("BlockRemoved, %s", plural(len(ev.Hashes), "block"))
	}
	if ev.HasGroup {
		say(", group %d", ev.Group)
	}
	if ev.HasKind {
		say(", kind %s", plain(ev.Kind))
	}
	if len(ev.Medium) > 0 {
		say(", medium %s", plain(ev.Medium))
	}
	if len(ev.Locality) > 0 || ev.OtherLocality {
		say(", locality %s", plain(ev.Locality))
	}
	if len(ev.Ownership) > 0 {
		say(", ownership %s", plain(ev.Ownership))
	}
	if ev.LoraID > 0 && len(ev.LoraName) == 0 {
		say(", lora_id %d without lora_name", ev.LoraID)
	}
	if len(ev.Hashes) > 0 {
		say(", first hash %016x", ev.Hashes[0])
	}
	if ev.HasParent {
		say(", parent %016x", ev.Parent)
	}
	return b.String()
}

func plainOrNone(text []byte) string {
	if len(text) == 0 {
		return ""
	}
	return plain(text)
}

func orText(text, other string) string {
	if text == "" {
		return other
	}
	return text
}

// plural is a count with its noun, or with the given plural of it.
func plural[T int | uint64](n T, noun string, many ...string) string {
	switch {
	case n == 1:
	case len(many) > 0:
		noun = many[0]
	case strings.HasSuffix(noun, "ch"): // batch
		noun += "es"
	default:
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}
