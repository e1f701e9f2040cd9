package main

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// The README's first command, shortened: it ends by itself, with the router's
// picture equal to the engine's cache although events were dropped.
func TestDemo(t *testing.T) {
	var out, errs bytes.Buffer
	code := runDemo(t.Context(), []string{"-for", "3s", "-rate", "200", "-fault", "drop=0.2"}, nil, &out, &errs)
	if code != exitOK {
		t.Fatalf("exit code %d\n%s%s", code, errs.String(), out.String())
	}
	for _, want := range []string{"kvrelay tail --nats-url nats://", "batches/s", "equals the engine's cache", " 0 missed"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in:\n%s", want, out.String())
		}
	}
	if strings.Contains(out.String(), "\x1b") || strings.Contains(out.String(), " 0 of them dropped") {
		t.Errorf("plain output with escapes, or nothing was dropped:\n%s", out.String())
	}
}

func TestDemoEndsWhenInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(300*time.Millisecond, cancel)
	var out, errs bytes.Buffer
	if code := runDemo(ctx, []string{"-fault", ""}, nil, &out, &errs); code != exitOK {
		t.Fatalf("exit code %d\n%s%s", code, errs.String(), out.String())
	}
}

func TestDemoUsage(t *testing.T) {
	for _, c := range []struct{ arg, want string }{
		{"-rate=0", "--rate=0: want more than 0"},
		{"-fault=nonsense", "nonsense"},
		{"more", "demo takes no arguments"},
	} {
		var out, errs bytes.Buffer
		if code := runDemo(t.Context(), []string{c.arg}, nil, &out, &errs); code != exitUsage || !strings.Contains(errs.String(), c.want) {
			t.Errorf("%s: exit code %d, %q", c.arg, code, errs.String())
		}
	}
}

func TestDemoPictureTellsTrouble(t *testing.T) {
	v := &demoView{out: &bytes.Buffer{}}
	f := demoFacts{elapsed: time.Second, state: "live", cached: sampleBlocks, believed: sampleBlocks, log: []string{strings.Repeat("x", 500)}}
	text := strings.Join(v.picture(f, 80), "\n")
	for _, want := range []string{"✓ equal", "100%", "faults: none"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	for _, l := range v.picture(f, 80) {
		if utf8.RuneCountInString(l) > 100 {
			t.Errorf("%d columns: %s", utf8.RuneCountInString(l), l)
		}
	}
	f.differs, f.believed = 3*time.Second, 0
	text = strings.Join(v.picture(f, 80), "\n")
	for _, want := range []string{"✗ different for 3 s", "…"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

func TestLastLines(t *testing.T) {
	l := &lastLines{keep: 2}
	for _, p := range []string{"a\nb", "c\n", "d\ne\nf"} {
		if _, err := l.Write([]byte(p)); err != nil {
			t.Fatal(err)
		}
	}
	if got := strings.Join(l.last(), " "); got != "d e" {
		t.Errorf("last lines %q, want %q", got, "d e")
	}
}
