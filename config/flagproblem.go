package config

import (
	"flag"
	"regexp"
	"strconv"
	"strings"
	"time"
)

var (
	noSuchFlag = regexp.MustCompile(`(?s)^flag provided but not defined: -(.*)$`)
	badSyntax  = regexp.MustCompile(`(?s)^bad flag syntax: (.*)$`)
	noArgument = regexp.MustCompile(`^flag needs an argument: -(.*)$`)
	badValue   = regexp.MustCompile(`(?s)^invalid (?:boolean )?value (".*") for (?:flag )?-([a-z0-9-]+): (.*)$`)
	// plainWord is no secret worth its name, if it stands where no value can.
	plainWord = regexp.MustCompile(`^[a-z]+(-[a-z]+)*$`)
	// flagWord is what a flag may be mistyped as.
	flagWord = regexp.MustCompile(`^[A-Za-z_-]+$`)
)

// FlagProblem is what fs.Parse said, with the flag as a user writes it and
// what would be right. A word that may be a secret is not shown.
func FlagProblem(fs *flag.FlagSet, err error) Problem { return flagProblem(fs, err, "") }

// flagProblem is FlagProblem where before is the flag that stands before what
// err is about; "": none. Behind a flag may be a piece of its value.
func flagProblem(fs *flag.FlagSet, err error, before string) Problem {
	text := err.Error()
	if m := noSuchFlag.FindStringSubmatch(text); m != nil {
		switch near := nearFlag(fs, m[1]); {
		case near != "":
			return Problem{Name: "--" + m[1], Want: "no such flag; did you mean --" + near + "?"}
		case isSetting(m[1]) || before == "" && plainWord.MatchString(m[1]):
			return Problem{Name: "--" + m[1], Want: "no such flag"}
		}
		return hidden(before, "want a flag as `kvrelay help "+fs.Name()+"` lists them; this is none")
	}
	if badSyntax.MatchString(text) {
		return hidden(before, "want flags as --name=value")
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

// hidden is a problem with a word that is told by its place alone.
func hidden(before, want string) Problem {
	if before == "" {
		return Problem{Name: "arguments", Want: want + " (not shown: it may be a secret)"}
	}
	return Problem{Name: "behind --" + before, Want: want + " (not shown: it may be a secret)"}
}

// nearFlag is the flag of fs that word was probably meant to be, or "".
func nearFlag(fs *flag.FlagSet, word string) string {
	if !flagWord.MatchString(word) {
		return ""
	}
	var names []string
	fs.VisitAll(func(f *flag.Flag) { names = append(names, f.Name) })
	return Nearest(strings.ReplaceAll(strings.ToLower(word), "_", "-"), names)
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
