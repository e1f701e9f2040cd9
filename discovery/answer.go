package discovery

import (
	"fmt"
	"strings"
)

// answer is what an engine said, in one form for all kinds.
type answer struct {
	kind      string
	version   string
	instance  string
	role      string // aggregated, prefill, decode; "": unknown
	blockSize uint32 // tokens; 0: unknown
	dp        span   // the ranks of this server; count 0: unknown
	own       uint32 // the rank of sources that name none
	ranks     uint32 // of the whole engine; 0: unknown
	list      []advertised
	refused   []Refusal // what could not even be read
	warnings  []string

	// partial is why something beside the sources is unknown that the engine
	// may tell in a moment; "": nothing is.
	partial string
}

// span is a range of ranks.
type span struct{ first, count uint32 }

func (s span) has(rank uint32) bool {
	return s.count == 0 || rank >= s.first && uint64(rank) < uint64(s.first)+uint64(s.count)
}

func (s span) String() string {
	if s.count == 1 {
		return fmt.Sprintf("rank %d alone", s.first)
	}
	return fmt.Sprintf("ranks %d to %d", s.first, uint64(s.first)+uint64(s.count)-1)
}

// advertised is one source as an engine wrote it.
type advertised struct {
	rank      uint32
	hasRank   bool
	transport string
	encoding  string
	endpoint  string
	replay    string // "": none
	topic     string
	blockSize uint32 // 0: as the engine's
}

// name is how messages call it before it is a Source.
func (a *advertised) name() string {
	at := a.endpoint
	if at != "" {
		at = " at " + show(at)
	}
	if !a.hasRank {
		return "the source without a rank" + at
	}
	return fmt.Sprintf("rank %d%s", a.rank, at)
}

// nothing is why an engine that answered has no sources.
func (a *answer) nothing() string {
	if a.role == roleDecode {
		return "the engine publishes nothing: it has the decode role"
	}
	say := "the engine publishes nothing: it has the decode role, or prefix caching or KV events are off"
	if a.kind == KindSGLang {
		return say + ", or its KV events have no tcp:// endpoint"
	}
	return say
}

const (
	roleAggregated = "aggregated"
	rolePrefill    = "prefill"
	roleDecode     = "decode"
)

// refuse notes that a source is not used.
func (a *answer) refuse(source, format string, args ...any) {
	a.refused = append(a.refused, Refusal{source, fmt.Sprintf(format, args...)})
}

// clean is one line of at most 200 bytes of what a server says.
func clean(text string) string {
	text = strings.Join(strings.FieldsFunc(strings.ToValidUTF8(text, "�"), func(r rune) bool { return r <= ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 }), " ")
	if len(text) > 200 {
		text = strings.ToValidUTF8(text[:200], "") + "…"
	}
	return text
}
