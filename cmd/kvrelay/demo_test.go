package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
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

// The page that the demo names is there while it runs, and gone after it.
func TestDemoShowsItsPage(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	in, out := io.Pipe()
	ended := make(chan int, 1)
	var errs bytes.Buffer
	go func() {
		ended <- runDemo(ctx, []string{"-rate", "200"}, nil, out, &errs)
		out.Close()
	}()
	lines := bufio.NewScanner(in)
	url := ""
	for url == "" && lines.Scan() {
		_, _ = fmt.Sscanf(lines.Text(), "Status page: %s", &url) // other lines do not match
	}
	go func() {
		for lines.Scan() { // what it says goes nowhere, but is taken
		}
	}()
	var status struct {
		Ranks []struct{ State string }
	}
	for deadline := time.Now().Add(30 * time.Second); len(status.Ranks) == 0 || status.Ranks[0].State != "live"; time.Sleep(20 * time.Millisecond) {
		resp, err := http.Get(url + "/status")
		if err != nil {
			t.Fatalf("%q: %v", url, err)
		}
		err = json.NewDecoder(resp.Body).Decode(&status)
		resp.Body.Close()
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("%+v, %v", status, err)
		}
	}
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	page, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if err != nil || resp.StatusCode != http.StatusOK || !bytes.Contains(page, []byte("<html")) {
		t.Errorf("the page: %d, %v, %d bytes", resp.StatusCode, err, len(page))
	}
	http.DefaultClient.CloseIdleConnections()
	cancel()
	if code := <-ended; code != exitOK {
		t.Errorf("exit code %d: %s", code, errs.String())
	}
	if _, err := http.Get(url); err == nil {
		t.Error("the page outlives the demo")
	}
}

func TestDemoUsage(t *testing.T) {
	for _, c := range []struct{ arg, want string }{
		{"-rate=0", "--rate=0: want more than 0"},
		{"-rate=NaN", "--rate=NaN: want more than 0"},
		{"-for=-1s", "--for=\"-1s\": want a duration of 0 or more"},
		{"-for=5", "--for=\"5\": want a duration of 0 or more with its unit"},
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
