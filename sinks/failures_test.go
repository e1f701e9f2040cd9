package sinks

import "testing"

// Each connection that cannot be made is counted.
func TestFailuresAreCounted(t *testing.T) {
	p, err := New(Options{Servers: []string{"nats://127.0.0.1:1"}, Namespace: "n", Component: "c", Endpoint: "e"})
	if err != nil {
		t.Fatal(err)
	}
	run(t, p)
	eventually(t, "two failures", func() bool { return p.State().Failures >= 2 })
	if s := p.State(); s.Connected || s.Reconnects != 0 || s.LastError == "" {
		t.Errorf("state %+v", s)
	}
}
