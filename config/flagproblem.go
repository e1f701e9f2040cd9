package config

import (
	"flag"
	"regexp"
	"strconv"
	"time"
)

var (
	noSuchFlag = regexp.MustCompile(`^flag provided but not defined: -(.*)$`)
	noArgument = regexp.MustCompile(`^flag needs an argument: -(.*)$`)
	badValue   = regexp.MustCompile(`(?s)^invalid (?:boolean )?value (".*") for (?:flag )?-([a-z0-9-]+): (.*)$`)
)

// FlagProblem is what fs.Parse said, with the flag as a user writes it and
// what would be right.
func FlagProblem(fs *flag.FlagSet, err error) Problem {
	text := err.Error()
	if m := noSuchFlag.FindStringSubmatch(text); m != nil {
		return Problem{Name: "--" + m[1], Want: "no such flag" + suggest(fs, m[1])}
	}
	if m := noArgument.FindStringSubmatch(text); m != nil {
		return Problem{Name: "--" + m[1], Want: "want a value, as in --" + m[1] + "=…"}
	}
	if m := badValue.FindStringSubmatch(text); m != nil {
		if value, err := strconv.Unquote(m[1]); err == nil {
			return Problem{Name: "--" + m[2], Value: value, Has: true, Want: wantedBy(fs, m[2], m[3])}
		}
	}
	return Problem{Name: "flags", Want: text}
}

// wantedBy is what a flag takes; said is what it said itself.
func wantedBy(fs *flag.FlagSet, name, said string) string {
	if f := fs.Lookup(name); f != nil {
		if g, ok := f.Value.(flag.Getter); ok {
			switch g.Get().(type) {
			case time.Duration:
				return "want a duration with its unit, such as 500ms, 2s or 1m30s"
			case int, int64:
				return "want a whole number"
			case uint, uint64:
				return "want a whole number from 0"
			case float64:
				return "want a number"
			case bool:
				return "want true or false"
			}
		}
	}
	return said
}
