package check

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/util/teststorage"
	"go.yaml.in/yaml/v3"
)

// history is a Prometheus that has scraped kvrelay twice, a minute apart.
type history struct {
	store  *teststorage.TestStorage
	engine *promql.Engine
	parser parser.Parser
	labels map[string]map[string]bool // names of labels by name of series
	now    time.Time
}

func newHistory(t *testing.T) *history {
	t.Helper()
	h := &history{
		store: teststorage.New(t), engine: promqltest.NewTestEngine(t, false, 0, 1_000_000),
		parser: parser.NewParser(parser.Options{}), labels: map[string]map[string]bool{}, now: time.Unix(1_700_000_000, 0),
	}
	w := scrapes(t)
	h.scrape(t, w.first, h.now.Add(-time.Minute))
	h.scrape(t, w.second, h.now)
	return h
}

func (h *history) scrape(t *testing.T, text []byte, at time.Time) {
	t.Helper()
	p := expfmt.NewTextParser(model.LegacyValidation)
	families, err := p.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	samples, err := expfmt.ExtractSamples(&expfmt.DecodeOptions{Timestamp: model.TimeFromUnixNano(at.UnixNano())}, slices.Collect(maps.Values(families))...)
	if err != nil {
		t.Fatal(err)
	}
	app := h.store.Appender(t.Context())
	for _, s := range samples {
		series := map[string]string{"job": "kvrelay", "instance": "pod-1"}
		for name, value := range s.Metric {
			series[string(name)] = string(value)
		}
		name := series[model.MetricNameLabel]
		if h.labels[name] == nil {
			h.labels[name] = map[string]bool{}
		}
		for l := range series {
			h.labels[name][l] = true
		}
		if _, err := app.Append(0, labels.FromMap(series), at.UnixMilli(), float64(s.Value)); err != nil {
			t.Fatal(err)
		}
	}
	if err := app.Commit(); err != nil {
		t.Fatal(err)
	}
}

// check parses a query, looks its metrics and labels up in the scrape, and asks it.
func (h *history) check(t *testing.T, where, query string) (rows int) {
	t.Helper()
	expr, err := h.parser.ParseExpr(query)
	if err != nil {
		t.Errorf("%s: %v\n%s", where, err, query)
		return 0
	}
	parser.Inspect(expr, func(n parser.Node, path []parser.Node) error {
		if a, ok := n.(*parser.AggregateExpr); ok && !a.Without {
			h.grouped(t, where, a)
		}
		v, ok := n.(*parser.VectorSelector)
		if !ok {
			return nil
		}
		have := h.labels[v.Name]
		if have == nil {
			t.Errorf("%s: a scrape has no %s", where, v.Name)
			return nil
		}
		for _, m := range v.LabelMatchers {
			if !have[m.Name] {
				t.Errorf("%s: %s has no label %s", where, v.Name, m.Name)
			}
		}
		counter := strings.HasSuffix(v.Name, "_total") || strings.HasSuffix(v.Name, "_bucket")
		rated := slices.ContainsFunc(path, func(n parser.Node) bool {
			c, ok := n.(*parser.Call)
			return ok && (c.Func.Name == "rate" || c.Func.Name == "increase")
		})
		if counter != rated {
			t.Errorf("%s: %s is a counter: %v, and rate or increase is taken of it: %v", where, v.Name, counter, rated)
		}
		return nil
	})
	q, err := h.engine.NewInstantQuery(t.Context(), h.store, nil, query, h.now)
	if err != nil {
		t.Errorf("%s: %v", where, err)
		return 0
	}
	defer q.Close()
	r := q.Exec(t.Context())
	if r.Err != nil || len(r.Warnings) > 0 {
		t.Errorf("%s: %v %v\n%s", where, r.Err, r.Warnings, query)
		return 0
	}
	vector, err := r.Vector()
	if err != nil {
		t.Errorf("%s: %v", where, err)
	}
	return len(vector)
}

// grouped: the labels that an aggregation keeps are there to be kept.
func (h *history) grouped(t *testing.T, where string, a *parser.AggregateExpr) {
	t.Helper()
	parser.Inspect(a.Expr, func(n parser.Node, _ []parser.Node) error {
		if v, ok := n.(*parser.VectorSelector); ok {
			for _, l := range a.Grouping {
				if !h.labels[v.Name][l] {
					t.Errorf("%s: by (%s), which %s does not have", where, l, v.Name)
				}
			}
		}
		return nil
	})
}

// TestAlertQueries: each alert asks for what a scrape has, and a kvrelay that is well fires none.
func TestAlertQueries(t *testing.T) {
	text, err := os.ReadFile("../alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Groups []struct {
			Rules []struct{ Alert, Expr string }
		}
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	h := newHistory(t)
	n := 0
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			n++
			if rows := h.check(t, r.Alert, r.Expr); rows > 0 {
				t.Errorf("%s fires for a kvrelay that is well", r.Alert)
			}
			// Without its comparison it has something to compare.
			if q, err := h.compared(r.Expr); err != nil {
				t.Errorf("%s: %v", r.Alert, err)
			} else if rows := h.check(t, r.Alert, q); rows == 0 {
				t.Errorf("%s compares nothing: %s", r.Alert, q)
			}
		}
	}
	if n < 10 {
		t.Errorf("%d alerts", n)
	}
}

// compared is the left side of a query's outermost comparison.
func (h *history) compared(query string) (string, error) {
	expr, err := h.parser.ParseExpr(query)
	if err != nil {
		return "", err
	}
	for {
		b, ok := expr.(*parser.BinaryExpr)
		if !ok {
			return "", fmt.Errorf("no comparison in %s", query)
		}
		if b.Op.IsComparisonOperator() {
			return b.LHS.String(), nil
		}
		expr = b.LHS
	}
}
