package sinks

import (
	"net/url"
	"strings"
	"testing"

	"github.com/kvrelay/kvrelay/internal/fuzzlimit"
)

func TestSubjects(t *testing.T) {
	for _, tc := range []struct {
		o    Options
		want string
	}{
		{Options{Profile: Dynamo}, "namespace.dyn.component.back.endpoint.gen.kv-events"},
		{Options{Profile: DynamoSingle}, "namespace.dyn.component.back.kv-events"},
		{Options{Profile: JSON}, "kvrelay.dyn.18446744073709551615.3.events"},
		{Options{Subject: "a.{dp_rank}.{worker_id}-x.{component}"}, "a.3.18446744073709551615-x.back"},
	} {
		tc.o.Namespace, tc.o.Component, tc.o.Endpoint = "dyn", "back", "gen"
		s, err := newSubject(&tc.o)
		if err != nil {
			t.Fatal(err)
		}
		if got := s.of(1<<64-1, 3); got != tc.want {
			t.Errorf("%+v: %s, want %s", tc.o, got, tc.want)
		}
	}
	o := Options{Namespace: "a.b c*>ü_-%", Component: "x", Endpoint: "y"}
	s, err := newSubject(&o)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := s.of(1, 0), "namespace.a%2Eb%20c%2A%3E%C3%BC_-%25.component.x.endpoint.y.kv-events"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestSubjectErrors(t *testing.T) {
	for tmpl, want := range map[string]string{
		"a.{rank}":                            "{rank} is unknown",
		"a.{dp_rank":                          "unbalanced",
		"a}.b":                                "unbalanced",
		"a..b":                                "empty segment",
		".a":                                  "empty segment",
		"a.*.b":                               "wildcard",
		"a.>":                                 "wildcard",
		"a b":                                 "space",
		"a.{endpoint}":                        "{endpoint} is used and empty",
		strings.Repeat("a", maxSubject) + "b": "longer",
	} {
		o := Options{Namespace: "n", Component: "c", Subject: tmpl}
		if _, err := newSubject(&o); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "SUBJECT") {
			t.Errorf("%.40q: %v, want %q", tmpl, err, want)
		}
	}
}

// FuzzSubject: whatever the settings hold, a subject that is accepted is one
// that NATS takes, and each value is one segment that decodes to itself.
func FuzzSubject(f *testing.F) {
	f.Add("{namespace}.{component}", "a", "b")
	f.Add("", "a.b", ">")
	f.Add("x.{dp_rank}}", "", "\x00")
	f.Fuzz(func(t *testing.T, tmpl, ns, comp string) {
		o := Options{Subject: tmpl, Namespace: ns, Component: comp, Endpoint: "e"}
		fuzzlimit.Run(t, len(tmpl)+len(ns)+len(comp), func() { _, _ = newSubject(&o) })
		s, err := newSubject(&o)
		if err != nil {
			return
		}
		if err := checkSubject(s.of(0, 0)); err != nil {
			t.Fatalf("%q: %v", s.of(0, 0), err)
		}
		if strings.ContainsAny(escape(ns), ".*> ") {
			t.Fatalf("escape(%q) = %q", ns, escape(ns))
		}
		if back, err := url.PathUnescape(escape(ns)); err != nil || back != ns {
			t.Fatalf("escape(%q) = %q", ns, escape(ns))
		}
	})
}
