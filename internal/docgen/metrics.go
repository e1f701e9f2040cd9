package main

import (
	"fmt"
	"strings"

	"github.com/kvrelay/kvrelay/convert"
	"github.com/kvrelay/kvrelay/internal/admin"
)

// metricsTable is the table of metrics in Markdown. Drop reasons have a table of their own.
func metricsTable(metrics []admin.Metric) string {
	var b strings.Builder
	b.WriteString("| metric | type | labels | meaning |\n|---|---|---|---|\n")
	for _, m := range metrics {
		labels := make([]string, 0, len(m.Labels))
		for _, l := range m.Labels {
			text := "`" + l.Name + "`"
			if len(l.Values) > 0 && l.Name != "reason" {
				text += ": " + strings.Join(l.Values, ", ")
			}
			labels = append(labels, text)
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", m.Name, m.Type, orDash(strings.Join(labels, "; ")), cell(m.Help))
	}
	return b.String()
}

// reasonsTable explains why events are dropped, in the order of the code.
func reasonsTable() string {
	texts := admin.DropReasons()
	var b strings.Builder
	b.WriteString("| reason | what was dropped |\n|---|---|\n")
	for r := range convert.NumReasons {
		fmt.Fprintf(&b, "| `%s` | %s |\n", r, cell(texts[r.String()]))
	}
	return b.String()
}

func orDash(text string) string {
	if text == "" {
		return "–"
	}
	return text
}
