package docs

import (
	"os"
	"regexp"
	"testing"
)

// TestToolchain: the image is built by the Go release that go.mod names for
// releases, which is the one that `make vuln` looks at.
func TestToolchain(t *testing.T) {
	find := func(file, pattern string) string {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		m := regexp.MustCompile(pattern).FindSubmatch(text)
		if m == nil {
			t.Fatalf("%s has no %s", file, pattern)
		}
		return string(m[1])
	}
	module := find("../go.mod", `(?m)^toolchain go(\S+)$`)
	if image := find("../Dockerfile", `(?m)^FROM .*golang:(\S+) AS build$`); image != module {
		t.Errorf("the Dockerfile builds with Go %s, go.mod names %s", image, module)
	}
}
