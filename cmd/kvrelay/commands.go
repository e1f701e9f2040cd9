package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"regexp"
	"strings"

	"github.com/kvrelay/kvrelay/config"
)

// Exit codes. Scripts and service managers decide on them.
const (
	exitOK          = 0 // stopped as asked and everything confirmed; check: healthy
	exitFailed      = 1 // failed while running; check: problems found
	exitUsage       = 2 // bad settings or usage
	exitLost        = 3 // history lost under LOST=exit
	exitUnconfirmed = 4 // stopped as asked, or at once by a second signal, with events unconfirmed
)

// command is one verb of the command line. run gets the arguments behind the
// verb, and returns the exit code; it answers -h itself.
type command struct {
	name  string
	short string // what it does, for the overview
	run   func(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int
}

// commands is every command, in the order of the overview: one line each.
func commands() []command {
	return []command{
		{"run", "relay an engine's events to routers (the default)", runRun},
		{"demo", "watch it work: mock engine, kvrelay, NATS and a router in one process", runDemo},
		{"mock", "be an engine to try against: cache, evict, be discovered", runMock},
		{"tail", "show router events as they pass on NATS", runTail},
		{"check", "find out why routing hits are low: look at an engine or a recording", runCheck},
		{"query", "ask who holds how much of a prompt, as a router does", runQuery},
		{"decode", "show what becomes of recorded engine batches", func(_ context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
			return runDecode(args, stdin, stdout, stderr)
		}},
		{"record", "write an engine's event stream to a capture file", runRecord},
		{"play", "be an engine that sends a capture file again", runPlay},
		{"bench", "measure what a relay does on this machine", runBench},
		{"config", "show every setting, its value and where that came from", runConfig},
		{"version", "show what was built, from what", runVersion},
	}
}

// wordLike is what a command may be mistyped as.
var wordLike = regexp.MustCompile(`^[A-Za-z-]+$`)

// dispatch runs the command that args name; without one, run.
func dispatch(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	name := "run"
	if len(args) > 0 {
		switch first := args[0]; first {
		case "help", "-h", "-help", "--help":
			if len(args) == 1 || first != "help" {
				overview(stdout)
				return exitOK
			}
			name, args = args[1], []string{"-h"}
		case "-version", "--version":
			name, args = "version", args[1:]
		default:
			if !strings.HasPrefix(first, "-") {
				name, args = first, args[1:]
			}
		}
	}
	var names []string
	for _, c := range commands() {
		if c.name == name {
			return c.run(ctx, args, stdin, stdout, stderr)
		}
		names = append(names, c.name)
	}
	if wordLike.MatchString(name) {
		fmt.Fprintf(stderr, "kvrelay: %q is no command", name)
	} else { // an address with a password, perhaps
		fmt.Fprint(stderr, "kvrelay: the first argument is no command")
	}
	if near := config.Nearest(strings.ToLower(name), names); near != "" {
		fmt.Fprintf(stderr, "; did you mean %q?", near)
	}
	fmt.Fprintln(stderr, "\nThe commands are:", strings.Join(names, ", ")+". `kvrelay help` says what they do.")
	return exitUsage
}

// overview is the answer to `kvrelay help`.
func overview(w io.Writer) {
	fmt.Fprint(w, `kvrelay relays the KV-cache events of an LLM engine to KV-aware routers, over NATS, in order and without gaps.

Usage: kvrelay [command] [flags]

Commands:
`)
	for _, c := range commands() {
		fmt.Fprintf(w, "  %-8s %s\n", c.name, c.short)
	}
	fmt.Fprint(w, `
Settings are KVRELAY_… variables or flags of the same names (KVRELAY_NATS_URL is --nats-url); flags win.
`+"`kvrelay config` lists them, `kvrelay help COMMAND`"+` tells about a command.

Exit codes: 0 stopped as asked and everything confirmed, 1 failed, 2 bad settings or usage,
3 history lost under LOST=exit, 4 stopped with events unconfirmed.
`)
}

// settings reads the settings of a command and answers for it when there is
// nothing to run: help goes to stdout, problems to stderr. done says so, with
// the exit code. fs holds the command's own flags (named as the command) and is where their values
// end up; names are the settings it has, all when there are none.
func settings(fs *flag.FlagSet, help string, args []string, stdout, stderr io.Writer, names ...string) (cfg *config.Config, code int, done bool) {
	own := map[string]bool{}
	fs.VisitAll(func(f *flag.Flag) { own[f.Name] = true })
	cfg, err := config.Load(fs, args, names...)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprintln(stdout, strings.TrimSpace(help))
		printFlags(stdout, fs, own)
		return cfg, exitOK, true
	case err != nil:
		fmt.Fprintf(stderr, "kvrelay %s: %v\n", fs.Name(), err)
		return cfg, exitUsage, true
	}
	return cfg, exitOK, false
}

// fail says why a command could not do its work; the answer is its exit code.
func fail(stderr io.Writer, command string, err error) int {
	fmt.Fprintf(stderr, "kvrelay %s: %v\n", command, err)
	return exitFailed
}

// printFlags lists a command's own flags, then the settings.
func printFlags(w io.Writer, fs *flag.FlagSet, own map[string]bool) {
	line := func(name, meaning, def string) {
		if def != "" && def != "false" {
			meaning += " (default " + def + ")"
		}
		fmt.Fprintf(w, "  --%s\n", name)
		wrap(w, meaning, "        ", 80)
	}
	if len(own) > 0 {
		fmt.Fprintln(w, "\nFlags:")
	}
	fs.VisitAll(func(f *flag.Flag) {
		if own[f.Name] {
			_, usage := flag.UnquoteUsage(f)
			line(f.Name, usage, f.DefValue)
		}
	})
	title := "\nSettings (also as KVRELAY_… variables):"
	for _, s := range config.Table() {
		if f := fs.Lookup(s.Flag); f != nil && !own[s.Flag] {
			if title != "" {
				fmt.Fprintln(w, title)
				title = ""
			}
			line(s.Flag, s.Meaning, s.Default)
		}
	}
}

// wrap writes text in lines of at most width columns, as far as its words allow.
func wrap(w io.Writer, text, indent string, width int) {
	line := ""
	for _, word := range strings.Fields(text) {
		if line != "" && len(indent)+len(line)+1+len(word) > width {
			fmt.Fprintln(w, indent+line)
			line = ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	fmt.Fprintln(w, indent+line)
}
