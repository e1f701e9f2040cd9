package check

import (
	"encoding/json"
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/prometheus"
	"github.com/grafana/grafana-foundation-sdk/go/stat"
	"github.com/grafana/grafana-foundation-sdk/go/timeseries"
)

const (
	columns      = 24 // of Grafana's grid
	maxDashboard = 64 // rows of it
)

// read decodes a dashboard into Grafana's types: no field that they do not have,
// none missing that they need.
func read(text []byte) (*dashboard.Dashboard, error) {
	runtime := cog.NewRuntime()
	runtime.RegisterPanelcfgVariant(stat.VariantConfig())
	runtime.RegisterPanelcfgVariant(timeseries.VariantConfig())
	runtime.RegisterDataqueryVariant(prometheus.VariantConfig())
	// Strictly for its problems only: where it has none the package returns an empty
	// list of them as an error, and leaves out the panels.
	var strict dashboard.Dashboard
	err := strict.UnmarshalJSONStrict(text)
	if problems, ok := errors.AsType[cog.BuildErrors](err); err != nil && (!ok || len(problems) > 0) {
		return nil, err
	}
	var d dashboard.Dashboard
	if err := json.Unmarshal(text, &d); err != nil {
		return nil, err
	}
	return &d, d.Validate()
}

func dashboardFile(t *testing.T) []byte {
	t.Helper()
	text, err := os.ReadFile("../dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestDashboardTypes(t *testing.T) {
	text := dashboardFile(t)
	d, err := read(text)
	if err != nil {
		t.Fatal(err)
	}
	if len(d.Panels) < 10 {
		t.Errorf("%d panels", len(d.Panels))
	}
	var taken [maxDashboard][columns]string
	for _, p := range d.Panels {
		if p.Panel == nil {
			t.Fatal("a panel that is none")
		}
		g := p.Panel.GridPos
		if g == nil || g.W == 0 || g.H == 0 || g.X+g.W > columns || g.Y+g.H > maxDashboard {
			t.Errorf("%s lies at %+v", *p.Panel.Title, g)
			continue
		}
		for y := g.Y; y < g.Y+g.H; y++ {
			for x := g.X; x < g.X+g.W; x++ {
				if taken[y][x] != "" {
					t.Fatalf("%s lies on %s", *p.Panel.Title, taken[y][x])
				}
				taken[y][x] = *p.Panel.Title
			}
		}
	}
	// The grid has no holes: what is below one would move up into it.
	for y, row := range taken {
		if row[0] == "" {
			break
		}
		for x, title := range row {
			if title == "" {
				t.Errorf("nothing at column %d of row %d", x, y)
			}
		}
	}
	for _, wrong := range [][2]string{{`"colorMode"`, `"colourMode"`}, {`"legendFormat"`, `"legend_format"`}, {`"h": 8`, `"height": 8`}} {
		bad := strings.Replace(string(text), wrong[0], wrong[1], 1)
		if _, err := read([]byte(bad)); err == nil || bad == string(text) {
			t.Errorf("%s passes", wrong[1])
		}
	}
}

var variable = regexp.MustCompile(`\$\{?(__)?\w+\}?`)

// expand puts what Grafana would for variables, as with one instance chosen.
func expand(query string) string {
	return strings.NewReplacer("$__rate_interval", "4m", "$job", "kvrelay", "$instance", "pod-1").Replace(query)
}

// TestDashboardQueries: each query is PromQL, asks for what a scrape has, and
// shows something of a kvrelay that relays.
func TestDashboardQueries(t *testing.T) {
	d, err := read(dashboardFile(t))
	if err != nil {
		t.Fatal(err)
	}
	h := newHistory(t)
	n := 0
	for _, p := range d.Panels {
		if p.Panel == nil {
			continue
		}
		for _, target := range p.Panel.Targets {
			q, ok := target.(*prometheus.Dataquery)
			if !ok || q.Expr == "" {
				t.Errorf("%s: a query of type %T", *p.Panel.Title, target)
				continue
			}
			n++
			text := expand(q.Expr)
			if left := variable.FindString(text); left != "" {
				t.Errorf("%s: nothing sets %s", *p.Panel.Title, left)
			}
			rows := h.check(t, *p.Panel.Title, text)
			if rows == 0 && !strings.HasSuffix(text, "> 0") {
				t.Errorf("%s shows nothing: %s", *p.Panel.Title, text)
			}
			if q.LegendFormat == nil {
				t.Errorf("%s has a query without legend", *p.Panel.Title)
				continue
			}
			if one := !strings.Contains(*q.LegendFormat, "{{"); one && rows > 1 {
				t.Errorf("%s: %d lines have the legend %q", *p.Panel.Title, rows, *q.LegendFormat)
			}
		}
	}
	if n < 10 {
		t.Errorf("%d queries", n)
	}
	for _, a := range d.Annotations.List {
		if a.Expr != nil {
			h.check(t, a.Name, expand(*a.Expr))
		}
	}
}

// TestVariables: what the dashboard's variables list is in the scrape.
func TestVariables(t *testing.T) {
	var d struct {
		Templating struct {
			List []struct {
				Name, Type string
				Query      any
			}
		}
	}
	if err := json.Unmarshal(dashboardFile(t), &d); err != nil {
		t.Fatal(err)
	}
	h := newHistory(t)
	values := regexp.MustCompile(`^label_values\((.+), (\w+)\)$`)
	n := 0
	for _, v := range d.Templating.List {
		if v.Type != "query" {
			continue
		}
		n++
		query, _ := v.Query.(string)
		m := values.FindStringSubmatch(query)
		if m == nil {
			t.Errorf("%s: %v", v.Name, v.Query)
			continue
		}
		if rows := h.check(t, v.Name, expand(m[1])); rows == 0 {
			t.Errorf("%s lists nothing", v.Name)
		}
	}
	if n == 0 {
		t.Error("no variable")
	}
}
