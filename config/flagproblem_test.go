package config

import (
	"errors"
	"flag"
	"io"
	"testing"
)

func TestFlagProblem(t *testing.T) {
	for arg, want := range map[string]string{
		"--wait=5":    `--wait="5": want a duration with its unit, such as 500ms, 2s or 1m30s`,
		"--count=x":   `--count="x": want a whole number`,
		"--size=-1":   `--size="-1": want a whole number from 0`,
		"--rate=":     `--rate="": want a number`,
		"--json=x\"y": `--json="x\"y": want true or false`,
		"--own=x":     `--own="x": of its own`,
		"--wiat=5s":   "--wiat: no such flag; did you mean --wait?",
		"--wiat2=x":   "arguments: want a flag as `kvrelay help x` lists them; this is none (not shown: it may be a secret)",
		"--wait":      "--wait: want a value, as in --wait=…",
		"--=x":        "arguments: want flags as --name=value (not shown: it may be a secret)",
	} {
		fs := flag.NewFlagSet("x", flag.ContinueOnError)
		fs.SetOutput(io.Discard)
		fs.Duration("wait", 0, "")
		fs.Int("count", 0, "")
		fs.Uint64("size", 0, "")
		fs.Float64("rate", 0, "")
		fs.Bool("json", false, "")
		fs.Func("own", "", func(string) error { return errors.New("of its own") })
		err := fs.Parse([]string{arg})
		if err == nil {
			t.Errorf("%s is taken", arg)
			continue
		}
		if got := FlagProblem(fs, err).Error(); got != want {
			t.Errorf("%s: %s\nwant %s", arg, got, want)
		}
	}
}
