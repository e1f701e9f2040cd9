package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// logging are the packages whose lines a person sees while kvrelay runs.
var logging = []string{"../relay", "../sinks", "../discovery", "../internal/admin", "../internal/sdnotify", "../cmd/kvrelay"}

// others have commands of their own, which operations.md is not about.
var others = map[string]bool{
	"record.go": true, "play.go": true, "demo.go": true, "demo_view.go": true, "mock.go": true, "check.go": true, "tail.go": true,
}

// texts are the string literals of the packages, and the lines at level warn or error.
func texts(t *testing.T) (all string, lines map[string]string) {
	t.Helper()
	var b strings.Builder
	lines = map[string]string{}
	for _, dir := range append([]string{"../convert"}, logging...) {
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(parsed, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.BasicLit:
					b.WriteString(literal(n) + "\n")
				case *ast.CallExpr:
					f, ok := n.Fun.(*ast.SelectorExpr)
					if !ok || f.Sel.Name != "Warn" && f.Sel.Name != "Error" || len(n.Args) == 0 || others[filepath.Base(file)] {
						return true
					}
					first := n.Args[0]
					if sum, ok := first.(*ast.BinaryExpr); ok {
						first = sum.X
					}
					if l, ok := first.(*ast.BasicLit); ok && literal(l) != "" {
						lines[literal(l)] = file
					}
				}
				return true
			})
		}
	}
	return b.String(), lines
}

// literal is a string literal's text without backticks, which a page cannot have in code.
func literal(l *ast.BasicLit) string {
	if l.Kind != token.STRING {
		return ""
	}
	s, err := strconv.Unquote(l.Value)
	if err != nil {
		return ""
	}
	return strings.ReplaceAll(s, "`", "")
}

// TestLogLines: operations.md explains every line at level warn or error, and no
// other.
func TestLogLines(t *testing.T) {
	page, err := os.ReadFile("operations.md")
	if err != nil {
		t.Fatal(err)
	}
	text, all := string(page), ""
	_, section, ok := strings.Cut(text, "\n## Log lines\n")
	section, _, ok2 := strings.Cut(section, "\n## Exit codes\n")
	if !ok || !ok2 {
		t.Fatal("operations.md has no section about log lines")
	}
	all, lines := texts(t)
	plain := strings.ReplaceAll(section, "`", "")
	for line, file := range lines {
		if !strings.Contains(plain, strings.TrimSpace(line)) {
			t.Errorf("%s logs %q, and operations.md does not explain it", file, line)
		}
	}
	rows := 0
	for row := range strings.Lines(section) {
		cell, ok := strings.CutPrefix(row, "| `")
		if !ok {
			continue
		}
		rows++
		cell, _, _ = strings.Cut(cell, " | ")
		cell = strings.Trim(strings.ReplaceAll(cell, "`", ""), " …")
		// What is counted there stands in the code as a verb of Printf.
		for n, part := range strings.FieldsFunc(strings.NewReplacer(" N ", "\x00", " M ", "\x00", "=N,", "\x00").Replace(cell), func(r rune) bool { return r == 0 }) {
			if !strings.Contains(all, strings.TrimSpace(part)) {
				t.Errorf("operations.md explains %q, and nothing logs that (part %d)", cell, n+1)
			}
		}
	}
	if rows < 20 || len(lines) < 15 {
		t.Errorf("%d rows for %d lines: the test no longer reads them", rows, len(lines))
	}
}
