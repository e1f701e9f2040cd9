// Package check looks at the alert rules and the dashboard with Prometheus' and
// Grafana's own code, over real scrapes of a kvrelay that relays. It is a module of
// its own, so that kvrelay does not depend on either; `make test-monitoring` runs it.
package check
