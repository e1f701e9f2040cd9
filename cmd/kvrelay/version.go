package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"strings"
)

const versionHelp = `
Usage: kvrelay version

Shows the version, the commit it was built from, and the Go release.`

// runVersion shows what was built.
func runVersion(_ context.Context, args []string, _ io.Reader, stdout, stderr io.Writer) int {
	fs := flag.NewFlagSet("version", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	switch err := fs.Parse(args); {
	case err == flag.ErrHelp:
		fmt.Fprintln(stdout, versionHelp[1:])
		return exitOK
	case err != nil || fs.NArg() > 0:
		fmt.Fprintln(stderr, "kvrelay version: it takes no arguments")
		return exitUsage
	}
	info, _ := debug.ReadBuildInfo() // nil in a binary without modules
	fmt.Fprintln(stdout, versionText(info))
	return exitOK
}

// versionText is kvrelay v1.2.3 (commit 1234567890ab, 2026-01-02T03:04:05Z, modified), go1.26.0 linux/amd64.
func versionText(info *debug.BuildInfo) string {
	version := "(unknown)"
	var from []string
	if info != nil {
		if info.Main.Version != "" {
			version = info.Main.Version
		}
		stamp := map[string]string{}
		for _, s := range info.Settings {
			stamp[s.Key] = s.Value
		}
		if commit := stamp["vcs.revision"]; commit != "" {
			from = append(from, "commit "+commit[:min(12, len(commit))])
		}
		if when := stamp["vcs.time"]; when != "" {
			from = append(from, when)
		}
		if stamp["vcs.modified"] == "true" {
			from = append(from, "modified")
		}
	}
	text := "kvrelay " + version
	if len(from) > 0 {
		text += " (" + strings.Join(from, ", ") + ")"
	}
	return text + ", " + runtime.Version() + " " + runtime.GOOS + "/" + runtime.GOARCH
}
