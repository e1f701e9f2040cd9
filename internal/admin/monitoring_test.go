package admin

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	// selector is a metric's name and what stands in its braces, if any.
	selector = regexp.MustCompile(`(kvrelay_[a-z_]+)(?:\{([^}]*)\})?`)
	// matcher is one label and the value it is compared with.
	matcher = regexp.MustCompile(`([a-z_]+)(=~|!=|=)"([^"]*)"`)
)

// checkQuery fails for metrics, labels and label values that kvrelay does not have.
func checkQuery(t *testing.T, where, query string) (found int) {
	t.Helper()
	known := map[string]Metric{}
	for _, m := range Metrics() {
		known[m.Name] = m
		if m.Type == histogram {
			known[m.Name+"_bucket"] = m
		}
	}
	for _, s := range selector.FindAllStringSubmatch(query, -1) {
		m, ok := known[s[1]]
		if !ok {
			t.Errorf("%s: kvrelay has no metric %s", where, s[1])
			continue
		}
		found++
		for _, c := range matcher.FindAllStringSubmatch(s[2], -1) {
			if c[1] == "job" || c[1] == "instance" || c[1] == "le" { // Prometheus' own
				continue
			}
			i := slices.IndexFunc(m.Labels, func(l Label) bool { return l.Name == c[1] })
			if i < 0 || m.Labels[i].Values != nil && !slices.Contains(m.Labels[i].Values, c[3]) {
				t.Errorf("%s: %s has no series with %s", where, s[1], c[0])
			}
		}
	}
	return found
}

// The alert rules ask for what kvrelay has, each is tested, and each needs no
// other metric than its test gives. What they do is promtool's to test.
func TestAlertRules(t *testing.T) {
	rules, err := os.ReadFile("../../docs/monitoring/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	tests, err := os.ReadFile("../../docs/monitoring/alerts_test.yaml")
	if err != nil {
		t.Fatal(err)
	}
	alert, alerts := "", 0
	for line := range strings.Lines(string(rules)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		switch key {
		case "- alert":
			alert = value
			alerts++
			if !strings.Contains(string(tests), `alertname="`+alert+`"`) {
				t.Errorf("%s is not tested", alert)
			}
		case "expr":
			if checkQuery(t, alert, value) == 0 {
				t.Errorf("%s asks for no metric of kvrelay: %s", alert, value)
			}
		}
	}
	if alerts < 10 {
		t.Errorf("%d alerts", alerts)
	}
	checkQuery(t, "alerts_test.yaml", string(tests))
}

func TestDashboard(t *testing.T) {
	raw, err := os.ReadFile("../../docs/monitoring/dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var d struct {
		Panels []struct {
			ID      int
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(raw, &d); err != nil {
		t.Fatal(err)
	}
	ids := map[int]bool{}
	for _, p := range d.Panels {
		if ids[p.ID] || p.Title == "" || len(p.Targets) == 0 {
			t.Errorf("panel %+v", p)
		}
		ids[p.ID] = true
		for _, q := range p.Targets {
			if checkQuery(t, p.Title, q.Expr) == 0 && !strings.Contains(q.Expr, "process_") {
				t.Errorf("%s asks for no metric of kvrelay: %s", p.Title, q.Expr)
			}
		}
	}
	if len(d.Panels) < 10 {
		t.Errorf("%d panels", len(d.Panels))
	}
}
