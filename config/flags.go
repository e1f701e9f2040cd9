package config

import (
	"errors"
	"flag"
	"io"
	"reflect"
	"slices"
	"strings"
)

// parseFlags parses args with the settings' flags added to fs. Values are only
// gathered here, and parsing goes on behind a flag that does not exist, so
// that all is said at once.
func (l *loader) parseFlags(fs *flag.FlagSet, args []string) error {
	for _, f := range l.fields {
		gather := func(text string) error { l.flags[f.Name] = text; return nil }
		if f.value.Kind() == reflect.Bool {
			fs.BoolFunc(f.Flag, f.Meaning, gather)
		} else {
			fs.Func(f.Flag, f.Meaning, gather)
		}
	}
	fs.Init(fs.Name(), flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.Usage = func() {}
	for rest := args; ; {
		err := fs.Parse(rest)
		if err == nil || errors.Is(err, flag.ErrHelp) {
			return err
		}
		rest = fs.Args()
		if badSyntax.MatchString(err.Error()) {
			rest = rest[1:] // the flag package leaves it there
		}
		at := len(args) - len(rest) - 1
		l.add(flagProblem(fs, err, flagBefore(fs, args[:at])))
		if noSuchFlag.MatchString(err.Error()) && !strings.Contains(args[at], "=") && len(rest) > 0 && isValue(fs, rest[0]) {
			rest = rest[1:] // which may be a secret
		}
	}
}

// surplus is an argument that belongs to no flag. Behind a flag it may be a
// piece of its value that was written without quotes.
func surplus(arg, before string) Problem {
	const want = "want settings as --name=value only"
	if before == "" && plainWord.MatchString(arg) {
		return Problem{Name: "argument", Value: arg, Has: true, Want: want}
	}
	return hidden(before, want+"; something else follows")
}

// isSetting says whether a setting's flag has that name, of whatever command.
func isSetting(name string) bool {
	return slices.ContainsFunc(Table(), func(s Setting) bool { return s.Flag == name })
}

// flagName is the name in --name and --name=value, or "".
func flagName(arg string) string {
	name, ok := strings.CutPrefix(arg, "-")
	if !ok {
		return ""
	}
	name, _, _ = strings.Cut(strings.TrimPrefix(name, "-"), "=")
	return name
}

// flagBefore is the last of args that is a flag of fs. It may be another's
// value, and is shown all the same: a flag's name is no secret.
func flagBefore(fs *flag.FlagSet, args []string) string {
	for _, arg := range slices.Backward(args) {
		if name := flagName(arg); name != "" && fs.Lookup(name) != nil {
			return name
		}
	}
	return ""
}

// isValue says whether arg, behind a flag that does not exist, is most likely
// its value: it is no flag, and resembles none.
func isValue(fs *flag.FlagSet, arg string) bool {
	if name := flagName(arg); name != "" {
		help := name == "h" || name == "help"
		return !help && fs.Lookup(name) == nil && !isSetting(name) && nearFlag(fs, name) == ""
	}
	return arg != "--"
}
