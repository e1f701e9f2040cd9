// Package logging makes kvrelay's logger: coloured text for people, JSON for
// machines, and repeated trouble said once and then counted.
package logging

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/lmittmann/tint"
	"golang.org/x/term"
)

// Formats of Options.Format.
const (
	Auto = "auto" // Text on a terminal, JSON otherwise
	Text = "text"
	JSON = "json"
)

// Options say how to log. The zero Options log info and above as Auto does.
type Options struct {
	Level   string // debug, info, warn or error; "": info
	Format  string // Auto, Text or JSON; "": Auto
	NoColor bool   // plain text also on a terminal
	Repeats RepeatsOptions
}

// New makes a logger that writes to w, and the Repeats in front of it, whose
// Run the caller owns: without it the counts of trouble that ended are never said.
func New(w io.Writer, o Options) (*slog.Logger, *Repeats, error) {
	var level slog.Level
	if o.Level != "" {
		if err := level.UnmarshalText([]byte(o.Level)); err != nil {
			return nil, nil, fmt.Errorf("log level %q: want debug, info, warn or error", o.Level)
		}
	}
	terminal := IsTerminal(w)
	var h slog.Handler
	switch {
	case o.Format == Text, terminal && (o.Format == Auto || o.Format == ""):
		h = tint.NewTextHandler(w, &tint.Options{
			Level:      level,
			TimeFormat: "15:04:05.000",
			NoColor:    o.NoColor || !terminal,
		})
	case o.Format == JSON, o.Format == Auto, o.Format == "":
		h = slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level, ReplaceAttr: readable})
	default:
		return nil, nil, fmt.Errorf("log format %q: want auto, text or json", o.Format)
	}
	repeats := NewRepeats(h, o.Repeats)
	return slog.New(repeats.Handler()), repeats, nil
}

// IsTerminal says whether w is a terminal.
func IsTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// readable writes durations as 1.5s, where JSON would have nanoseconds without a unit.
func readable(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		return slog.String(a.Key, a.Value.Duration().Round(time.Microsecond).String())
	}
	return a
}
