package docs

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kvrelay/kvrelay/internal/admin"
)

// TestAlerts: operations.md says of each alert what to do, and of no other.
func TestAlerts(t *testing.T) {
	rules, err := os.ReadFile("monitoring/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	page := pages(t)["operations.md"]
	var have, told []string
	for _, m := range regexp.MustCompile(`(?m)^\s*- alert: (\w+)`).FindAllStringSubmatch(string(rules), -1) {
		have = append(have, m[1])
	}
	for _, m := range regexp.MustCompile("(?m)^\\| `(Kvrelay\\w+)` \\|").FindAllStringSubmatch(page, -1) {
		told = append(told, m[1])
	}
	slices.Sort(have)
	slices.Sort(told)
	if len(have) < 5 || !slices.Equal(have, told) {
		t.Errorf("the rules are %v, operations.md explains %v", have, told)
	}
}

// TestMetricsExist: kvrelay_… in a page is a metric.
func TestMetricsExist(t *testing.T) {
	known := map[string]bool{}
	for _, m := range admin.Metrics() {
		known[m.Name] = true
	}
	for name, text := range pages(t) {
		for _, metric := range regexp.MustCompile(`\bkvrelay_[a-z_]*[a-z]\b`).FindAllString(text, -1) {
			base := metric
			for _, suffix := range []string{"_bucket", "_sum", "_count"} {
				base = strings.TrimSuffix(base, suffix)
			}
			if !known[metric] && !known[base] {
				t.Errorf("%s: %s is no metric", name, metric)
			}
		}
	}
}
