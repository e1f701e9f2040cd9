package logging

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"
)

func TestFormats(t *testing.T) {
	for _, c := range []struct {
		format string
		json   bool
	}{{JSON, true}, {Auto, true}, {"", true}, {Text, false}} { // a buffer is no terminal
		var b bytes.Buffer
		log, _, err := New(&b, Options{Format: c.format})
		if err != nil {
			t.Fatal(err)
		}
		log.Info("gap healed", "engine", "tcp://h:1", "rank", 3, "took", 1500*time.Millisecond, "err", errors.New("because"))
		var line map[string]any
		if isJSON := json.Unmarshal(b.Bytes(), &line) == nil; isJSON != c.json {
			t.Errorf("%q wrote %s", c.format, b.String())
		}
		if c.json && (line["msg"] != "gap healed" || line["level"] != "INFO" || line["took"] != "1.5s" || line["rank"] != 3.0 || line["err"] != "because") {
			t.Errorf("%q wrote %s", c.format, b.String())
		}
		for _, part := range []string{"gap healed", "tcp://h:1", "1.5s", "because"} {
			if !strings.Contains(b.String(), part) {
				t.Errorf("%q wrote %s without %s", c.format, b.String(), part)
			}
		}
		if strings.ContainsRune(b.String(), '\x1b') {
			t.Errorf("%q wrote colours into a file: %q", c.format, b.String())
		}
	}
}

func TestLevels(t *testing.T) {
	for level, want := range map[string]int{"debug": 4, "": 3, "info": 3, "warn": 2, "ERROR": 1} {
		var b bytes.Buffer
		log, _, err := New(&b, Options{Level: level})
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range []slog.Level{slog.LevelDebug, slog.LevelInfo, slog.LevelWarn, slog.LevelError} {
			log.Log(t.Context(), l, "x")
		}
		if got := strings.Count(b.String(), "\n"); got != want {
			t.Errorf("%q wrote %d lines, want %d", level, got, want)
		}
	}
}

func TestBadOptions(t *testing.T) {
	for _, o := range []Options{{Level: "loud"}, {Format: "xml"}} {
		if _, _, err := New(&bytes.Buffer{}, o); err == nil || !strings.Contains(err.Error(), "want ") {
			t.Errorf("%+v: %v", o, err)
		}
	}
}
