// Command docgen rewrites the parts of the documentation that come from the
// code, between marker lines such as
//
//	<!-- settings: made by `make generate`, do not edit -->
//	<!-- end of settings -->
//
// With -check it changes nothing and fails when something would change.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/kvrelay/kvrelay/config"
	"github.com/kvrelay/kvrelay/internal/admin"
)

// document is a file, named from the project's root, with generated parts.
type document struct {
	name  string
	parts []part
}

// part stands between the markers of its name.
type part struct{ name, text string }

func documents() []document {
	return []document{
		{"README.md", []part{{"settings", settingsTable(config.Table())}}},
		{"docs/metrics.md", []part{{"metrics", metricsTable(admin.Metrics())}, {"drop reasons", reasonsTable()}}},
	}
}

func main() { os.Exit(run(os.Args[1:], os.Stderr)) }

func run(args []string, stderr io.Writer) int {
	fs := flag.NewFlagSet("docgen", flag.ContinueOnError)
	fs.SetOutput(stderr)
	check := fs.Bool("check", false, "change nothing; fail when something would change")
	if fs.Parse(args) != nil || fs.NArg() > 0 {
		return 2
	}
	code := 0
	for _, doc := range documents() {
		if err := doc.refresh(*check); err != nil {
			fmt.Fprintf(stderr, "docgen: %s: %v\n", doc.name, err)
			code = 1
		}
	}
	return code
}

// refresh brings one document up to date.
func (d document) refresh(check bool) error {
	old, err := os.ReadFile(d.name)
	if err != nil {
		return err
	}
	fresh := old
	for _, p := range d.parts {
		if fresh, err = fill(fresh, p.name, p.text); err != nil {
			return err
		}
	}
	switch {
	case bytes.Equal(old, fresh):
		return nil
	case check:
		return fmt.Errorf("it is not what the code says; run: make generate")
	}
	return os.WriteFile(d.name, fresh, 0o644)
}

// fill replaces what stands between the markers of part.
func fill(doc []byte, part, text string) ([]byte, error) {
	begin := "<!-- " + part + ": made by `make generate`, do not edit -->\n"
	end := "<!-- end of " + part + " -->\n"
	head, rest, ok := strings.Cut(string(doc), begin)
	if !ok {
		return nil, fmt.Errorf("there is no line %q", strings.TrimSpace(begin))
	}
	_, tail, ok := strings.Cut(rest, end)
	if !ok {
		return nil, fmt.Errorf("there is no line %q", strings.TrimSpace(end))
	}
	return []byte(head + begin + text + end + tail), nil
}

// settingsTable is the table in Markdown. The prefix is told in the text around it.
func settingsTable(table []config.Setting) string {
	var b strings.Builder
	b.WriteString("| variable | default | meaning |\n|---|---|---|\n")
	for _, s := range table {
		def := "–"
		if s.Default != "" {
			def = "`" + s.Default + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", s.Name, cell(def), cell(s.Meaning))
	}
	return b.String()
}

// cell makes text fit into a table: bars would end it, and what stands in
// braces or angle brackets would be taken for markup by some readers.
func cell(text string) string {
	return strings.NewReplacer("|", `\|`, "<", "&lt;", "\n", " ").Replace(text)
}
