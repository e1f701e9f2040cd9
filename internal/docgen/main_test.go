package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvrelay/kvrelay/config"
	"github.com/kvrelay/kvrelay/convert"
	"github.com/kvrelay/kvrelay/internal/admin"
)

const doc = "before\n<!-- settings: made by `make generate`, do not edit -->\nold\n<!-- end of settings -->\nafter\n"

// The documents must say what the code does.
func TestDocumentsAreUpToDate(t *testing.T) {
	t.Chdir("../..")
	var out strings.Builder
	if run([]string{"-check"}, &out) != 0 {
		t.Error(out.String())
	}
}

func TestRefresh(t *testing.T) {
	name := filepath.Join(t.TempDir(), "doc.md")
	if err := os.WriteFile(name, []byte(doc), 0o600); err != nil {
		t.Fatal(err)
	}
	d := document{name, []part{{"settings", settingsTable(config.Table())}}}
	if err := d.refresh(true); err == nil || !strings.Contains(err.Error(), "make generate") {
		t.Errorf("an old document passed: %v", err)
	}
	if got, _ := os.ReadFile(name); string(got) != doc {
		t.Errorf("a check changed the document: %s", got)
	}
	if err := d.refresh(false); err != nil {
		t.Fatal(err)
	}
	if err := d.refresh(true); err != nil {
		t.Errorf("a fresh document does not pass: %v", err)
	}
	got, _ := os.ReadFile(name)
	text := string(got)
	if !strings.HasPrefix(text, "before\n<!-- settings") || !strings.HasSuffix(text, "<!-- end of settings -->\nafter\n") || strings.Contains(text, "\nold\n") {
		t.Errorf("wrote %s", text)
	}
	for _, s := range config.Table() {
		if !strings.Contains(text, "| `"+s.Name+"` | ") {
			t.Errorf("%s is not in the table", s.Name)
		}
	}
}

func TestFillNeedsMarkers(t *testing.T) {
	for _, broken := range []string{"", strings.Replace(doc, "end of", "", 1), strings.Replace(doc, "settings:", "", 1)} {
		if got, err := fill([]byte(broken), "settings", "x"); err == nil {
			t.Errorf("%q became %q", broken, got)
		}
	}
}

func TestCellsStayInTheirTable(t *testing.T) {
	got := settingsTable([]config.Setting{{Name: "A", Default: "x|y", Meaning: "one | two\nthree <b>"}})
	if want := "| `A` | `x\\|y` | one \\| two three &lt;b> |\n"; !strings.HasSuffix(got, want) {
		t.Errorf("got %q, want %q at the end", got, want)
	}
}

func TestMetricsTable(t *testing.T) {
	got := metricsTable([]admin.Metric{
		{Name: "a_total", Type: "counter", Help: "One | two.", Labels: []admin.Label{{Name: "rank"}, {Name: "outcome", Values: []string{"x", "y"}}}},
		{Name: "b", Type: "gauge", Help: "B."},
	})
	for _, row := range []string{"| `a_total` | counter | `rank`; `outcome`: x, y | One \\| two. |\n", "| `b` | gauge | – | B. |\n"} {
		if !strings.Contains(got, row) {
			t.Errorf("no row %q in %s", row, got)
		}
	}
	if reasons := reasonsTable(); strings.Count(reasons, "\n") != 2+int(convert.NumReasons) || strings.Contains(reasons, "|  |") {
		t.Errorf("drop reasons:\n%s", reasons)
	}
}
