package integration

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvrelay/kvrelay/internal/capture"
)

func capturePath(name string) string {
	return filepath.Join("testdata", "captures", name+".jsonl.gz")
}

func loadCapture(t testing.TB, name string) *capture.Capture {
	t.Helper()
	c, err := capture.Load(capturePath(name))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// captureNames are all captures in testdata.
func captureNames(t testing.TB) []string {
	t.Helper()
	files, err := filepath.Glob(capturePath("*"))
	if err != nil || len(files) < 27 {
		t.Fatalf("%d captures (%v), want all", len(files), err)
	}
	var out []string
	for _, f := range files {
		out = append(out, strings.TrimSuffix(filepath.Base(f), ".jsonl.gz"))
	}
	return out
}
